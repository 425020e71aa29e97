"""Picture: a timeline of the attempts, their cost over time, and how far they agree, drawn on the server."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from forkwise.display.html.fork_page import duration_text
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.text.diff import is_text, lines_of
from forkwise.text.phrases import format_usd

if TYPE_CHECKING:
    from forkwise.display.attempt_report import AttemptReport
    from forkwise.ledger.records import Event
    from forkwise.text.diff import FileVersion
    from forkwise.web.catalogue import ForkView

__all__ = ["render_agreement", "render_pictures"]

_WIDTH = 1000
_MOST_ATTEMPTS = 60
_MOST_COMPARED = 16
_MOST_FILES = 300  # of one attempt that are compared
_MOST_LINES = 50_000


def render_pictures(view: ForkView) -> list[Child]:
    """Render the timeline, and the cost over time if it is known; how far attempts agree is fetched later."""
    fork = view.report.fork
    events = view.served.ledger.events(fork=fork.id)
    last = max([event.at for event in events], default=fork.started)
    span = max(last - fork.started, 0.001)
    parts: list[Child] = []
    rows = [_render_track(view, one, events, span) for one in view.attempts[:_MOST_ATTEMPTS] if one.record.started]
    if rows:
        parts += [
            build_element("h2", "Timeline"),
            build_element("div", rows, class_="card timeline"),
            build_element("p", "▮ ran · │ tests were recorded · ✗ was stopped or failed", class_="soft small"),
        ]
    if not view.is_hidden and (curve := _render_cost(events, fork.started, span)) is not None:
        parts += [build_element("h2", "Cost over time"), curve]
    return parts


def _render_track(view: ForkView, attempt: AttemptReport, events: list[Event], span: float) -> Markup:
    record, begin = attempt.record, view.report.fork.started
    own = [event for event in events if event.attempt == record.id]
    ended = next((event.at for event in reversed(own) if event.kind == "ended"), None)
    stop = begin + span if ended is None else ended

    def place(moment: float) -> int:
        return round(min(max((moment - begin) / span, 0.0), 1.0) * _WIDTH)

    start = place(record.started or begin)
    bar = build_element(
        "rect", x=start, y=3, width=max(place(stop) - start, 3), height=10, rx=3, class_=f"bar-{record.state}"
    )
    ticks = [
        build_element("rect", x=max(place(event.at) - 2, 0), y=0, width=3, height=16, class_="tick")
        for event in own
        if event.kind == "tested"
    ]
    words = f"from {duration_text((record.started or begin) - begin)} to {duration_text(stop - begin)}, {record.state}"
    picture = build_element(
        "svg", bar, ticks, viewbox=f"0 0 {_WIDTH} 16", preserveaspectratio="none", role="img", aria_label=words
    )
    sign = " ✗" if record.state in ("failed", "cancelled", "faulted") else ""
    return build_element(
        "div",
        build_element("span", view.name_of(record.id), class_="id"),
        picture,
        build_element("span", f"{duration_text(stop - (record.started or begin))}{sign}", class_="soft small"),
        class_="track",
    )


def _render_cost(events: list[Event], begin: float, span: float) -> Markup | None:
    """Render the total cost of all attempts over time; None if no cost is known."""
    costs: dict[str, float] = {}
    points: list[tuple[float, float]] = [(0.0, 0.0)]
    for event in events:
        usd = (event.data.get("cost") or {}).get("usd") if event.kind == "charged" else None
        if isinstance(usd, int | float) and event.attempt is not None:
            points.append((event.at - begin, sum(costs.values())))
            costs[event.attempt] = float(usd)
            points.append((event.at - begin, sum(costs.values())))
    total = sum(costs.values())
    if not total:
        return None
    points.append((span, total))
    line = " ".join(f"{round(at / span * _WIDTH)},{round(100 - value / total * 96)}" for at, value in points)
    picture = build_element(
        "svg",
        build_element("polyline", points=line, class_="curve"),
        viewbox=f"0 0 {_WIDTH} 100",
        preserveaspectratio="none",
        role="img",
        aria_label=f"Cost over time, {format_usd(total)} in the end",
    )
    caption = build_element("figcaption", f"{format_usd(total)} after {duration_text(span)}", class_="soft small")
    return build_element("figure", picture, caption, class_="card cost")


def render_agreement(view: ForkView) -> Child:
    """Render a heat map of how many changed lines each pair of attempts has in common."""
    shown = [one for one in view.attempts if one.record.is_over and one.row.depth == 0][:_MOST_COMPARED]
    changed = {one.record.id: _collect_lines(view, one) for one in shown}
    names = [name for name, lines in changed.items() if lines]
    if len(names) < 2:
        return None
    shares = {}
    for first, second in combinations(names, 2):
        both = len(changed[first] & changed[second])
        shares[first, second] = shares[second, first] = both / max(len(changed[first] | changed[second]), 1)
    heads = [build_element("td"), *(build_element("th", view.name_of(name), scope="col") for name in names)]
    rows = []
    for name in names:
        cells = [
            build_element("td", "–", class_="soft")
            if name == other
            else build_element("td", f"{shares[name, other]:.0%}", class_=f"heat h{round(shares[name, other] * 10)}")
            for other in names
        ]
        rows.append(build_element("tr", build_element("th", view.name_of(name), scope="row"), cells))
    table = build_element(
        "table",
        build_element("caption", "How much of their changed lines two attempts have in common", class_="hush"),
        build_element("thead", build_element("tr", heads)),
        build_element("tbody", rows),
        class_="heatmap",
    )
    text = "How much of the lines that they changed two attempts have in common."
    region = build_element("div", table, class_="card scroll", tabindex=0, role="region", aria_label="Agreement")
    return [build_element("h2", "Agreement"), build_element("p", text, class_="soft small"), region]


def _collect_lines(view: ForkView, attempt: AttemptReport) -> set[tuple[str, bool, bytes]]:
    """Return the lines that an attempt added and removed, by path; of a binary file, its digest."""
    found: set[tuple[str, bool, bytes]] = set()
    for file in view.read_files(attempt)[:_MOST_FILES]:
        old, new = _split(file.old), _split(file.new)
        found.update((file.path, True, line) for line in new - old)
        found.update((file.path, False, line) for line in old - new)
        if len(found) > _MOST_LINES:
            break
    return found


def _split(version: FileVersion | None) -> set[bytes]:
    if version is None:
        return set()
    if version.content is None or not is_text(version.content):
        return {(version.digest or str(version.size)).encode()}
    return set(lines_of(version.content))
