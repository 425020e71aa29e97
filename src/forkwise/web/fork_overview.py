"""Fork overview: the page of a fork with one column per attempt, their tests, files and output, and charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from forkwise.agents.agent_event import format_step
from forkwise.display.html.diff_table import is_generated
from forkwise.display.html.fork_page import (
    duration_text,
    format_moment,
    format_result,
    render_facts,
    render_failures,
    render_judge,
    render_matrix,
    render_note,
    render_state,
    render_trouble,
    render_verdict,
    render_warnings,
)
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.display.output import size_text
from forkwise.errors import LedgerError
from forkwise.ledger.logs import list_server_logs, read_log_part
from forkwise.text.clean import TerminalCleaner, truncate, truncate_line, truncate_middle
from forkwise.text.phrases import format_number, format_usd
from forkwise.text.redaction import redact
from forkwise.web.page_shell import build_panel, render_shell

if TYPE_CHECKING:
    from forkwise.display.attempt_report import AttemptReport
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import ForkView

__all__ = [
    "build_trail",
    "render_attempt_panel",
    "render_attempts",
    "render_files",
    "render_fork",
    "render_output",
    "render_output_part",
]

_FILES_IN_COLUMN = 8
_MAX_STEPS = 200
PART_SIZE = 32 << 10  # bytes of output that are asked for at once
_LONGEST_LINE = 2 << 10  # bytes of the next part to search for the end of a part's last line
_LIVE = "sse:fork"
_PROGRESS = "sse:fork, sse:progress"


def build_trail(view: ForkView, *last: str) -> Child:
    """Build the links that lead to a page of a fork."""
    names = [view.served.name, view.report.fork.id, *last]
    addresses = ["/", view.path, *[None for _ in last]]
    return [
        [build_element("span", "/", aria_hidden="true"), build_element("a", name, href=address) if address else name]
        for name, address in zip(names, addresses, strict=True)
    ]


def render_fork(view: ForkView, visitor: Visitor, *, actions: Child, pictures: Child, talk: Child) -> str:
    """Render the page of a fork."""
    goal = truncate(view.report.goal.strip(), 400)
    moment = format_moment(view.report.fork.started)
    body = [
        build_element("p", f"{view.report.fork.kind} {view.report.fork.id} · {moment}", class_="soft small"),
        build_element("h1", goal, dir="auto"),
        render_attempt_panel(view, "verdict"),
        actions,
        build_element("h2", "Attempts", id="attempts"),
        render_attempt_panel(view, "columns"),
        pictures,
        render_attempt_panel(view, "tests"),
        talk,
    ]
    title = f"{truncate_line(goal, 60)} · forkwise"
    return render_shell(title, body, visitor, events=view.events, trail=build_trail(view))


def render_attempt_panel(view: ForkView, name: str) -> Markup:
    """Render one of the parts of the page that follow the fork: ``verdict``, ``columns`` or ``tests``."""
    content: list[Child]
    report = view.disguise()
    trigger = _LIVE
    if name == "verdict":
        content = [render_verdict(report), list(render_warnings(report)), list(_render_state_notes(view))]
    elif name == "columns":
        content, trigger = [render_attempts(view)], _PROGRESS
    else:
        matrix = render_matrix(report)
        judge = None if view.is_hidden else render_judge(report)
        content = [
            [build_element("h2", "Tests", id="tests"), matrix] if matrix else None,
            [build_element("h2", "Judge", id="judge"), judge] if judge else None,
        ]
    return build_panel(name, f"{view.path}{name}", content, trigger=trigger)


def _render_state_notes(view: ForkView) -> Iterator[Markup]:
    """Explain the states in which the user has to act."""
    fork = view.report.fork
    resolution = fork.resolution or {}
    if view.is_hidden:
        yield render_note(
            "Blind comparison",
            ["Attempts are letters in a random order; agents, costs and output are hidden until you choose."],
        )
    elif view.is_blind:
        chosen = [f"{one.record.id}: {truncate_line(one.label, 80)}" for one in view.attempts]
        yield render_note("You compared these attempts blind", chosen)
    if fork.state == "interrupted":
        text = "The process that ran this fork is gone. Resume runs the attempts that have not ended, and no others."
        yield render_note("Interrupted", [text])
    if fork.stored == "resolved" and fork.commit is None and fork.parent is None and fork.winner is not None:
        text = (
            "The fork was decided, but nothing was committed: the workspace was changed meanwhile, or the commit is "
            "still in progress. Pick the winner again and choose how to resolve the conflicts, or abort the fork."
        )
        yield render_note("Decided, not committed", [text])
    if fork.undone is not None:
        text = f"Commit {fork.commit} was undone by {fork.undone}. Undo that to restore the changes."
        yield render_note("Undone", [text])
    if resolution.get("how") == "override":
        yield render_note("Overridden", [f"This replaces commit {resolution.get('replaces')}."])
    edits = (fork.edits or {}).get("paths") or []
    if edits and not fork.is_over:
        names = ", ".join(map(str, edits[:8]))
        yield render_note("The workspace was edited while this fork runs", [f"{names}: a commit may conflict there."])


# The columns


def render_attempts(view: ForkView) -> Markup:
    """Render one column per attempt."""
    cards = [_render_card(view, attempt) for attempt in view.attempts]
    return build_element("ol", cards, class_="attempts", aria_label="Attempts")


def _render_card(view: ForkView, attempt: AttemptReport) -> Markup:
    record, tests = attempt.record, attempt.tests
    name = view.name_of(record.id)
    address = f"{view.path}a/{name}/"
    is_chosen = attempt is view.report.chosen and not view.is_hidden
    label = "" if view.is_hidden else truncate_line(attempt.label, 160)
    counted: Child = None
    if tests is not None and tests.ran:
        bar = build_element("progress", max=tests.ran, value=tests.passed, class_="bar", aria_hidden="true")
        counted = [bar, f"{tests.passed}/{tests.ran} tests"]
    elif tests is not None:
        counted = tests.summary
    since = str(record.started) if record.state == "running" and record.started is not None else None
    took = "" if since or attempt.seconds is None else duration_text(attempt.seconds)
    size = size_text(record.output_bytes) if record.output_bytes else ""
    facts: list[Child] = [
        build_element("span", took, data_since=since, class_="took"),
        None if attempt.usd is None or view.is_hidden else build_element("span", format_usd(attempt.usd)),
        build_element("span", format_number(record.files, "file")) if record.files else None,
        build_element("span", f"{size} of output") if size and not view.is_hidden else None,
    ]
    result = view.hide(truncate(format_result(attempt), 160)) if not view.is_hidden else ""
    links = [build_element("a", "Changes", href=address, class_="button main")]
    if not view.is_hidden:
        links.append(build_element("a", "Output", href=f"{address}output", class_="button"))
    choose = build_element(
        "label",
        build_element("input", type="checkbox", name="attempt", value=name, class_="pick", form="decide"),
        build_element("span", f"Choose {name}", class_="hush"),
        class_="choose",
    )
    head = build_element(
        "div", build_element("a", name, href=address, class_="id"), render_state(attempt), choose, class_="line"
    )
    touched = build_element("div", class_="touched", hx_get=f"{address}touched", hx_trigger="load", hx_swap="innerHTML")
    return build_element(
        "li",
        head,
        build_element("p", label, class_="label", dir="auto") if label else None,
        build_element("p", counted, class_="counted") if counted else None,
        build_element("p", [fact for fact in facts if fact is not None], class_="soft small row"),
        build_element("p", result, class_="small", dir="auto") if result else None,
        touched if record.is_over and not record.no_change else None,
        build_element("div", links, class_="row"),
        class_=f"card attempt-card stop{' won' if is_chosen else ''}{' nested' if attempt.row.depth else ''}",
        tabindex=-1,
        data_attempt=name,
        data_at=str(record.ended) if record.ended is not None and not view.is_hidden else None,
    )


def render_files(view: ForkView, attempt: AttemptReport) -> Markup:
    """Render the first files that an attempt touched, for its column."""
    files = view.read_files(attempt)
    address = f"{view.path}a/{view.name_of(attempt.record.id)}/"
    rows = [
        build_element(
            "li",
            build_element(
                "a",
                truncate_middle(file.path, 60),
                href=f"{address}?{urlencode({'file': file.path}, errors='surrogateescape')}",
                dir="ltr",
                class_="soft" if is_generated(file) else None,
            ),
        )
        for file in files[:_FILES_IN_COLUMN]
    ]
    more = len(files) - _FILES_IN_COLUMN
    rest = build_element("li", f"and {more} more", class_="soft") if more > 0 else None
    return build_element("ul", rows, rest, class_="paths")


# The output


def render_output(view: ForkView, attempt: AttemptReport, visitor: Visitor, server: str = "") -> str:
    """Render the page with what an attempt printed; ``server`` is one of the servers in its branch."""
    record = attempt.record
    address = f"{view.path}a/{record.id}/"
    logs = ["", *_list_servers(view, attempt)]
    tabs = [
        build_element(
            "a",
            name or "Output",
            href=f"{address}output?{urlencode({'server': name})}" if name else f"{address}output",
            aria_current="page" if name == server else None,
        )
        for name in logs
    ]
    log = f"{record.id}@{server}" if server else record.id
    size, _ = _read_part(view, log, 0, 0)
    facts = {
        "exit code": "" if record.exit_code is None else str(record.exit_code),
        "time": "" if attempt.seconds is None else duration_text(attempt.seconds),
        "size": size_text(size),
    }
    scroller = build_element(
        "div",
        class_="output",
        id="output",
        tabindex=0,
        role="region",
        aria_label="Output, scrollable",
        data_part=f"{address}output/part?{urlencode({'server': server})}",
        data_size=str(size),
        data_step=str(PART_SIZE),
        data_live="true" if record.state == "running" else None,
        hx_trigger="sse:progress",
    )
    steps = [line for step in attempt.steps[-_MAX_STEPS:] if (line := truncate_line(format_step(dict(step)), 200))]
    body = [
        build_element("h1", f"Output of {record.id}"),
        build_element("p", render_state(attempt), " ", truncate_line(attempt.label, 160), dir="auto"),
        render_facts(facts, "facts"),
        render_trouble(attempt),
        render_failures(attempt) if not server else None,
        [build_element("h3", "Steps"), build_element("pre", redact("\n".join(steps)))]
        if steps and not server
        else None,
        build_element("nav", tabs, class_="tabs", aria_label="Logs") if len(logs) > 1 else None,
        scroller if size or record.state == "running" else build_element("p", "It printed nothing.", class_="empty"),
    ]
    trail = build_trail(view, record.id, "output")
    return render_shell(f"Output of {record.id} · forkwise", body, visitor, events=view.events, trail=trail)


def _list_servers(view: ForkView, attempt: AttemptReport) -> list[str]:
    try:
        return list_server_logs(view.served.ledger.fetch_files(attempt.record.id), attempt.record.id)
    except (LedgerError, OSError):
        return []


def _read_part(view: ForkView, log: str, start: int, size: int) -> tuple[int, bytes]:
    try:
        return read_log_part(view.served.ledger.fetch_files(log.partition("@")[0]), log, start, size)
    except (LedgerError, OSError):
        return 0, b""


def render_output_part(view: ForkView, attempt: AttemptReport, server: str, start: int) -> tuple[int, Markup]:
    """Render a part of an output, in whole lines; also return the number of bytes that there are now."""
    log = f"{attempt.record.id}@{server}" if server else attempt.record.id
    size, data = _read_part(view, log, max(start - 1, 0), PART_SIZE + _LONGEST_LINE + 1)
    before, data = (data[:1], data[1:]) if start else (b"\n", data)
    # A line belongs to the part that it begins in, unless too much of it lies in the next one.
    begin = 0 if before == b"\n" else data.find(b"\n", 0, _LONGEST_LINE) + 1
    end = 0 if data[PART_SIZE - 1 : PART_SIZE] == b"\n" else data.find(b"\n", PART_SIZE, PART_SIZE + _LONGEST_LINE) + 1
    data = data[begin : end or PART_SIZE]
    text = TerminalCleaner().feed(data)
    return size, build_element("pre", redact(text))
