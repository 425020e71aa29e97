"""Change view: what an attempt changed, against the base or another attempt, in windows of rows."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from forkwise.display.html.diff_table import ChangeSummary, describe_file, is_generated, render_diff
from forkwise.display.html.fork_page import build_file_head, render_note, render_state, render_trouble
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.errors import BranchingError
from forkwise.fork.stored_fork import compare_sides, load_side
from forkwise.text.clean import truncate_line, truncate_middle
from forkwise.text.phrases import format_number
from forkwise.web.fork_overview import build_trail
from forkwise.web.page_shell import render_shell

if TYPE_CHECKING:
    from forkwise.display.attempt_report import AttemptReport
    from forkwise.text.diff import FileDiff, FileVersion
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import ForkView

__all__ = ["DiffOptions", "find_image", "read_comparison", "render_changes", "render_window"]

_FIRST_ROWS = 60
_ROWS = 60
_OPEN_FILES = 12
_OPEN_ROWS = 1500
_MOST_FILES = 3000
_DESCRIBED = 60  # files whose lines are counted before they are opened
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_MAX_IMAGE = 8 << 20


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """How changes are shown: ``against`` another attempt or the base, side by side, without white space."""

    against: str = ""
    is_split: bool = False
    ignores_space: bool = False

    @classmethod
    def read(cls, query: Mapping[str, str]) -> DiffOptions:
        """Read the options from the query of an address."""
        return cls(query.get("with", ""), query.get("view") == "split", query.get("space") == "off")

    def encode(self, **more: str) -> str:
        """Return the query of an address with these options and ``more``."""
        words = {
            "with": self.against,
            "view": "split" if self.is_split else "",
            "space": "off" if self.ignores_space else "",
            **more,
        }
        return urlencode({name: value for name, value in words.items() if value}, errors="surrogateescape")


def read_comparison(view: ForkView, attempt: AttemptReport, options: DiffOptions) -> Sequence[FileDiff]:
    """Return the files to show: what the attempt changed, or how it differs from another."""
    if not options.against:
        return view.read_files(attempt)
    other = view.find(options.against)
    served = view.served
    try:
        sides = [load_side(served.ledger, served.workspace, one.record.id) for one in (other, attempt)]
        found = compare_sides(served.workspace, sides[0], sides[1])
        differing = [file for file in found if file.old != file.new]
        return sorted(differing, key=lambda file: (is_generated(file), file.path))
    except (BranchingError, OSError) as error:
        raise HTTPException(409, f"These attempts cannot be compared: {error}") from error


def render_changes(
    view: ForkView, attempt: AttemptReport, options: DiffOptions, visitor: Visitor, *, talk: Child, wanted: str = ""
) -> str:
    """Render the page with all changes of an attempt; ``wanted`` is the file to open."""
    name = view.name_of(attempt.record.id)
    files = read_comparison(view, attempt, options)
    address = f"{view.path}a/{name}/"
    against = view.name_of(options.against) if options.against else "the base"
    shown = files[:_MOST_FILES]
    opened = 0
    rows = _OPEN_ROWS
    parts: list[Markup] = []
    for number, file in enumerate(shown):
        found = describe_file(file) if number < _DESCRIBED or file.path == wanted else None
        is_open = file.path == wanted or (
            not wanted and found is not None and opened < _OPEN_FILES and rows > 0 and not is_generated(file)
        )
        if is_open and found is not None and not found.note:
            opened += 1
            rows -= min(found.added + found.removed, _FIRST_ROWS)
        parts.append(_render_file(address, file, found, options, number, is_open=is_open))
    count = format_number(len(files), "file")
    executed: Child = None
    stored = attempt.read_changes() if attempt.record.is_over and not options.against else None
    if stored is not None and stored.delta.executable_config:
        lines = [f"{path}: {executor}" for path, executor in stored.delta.executable_config[:10]]
        executed = render_note("This changes what a machine will run", lines)
    body = [
        build_element("h1", f"Changes of {name}"),
        build_element(
            "p",
            render_state(attempt),
            " ",
            "" if view.is_hidden else truncate_line(attempt.label, 160),
            dir="auto",
        ),
        render_trouble(attempt) if not view.is_hidden else None,
        _render_toolbar(view, name, options, f"{count} against {against}"),
        executed,
        _render_index(shown) if len(shown) > 3 else None,
        build_element("div", parts, class_="diffs", id="diffs"),
        None if files else build_element("p", _explain_nothing(attempt, options), class_="empty"),
        build_element("p", f"{len(files) - len(shown)} more files are not listed.", class_="soft")
        if len(files) > len(shown)
        else None,
        talk,
    ]
    trail = build_trail(view, name)
    return render_shell(f"Changes of {name} · forkwise", body, visitor, events=view.events, trail=trail)


def _explain_nothing(attempt: AttemptReport, options: DiffOptions) -> str:
    if options.against:
        return "Both made the same changes."
    if attempt.record.no_change:
        return "It changed no file."
    return "What it changed was not kept." if attempt.record.is_over else "It has changed no file yet."


def _render_toolbar(view: ForkView, name: str, options: DiffOptions, summary: str) -> Markup:
    others = [view.name_of(one.record.id) for one in view.attempts if view.name_of(one.record.id) != name]
    choices = [build_element("option", "the base", value="", selected=not options.against)]
    choices += [build_element("option", other, value=other, selected=other == options.against) for other in others]
    fields = [
        build_element(
            "label", "Against ", build_element("select", choices, name="with", data_submit="true"), class_="field"
        ),
        build_element(
            "label",
            build_element(
                "input", type="checkbox", name="view", value="split", checked=options.is_split, data_submit="true"
            ),
            " Side by side",
            class_="field",
        ),
        build_element(
            "label",
            build_element(
                "input", type="checkbox", name="space", value="off", checked=options.ignores_space, data_submit="true"
            ),
            " Ignore white space",
            class_="field",
        ),
    ]
    form = build_element("form", fields, class_="row", method="get")
    return build_element("div", build_element("strong", summary), form, class_="toolbar")


def _render_index(files: Sequence[FileDiff]) -> Markup:
    links = [
        build_element("li", build_element("a", truncate_middle(file.path, 120), href=f"#f-{number}", dir="ltr"))
        for number, file in enumerate(files)
    ]
    return build_element(
        "details", build_element("summary", f"All {len(files)} files"), build_element("ul", links, class_="paths index")
    )


def _render_file(
    address: str, file: FileDiff, found: ChangeSummary | None, options: DiffOptions, number: int, *, is_open: bool
) -> Markup:
    is_made = is_generated(file)
    facts = {"id": f"f-{number}", "data_path": file.path}
    if found is not None:
        head: Child = build_file_head(file, found, is_made=is_made)
        if found.note:
            images = _render_images(address, file, options)
            title = build_element("div", head, class_="bare")
            return build_element("section", title, images, class_="file", tabindex=-1, **facts)
    else:
        kind = "added" if file.old is None else "deleted" if file.new is None else ""
        words = ", ".join(word for word in (kind, "generated" if is_made else "") if word)
        head = [
            build_element("span", truncate_middle(file.path, 300), class_="path", dir="ltr"),
            build_element("span", words, class_="soft"),
        ]
    if is_open:
        content: Child = render_window(address, file, options, 0)
    else:
        later = f"{address}rows?{options.encode(file=file.path, start='0')}"
        content = build_element(
            "div", "…", class_="more", hx_get=later, hx_trigger="toggle from:closest details once", hx_swap="outerHTML"
        )
    return build_element(
        "details", build_element("summary", head), content, class_="file", open=is_open, tabindex=-1, **facts
    )


def render_window(address: str, file: FileDiff, options: DiffOptions, start: int) -> Child:
    """Render a window of a file's rows, and the element that requests the next one when it scrolls into view."""
    count = _ROWS if start else _FIRST_ROWS
    table, left = render_diff(
        file, start=start, count=count, is_split=options.is_split, ignores_space=options.ignores_space
    )
    if not table:
        return build_element("p", describe_file(file).note or "Only white space differs.", class_="more")
    later: Child = None
    if left:
        later = build_element(
            "div",
            f"{left} more rows",
            class_="more",
            hx_get=f"{address}rows?{options.encode(file=file.path, start=str(start + count))}",
            hx_trigger="near once",
            hx_swap="outerHTML",
        )
    return [build_element("div", table, class_="rows"), later]


