"""The page of a fork: its decision, attempts, tests, judges, diffs and output as one HTML document.

The document loads nothing and runs nothing: its policy forbids scripts, requests and forms, and allows one style sheet
by its hash. The size of each part is bounded, and the page says what it leaves out.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from forkwise.agents.agent_event import format_step
from forkwise.display.attempt_report import AttemptReport, ForkReport
from forkwise.display.board import usage_text
from forkwise.display.html.diff_table import ChangeSummary, describe_file, is_generated, render_diff
from forkwise.display.html.markup import Child, Markup, build_element, build_title, join_markup
from forkwise.display.output import size_text
from forkwise.ledger.stored_changes import StoredChanges
from forkwise.testing.report import TestFailure
from forkwise.text.clean import truncate, truncate_line, truncate_middle
from forkwise.text.diff import FileDiff
from forkwise.text.phrases import format_number, format_usd, join_first
from forkwise.text.redaction import redact

__all__ = [
    "build_file_head",
    "duration_text",
    "format_moment",
    "format_result",
    "render_facts",
    "render_failures",
    "render_judge",
    "render_matrix",
    "render_note",
    "render_page",
    "render_report",
    "render_state",
    "render_trouble",
    "render_verdict",
    "render_warnings",
]

_MAX_GOAL = 400
_MAX_TEXT = 600  # characters of a reason or a label
_MAX_ATTEMPTS = 100  # with details
_MAX_COLUMNS = 24  # attempts in the matrix of tests
_MAX_MATCHES = 60
_MAX_FILES = 150  # of one attempt
_MAX_FAILURES = 10
_MAX_OUTPUT = 12_000  # characters of one attempt
_MAX_WIDTH = 600  # characters of a line of output
_MAX_STEPS = 200  # of one attempt
_MAX_STEP = 200  # characters
_FILE_ROWS = 400
_GENERATED_ROWS = 60
_ATTEMPT_ROWS = 3000
_PAGE_ROWS = 20_000

_TONES = {"won": "good", "succeeded": "good", "failed": "bad", "faulted": "warn", "running": "warn"}
_SIGNS = {"won": "★ ", "succeeded": "✓ ", "failed": "✗ ", "faulted": "! ", "cancelled": "– "}
_MARKS = {
    "fixed": ("✓ fixed", "good"),
    "broken": ("✗ broken", "bad"),
    "still failing": ("○ still failing", "warn"),
    "own test fails": ("✗ own test", "bad"),
    "passed": ("passes", "idle"),
    "failed": ("✗ fails", "bad"),
    "skipped": ("skipped", "idle"),
    "missing": ("did not run", "warn"),
    "": ("–", "idle"),
}


def render_page(title: str, body: Child) -> str:
    """Render a complete document that loads nothing: ``body`` with the style sheet and the policy."""
    style, digest = _load_style()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = build_element(
        "head",
        build_element("meta", charset="utf-8"),
        build_element("meta", http_equiv="Content-Security-Policy", content=policy),
        build_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        build_element("meta", name="color-scheme", content="light dark"),
        build_element("meta", name="referrer", content="no-referrer"),
        build_title(title),
        build_element("style", Markup(style)),
    )
    return f"<!doctype html>\n{build_element('html', head, build_element('body', body), lang='en')}\n"


@cache
def _load_style() -> tuple[str, str]:
    style = files("forkwise.display.html").joinpath("page.css").read_text("utf-8")
    return style, base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def render_report(report: ForkReport, *, version: str) -> str:
    """Render the page of a fork."""
    fork = report.fork
    title = f"{truncate_line(report.goal, 80)} · forkwise {fork.kind} {fork.id}"
    body = build_element(
        "div",
        build_element("a", "Skip to the attempts", href="#attempts", class_="skip"),
        _render_top(report),
        build_element("main", *_render_sections(report)),
        build_element(
            "footer",
            f"Made by forkwise {version} on {format_moment(time.time())}. This page loads nothing and runs no "
            "script. Text from attempts is shown as it is; invisible characters appear as escapes.",
        ),
        class_="wrap",
    )
    return render_page(title, body)


def _render_top(report: ForkReport) -> Markup:
    fork = report.fork
    workspace = fork.workspace.rstrip("/").rpartition("/")[2] or fork.workspace
    return build_element(
        "header",
        build_element(
            "div",
            build_element("span", "forkwise", class_="brand"),
            build_element("span", f"{fork.kind} {fork.id}"),
            build_element("span", f"in {truncate(workspace, 80)}"),
            build_element("span", format_moment(fork.started)),
            class_="top",
        ),
        build_element("h1", truncate(report.goal.strip(), _MAX_GOAL), dir="auto"),
    )


def _render_sections(report: ForkReport) -> Iterator[Markup]:
    yield render_verdict(report)
    yield from render_warnings(report)
    matrix = render_matrix(report)
    judged = render_judge(report)
    jumps = {"attempts": "Attempts", "tests": matrix and "Tests", "judge": judged and "Judge", "details": "Changes"}
    links = [build_element("li", build_element("a", text, href=f"#{name}")) for name, text in jumps.items() if text]
    yield build_element("nav", build_element("ul", links, class_="jump"), aria_label="Parts of this page")
    yield build_element("h2", "Attempts", id="attempts")
    yield _render_attempts(report)
    if matrix:
        yield build_element("h2", "Tests", id="tests")
        yield matrix
    if judged:
        yield build_element("h2", "Judge", id="judge")
        yield judged
    yield build_element("h2", "Changes and output", id="details")
    yield from _render_details(report)


# The decision


def render_verdict(report: ForkReport) -> Markup:
    """Render the decision with a few figures."""
    fork, chosen = report.fork, report.chosen
    tone = (
        "good"
        if fork.winner is not None and fork.undone is None
        else "bad"
        if fork.state == "aborted" and chosen is None
        else "warn"
    )
    tests = None if chosen is None or chosen.tests is None else chosen.tests
    tiles: dict[str, str] = {
        "attempts": str(len(report.attempts)),
        "succeeded": str(report.states.get("succeeded", 0)),
        "time": duration_text(report.seconds),
        "cost": "" if report.usd is None else format_usd(report.usd),
        "tests": "" if tests is None or not tests.ran else f"{tests.passed}/{tests.ran}",
    }
    words = build_element(
        "div",
        build_element("h2", report.headline),
        build_element("p", truncate(_sentence(report.reason), _MAX_TEXT)) if report.reason else None,
    )
    return build_element(
        "section",
        words,
        render_facts(tiles, "tiles"),
        class_=f"card verdict {tone}",
        aria_label="Decision",
    )


def render_facts(facts: Mapping[str, str], name: str) -> Markup:
    """Render the facts that are known."""
    rows = [build_element("div", build_element("dt", k), build_element("dd", v)) for k, v in facts.items() if v]
    return build_element("dl", rows, class_=name)


def render_warnings(report: ForkReport) -> Iterator[Markup]:
    """Render warnings for the user's decision: failed judges, tampered tests, faults."""
    verdict = report.fork.verdict or {}
    failures = [str(text) for text in (*verdict.get("warnings", ()), *verdict.get("failures", ()))]
    if failures and report.fork.winner is None:
        text = "A judge failed, and several attempts have the same tests and scores. Nothing was committed: pick one."
        yield render_note("Undecided", [text, *failures])
    elif failures:
        yield render_note("A judge failed", failures)
    tampered = [a.record.id for a in report.attempts if a.tests is not None and a.tests.is_tampered]
    if tampered:
        text = "These attempts changed what reports their tests: their results do not count, and they cannot win."
        yield render_note(f"Tampered: {join_first(tampered, 20)}", [text], tone="bad")
    if faults := report.states.get("faulted", 0):
        text = "A fault of the machine, a service or a provider ended them. That is not counted against them."
        yield render_note(f"{format_number(faults, 'attempt')} could not be judged", [text])


