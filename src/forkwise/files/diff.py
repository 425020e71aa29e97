"""A diff as text in git's format, which ``git apply`` and ``patch -p1`` accept.

Apart from the delta, which knows which paths changed, and from the lines, which know how to compare two texts.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from forkwise.files.lines import Edit, edits, is_text, lines_of

__all__ = ["LIMIT", "FileDiff", "Side", "chunks", "unified", "unified_file"]

LIMIT = 8 * 1024 * 1024
"""How many bytes a side may have for its content to be shown."""

_NO_BLOB = "0" * 40
_SMALL = 64 * 1024
_UNENDED = b"\n\\ No newline at end of file\n"
_PLAIN = re.compile(r"[ !#-\[\]-~]*")  # printable ASCII without quotes and backslashes
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


@dataclass(frozen=True, slots=True)
class Side:
    """One version of a path.

    ``mode`` is the full ``st_mode``. ``content`` is a symlink's target for a symlink, and None where it was too large
    to be read; ``size`` then says how large.
    """

    mode: int
    content: bytes | None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A path before and after; None is where there was, or is, nothing."""

    path: str
    old: Side | None
    new: Side | None


def chunks(
    changes: Iterable[FileDiff], *, context: int = 3, binary: bool = False, limit: int | None = LIMIT
) -> Iterator[str]:
    """The text of `unified` piece by piece, so that only one file of a large diff is held at a time."""
    if context < 0:
        raise ValueError(f"context must not be negative, got {context}")
    for change in changes:
        if text := unified_file(change, context=context, binary=binary, limit=limit):
            yield text


def unified(changes: Iterable[FileDiff], *, context: int = 3, binary: bool = False, limit: int | None = LIMIT) -> str:
    r"""A diff in git's format; encode it as UTF-8 with ``surrogateescape`` to have its exact bytes.

    ``binary`` writes what is not text in full, so that ``git apply`` restores it. A side of more than ``limit`` bytes
    (None: no limit) is only said to differ, in a way that makes ``git apply`` refuse instead of doing half.
    Directories and special files have no form in git's diffs and are left out.

    >>> old, new = Side(0o100644, b"one\ntwo\n"), Side(0o100644, b"one\n2\n")
    >>> print(unified([FileDiff("count.txt", old, new)]), end="")
    diff --git a/count.txt b/count.txt
    index 814f4a422927b82f5f8a43f8fab6d3839e3983f2..99b356dcd03dde0755c749bcd4cae4b2b73a8fa8 100644
    --- a/count.txt
    +++ b/count.txt
    @@ -1,2 +1,2 @@
     one
    -two
    +2
    """
    return "".join(chunks(changes, context=context, binary=binary, limit=limit))


def unified_file(change: FileDiff, *, context: int = 3, binary: bool = False, limit: int | None = LIMIT) -> str:
    """The same of one path."""
    old, new = _shown(change.old), _shown(change.new)
    if old and new and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        gone = _file(change.path, old, None, context, binary, limit)
        return gone + _file(change.path, None, new, context, binary, limit)
    return _file(change.path, old, new, context, binary, limit) if old or new else ""


def _shown(side: Side | None) -> Side | None:
    return side if side and (stat.S_ISREG(side.mode) or stat.S_ISLNK(side.mode)) else None


def _file(path: str, old: Side | None, new: Side | None, context: int, binary: bool, limit: int | None) -> str:
    """One path whose sides, where there are both, are of one type."""
    old_mode, new_mode = _mode(old), _mode(new)
    is_same = bool(old and new and old.content == new.content and old.content is not None)
    if is_same and old_mode == new_mode:
        return ""
    old_name, new_name = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    head = f"diff --git {old_name} {new_name}\n"
    if not old:
        head += f"new file mode {new_mode}\n"
    elif not new:
        head += f"deleted file mode {old_mode}\n"
    elif old_mode != new_mode:
        head += f"old mode {old_mode}\nnew mode {new_mode}\n"
    if is_same:
        return head
    old_label, new_label = old_name if old else "/dev/null", new_name if new else "/dev/null"
    if _is_over(old, limit) or _is_over(new, limit):
        # Begun and ended like this, git takes it for a binary file; else it would make or delete one silently.
        return f"{head}Files {old_label}{_size(old)} and {new_label}{_size(new)} differ\n"
    before, after = (old and old.content) or b"", (new and new.content) or b""
    head += f"index {_blob(old)}..{_blob(new)}" + (f" {old_mode}\n" if old_mode == new_mode else "\n")
    if is_text(before) and is_text(after):
        if before == after:
            return head
        # A name with a space would end there for `patch`, were it not for the tab.
        tab = "\t" if " " in path else ""
        labels = f"--- {old_label}{tab if old else ''}\n+++ {new_label}{tab if new else ''}\n"
        return "".join([head, labels, *_hunks(_lines(before), _lines(after), context)])
    if binary:
        return "".join([head, "GIT binary patch\n", *_literal(after), *_literal(before)])
    return f"{head}Binary files {old_label} and {new_label} differ\n"


