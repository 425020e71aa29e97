"""Several versions side by side: their layout, and the keys that accept and reject changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from textual.app import App

from forkwise.display.nway_grid import (
    accept,
    build_rows,
    count_regions,
    format_choice,
    format_region,
    is_accepted,
    reject,
)
from forkwise.files.selection import AlignedPath, Choice
from forkwise.text.diff import FileVersion
from forkwise.text.merge3 import align
from forkwise.tui.diff_view import NwayScreen, NwayView
from tests.tui.pilot import Scene, play, until

pytestmark = pytest.mark.integration

MODE = 0o100644
BASE = b"".join(b"%d\n" % n for n in range(1, 13))
ONE = BASE.replace(b"1\n", b"one\n", 1).replace(b"12\n", b"twelve\n")
TWO = BASE.replace(b"1\n", b"eins\n", 1).replace(b"6\n", b"six\nand a half\n")
TEXT = AlignedPath(
    "a.txt",
    FileVersion(MODE, BASE),
    {"k3f9ab.1": FileVersion(MODE, ONE), "k3f9ab.2": FileVersion(MODE, TWO)},
    align(BASE, {"k3f9ab.1": ONE, "k3f9ab.2": TWO}),
)
WHOLE = AlignedPath(
    "b.bin", FileVersion(MODE, b"\0\1"), {"k3f9ab.1": None, "k3f9ab.2": FileVersion(0o120777, b"a.txt")}, None
)
NAMES = ("k3f9ab.1", "k3f9ab.2")


def rows(lineup: AlignedPath) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in build_rows(lineup, NAMES)]


# The layout


def test_versions_are_aligned_and_common_lines_are_shortened() -> None:
    assert rows(TEXT) == [
        ["@@ 1", "", ""],
        ["1", "one", "eins"],
        *[[n, n, n] for n in ("2", "3", "4", "5")],
        ["@@ 6", "", ""],
        ["6", "6", "six"],
        ["", "", "and a half"],
        *[[n, n, n] for n in ("7", "8", "⋯ 1 lines", "10", "11")][:2],
        *[[n, n, n] for n in ("9", "10", "11")],
        ["@@ 12", "", ""],
        ["12", "twelve", "12"],
    ]


def test_long_runs_of_common_lines_are_left_out() -> None:
    base = b"".join(b"%d\n" % n for n in range(1, 101))
    changes = {"k3f9ab.1": base.replace(b"1\n", b"one\n", 1).replace(b"100\n", b"hundred\n")}
    lineup = AlignedPath(
        "a", FileVersion(MODE, base), {"k3f9ab.1": FileVersion(MODE, changes["k3f9ab.1"])}, align(base, changes)
    )
    assert [row.cells[0].text for row in build_rows(lineup, NAMES)] == [
        "@@ 1",
        "1",
        "2",
        "3",
        "⋯ 94 lines",
        "98",
        "99",
        "@@ 100",
        "100",
    ]


def test_binary_files_and_deletions_are_described() -> None:
    assert rows(WHOLE) == [
        ["whole file", "", ""],
        ["mode 644", "(nothing)", "→ a.txt"],
        ["2 B, not text", "", ""],
    ]
    assert format_region(WHOLE, 0, "k3f9ab.2") == "-mode 644\n-2 B, not text\n+→ a.txt"
    assert format_region(TEXT, 1, "k3f9ab.2") == "-6\n+six\n+and a half"
    assert format_region(TEXT, 1, "k3f9ab.1") == "k3f9ab.1 did not change this part"


# Accepting and rejecting


def test_accepting_a_hunk_rejects_those_that_overlap() -> None:
    chosen = accept(None, TEXT, 0, "k3f9ab.1")
    chosen = accept(chosen, TEXT, 2, "k3f9ab.1")
    assert is_accepted(chosen, TEXT, 0, "k3f9ab.1")
    chosen = accept(chosen, TEXT, 0, "k3f9ab.2")
    assert [is_accepted(chosen, TEXT, place, name) for place in range(3) for name in NAMES] == [
        *(False, True),
        *(False, False),
        *(True, False),
    ]
    assert TEXT.alignment is not None
    assert isinstance(chosen, frozenset)
    assert TEXT.alignment.apply(chosen) == BASE.replace(b"1\n", b"eins\n", 1).replace(b"12\n", b"twelve\n")
    chosen = reject(chosen, TEXT, 0, "k3f9ab.2")
    assert chosen == frozenset(TEXT.alignment.regions[2].of("k3f9ab.1"))
    assert reject(chosen, TEXT, 2, "k3f9ab.1") is None


def test_a_file_without_hunks_has_one_version() -> None:
    assert count_regions(WHOLE) == 1
    chosen = accept(accept(None, WHOLE, 0, "k3f9ab.1"), WHOLE, 0, "k3f9ab.2")
    assert chosen == "k3f9ab.2"
    assert reject(chosen, WHOLE, 0, "k3f9ab.1") == "k3f9ab.2"
    assert reject(chosen, WHOLE, 0, "k3f9ab.2") is None
    assert accept(None, WHOLE, 0, "k3f9ab.9") is None


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({}, "nothing"),
        ({"b": "k3f9ab.1"}, "1 file"),
        (
            {"a": frozenset(TEXT.alignment.hunks[:2]) if TEXT.alignment else "", "b": "x", "c": "x"},
            "2 hunks and 2 files",
        ),
    ],
)
def test_the_size_of_a_choice(choice: Mapping[str, Choice], text: str) -> None:
    assert format_choice(choice) == text


# The screen


class _App(App[None]):
    def __init__(self, *lineups: AlignedPath) -> None:
        super().__init__()
        self.lineups = lineups
        self.chosen: Any = "not yet"

    def on_mount(self) -> None:
        def take(choice: Any) -> None:
            self.chosen = choice

        self.push_screen(NwayScreen(self.lineups), take)


def chosen(*keys: str) -> Any:
    """Return the choice after some keys."""
    app = _App(TEXT, WHOLE)

    async def script(scene: Scene) -> None:
        await scene.comes_to(NwayScreen)
        await scene.press(*keys)
        await until(lambda: app.chosen != "not yet", lambda: scene.text)

    play(app, script)
    return app.chosen


def test_every_key() -> None:
    assert TEXT.alignment is not None
    first, second, third = TEXT.alignment.regions
    assert chosen("space", "enter") == {"a.txt": frozenset(first.of(NAMES[0]))}
    assert chosen("space", "space", "n", "space", "enter") == {"b.bin": NAMES[0]}
    assert chosen("right", "space", "down", "down", "left", "up", "down", "space", "enter") == {
        "a.txt": frozenset([*first.of(NAMES[1]), *third.of(NAMES[0])])
    }
    assert chosen("right", "a", "n", "right", "a", "p", "x", "n", "n", "a", "enter") == {
        "a.txt": frozenset(first.of(NAMES[0]) + third.of(NAMES[0])),
        "b.bin": NAMES[1],
    }
    assert second.of(NAMES[0]) == ()
    assert chosen("space", "escape") is None
    assert chosen("q") is None


def test_the_screen_and_clicks() -> None:
    app = _App(TEXT, WHOLE)

    async def script(scene: Scene) -> None:
        await scene.comes_to(NwayScreen)
        await scene.press("enter")
        await scene.notifies("Accept a change first")
        await scene.shows("a.txt · file 1 of 2 · accepted: nothing")
        assert "│parent" in scene.text
        assert "-1\n+one" in scene.text.replace("│", "")
        view = scene.app.screen.query_one(NwayView)
        width = view.size.width // 3
        await scene.pilot.click(NwayView, offset=(2 * width + 3, 1))  # the head of the first region, second attempt
        await scene.shows("[✓] accepted")
        await scene.shows("✓ a.txt")
        assert (view.region_number, view.version) == (0, NAMES[1])
        await scene.pilot.click(NwayView, offset=(width + 3, 2))  # a line of the region: only moves the cursor
        await scene.shows("+one")
        await scene.shows("accepted: 1 hunk")

    play(app, script)


def test_columns_that_do_not_fit_are_scrolled_to() -> None:
    versions = {f"k3f9ab.{n}": FileVersion(MODE, b"version %d\n" % n) for n in range(1, 13)}
    texts = {name: side.content or b"" for name, side in versions.items()}
    app = _App(AlignedPath("a.txt", FileVersion(MODE, b"base\n"), versions, align(b"base\n", texts)))

    async def script(scene: Scene) -> None:
        await scene.comes_to(NwayScreen)
        assert "version 12" not in scene.text
        await scene.press(*["right"] * 11)
        await scene.shows("version 12")
        assert "k3f9ab.12" in scene.text

    play(app, script)


def test_columns_fit_beside_the_scroll_bar() -> None:
    parent = "".join(f"line {number}\n" for number in range(200))
    texts = {name: parent.replace("0\n", f"0 {name}\n").encode() for name in NAMES}
    versions = {name: FileVersion(MODE, text) for name, text in texts.items()}
    long_file = AlignedPath("long.txt", FileVersion(MODE, parent.encode()), versions, align(parent.encode(), texts))

    async def script(scene: Scene) -> None:
        await scene.comes_to(NwayScreen)
        view = scene.screen.query_one(NwayView)
        await until(lambda: view.show_vertical_scrollbar and not view.show_horizontal_scrollbar, lambda: scene.text)
        await scene.press("right")
        await scene.shows("parent")

    play(_App(long_file), script, size=(120, 20))