def render_note(title: str, lines: Sequence[str], tone: str = "warn") -> Markup:
    """Render a title and a few lines that stand out."""
    texts = [build_element("div", truncate(redact(line), _MAX_TEXT)) for line in lines[:10]]
    return build_element("div", build_element("strong", title), texts, class_=f"note {tone}", role="note")


# The attempts


def _render_attempts(report: ForkReport) -> Markup:
    has_cost = any(attempt.usd is not None for attempt in report.attempts)
    columns = ["attempt", "state", "tests", "changes", "time", *(["cost"] if has_cost else []), "result"]
    numbers = ("time", "cost")
    heads = [
        build_element("th", name, scope="col", role="columnheader", class_="num" if name in numbers else None)
        for name in columns
    ]
    rows = []
    for number, attempt in enumerate(report.attempts, start=1):
        cells = _build_cells(attempt, number)
        row = [
            build_element(
                "td",
                cells[name],
                role="cell",
                data_label=None if name in ("attempt", "state") else name,
                class_="num" if name in numbers else None,
            )
            for name in columns
        ]
        rows.append(build_element("tr", row, role="row", class_="won" if attempt is report.chosen else None))
    table = build_element(
        "table",
        build_element("caption", "The attempts of this fork", class_="hush"),
        build_element("thead", build_element("tr", heads, role="row"), role="rowgroup"),
        build_element("tbody", rows, role="rowgroup"),
        class_="list",
        role="table",
    )
    return build_element("div", table, class_="card scroll")


