"""Board: a fork as it goes, one row an attempt. It reads the ledger and nothing else, so that whoever looks on from
another process sees the same: a table that moves on a terminal, lines elsewhere, and JSON lines for programs.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.display.output import Output, grid, printable
from forkwise.ledger.logs import follow_log

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from forkwise.ledger.ledger import LedgerReader
    from forkwise.ledger.records import AttemptRecord, Event, ForkRecord

__all__ = [
    "PACE",
    "Board",
    "LogFollower",
    "Plain",
    "Row",
    "attempt_record",
    "event_record",
    "rows_of",
    "tests_text",
    "time_text",
]


_ALL = 1 << 30  # bytes at one look: a log is shorter
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_BEGUN = re.compile(r"\x1b[^\x07]{0,80}\Z")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")


class Plain:
    r"""Turns what a program prints for a terminal into text, piece by piece: escapes go, what a carriage return prints
    over goes, and what a piece cuts in two waits for the rest.

    >>> plain = Plain()
    >>> plain.feed(b"\x1b[3"), plain.feed(b"1mred\x1b[0m caf\xc3"), plain.feed(b"\xa9\r\n10%\r20%\n")
    ('', 'red caf', 'é\n20%\n')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, piece: bytes) -> str:
        """The text of a piece."""
        text = _ESCAPE.sub("", self._rest + self._decoder.decode(piece))
        begun = _BEGUN.search(text)
        if begun is None and text.endswith("\r"):
            text, self._rest = text[:-1], "\r"
        elif begun is not None:
            text, self._rest = text[: begun.start()], begun[0]
        else:
            self._rest = ""
        text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n"))
        return "".join(c for c in text if c.isprintable() or c in "\n\t")


class LogFollower:
    """One attempt as it is heard: each line once, when it is whole; what is cut short at the end, when that is told."""

    def __init__(self, directory: Path, attempt: str) -> None:
        self._directory = directory
        self._attempt = attempt
        self._plain = Plain()
        self._heard = 0
        self._rest = ""

    def lines(self, *, is_over: bool = False) -> Iterator[str]:
        """The lines since the last look, without those that show nothing."""
        self._heard, piece = follow_log(self._directory, self._attempt, self._heard, tail=_ALL)
        *whole, self._rest = (self._rest + self._plain.feed(piece)).split("\n")
        if is_over:
            whole, self._rest = [*whole, self._rest], ""
        return (line.rstrip() for line in whole if line.strip())


PACE = 0.1
"""Seconds between two looks at the ledger."""

_GRACE = 10.0  # seconds that a decision is given to be committed
_WIDEST_LABEL = 32


@dataclass(frozen=True, slots=True)
class Row:
    """An attempt as the board shows it. ``depth`` is how many attempts it is inside of."""

    attempt: AttemptRecord
    depth: int
    has_won: bool

    def cells(self, now: float) -> dict[str, str]:
        """What stands in which column."""
        attempt = self.attempt
        return {
            "attempt": f"{'  ' * self.depth}{attempt.id}",
            "what": _short(attempt.label),
            "state": "won" if self.has_won else attempt.state,
            "time": "" if attempt.started is None else time_text((attempt.ended or now) - attempt.started),
            "files": "" if attempt.files is None else str(attempt.files),
            "tests": tests_text(attempt),
            "score": "" if attempt.score is None else f"{attempt.score:g}",
            "cost": _cost_text(attempt),
            "": (attempt.reason if attempt.is_over else None) or attempt.last_line or "",
        }


