"""N-way table: one file in the base and in every attempt that changed it, with hunks to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlencode

from starlette.exceptions import HTTPException

from forkwise.display.html.diff_table import is_generated
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.display.nway_grid import GridRow, build_rows
from forkwise.files.selection import AlignedPath, Choice, align_path
from forkwise.text.clean import truncate, truncate_middle
from forkwise.web.fork_overview import build_trail
from forkwise.web.page_shell import render_shell

if TYPE_CHECKING:
    from forkwise.text.diff import FileDiff
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import ForkView

__all__ = ["read_choice", "render_comparison", "render_path"]

_OPEN_FILES = 4
_MOST_FILES = 2000
_MOST_ROWS = 600
_LONGEST = 300  # characters of a line
_SEPARATOR = "|"  # between a quoted path, a place and an attempt


def read_paths(view: ForkView) -> dict[str, dict[str, FileDiff]]:
    """Return the changes by path and attempt, generated files last."""
    found: dict[str, dict[str, FileDiff]] = {}
    for attempt in view.attempts:
        if attempt.row.depth == 0 and attempt.record.is_over:
            for file in view.read_files(attempt):
                found.setdefault(file.path, {})[attempt.record.id] = file

    def rank(path: str) -> tuple[bool, int, str]:
        return is_generated(next(iter(found[path].values()))), -len(found[path]), path

    return {path: found[path] for path in sorted(found, key=rank)}


def render_comparison(view: ForkView, visitor: Visitor, *, decision: Child) -> str:
    """Render the page on which all attempts are compared file by file, and hunks are chosen."""
    paths = read_paths(view)
    shown = list(paths)[:_MOST_FILES]
    files = [_render_file(view, path, paths[path], number) for number, path in enumerate(shown)]
    can_choose = visitor.can_write and not view.report.fork.is_over
    buttons = (
        build_element(
            "div",
            build_element("span", "Choose hunks with their boxes, or press x.", id="hunks", class_="soft"),
            build_element(
                "button",
                "Test the combination",
                type="button",
                class_="main",
                hx_post=f"{view.path}do/prepare",
                hx_target="#decision",
                hx_swap="outerHTML",
                hx_include="#hunk-form",
            ),
            class_="toolbar",
        )
        if can_choose
        else None
    )
    body = [
        build_element("h1", "All attempts, file by file"),
        build_element(
            "p",
            "Each file in the base and in the attempts that changed it. Identical changes by several attempts are "
            "marked. ",
            "Choose one change for each place; everything else stays as it is." if can_choose else "",
            class_="soft",
        ),
        decision,
        buttons,
        build_element("form", files, id="hunk-form", class_="diffs", data_keep=view.report.fork.id),
        None if files else build_element("p", "No attempt has changed a file.", class_="empty"),
    ]
    trail = build_trail(view, "compare")
    return render_shell("Compare · forkwise", body, visitor, events=view.events, trail=trail)


def _render_file(view: ForkView, path: str, changes: Mapping[str, FileDiff], number: int) -> Markup:
    names = [view.name_of(attempt) for attempt in changes]
    versions = {None if file.new is None else (file.new.content, file.new.digest) for file in changes.values()}
    alike = len(changes) > 1 and len(versions) == 1
    word = "all alike" if alike else f"{len(changes)} versions" if len(changes) > 1 else ""
    head = [
        build_element("span", truncate_middle(path, 300), class_="path", dir="ltr"),
        build_element("span", word, class_="pill good" if alike else "soft") if word else None,
        build_element("span", ", ".join(names[:8]), class_="soft small"),
    ]
    is_open = number < _OPEN_FILES and not is_generated(next(iter(changes.values())))
    later = build_element(
        "div",
        "…",
        class_="more",
        hx_get=f"{view.path}compare/file?{urlencode({'file': path}, errors='surrogateescape')}",
        hx_trigger="load" if is_open else "toggle from:closest details once",
        hx_swap="outerHTML",
    )
    return build_element(
        "details", build_element("summary", head), later, class_="file", open=is_open, tabindex=-1, data_path=path
    )


def render_path(view: ForkView, visitor: Visitor, path: str) -> Markup:
    """Render one file in the base and in each attempt that changed it."""
    changes = read_paths(view).get(path)
    if changes is None:
        raise HTTPException(404, "No attempt has changed such a file.")
    aligned = align_path(path, changes)
    versions = list(changes)
    rows = build_rows(aligned, versions)
    can_choose = visitor.can_write and not view.report.fork.is_over
    heads = [build_element("th", "base", scope="col")]
    heads += [build_element("th", view.name_of(name), scope="col") for name in versions]
    body = [_render_row(view, aligned, row, versions, can_choose=can_choose) for row in rows[:_MOST_ROWS]]
    more = len(rows) - _MOST_ROWS
    rest = build_element("p", f"{more} more rows are not shown here.", class_="more") if more > 0 else None
    table = build_element(
        "table",
        build_element("caption", f"{truncate_middle(path, 120)} by attempt", class_="hush"),
        build_element("thead", build_element("tr", heads)),
        build_element("tbody", body),
        class_="nway",
    )
    region = build_element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Versions, scrollable")
    return build_element("div", region, rest)


def _render_row(
    view: ForkView, aligned: AlignedPath, row: GridRow, versions: Sequence[str], *, can_choose: bool
) -> Markup:
    if not row.is_head:
        cells = [
            build_element("td", build_element("code", truncate(cell.text, _LONGEST), dir="ltr"), class_=cell.mark)
            for cell in row.cells
        ]
        return build_element("tr", cells, class_="same" if row.region is None else None)
    title = build_element("td", row.cells[0].text)
    number = row.region or 0
    cells = [_render_choice(view, aligned, number, name, can_choose=can_choose) for name in versions]
    return build_element("tr", title, cells, class_="hunk stop", tabindex=-1)


def _render_choice(view: ForkView, aligned: AlignedPath, number: int, attempt: str, *, can_choose: bool) -> Markup:
    """Render the box that chooses an attempt's change at one place."""
    name = view.name_of(attempt)
    if aligned.alignment is None:
        spot, others = "file", [other for other in aligned.versions if other != attempt]
        alike = [other for other in others if aligned.versions[other] == aligned.versions[attempt]]
        is_changed = attempt in aligned.versions
    else:
        region = aligned.alignment.regions[number]
        own = region.of(attempt)
        spot, is_changed = f"{region.start}-{region.stop}", bool(own)
        parts = {other: aligned.alignment.part(region, other) for other in aligned.alignment.versions}
        alike = [
            other for other in parts if other != attempt and region.of(other) and parts[other] == parts.get(attempt)
        ]
    if not is_changed:
        return build_element("td", "unchanged", class_="soft")
    agreement = (
        build_element("span", f"as {', '.join(map(view.name_of, alike[:4]))}", class_="pill good") if alike else None
    )
    if not can_choose:
        return build_element("td", agreement)
    place = f"{quote(aligned.path, safe='/', errors='surrogateescape')}{_SEPARATOR}{spot}"
    box = build_element(
        "input",
        type="checkbox",
        name="hunk",
        value=f"{place}{_SEPARATOR}{name}",
        class_="hunk-box",
        data_spot=place,
    )
    return build_element("td", build_element("label", box, f" take {name} ", agreement))


def read_choice(view: ForkView, lineups: Sequence[AlignedPath], values: Sequence[str]) -> dict[str, Choice]:
    """Return the choice that the boxes of a form describe. Raises HTTPException if one of them is outdated."""
    paths = {aligned.path: aligned for aligned in lineups}
    choice: dict[str, Choice] = {}
    for value in values:
        rest, _, name = value.rpartition(_SEPARATOR)
        quoted, _, spot = rest.rpartition(_SEPARATOR)
        path = unquote(quoted, errors="surrogateescape")
        attempt = view.find(name).record.id
        aligned = paths.get(path)
        if aligned is None or attempt not in aligned.versions:
            raise HTTPException(409, f"{name} no longer changes {path}: reload the page.")
        if aligned.alignment is None:
            choice[path] = attempt
            continue
        regions = {f"{region.start}-{region.stop}": region for region in aligned.alignment.regions}
        if spot not in regions:
            raise HTTPException(409, f"The changes to {path} are different now: reload the page.")
        before = choice.get(path, frozenset())
        assert isinstance(before, frozenset)
        choice[path] = before | frozenset(regions[spot].of(attempt))
    return choice