def _build_cells(attempt: AttemptReport, number: int) -> dict[str, Child]:
    record, tests = attempt.record, attempt.tests
    seconds = attempt.seconds
    link = build_element("a", record.id, href=f"#a-{number}", class_="id")
    nested = build_element("span", link, class_=f"nest{min(attempt.row.depth, 3)}") if attempt.row.depth else link
    counted: Child = None
    if tests is not None and tests.ran:
        bar = build_element("progress", max=tests.ran, value=tests.passed, class_="bar", aria_hidden="true")
        counted = [bar, f"{tests.passed}/{tests.ran}"]
    elif tests is not None:
        counted = tests.summary
    return {
        "attempt": nested,
        "state": render_state(attempt),
        "tests": counted,
        "changes": _describe_changes(attempt),
        "time": "" if seconds is None else duration_text(seconds),
        "cost": "" if attempt.usd is None else format_usd(attempt.usd),
        "result": truncate(format_result(attempt), 200),
    }


def render_state(attempt: AttemptReport) -> Markup:
    """Render the state of an attempt in one word."""
    state = "won" if attempt.row.has_won else attempt.record.state
    label = "tampered" if attempt.tests is not None and attempt.tests.is_tampered else state
    return build_element("span", f"{_SIGNS.get(state, '')}{label}", class_=f"pill {_TONES.get(state, '')}".strip())


def _describe_changes(attempt: AttemptReport) -> str:
    if attempt.record.no_change:
        return "none"
    count = attempt.record.files
    files = "" if count is None else format_number(count, "file")
    return ", ".join(text for text in (files, attempt.record.git) if text)


def format_result(attempt: AttemptReport) -> str:
    """Describe the outcome of an attempt in a few words."""
    found = None if attempt.tests is None else attempt.tests.comparison
    if attempt.record.reason:
        return redact(attempt.record.reason)
    parts = [found.summary if found is not None else "", redact(attempt.record.last_line or "")]
    return "; ".join(part for part in parts if part)


# The tests


def render_matrix(report: ForkReport) -> Markup | None:
    """Render tests by attempts: those that some attempt fixed, broke or left failing."""
    if not report.tested:
        return None
    rows, more = report.build_matrix()
    baseline = (report.fork.baseline or {}).get("summary")
    intro = f"On the unchanged workspace: {baseline}. " if baseline else ""
    if not rows:
        text = f"{intro}No test was fixed, broken or left failing by any attempt that was tested."
        return build_element("p", text, class_="soft")
    shown = range(min(len(report.tested), _MAX_COLUMNS))
    heads = [build_element("th", "test", scope="col")]
    for index in shown:
        attempt = report.tested[index]
        number = attempt.record.id.rpartition(".")[2] if attempt.row.depth == 0 else attempt.record.id
        label = [build_element("span", "attempt ", class_="hush"), f".{number}" if attempt.row.depth == 0 else number]
        heads.append(build_element("th", label, scope="col", class_="won" if attempt is report.chosen else None))
    body = []
    for row in rows:
        cells: list[Child] = [build_element("th", _break_name(row.name), scope="row", dir="ltr")]
        for index in shown:
            text, tone = _MARKS[row.marks[index]]
            is_won = report.tested[index] is report.chosen
            cell = build_element("span", text, class_=f"m {tone}")
            cells.append(build_element("td", cell, class_="won" if is_won else None))
        body.append(build_element("tr", cells))
    table = build_element(
        "table",
        build_element("caption", "Tests by attempts", class_="hush"),
        build_element("thead", build_element("tr", heads)),
        build_element("tbody", body),
        class_="matrix",
    )
    notes = [
        f"{more} more tests are not listed." if more else "",
        f"{len(report.tested) - len(shown)} more attempts are not listed." if len(report.tested) > len(shown) else "",
        "All other tests passed in every attempt that was tested." if any(a.outcomes for a in report.tested) else "",
    ]
    return join_markup(
        [
            build_element("p", intro, class_="soft") if intro else None,
            build_element(
                "div",
                table,
                class_="card scroll",
                tabindex=0,
                role="region",
                aria_label="Tests by attempts, scrollable",
            ),
            build_element("p", " ".join(note for note in notes if note), class_="soft"),
        ]
    )


