"""The pages look as they did: where their parts are, and a coarse picture of each, at two widths.

``FORKWISE_RECORD_PICTURES=1`` records both anew, in ``tests/web/pictures``. Fonts differ a little from machine to
machine, and so do ids and times: boxes may move by some pixels, and a picture is compared at a sixteenth of its size.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from tests.web.test_browser import Open, Served, chromium, served, visit
from tests.web.test_conversation_view import TALK, store

__all__ = ["chromium", "served", "visit"]

pytestmark = pytest.mark.integration

PICTURES = Path(__file__).with_name("pictures")
PAGES = {
    "list": "/",
    "fork": "/w/shop/{fork}/",
    "changes": "/w/shop/{fork}/a/{fork}.2/",
    "split": "/w/shop/{fork}/a/{fork}.2/?view=split",
    "compare": "/w/shop/{fork}/compare",
    "output": "/w/shop/{fork}/a/{fork}.1/output",
    "conversation": "/c/shop/talk1/?node=6",
}
PARTS = (
    ".bar-top, h1, .filters, .forks > li, #verdict > *, #actions, .attempt-card, .toolbar, .diffs > .file, "
    "table.diff, table.nway, .tabs, #output, .tree, #messages, .message, #comments, .timeline"
)
FIND_BOXES = """parts => [...document.querySelectorAll(parts)].map(one => {
    const box = one.getBoundingClientRect();
    return [one.id || one.className.split(' ')[0] || one.localName, box.x, box.y, box.width, box.height].map(
        value => typeof value === 'number' ? Math.round(value) : value);
}).filter(box => box[2] < 900 && box[3] > 0)"""
SHRINK = """async ([picture, scale]) => {
    const image = new Image();
    image.src = 'data:image/png;base64,' + picture;
    await image.decode();
    const canvas = document.createElement('canvas');
    canvas.width = Math.round(image.width / scale);
    canvas.height = Math.round(image.height / scale);
    const context = canvas.getContext('2d');
    context.imageSmoothingQuality = 'high';
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const grey = [];
    for (let at = 0; at < data.length; at += 4) {
        grey.push(Math.round((data[at] * 3 + data[at + 1] * 6 + data[at + 2]) / 10));
    }
    return { grey, picture: canvas.toDataURL('image/png').split(',')[1] };
}"""
STORED_SCALE, COMPARED_SCALE = 4, 16
TONE = 24  # of 255: by how much a block may differ
MOST_BLOCKS = 0.04  # share of the blocks that may differ by more


class Look:
    """What a page looks like: its boxes, a smaller picture, and an even smaller one in shades of grey."""

    def __init__(self, page: Any, plain: Any) -> None:
        self.boxes: list[list[Any]] = page.evaluate(FIND_BOXES, PARTS)
        shot = base64.b64encode(page.screenshot(animations="disabled", caret="hide")).decode()
        self.picture: str = plain.evaluate(SHRINK, [shot, STORED_SCALE])["picture"]
        self.grey = find_grey(plain, self.picture)

    def save(self, name: str) -> None:
        PICTURES.joinpath(f"{name}.png").write_bytes(base64.b64decode(self.picture))
        lines = ",\n".join(f" {json.dumps(box)}" for box in self.boxes)
        PICTURES.joinpath(f"{name}.json").write_text(f"[\n{lines}\n]\n")

    def differences(self, name: str, plain: Any) -> list[str]:
        """Return how it differs from what is recorded."""
        boxes = json.loads(PICTURES.joinpath(f"{name}.json").read_text())
        found = [
            f"{was} is {now}"
            for was, now in zip(boxes, self.boxes, strict=False)
            if was[0] != now[0] or not all(map(is_near, was[1:], now[1:]))
        ]
        if len(boxes) != len(self.boxes):
            found.append(f"{len(boxes)} boxes are {len(self.boxes)}")
        was = find_grey(plain, base64.b64encode(PICTURES.joinpath(f"{name}.png").read_bytes()).decode())
        if len(was) != len(self.grey):
            return [*found, "the picture has another size"]
        share = sum(abs(one - two) > TONE for one, two in zip(was, self.grey, strict=True)) / len(was)
        if share > MOST_BLOCKS:
            found.append(f"{share:.1%} of the picture differ")
        return found


def find_grey(plain: Any, picture: str) -> list[int]:
    found: list[int] = plain.evaluate(SHRINK, [picture, COMPARED_SCALE / STORED_SCALE])["grey"]
    return found


def is_near(was: int, now: int) -> bool:
    return abs(was - now) <= 10 + 0.04 * max(was, now)


@pytest.fixture
def plain(chromium: Any) -> Any:
    """A page without a policy, to draw on."""
    page = chromium.new_page()
    yield page
    page.close()


def settle(page: Any) -> None:
    """Wait until all parts of a page are there, which it asks for one after the other."""
    page.wait_for_function("() => !document.querySelector('.htmx-request')")
    page.locator(".touched:empty").first.wait_for(state="detached")
    for box in page.locator(".file[open] > .more").all():
        box.wait_for(state="detached")
    page.locator("#output pre").or_(page.locator("body:not(:has(#output))")).first.wait_for()


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_look_as_recorded(
    workspace: Workspace, fork: str, visit: Open, plain: Any, served: Served, width: int
) -> None:
    store(workspace, TALK)
    found = {}
    page = visit("/", width)
    for name, path in PAGES.items():
        page.goto(f"{served.base}{path.format(fork=fork)}")
        settle(page)
        look = Look(page, plain)
        if os.environ.get("FORKWISE_RECORD_PICTURES"):
            look.save(f"{name}-{width}")
        found[name] = look.differences(f"{name}-{width}", plain)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
    assert found == {name: [] for name in PAGES}


@pytest.mark.parametrize(
    ("selector", "name", "value"),
    [
        (".attempts", "display", "block"),
        (".attempt-card", "padding", "40px"),
        ("#actions", "display", "none"),
        (".wide", "maxWidth", "700px"),
        (".attempt-card", "background", "black"),
    ],
)
def test_a_change_of_the_layout_is_noticed(
    fork: str, visit: Open, plain: Any, selector: str, name: str, value: str
) -> None:
    page = visit(PAGES["fork"].format(fork=fork))
    settle(page)
    change = "([selector, name, value]) => document.querySelectorAll(selector).forEach(one => one.style[name] = value)"
    page.evaluate(change, [selector, name, value])
    assert Look(page, plain).differences("fork-1280", plain) != []
