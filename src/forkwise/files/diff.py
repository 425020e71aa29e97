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

from forkwise.files.lines import Edit, edits, is_text, lines_of

__all__ = ["LIMIT", "FileDiff", "Side", "chunks", "unified"]

LIMIT = 8 * 1024 * 1024
"""How many bytes a side may have for its content to be shown."""

_NO_BLOB = "0" * 40
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
        old, new = _shown(change.old), _shown(change.new)
        if old and new and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
            yield from _file(FileDiff(change.path, old, None), context, binary, limit)
            yield from _file(FileDiff(change.path, None, new), context, binary, limit)
        elif old or new:
            yield from _file(FileDiff(change.path, old, new), context, binary, limit)


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


def _shown(side: Side | None) -> Side | None:
    return side if side and (stat.S_ISREG(side.mode) or stat.S_ISLNK(side.mode)) else None


def _file(change: FileDiff, context: int, binary: bool, limit: int | None) -> Iterator[str]:
    """One path whose sides, where there are both, are of one type."""
    old, new = change.old, change.new
    old_mode, new_mode = _mode(old), _mode(new)
    is_hidden = any(_is_over(side, limit) for side in (old, new))
    is_same = bool(old and new and old.content == new.content and old.content is not None)
    if is_same and old_mode == new_mode:
        return
    old_name, new_name = _quoted(f"a/{change.path}"), _quoted(f"b/{change.path}")
    yield f"diff --git {old_name} {new_name}\n"
    if not old:
        yield f"new file mode {new_mode}\n"
    elif not new:
        yield f"deleted file mode {old_mode}\n"
    elif old_mode != new_mode:
        yield f"old mode {old_mode}\nnew mode {new_mode}\n"
    if is_same:
        return
    old_label, new_label = old_name if old else "/dev/null", new_name if new else "/dev/null"
    if is_hidden:
        # Begun and ended like this, git takes it for a binary file; else it would make or delete one silently.
        yield f"Files {old_label}{_size(old)} and {new_label}{_size(new)} differ\n"
        return
    before, after = (old and old.content) or b"", (new and new.content) or b""
    yield f"index {_blob(old)}..{_blob(new)}" + (f" {old_mode}\n" if old_mode == new_mode else "\n")
    if is_text(before) and is_text(after):
        if before != after:
            # A name with a space would end there for `patch`, were it not for the tab.
            tab = "\t" if " " in change.path else ""
            yield f"--- {old_label}{tab if old else ''}\n+++ {new_label}{tab if new else ''}\n"
            yield from _hunks(lines_of(before), lines_of(after), context)
    elif binary:
        yield "GIT binary patch\n"
        yield from _literal(after)
        yield from _literal(before)
    else:
        yield f"Binary files {old_label} and {new_label} differ\n"


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
    digest = hashlib.sha1(b"blob %d\0" % len(side.content), usedforsecurity=False)
    digest.update(side.content)
    return digest.hexdigest()


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


def _hunks(old: list[bytes], new: list[bytes], context: int) -> Iterator[str]:
    group: list[Edit] = []
    for edit in edits(old, new):
        if group and edit.old_start - group[-1].old_stop > 2 * context:
            yield _hunk(group, old, new, context)
            group = []
        group.append(edit)
    if group:
        yield _hunk(group, old, new, context)


def _hunk(group: list[Edit], old: list[bytes], new: list[bytes], context: int) -> str:
    lead = min(context, group[0].old_start)
    trail = min(context, len(old) - group[-1].old_stop)
    at = group[0].old_start - lead
    old_range = _span(at, group[-1].old_stop + trail)
    new_range = _span(group[0].new_start - lead, group[-1].new_stop + trail)
    lines = []
    for edit in group:
        lines += [b" " + line for line in old[at : edit.old_start]]
        lines += [b"-" + line for line in old[edit.old_start : edit.old_stop]]
        lines += [b"+" + line for line in new[edit.new_start : edit.new_stop]]
        at = edit.old_stop
    lines += [b" " + line for line in old[at : at + trail]]
    # Only the last line of a text can be without an ending, and it may be anywhere in its hunk.
    if not (old and new) or not (old[-1].endswith(b"\n") and new[-1].endswith(b"\n")):
        lines = [line if line.endswith(b"\n") else line + _UNENDED for line in lines]
    return f"@@ -{old_range} +{new_range} @@\n{b''.join(lines).decode('utf-8', 'surrogateescape')}"


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