def _break_name(name: str) -> list[Child]:
    """Allow line breaks in a test's id after each separator."""
    parts = re.split(r"(?<=::)|(?<=/)|(?<=_)(?!_)", truncate_middle(name, 200))
    return [child for part in parts for child in (part, build_element("wbr"))][:-1]


# The judge


def render_judge(report: ForkReport) -> Markup | None:
    """Render what the judges said; None if there were none."""
    verdict = report.fork.verdict or {}
    votes = [vote for vote in verdict.get("votes") or () if isinstance(vote, dict)]
    used = usage_text(verdict)
    if not report.matches and not votes:
        return None
    parts: list[Child] = []
    for vote in votes[:10]:
        sure = vote.get("confidence")
        text = f" (confidence {sure:.2f})" if isinstance(sure, int | float) else ""
        judge = truncate(redact(str(vote.get("judge", ""))), 120)
        parts.append(build_element("p", build_element("code", judge), f" chose {vote.get('winner')}{text}."))
    if used:
        parts.append(build_element("p", f"It used {used}.", class_="soft"))
    rows = [_render_match(match) for match in report.matches[:_MAX_MATCHES]]
    if rows:
        heads = [build_element("th", name, scope="col") for name in ("between", "better", "confidence", "reason")]
        table = build_element(
            "table",
            build_element("caption", "Pairs that the judge compared", class_="hush"),
            build_element("thead", build_element("tr", heads)),
            build_element("tbody", rows),
            class_="list",
        )
        parts.append(build_element("div", table, class_="card scroll"))
    if len(report.matches) > _MAX_MATCHES:
        parts.append(
            build_element("p", f"{len(report.matches) - _MAX_MATCHES} more pairs are not listed.", class_="soft")
        )
    return join_markup(parts)


def _render_match(match: dict[str, Any]) -> Markup:
    between = match.get("between")
    pair = " and ".join(map(str, between)) if isinstance(between, list | tuple) else ""
    sure = match.get("confidence")
    doubt = match.get("doubt")
    reason = f"the judge failed: {doubt}" if doubt else str(match.get("reason") or "")
    cells: dict[str, Child] = {
        "between": pair,
        "better": str(match.get("winner") or "neither"),
        "confidence": f"{sure:.2f}" if isinstance(sure, int | float) and not doubt else "",
        "reason": truncate(redact(reason), _MAX_TEXT),
    }
    return build_element("tr", [build_element("td", cell, data_label=name) for name, cell in cells.items()])


# One attempt


def _render_details(report: ForkReport) -> Iterator[Markup]:
    numbered = list(enumerate(report.attempts, start=1))
    numbered.sort(key=lambda item: item[1] is not report.chosen)
    rows_left = _PAGE_ROWS
    for place, (number, attempt) in enumerate(numbered):
        if place >= _MAX_ATTEMPTS:
            rest = f"The details of {len(numbered) - place} more attempts are not on this page: forkwise show ATTEMPT."
            yield build_element("p", rest, class_="soft")
            return
        section, used = _render_attempt(attempt, number, is_open=attempt is report.chosen, rows=rows_left)
        rows_left -= used
        yield section


