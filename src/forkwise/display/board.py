"""The progress of a fork, one row per attempt: a live table on a terminal, lines elsewhere, JSON lines for programs.

Everything is read from the ledger and the attempts' logs, so that a process that only watches a fork shows the same as
the process that runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from forkwise.display.columns import Fit, cut_cell, fit_columns
from forkwise.display.output import Output, grid, printable
from forkwise.display.progress_line import WorkList
from forkwise.display.subject import build_redactor, has_stream
from forkwise.ledger.logs import follow_log
from forkwise.progress import listen
from forkwise.text.clean import TerminalCleaner, truncate_line
from forkwise.text.phrases import format_number, format_usd, join_first
from forkwise.text.redaction import process_redactor

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, Event, ForkRecord

__all__ = [
    "COMMIT_GRACE",
    "PACE",
    "Board",
    "LogFollower",
    "Row",
    "attempt_record",
    "cost_text",
    "edits_text",
    "event_record",
    "format_total",
    "rows_of",
    "sum_costs",
    "tests_text",
    "time_text",
    "usage_text",
]


_FIT = Fit(wrapped=("",), shortened=("label",), optional=("score", "git", "files", "cost", "time", "label"))
_WHOLE_LOG = 1 << 30  # bytes; logs are capped well below
_WIDEST_LABEL = 32
_MOST_EDITED = 3

COMMIT_GRACE = 10.0
"""Seconds to wait for a decided fork to be committed."""

PACE = 0.1
"""Seconds between two reads of the ledger."""


class LogFollower:
    """Reads the new lines of one attempt's log."""

    def __init__(self, log_directory: Path, attempt: str) -> None:
        self._log_directory = log_directory
        self._attempt = attempt
        self._cleaner = TerminalCleaner()
        self._offset = 0
        self._unfinished: list[str] = []  # the pieces of a line whose end has not arrived

    def lines(self, *, is_over: bool = False) -> Iterator[str]:
        """Return the complete lines since the last call, except blank ones; if ``is_over``, the unfinished one too."""
        self._offset, chunk = follow_log(self._log_directory, self._attempt, self._offset, tail=_WHOLE_LOG)
        first, *others = self._cleaner.feed(chunk).split("\n")
        self._unfinished.append(first)
        complete = []
        if others or is_over:
            complete = ["".join(self._unfinished), *others]
            self._unfinished = [] if is_over else [complete.pop()]
        return (line.rstrip() for line in complete if line.strip())


@dataclass(frozen=True, slots=True)
class Row:
    """An attempt as the board shows it. ``depth`` is the number of attempts it is nested in."""

    attempt: AttemptRecord
    depth: int
    has_won: bool

    def cells(self, now: float) -> dict[str, str]:
        """Return the text of each column."""
        attempt = self.attempt
        return {
            "attempt": f"{'  ' * self.depth}{attempt.id}",
            "label": _short_label(attempt.label),
            "state": "won" if self.has_won else attempt.state,
            "time": "" if attempt.started is None else time_text((attempt.ended or now) - attempt.started),
            "files": "none" if _is_idle(attempt) else "" if attempt.files is None else str(attempt.files),
            "git": attempt.git or "",
            "tests": tests_text(attempt),
            "score": "" if attempt.score is None else f"{attempt.score:g}",
            "cost": _cost_text(attempt),
            "": (attempt.reason if attempt.is_over else None) or attempt.last_line or "",
        }