class Board:
    """The attempts of a fork and of those made inside it, shown while they run.

    Inside a ``with`` block, ``refresh`` shows what is new; ``follow`` does so until the fork no longer runs. ``spoken``
    is where what attempts print lies: with that, lines are printed also where a table could move, and what the attempts
    print is among them.
    """

    def __init__(
        self, ledger: LedgerReader, fork: str, output: Output, *, quiet: bool = False, spoken: Path | None = None
    ) -> None:
        self._ledger = ledger
        self._fork = ledger.fork(fork).id
        self._output = output
        self._quiet = quiet
        self._spoken = spoken
        self._voices: dict[str, LogFollower] = {}
        self._seen = 0
        self._forks = {self._fork}
        self._live: Live | None = None

    def __enter__(self) -> Board:
        if self._output.is_live and not self._quiet and self._spoken is None:
            from rich.live import Live

            self._live = Live(console=self._output.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def follow(self) -> ForkRecord:
        """Show it until it no longer runs; gives what it is then. What was decided a moment ago is being committed."""
        grace = _GRACE
        while True:
            fork = self.refresh()
            is_landing = fork.stored == "resolved" and fork.commit is None and fork.owner.alive and grace > 0
            if fork.state != "running" and not is_landing:
                return self.refresh()
            grace -= PACE if is_landing else 0.0
            time.sleep(PACE)

    def refresh(self) -> ForkRecord:
        """Show what is new; gives the fork as it is."""
        fork = self._ledger.fork(self._fork)
        if self._quiet:
            return fork
        if self._live is not None:
            self._live.update(self._moving(fork), refresh=True)
            return fork
        for event in self._new():
            if self._output.as_json:
                self._output.stream({"event": event_record(event)})
                continue
            self._heed_voice(event)
            if line := self._told(event):
                self._output.line(line)
        for name in self._voices:
            self._speak(name)
        return fork

    def summary(self) -> None:
        """Print the table of what came of each attempt."""
        self._output.line()
        columns, rows = self._table(("attempt", "what", "state", "time", "files", "tests", "score", "cost", ""))
        self._output.table(columns, rows, cut=True)

    def rows(self) -> list[Row]:
        """The attempts, those made inside another right after it."""
        return list(rows_of(self._ledger, self._ledger.fork(self._fork)))

    def _table(self, columns: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
        """Columns and cells, without the columns that have nothing to say."""
        now = time.time()
        rows = [row.cells(now) for row in self.rows()]
        told = [name for name in columns if name == "attempt" or _tells(name, {row[name] for row in rows})]
        return told, [[row[name] for name in told] for row in rows]

    def _moving(self, fork: ForkRecord) -> Group:
        from rich.console import Group
        from rich.text import Text

        columns, rows = self._table(("attempt", "what", "state", "time", "files", "tests", "cost", ""))
        console = self._output.console
        assert console is not None
        room = max(console.height - 4, 1)
        shown = rows if len(rows) <= room else _most_telling(rows, columns.index("state"), room)
        title = Text(f"{fork.kind} {fork.id}", style="bold")
        title.append(f"  {time_text((fork.ended or time.time()) - fork.started)}", style="dim")
        parts: list[Any] = [title, grid(columns, shown, cut=True)]
        if len(rows) > len(shown):
            parts.append(Text(f"and {len(rows) - len(shown)} more", style="dim"))
        return Group(*parts)

    def _new(self) -> Iterator[Event]:
        """What happened since the last look, in this fork and in those inside it."""
        for event in self._ledger.events(after=self._seen):
            self._seen = event.seq
            inside = (event.data.get("parent") or "").partition(".")[0] if event.kind == "begun" else ""
            if inside in self._forks:
                self._forks.add(event.fork)
            if event.fork in self._forks:
                yield event

    def _heed_voice(self, event: Event) -> None:
        """Listen to an attempt from its start to its end, whose last words come before it is told that it ended."""
        if self._spoken is None or event.attempt is None:
            return
        if event.kind == "started":
            self._voices[event.attempt] = LogFollower(self._spoken, event.attempt)
        elif event.kind in ("ended", "interrupted") and event.attempt in self._voices:
            self._speak(event.attempt, is_over=True)
            del self._voices[event.attempt]

    def _speak(self, attempt: str, *, is_over: bool = False) -> None:
        for line in self._voices[attempt].lines(is_over=is_over):
            self._output.line(f"{attempt}: {line}")

    def _told(self, event: Event) -> str:
        """An event as a line; nothing where there is none worth it."""
        match event.kind:
            case "begun" if event.fork == self._fork:
                return f"Fork {event.fork}: {event.data['kind']} in {event.data['workspace']}"
            case "begun":
                return f"{event.data['parent']} is forked as {event.fork}"
            case "started" if event.attempt is not None:
                return f"{event.attempt} started: {_short(self._ledger.attempt(event.attempt).label)}"
            case "ended" if event.attempt is not None:
                return _ended(self._ledger.attempt(event.attempt))
            case "unwanted":
                return f"{event.attempt} is to be ended: {event.data['unwanted']}"
            case "resolved" if event.data.get("winner"):
                return f"{event.data['winner']} won: {event.data['resolution']['how']}"
            case "opened":
                return f"{event.fork} waits for a pick"
            case "aborted":
                return f"{event.fork} was aborted: {event.data['resolution']['reason']}"
            case "committed" if event.fork == self._fork:
                return f"{event.fork} was committed as {event.data['commit']}"
            case "undone" | "redone" if event.fork == self._fork:
                return f"{event.fork} was {event.kind} by {event.data['undone'] or event.data['commit']}"
            case "adopted" if event.fork == self._fork:
                return f"{event.fork} was interrupted, and goes on"
        return ""


def _tells(column: str, cells: set[str]) -> bool:
    """Whether a column says anything; scores do where they differ."""
    return len(cells - {""}) > (column == "score")


def rows_of(ledger: LedgerReader, fork: ForkRecord, depth: int = 0) -> Iterator[Row]:
    """The attempts of a fork, those made inside another right after it."""
    for attempt in ledger.attempts(fork.id):
        yield Row(attempt, depth, attempt.id == fork.winner)
        for inner in ledger.children(attempt.id):
            yield from rows_of(ledger, inner, depth + 1)


def _most_telling(rows: list[list[str]], state: int, room: int) -> list[list[str]]:
    """As many rows as there is room for, in their order: those that run or won before those that do not."""
    rank = {"won": 0, "running": 1, "succeeded": 2}
    chosen = sorted(range(len(rows)), key=lambda i: (rank.get(rows[i][state], 3), i))[:room]
    return [rows[i] for i in sorted(chosen)]


def _ended(attempt: AttemptRecord) -> str:
    took = "" if attempt.started is None or attempt.ended is None else f" in {attempt.ended - attempt.started:.1f} s"
    facts = [
        attempt.reason or "",
        "" if attempt.files is None else f"{attempt.files} file{'' if attempt.files == 1 else 's'}",
        f"{tests} tests" if (tests := tests_text(attempt)) else "",
        "" if attempt.score in (None, 1.0) else f"score {attempt.score:g}",
        _cost_text(attempt),
    ]
    told = ", ".join(fact for fact in facts if fact)
    return f"{attempt.id} {attempt.state}{took}{': ' if told else ''}{told}"


def tests_text(attempt: AttemptRecord) -> str:
    """How many tests passed, of those that ran."""
    tests = attempt.tests
    if tests is None:
        return ""
    ran = tests["passed"] + tests["failed"] + tests["errors"]
    return f"{tests['passed']}/{ran}"


def _cost_text(attempt: AttemptRecord) -> str:
    usd = (attempt.cost or {}).get("usd")
    return f"${usd:.2f}" if isinstance(usd, int | float) else ""


def time_text(seconds: float) -> str:
    """A stretch of time as a clock shows it.

    >>> time_text(75.3), time_text(4000)
    ('1:15', '1:06:40')
    """
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _short(label: str) -> str:
    shown = printable(" ".join(label.split()))
    return shown if len(shown) <= _WIDEST_LABEL else f"{shown[: _WIDEST_LABEL - 1]}…"


def event_record(event: Event) -> dict[str, Any]:
    """An event of the ledger as JSON holds it."""
    return asdict(event)


def attempt_record(row: Row) -> dict[str, Any]:
    """An attempt as JSON holds it; what it printed is not part of that."""
    attempt = row.attempt
    tests = attempt.tests
    return {
        "id": attempt.id,
        "index": attempt.index,
        "label": attempt.label,
        "state": attempt.state,
        "won": row.has_won,
        "reason": attempt.reason,
        "exit_code": attempt.exit_code,
        "seconds": attempt.wall,
        "score": attempt.score,
        "scores": attempt.scores,
        "files": attempt.files,
        "tests": tests and {name: tests[name] for name in ("passed", "failed", "errors", "skipped", "doubt")},
        "cost": attempt.cost,
        "output_bytes": attempt.output_bytes,
    }