def _render_attempt(attempt: AttemptReport, number: int, *, is_open: bool, rows: int) -> tuple[Markup, int]:
    record = attempt.record
    changes = attempt.read_changes()
    diffs, used = _render_changes(changes, min(rows, _ATTEMPT_ROWS), is_open=is_open)
    if not diffs and record.no_change:
        diffs = [build_element("p", "It changed no file.", class_="soft")]
    elif changes is None and record.is_over:
        diffs = [build_element("p", "What it changed was not kept.", class_="soft")]
    usage = [
        "" if record.cpu is None else f"{record.cpu:.1f} s of CPU",
        "" if record.memory is None else f"{size_text(record.memory)} of memory",
    ]
    facts = {
        "exit code": "" if record.exit_code is None else str(record.exit_code),
        "time": "" if attempt.seconds is None else duration_text(attempt.seconds),
        "used": ", ".join(text for text in usage if text),
        "cost": "" if attempt.usd is None else format_usd(attempt.usd),
        "tests": "" if attempt.tests is None else attempt.tests.summary,
        "output": size_text(record.output_bytes) if record.output_bytes else "",
    }
    body = build_element(
        "div",
        render_facts(facts, "facts"),
        render_trouble(attempt),
        build_element("h3", "Changes"),
        diffs,
        render_failures(attempt),
        _render_steps(attempt),
        _render_output(attempt),
        class_="body",
    )
    head = build_element(
        "summary",
        build_element("span", record.id, class_="name"),
        render_state(attempt),
        build_element("span", truncate_line(attempt.label, 80), class_="soft", dir="auto"),
    )
    return build_element("details", head, body, class_="card attempt", id=f"a-{number}", open=is_open), used


def render_trouble(attempt: AttemptReport) -> Child:
    """Render why an attempt failed, or why its tests cannot be trusted."""
    notes: list[Markup] = []
    tests = attempt.tests
    if attempt.trouble and tests is not None:
        title = "Its tests were tampered with" if tests.is_tampered else "Its test results are in doubt"
        notes.append(render_note(title, [f"{_sentence(attempt.trouble)}"], "bad" if tests.is_tampered else "warn"))
    elif attempt.record.reason:
        notes.append(
            render_note(
                "Why it failed" if attempt.record.state == "failed" else "Why it ended",
                [_sentence(redact(attempt.record.reason))],
                "warn",
            )
        )
    if tests is not None and tests.touched:
        shown = ", ".join(tests.touched[:10]) + (" …" if len(tests.touched) > 10 else "")
        notes.append(render_note("It changed files that grade", [f"{shown}: it was judged without these changes."]))
    if attempt.record.needs_ignored:
        shown = ", ".join(attempt.record.needs_ignored[:10])
        notes.append(render_note("It passes only with ignored files", [f"{shown}: --include-ignored commits them."]))
    return notes


def render_failures(attempt: AttemptReport) -> Child:
    """Render the tests that fail in an attempt, with their messages."""
    tests = attempt.tests
    if tests is None or not tests.failures:
        return None
    shown = [_render_failure(failure) for failure in tests.failures[:_MAX_FAILURES]]
    more = tests.failing - len(shown)
    rest = build_element("p", f"{more} more failed.", class_="soft") if more > 0 else None
    return [build_element("h3", "Failing tests"), shown, rest]


def _render_failure(failure: TestFailure) -> Markup:
    name = build_element("code", truncate_middle(failure.name, 200), dir="ltr")
    if not failure.message.strip():
        return build_element("div", build_element("div", name, class_="bare"), class_="file")
    text = _bound_lines(truncate_middle(failure.message, 4000))
    return build_element("details", build_element("summary", name), build_element("pre", text), class_="file")


def _render_steps(attempt: AttemptReport) -> Child:
    """Render what an agent did, and its closing message."""
    parts: list[Child] = []
    steps, answer = list(attempt.steps), attempt.record.answer
    if answer and steps and steps[-1].get("kind") == "message" and steps[-1].get("text") == answer:
        steps.pop()
    lines = [line for step in steps if (line := truncate_line(format_step(step), _MAX_STEP))]
    if lines:
        title = "Steps" if len(lines) <= _MAX_STEPS else f"The last {_MAX_STEPS} of {len(lines)} steps"
        shown = truncate_middle(redact("\n".join(lines[-_MAX_STEPS:])), _MAX_OUTPUT)
        parts += [build_element("h3", title), build_element("pre", shown)]
    if answer:
        message = truncate_middle(_bound_lines(redact(answer)), _MAX_OUTPUT)
        parts += [build_element("h3", "Closing message"), build_element("pre", message, dir="auto")]
    return parts