def _mode(side: Side | None) -> str:
    """The mode as git keeps it: of the permissions, only whether the owner may execute."""
    if side is None:
        return ""
    if stat.S_ISLNK(side.mode):
        return "120000"
    return "100755" if side.mode & stat.S_IXUSR else "100644"


def _is_over(side: Side | None, limit: int | None) -> bool:
    return side is not None and (side.content is None or (limit is not None and len(side.content) > limit))


def _size(side: Side | None) -> str:
    if side is None:
        return ""
    size = side.size if side.content is None else len(side.content)
    return " (of unknown size)" if size is None else f" ({size} bytes)"


def _blob(side: Side | None) -> str:
    """The name git gives to this content, which it asks for before it applies anything binary."""
    if side is None or side.content is None:
        return _NO_BLOB
    return _small_blob(side.content) if len(side.content) <= _SMALL else _blob_of(side.content)


def _blob_of(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def _lines(content: bytes) -> list[bytes]:
    return _small_lines(content) if len(content) <= _SMALL else lines_of(content)


# Several versions of a file are mostly diffed one after the other, against the same one.
_small_blob = lru_cache(maxsize=4)(_blob_of)
_small_lines = lru_cache(maxsize=4)(lines_of)


def _quoted(path: str) -> str:
    r"""A path as git writes it: in C's quotes if anything in it needs them, bytes beyond ASCII in octal.

    >>> print(_quoted("plain name"), _quoted('say "hi"'), _quoted("caf\u00e9"))
    plain name "say \"hi\"" "caf\303\251"
    """
    if _PLAIN.fullmatch(path) and " /" not in path:
        return path
    raw = os.fsencode(path)
    text = "".join(_ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw)
    # Git leaves a directory whose name ends in a space bare, and then cannot read its own header.
    return f'"{text}"' if len(text) != len(raw) or " /" in text else text


def _hunks(old: list[bytes], new: list[bytes], context: int) -> list[str]:
    hunks: list[str] = []
    group: list[Edit] = []
    for edit in edits(old, new):
        if group and edit.old_start - group[-1].old_stop > 2 * context:
            hunks.append(_hunk(group, old, new, context))
            group = []
        group.append(edit)
    return [*hunks, _hunk(group, old, new, context)] if group else hunks


def _hunk(group: list[Edit], old: list[bytes], new: list[bytes], context: int) -> str:
    lead = min(context, group[0].old_start)
    trail = min(context, len(old) - group[-1].old_stop)
    at = group[0].old_start - lead
    old_range = _span(at, group[-1].old_stop + trail)
    new_range = _span(group[0].new_start - lead, group[-1].new_stop + trail)
    parts = []
    for edit in group:
        parts.append(_led(b" ", old[at : edit.old_start]))
        parts.append(_led(b"-", old[edit.old_start : edit.old_stop]))
        parts.append(_led(b"+", new[edit.new_start : edit.new_stop]))
        at = edit.old_stop
    parts.append(_led(b" ", old[at : at + trail]))
    return f"@@ -{old_range} +{new_range} @@\n{b''.join(parts).decode('utf-8', 'surrogateescape')}"


def _led(mark: bytes, lines: list[bytes]) -> bytes:
    """Lines with a mark before each."""
    if not lines:
        return b""
    text = mark + mark.join(lines)
    # Only the last line of a text can be without an ending.
    return text if text.endswith(b"\n") else text + _UNENDED


def _span(start: int, stop: int) -> str:
    """A range of lines as hunk headers count them: from one, and an empty one by the line before it."""
    if stop - start == 1:
        return str(stop)
    return f"{start + (stop > start)},{stop - start}"


def _literal(content: bytes) -> Iterator[str]:
    """Content as a block of a binary patch: deflated, in base 85, each line led by a letter for its length."""
    yield f"literal {len(content)}\n"
    packed = zlib.compress(content)
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        letter = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        yield f"{letter}{base64.b85encode(piece, pad=True).decode('ascii')}\n"
    yield "\n"