def _render_images(address: str, file: FileDiff, options: DiffOptions) -> Child:
    """Render both versions of a picture, if the browser can show them."""
    sides: list[tuple[Literal["old", "new"], FileVersion | None]] = [("old", file.old), ("new", file.new)]
    if not file.path.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".webp")):
        return None
    pictures = [
        build_element(
            "figure",
            build_element(
                "img",
                src=f"{address}image?{options.encode(file=file.path, side=side)}",
                alt=f"{'Before' if side == 'old' else 'After'}: {truncate_middle(file.path, 120)}",
                loading="lazy",
            ),
            build_element("figcaption", "before" if side == "old" else "after"),
        )
        for side, version in sides
        if version is not None
    ]
    return build_element("div", pictures, class_="pictures")


def find_image(view: ForkView, attempt: AttemptReport, path: str, side: str) -> tuple[bytes, str]:
    """Return the content and the media type of a picture. Raises HTTPException if it cannot be shown."""
    served = view.served
    try:
        files = load_side(served.ledger, served.workspace, attempt.record.id).files
    except (BranchingError, OSError):
        files = ()
    file = next((one for one in files if one.path == path), None)
    version = None if file is None else file.old if side == "old" else file.new
    if version is None or version.content is None or not stat.S_ISREG(version.mode):
        raise HTTPException(404, "This version of the file is not kept.")
    kind = next((kind for start, kind in _IMAGES.items() if version.content.startswith(start)), None)
    if kind is None and version.content[:4] == b"RIFF" and version.content[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None or len(version.content) > _MAX_IMAGE:
        raise HTTPException(415, "This file is not a picture that the page can show.")
    return version.content, kind