def _render_output(attempt: AttemptReport) -> Child:
    """Render the end of the output; an agent's is folded, because its steps say the same."""
    text = attempt.read_output()
    if not text.strip():
        return None
    title = "End of the output" if attempt.record.output_bytes > len(text.encode(errors="replace")) + 1 else "Output"
    shown = build_element("pre", truncate_middle(_bound_lines(text), _MAX_OUTPUT))
    if attempt.has_steps:
        return build_element("details", build_element("summary", title), shown, class_="file")
    return [build_element("h3", title), shown]


def _bound_lines(text: str) -> str:
    return "\n".join(truncate(line, _MAX_WIDTH) for line in text.split("\n"))


# The diffs


def _render_changes(changes: StoredChanges | None, rows: int, *, is_open: bool) -> tuple[list[Markup], int]:
    """Render an attempt's changes in about ``rows`` rows at most; also return the number of rows."""
    if changes is None:
        return [], 0
    parts: list[Markup] = []
    used = 0
    for number, file in enumerate(changes.files):
        if number >= _MAX_FILES:
            text = f"{len(changes.files) - number + changes.unlisted} more changed files are not shown."
            parts.append(build_element("p", text, class_="soft"))
            break
        part, count = _render_file(file, rows - used, is_open=is_open and number < 20)
        parts.append(part)
        used += count
    contained = {file.path for file in changes.files}
    others = [change for change in changes.delta if change.path not in contained]
    if others:
        text = f"Also {join_first([truncate_middle(change.path, 120) for change in others], 20)}."
        parts.append(build_element("p", text, class_="soft"))
    if changes.is_redacted:
        parts.append(build_element("p", "Secrets in these files were replaced.", class_="soft"))
    executed = list(changes.delta.executable_config)
    if executed:
        lines = [f"{path}: {executor}" for path, executor in executed[:10]]
        parts.insert(0, render_note("This changes what a machine will run", lines))
    return parts, used


def _render_file(file: FileDiff, rows: int, *, is_open: bool) -> tuple[Markup, int]:
    found = describe_file(file)
    is_made = is_generated(file)
    limit = max(min(_GENERATED_ROWS if is_made else _FILE_ROWS, rows), 0)
    head = build_file_head(file, found, is_made=is_made)
    if found.note:
        return build_element("div", build_element("div", head, class_="bare"), class_="file"), 0
    table, left = render_diff(file, count=limit)
    rest = f"{left} more lines of this diff are not shown." if table else "This diff is left out: the page is full."
    more = build_element("p", rest, class_="more") if left else None
    opened = is_open and not is_made and bool(table)
    return build_element("details", build_element("summary", head), table, more, class_="file", open=opened), limit - (
        0 if left else max(limit - found.added - found.removed - 20, 0)
    )


def build_file_head(file: FileDiff, found: ChangeSummary, *, is_made: bool) -> list[Child]:
    """Build the line above a diff: path, kind, and counts."""
    words = [found.kind if found.kind != "changed" else "", found.mode, "generated" if is_made else "", found.note]
    counts: list[Child] = []
    if not found.note:
        counts.append(build_element("span", f"+{found.added}", class_="plus"))
        counts.append(build_element("span", f"−{found.removed}", class_="minus"))
    return [
        build_element("span", truncate_middle(file.path, 300), class_="path", dir="ltr"),
        build_element("span", ", ".join(word for word in words if word), class_="soft"),
        *counts,
    ]


# Words


def duration_text(seconds: float) -> str:
    """Format a duration in words.

    >>> duration_text(0.44), duration_text(75.3), duration_text(4000)
    ('0.4 s', '1 min 15 s', '1 h 6 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute} min" if hours else f"{minute} min {second} s"


def format_moment(timestamp: float) -> str:
    """Format a time as date and time of day."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