class Board:
    """Shows the attempts of a fork, and of the forks nested in it, while they run.

    Inside a ``with`` block, ``refresh`` shows what is new; ``follow`` does so until the fork no longer runs. With
    ``log_directory``, the board prints lines even on a terminal, and among them the output of the attempts.
    """

    def __init__(
        self, ledger: Ledger, fork: str, output: Output, *, quiet: bool = False, log_directory: Path | None = None
    ) -> None:
        self._ledger = ledger
        self._fork = ledger.fork(fork).id
        self._output = output
        self._quiet = quiet
        self._log_directory = log_directory
        self._followers: dict[str, LogFollower] = {}
        self._seen: int | None = None
        self._forks = {self._fork}
        self._live: Live | None = None
        self._work = WorkList()
        self._stack = ExitStack()

    def __enter__(self) -> Board:
        if self._output.is_live and not self._quiet and self._log_directory is None:
            from rich.live import Live

            self._live = Live(console=self._output.console, auto_refresh=False, transient=True)
            self._live.start()
            self._stack.enter_context(listen(self._work))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def follow(self) -> ForkRecord:
        """Show the fork until it no longer runs and its winner is committed; return its last state."""
        grace_end: float | None = None
        with self._ledger.watch_changes() as watch:
            while True:
                fork = self.refresh()
                if fork.state != "running":
                    now = time.monotonic()
                    grace_end = now + COMMIT_GRACE if grace_end is None else grace_end
                    is_uncommitted = fork.stored == "resolved" and fork.commit is None and fork.owner.alive
                    if not is_uncommitted or now >= grace_end:
                        return self.refresh()
                watch.wait(PACE, 1.0)

    def refresh(self) -> ForkRecord:
        """Show what is new, and return the fork as it is now."""
        fork = self._ledger.fork(self._fork)
        if self._quiet:
            return fork
        if self._live is not None:
            self._live.update(self._live_table(fork), refresh=True)
            return fork
        for event in self._new_events():
            if self._output.as_json:
                self._output.stream({"event": event_record(event)})
                continue
            self._follow_log(event)
            self._print_steps(event)
            if line := self._event_line(event):
                self._output.line(line)
        for attempt in self._followers:
            self._print_log(attempt)
        return fork

    def summary(self) -> None:
        """Print the table of all attempts."""
        self._output.line()
        columns, rows = self._table(("attempt", "label", "state", "time", "files", "git", "tests", "score", "cost", ""))
        self._output.table(columns, rows, _FIT)
        if text := self.total_text():
            self._output.line(f"Together: {text}.")

    def total_text(self) -> str:
        """Format what the attempts cost together; empty if fewer than two have a known cost."""
        attempts = [row.attempt for row in self.rows() if row.attempt.cost]
        return format_total(sum_costs(attempts)) if len(attempts) > 1 else ""

    def rows(self) -> list[Row]:
        """Return the attempts; those nested in an attempt follow it."""
        return list(rows_of(self._ledger, self._ledger.fork(self._fork)))

    def _table(self, columns: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
        """Return columns and cells, without the empty columns."""
        now = time.time()
        rows = [row.cells(now) for row in self.rows()]
        used = [name for name in columns if name == "attempt" or _is_useful(name, {row[name] for row in rows})]
        return used, [[row[name] for name in used] for row in rows]

    def _live_table(self, fork: ForkRecord) -> Group:
        from rich.console import Group
        from rich.text import Text

        columns, rows = self._table(("attempt", "label", "state", "time", "files", "git", "tests", "cost", ""))
        console = self._output.console
        assert console is not None
        rows, heights = _shorten_running(columns, rows, console.width)
        limit = max(console.height - 4, 1)
        count = min(len(rows), limit)
        chosen = _most_important(rows, columns.index("state"), count)
        while count > 1 and sum(heights[i] for i in chosen) > limit:
            count -= 1
            chosen = _most_important(rows, columns.index("state"), count)
        shown = [rows[i] for i in chosen]
        title = Text(f"{fork.kind} {fork.id}", style="bold")
        title.append(f"  {time_text((fork.ended or time.time()) - fork.started)}", style="dim")
        if total := self.total_text():
            title.append(f"  {total}", style="dim")
        parts: list[Any] = [title, grid(columns, shown, _FIT, console.width)]
        if len(rows) > len(shown):
            parts.append(Text(f"and {len(rows) - len(shown)} more", style="dim"))
        if fork.edits:
            parts.append(Text(edits_text(fork.edits), style="dim", no_wrap=True, overflow="ellipsis"))
        if work := self._work.describe():
            parts.append(Text(work, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _new_events(self) -> Iterator[Event]:
        """Yield the events since the last call, of this fork and of the forks nested in it."""
        if self._seen is None:  # earlier forks may have many
            first = self._ledger.events(fork=self._fork, limit=1)
            self._seen = first[0].seq - 1 if first else 0
        for event in self._ledger.events(after=self._seen):
            self._seen = event.seq
            outer = (event.data.get("parent") or "").partition(".")[0] if event.kind == "begun" else ""
            if outer in self._forks:
                self._forks.add(event.fork)
            if event.fork in self._forks:
                yield event

    def _follow_log(self, event: Event) -> None:
        """Follow an attempt's log from start to end; print the last lines before the event that reports the end."""
        if self._log_directory is None or event.attempt is None:
            return
        if event.kind == "started" and not self._has_steps(event.attempt):
            self._followers[event.attempt] = LogFollower(self._log_directory, event.attempt)
        elif event.kind in ("ended", "interrupted") and event.attempt in self._followers:
            self._print_log(event.attempt, is_over=True)
            del self._followers[event.attempt]

    def _has_steps(self, attempt: str) -> bool:
        """Return whether an attempt prints a stream of events, whose steps are shown instead."""
        record = self._ledger.attempt(attempt)
        return has_stream(self._ledger.fork(record.fork), record)

    def _print_steps(self, event: Event) -> None:
        if self._log_directory is None or event.kind != "acted":
            return
        from forkwise.agents.agent_event import format_step

        for step in event.steps:
            for line in format_step(step).splitlines():
                self._output.line(f"{event.attempt}: {line}")

    def _print_log(self, attempt: str, *, is_over: bool = False) -> None:
        for line in self._followers[attempt].lines(is_over=is_over):
            self._output.line(f"{attempt}: {line}")

    def _event_line(self, event: Event) -> str:
        """Format an event as a line; return an empty text if it is not worth one."""
        match event.kind:
            case "begun" if event.fork == self._fork:
                return f"Fork {event.fork}: {event.data['kind']} in {event.data['workspace']}"
            case "begun":
                return f"{event.data['parent']} was forked as {event.fork}"
            case "measured":
                return f"Baseline: {event.data['baseline']['summary']}"
            case "started" if event.attempt is not None:
                return f"{event.attempt} started: {_short_label(self._ledger.attempt(event.attempt).label)}"
            case "ended" if event.attempt is not None:
                return _end_line(self._ledger.attempt(event.attempt))
            case "rejected":
                return f"{event.attempt} failed: {event.data['reason']}"
            case "edited" if event.fork == self._fork:
                return edits_text(event.data["edits"])
            case "withdrawn":
                return f"{event.fork} is undecided again: its winner {event.data['withdrawn']}"
            case "unwanted":
                return f"{event.attempt} is being stopped: {event.data['unwanted']}"
            case "resolved" if event.data.get("winner"):
                return f"{event.data['winner']} won: {event.data['resolution']['how']}"
            case "opened":
                return f"{event.fork} waits for a pick"
            case "aborted" if not self._ledger.attempts(event.fork):
                return f"{event.fork} was aborted before its first attempt"  # the command itself prints the reason
            case "aborted":
                return f"{event.fork} was aborted: {event.data['resolution']['reason']}"
            case "committed" if event.fork == self._fork:
                return f"{event.fork} was committed as {event.data['commit']}"
            case "undone" | "redone" if event.fork == self._fork:
                return f"{event.fork} was {event.kind} by {event.data['undone'] or event.data['commit']}"
            case "adopted" if event.fork == self._fork:
                return f"{event.fork} was interrupted; resuming"
        return ""


def edits_text(edits: Mapping[str, Any], *, most: int = _MOST_EDITED) -> str:
    """Format which paths of the workspace other programs changed while a fork ran, ``most`` of them by name.

    >>> edits_text({"paths": ["a.txt", "src/", "b", "c", "d"], "more": False})
    'Changed in the workspace meanwhile, by other programs: a.txt, src/, b and 2 more'
    """
    paths = edits["paths"]
    left = len(paths) - most
    more = "" if left <= 0 and not edits["more"] else f" and {'at least ' if edits['more'] else ''}{max(left, 1)} more"
    names = ", ".join(printable(path) for path in paths[:most])
    return f"Changed in the workspace meanwhile, by other programs: {names}{more}"


def _is_useful(column: str, cells: set[str]) -> bool:
    """Return whether a column has text; the scores must also differ."""
    return len(cells - {""}) > (column == "score")


def rows_of(ledger: Ledger, fork: ForkRecord, depth: int = 0) -> Iterator[Row]:
    """Yield the attempts of a fork; those nested in an attempt follow it."""
    for attempt in ledger.attempts(fork.id):
        yield Row(attempt, depth, attempt.id == fork.winner)
        for inner in ledger.children(attempt.id):
            yield from rows_of(ledger, inner, depth + 1)


def _most_important(rows: list[list[str]], state: int, limit: int) -> list[int]:
    """Return the positions of at most ``limit`` rows, preferring the winner, then those that run or succeeded."""
    rank = {"won": 0, "running": 1, "succeeded": 2}
    return sorted(sorted(range(len(rows)), key=lambda i: (rank.get(rows[i][state], 3), i))[:limit])


def _shorten_running(columns: list[str], rows: list[list[str]], width: int) -> tuple[list[list[str]], list[int]]:
    """Shorten the last output of running attempts to one line each, but not reasons; return rows and heights."""
    last, state = len(columns) - 1, columns.index("state")
    rows = [[*row[:last], printable(row[last])] for row in rows]
    room = fit_columns(columns, rows, width, _FIT).get(last, width)
    rows = [[*row[:last], cut_cell(row[last], room) if row[state] == "running" else row[last]] for row in rows]
    return rows, [max(len(wrap(row[last], max(room, 1))), 1) for row in rows]


def _end_line(attempt: AttemptRecord) -> str:
    took = "" if attempt.started is None or attempt.ended is None else f" in {attempt.ended - attempt.started:.1f} s"
    facts = [
        attempt.reason or "",
        _files_text(attempt),
        attempt.git or "",
        f"{tests} tests" if (tests := tests_text(attempt)) else "",
        *_test_notes(attempt),
        "" if attempt.score in (None, 1.0) else f"score {attempt.score:g}",
        _cost_text(attempt),
    ]
    details = ", ".join(fact for fact in facts if fact)
    return f"{attempt.id} {attempt.state}{took}{': ' if details else ''}{details}"


def _is_idle(attempt: AttemptRecord) -> bool:
    """Return whether to mention that an attempt changed nothing: only if it did not fail for another reason."""
    return bool(attempt.no_change) and (attempt.state == "succeeded" or attempt.reason == "no change")


def _files_text(attempt: AttemptRecord) -> str:
    if _is_idle(attempt):
        return "" if attempt.reason else "no change"
    return "" if attempt.files is None else format_number(attempt.files, "file")


def tests_text(attempt: AttemptRecord) -> str:
    """Format the number of tests that passed and that ran."""
    tests = attempt.tests
    if tests is None:
        return ""
    ran = tests["passed"] + tests["failed"] + tests["errors"]
    return f"{tests['passed']}/{ran}"


def _test_notes(attempt: AttemptRecord) -> list[str]:
    """Describe which tests an attempt fixed and broke, unless its reason says so already, and which ones it changed."""
    tests = attempt.tests or {}
    notes = []
    if tests.get("comparison") and attempt.reason is None:
        from forkwise.testing.report import Comparison

        notes.append(Comparison.from_json(tests["comparison"]).summary)
    if touched := tests.get("touched"):
        notes.append(f"changed {printable(join_first(touched, 1))}, which it is not judged by")
    return notes


def _cost_text(attempt: AttemptRecord) -> str:
    return cost_text(attempt.cost or {})


def sum_costs(attempts: Iterable[AttemptRecord]) -> dict[str, Any]:
    """Return the total cost of attempts; ``unpriced`` is the number of those whose tokens have no known price."""
    total: dict[str, Any] = {}
    for cost in (attempt.cost or {} for attempt in attempts):
        for name in ("usd", "input_tokens", "output_tokens"):
            if isinstance(cost.get(name), int | float):
                total[name] = total.get(name, 0) + cost[name]
        if cost and not isinstance(cost.get("usd"), int | float):
            total["unpriced"] = total.get("unpriced", 0) + 1
    return total


def cost_text(cost: Mapping[str, Any]) -> str:
    """Format the cost of one or several attempts: in dollars, or else in tokens; empty if neither is known.

    >>> cost_text({"usd": 0.0228, "input_tokens": 4800}), cost_text({"input_tokens": 4800, "output_tokens": 180})
    ('$0.02', '5.0k tokens')
    """
    usd = cost.get("usd")
    if isinstance(usd, int | float):
        return format_usd(usd)
    counts = [cost.get(name) for name in ("input_tokens", "output_tokens")]
    tokens = sum(count for count in counts if isinstance(count, int))
    return "" if not tokens else f"{tokens / 1e6:.1f}M tokens" if tokens >= 1e6 else f"{tokens / 1e3:.1f}k tokens"


def usage_text(verdict: Mapping[str, Any]) -> str:
    """Format what the judge of a fork has used, as its verdict records it; empty if it was not a model.

    >>> usage_text({"usage": {"requests": 2, "input_tokens": 900, "output_tokens": 50, "usd": 0.0012}})
    '2 requests, 950 tokens, $0.0012'
    """
    usage = verdict.get("usage") or {}
    if not usage.get("requests"):
        return ""
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    price = "" if usage.get("usd") is None else f", {format_usd(usage['usd'])}"
    return f"{format_number(usage['requests'], 'request')}, {tokens} tokens{price}"


def format_total(total: Mapping[str, Any]) -> str:
    """Format the sum of costs, and how many of them have no price.

    >>> format_total({"usd": 1.5, "input_tokens": 10, "output_tokens": 5, "unpriced": 1})
    '$1.50, 15 tokens, 1 without a known price'
    """
    price = cost_text({"usd": total["usd"]}) if "usd" in total else ""
    tokens = total.get("input_tokens", 0) + total.get("output_tokens", 0)
    unpriced = f"{total['unpriced']} without a known price" if price and total.get("unpriced") else ""
    return ", ".join(filter(None, [price, f"{tokens} tokens" if tokens else "", unpriced]))


def time_text(seconds: float) -> str:
    """Format a duration as a clock shows it.

    >>> time_text(75.3), time_text(4000)
    ('1:15', '1:06:40')
    """
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _short_label(label: str) -> str:
    return truncate_line(printable(" ".join(process_redactor().redact(label).split())), _WIDEST_LABEL)


def event_record(event: Event) -> dict[str, Any]:
    """Return an event of the ledger as a JSON value, without known secrets."""
    record: dict[str, Any] = build_redactor(event.data.get("spec")).redact_data(asdict(event))
    return record


_TEST_FIELDS = ("passed", "failed", "errors", "skipped", "doubt", "is_tampered", "comparison", "touched")


def attempt_record(row: Row) -> dict[str, Any]:
    """Return an attempt as a JSON value, without its output."""
    attempt = row.attempt
    tests = attempt.tests
    return {
        "id": attempt.id,
        "index": attempt.index,
        "label": process_redactor().redact(attempt.label),
        "agent": attempt.agent,
        "variation": process_redactor().redact_data(attempt.variation or {}),
        "state": attempt.state,
        "won": row.has_won,
        "reason": attempt.reason,
        "fault": attempt.fault,
        "exit_code": attempt.exit_code,
        "seconds": attempt.wall,
        "score": attempt.score,
        "scores": attempt.scores,
        "files": attempt.files,
        "git": attempt.git,
        "no_change": bool(attempt.no_change),
        "needs_ignored": attempt.needs_ignored or [],
        "tests": tests and {name: tests.get(name) for name in _TEST_FIELDS},
        "cost": attempt.cost,
        "session": attempt.session,
        "answer": attempt.answer,
        "output_bytes": attempt.output_bytes,
    }
