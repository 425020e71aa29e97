"""Rust sources: find the tests inside them, and put those of the base into an attempt's version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["put_back_tests"]

_MAX_CHARACTERS = 1 << 19
# The beginning of anything that may hide braces: comments, raw strings, strings and characters.
_HIDING = re.compile(r"//|/\*|\bb?r(#{0,20})\"|b?\"|b?'(?:\\[^\n]{1,12}?|[^'\\\n])'")
_STRING_END = re.compile(r"(?:[^\"\\]|\\.)*+\"", re.DOTALL)
_ATTRIBUTE = r"#\[(?:[^\[\]]|\[[^\[\]]{0,500}\]){0,500}\]\s{0,100}"
_ITEM = re.compile(
    rf"(?P<attributes>(?:{_ATTRIBUTE}){{0,20}})\b(?P<kind>mod|fn)\s{{1,100}}(?P<name>\w{{1,200}})[^{{}};]{{0,2000}}\{{"
)
_TEST = re.compile(r"\btest\b")


@dataclass(frozen=True, slots=True)
class _Item:
    """A module or function: where it is in the text, its path of names, and whether its attributes make it a test."""

    start: int
    end: int
    path: tuple[str, ...]
    is_test: bool


def put_back_tests(theirs: str, base: str) -> str:
    """Return ``theirs`` with the tests of ``base``; those that it added are removed.

    Raises ValueError if there is no place for a test of the base.

    >>> base = "fn a() {}\\n#[cfg(test)]\\nmod tests { one }\\n"
    >>> put_back_tests("fn b() {}\\n#[cfg(windows)]\\nmod tests { two }\\nfn c() {}\\n", base)
    'fn b() {}\\n#[cfg(test)]\\nmod tests { one }\\nfn c() {}\\n'
    """
    if not _TEST.search(base) and not _TEST.search(theirs):
        return theirs
    wanted = {item.path: base[item.start : item.end] for item in _find_items(base) if item.is_test}
    pieces: list[str] = []
    position = 0
    for item in _find_items(theirs):
        if item.start >= position and (item.is_test or item.path in wanted):
            pieces += [theirs[position : item.start], wanted.pop(item.path, "")]
            position = item.end
    text = "".join(pieces) + theirs[position:]
    if any(len(path) > 1 for path in wanted):
        raise ValueError("a module that contained tests is gone")
    return text + "".join(f"\n{block}\n" for block in wanted.values())


def _find_items(text: str) -> Iterator[_Item]:
    """Yield the modules and functions, except those inside functions and tests."""
    visible = _hide(text)
    yield from _find_items_between(visible, 0, len(visible), ())


def _hide(text: str) -> str:
    """Replace whatever could contain a brace with as many spaces, so that positions stay the same."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError("it is too long")
    pieces: list[str] = []
    position = 0
    while found := _HIDING.search(text, position):
        end = _find_end(text, found)
        pieces += [text[position : found.start()], " " * (end - found.start())]
        position = end
    return "".join([*pieces, text[position:]])


def _find_end(text: str, start: re.Match[str]) -> int:
    """Return the position after a comment, a string or a character."""
    opening = start[0]
    if opening == "//":
        end = text.find("\n", start.end())
        return len(text) if end < 0 else end
    if opening == "/*":
        return _find_end_of_comment(text, start.end())
    if opening.endswith("'"):
        return start.end()
    closing = f'"{start[1]}' if start[1] is not None else ""
    if closing:
        end = text.find(closing, start.end())
        if end < 0:
            raise ValueError("a string is not closed")
        return end + len(closing)
    string = _STRING_END.match(text, start.end())
    if string is None:
        raise ValueError("a string is not closed")
    return string.end()


def _find_end_of_comment(text: str, start: int) -> int:
    """Return the position after a comment; comments are nested."""
    depth = 1
    for sign in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if sign[0] == "/*" else -1
        if depth == 0:
            return sign.end()
    raise ValueError("a comment is not closed")


def _find_items_between(visible: str, start: int, end: int, path: tuple[str, ...]) -> Iterator[_Item]:
    while found := _ITEM.search(visible, start, end):
        close = _find_close(visible, found.end(), end)
        is_test = bool(_TEST.search(found["attributes"]))
        inner = (*path, found["name"])
        if is_test or found["kind"] == "fn":
            yield _Item(found.start(), close, inner, is_test)
        else:
            yield _Item(found.start(), close, inner, False)
            yield from _find_items_between(visible, found.end(), close - 1, inner)
        start = close


def _find_close(visible: str, start: int, end: int) -> int:
    """Return the position after the brace that closes the block that begins at ``start``."""
    depth = 1
    for brace in re.compile("[{}]").finditer(visible, start, end):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError("a brace is not closed")
