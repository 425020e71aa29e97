"""The output of attempts, cleaned of control sequences piece by piece."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from forkwise.text.clean import TerminalCleaner
from forkwise.tui.widgets import OutputLog
from tests.sandbox.child import do
from tests.tui.pilot import Scene, play

PRINTED = [
    (b"plain\n", "plain\n"),
    (b"\x1b[1;31mred\x1b[0m\n", "red\n"),
    (b"\x1b]0;a title\x07text\n", "text\n"),
    (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
    (b"10%\r20%\rdone\n", "done\n"),
    (b"dos\r\n", "dos\n"),
    (b"caf\xc3\xa9 \xff\n", "café \ufffd\n"),
    (b"bell\x07 null\x00 tab\tend\n", "bell null tab\tend\n"),
]


@pytest.mark.parametrize(("printed", "shown"), PRINTED)
def test_pieces_cut_anywhere_give_the_same_plain_text(printed: bytes, shown: str) -> None:
    assert TerminalCleaner().feed(printed) == shown
    for at in range(len(printed)):
        plain = TerminalCleaner()
        text = plain.feed(printed[:at]) + plain.feed(printed[at:])
        # Text that was shown before a carriage return arrived stays.
        assert text == shown or b"%\r" in printed
        assert all(c.isprintable() or c in "\n\t" for c in text)


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_no_control_sequence_reaches_the_terminal(pieces: list[bytes]) -> None:
    plain = TerminalCleaner()
    text = "".join(plain.feed(piece) for piece in pieces)
    assert all(c.isprintable() or c in "\n\t" for c in text)


@pytest.mark.parametrize(
    "line",
    [b"x", b"\x1b[", b"\x1b]", b"\r", b"x\r", b"\x1b]0;"],
    ids=["text", "CSI", "OSC", "CR", "overwritten", "title"],
)
def test_a_long_line_is_cleaned_in_linear_time(line: bytes) -> None:
    def attempt() -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        return len(TerminalCleaner().feed(line * 400_000))

    assert do(attempt).code == 0


def test_text_before_the_last_carriage_return_of_a_line_is_dropped() -> None:
    assert TerminalCleaner().feed(b"a\rb\rc\nd\re\r\n\rf") == "c\ne\nf"


class _App(App[None]):
    def compose(self) -> ComposeResult:
        yield OutputLog()


def test_a_line_without_end_stays_short(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        log = scene.app.query_one(OutputLog)
        for _ in range(300):
            log.feed(b"x" * 100)
        log.feed(b"y" * 1_000_000 + b"\nnext")
        log.feed(b" line\n")
        await scene.shows("next line")
        assert [len(line) for line in log.lines] == [2000, 9, 0]

    play(_App(), script)


def test_it_follows_its_end_until_the_user_scrolls_up(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        log = scene.app.query_one(OutputLog)
        for number in range(100):
            log.feed(b"line %d\n" % number)
        await scene.shows("line 99")
        log.focus()
        await scene.press("home")
        await scene.shows("line 0\n")
        log.feed(b"line 100\n")
        await scene.pilot.pause()
        assert "line 100" not in scene.text
        await scene.press("end")
        log.feed(b"line 101\n")
        await scene.shows("line 101")
        log.reset()
        log.feed(b"another\n")
        await scene.shows("another")
        assert "line 101" not in scene.text

    play(_App(), script)
