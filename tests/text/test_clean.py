"""Plain text from terminal output, and text of others in a model's prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise.text.clean import TerminalCleaner, clean_line, clean_text, quote_lines

ESCAPES = [
    "\x1b[31m",  # a colour
    "\x1b[?25l",
    "\x1b]0;a title\x07",
    "\x1b]8;;http://host\x1b\\",
    "\x1bP1$r0m\x1b\\",  # a device control string
    "\x1b_a program command\x1b\\",
    "\x1b(B",  # a character set, which `tput sgr0` selects
    "\x1b7",
    "\x1b=",
    "\x1bM",
]


@pytest.mark.parametrize("escape", ESCAPES, ids=repr)
def test_escape_sequences_are_removed(escape: str) -> None:
    text = f"3 {escape}passed"
    assert clean_text(text) == "3 passed"
    assert clean_line(text) == "3 passed"
    assert TerminalCleaner().feed(text.encode()) == "3 passed"


@given(st.text(alphabet=st.sampled_from("a|# \n\r\t\x0b\x1b[m\x85\u2028\udc80")) | st.text())
def test_a_quoted_line_is_never_one_of_the_prompt(text: str) -> None:
    lines = quote_lines(text, "    | ").splitlines()
    assert lines
    assert all(line.startswith("    |") for line in lines)
    assert not {"\r", "\x0b", "\x1b", "\x85", "\udc80"} & set("".join(lines))
