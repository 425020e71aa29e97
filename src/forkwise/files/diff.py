"""What two versions of a file differ in: as edits of lines, and as text in git's format.

Apart from the merge, which builds on the edits, and from the delta, which knows which paths changed. Everything here
is a pure function of bytes; what it writes is accepted by ``git apply`` and ``patch -p1``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import NamedTuple, TypeAlias

__all__ = ["LIMIT", "Edit", "FileDiff", "Side", "chunks", "edits", "is_text", "lines_of", "unified"]

LIMIT = 8 * 1024 * 1024
"""How many bytes a side may have for its content to be shown."""

# Where git looks for a NUL; to look further would call binary what git merges and applies as text.
_SNIFFED = 8000

# The common lines of two texts are sought in a table of one bit for each pair of lines; this keeps it below 256 MiB.
_TABLE_BITS = 1 << 31

_NO_BLOB = "0" * 40
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}

_Chain: TypeAlias = "tuple[tuple[int, int], _Chain | None]"


class Edit(NamedTuple):
    """Lines ``old_start:old_stop`` of the old text became lines ``new_start:new_stop`` of the new one."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


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


def is_text(data: bytes) -> bool:
    r"""Whether git would take these bytes for text: no NUL near their beginning.

    >>> is_text(b"caf\xe9\r\n"), is_text(b"\x7fELF\x00")
    (True, False)
    """
    return b"\0" not in data[:_SNIFFED]


def lines_of(data: bytes) -> list[bytes]:
    r"""The lines, each with its ending; only a newline ends a line.

    >>> lines_of(b"one\r\ntwo\rthree")
    [b'one\r\n', b'two\rthree']
    """
    return BytesIO(data).readlines()


def edits(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    r"""The fewest lines to take out and put in that turn old into new, in order and with an equal line between any two.

    Where an edit could as well stand elsewhere, it stands where git puts it: beside another edit if it can, else as
    far down as it goes.

    >>> edits([b"a\n", b"b\n", b"c\n"], [b"a\n", b"c\n", b"d\n"])
    [Edit(old_start=1, old_stop=2, new_start=1, new_stop=1), Edit(old_start=3, old_stop=3, new_start=2, new_stop=3)]
    """
    numbers: dict[bytes, int] = {}
    before = [numbers.setdefault(line, len(numbers)) for line in old]
    after = [numbers.setdefault(line, len(numbers)) for line in new]
    kept_before, kept_after = _kept(before, after)
    # The ends of the texts count as kept lines, so that every gap lies between two.
    bounds_before = [-1, *kept_before, len(before)]
    bounds_after = [-1, *kept_after, len(after)]
    _settle(before, bounds_before, bounds_after)
    _settle(after, bounds_after, bounds_before)
    return [
        Edit(i + 1, next_i, j + 1, next_j)
        for (i, next_i), (j, next_j) in zip(pairwise(bounds_before), pairwise(bounds_after), strict=True)
        if i + 1 < next_i or j + 1 < next_j
    ]


def _kept(before: list[int], after: list[int]) -> tuple[list[int], list[int]]:
    """The positions, in both, of a longest run of lines that both have in the same order."""
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    pairs = _common(range(head, len(before) - tail), range(head, len(after) - tail), before, after)
    return (
        [*range(head), *(i for i, _ in pairs), *range(len(before) - tail, len(before))],
        [*range(head), *(j for _, j in pairs), *range(len(after) - tail, len(after))],
    )


def _common(olds: Sequence[int], news: Sequence[int], before: list[int], after: list[int]) -> list[tuple[int, int]]:
    """Pairs of positions, one from ``olds`` and one from ``news``, that hold the same line, both ascending."""
    if not olds or not news:
        return []
    shared = {before[i] for i in olds} & {after[j] for j in news}
    # A line that only one side has cannot be kept: leaving it out loses nothing and empties the table of a rewrite.
    olds = [i for i in olds if before[i] in shared]
    news = [j for j in news if after[j] in shared]
    if not olds:
        return []
    if len(olds) * len(news) <= _TABLE_BITS:
        # Late, because it takes longer to load than all the rest, and files that only come or go do without.
        from rapidfuzz.distance import LCSseq  # noqa: PLC0415

        # New before old: of several longest runs this finds, far more often than the other way, the one git takes.
        blocks = LCSseq.opcodes([after[j] for j in news], [before[i] for i in olds]).as_matching_blocks()
        return [(olds[block.b + n], news[block.a + n]) for block in blocks for n in range(block.size)]
    pairs: list[tuple[int, int]] = []
    start_i = start_j = 0
    for stop_i, stop_j, is_anchor in _cuts(olds, news, before, after):
        pairs += _common(olds[start_i:stop_i], news[start_j:stop_j], before, after)
        if is_anchor:
            pairs.append((olds[stop_i], news[stop_j]))
        start_i, start_j = stop_i + is_anchor, stop_j + is_anchor
    return pairs


def _cuts(
    olds: Sequence[int], news: Sequence[int], before: list[int], after: list[int]
) -> Iterator[tuple[int, int, bool]]:
    """Where to cut a pair of texts too large for one table: at lines that each has once, or else through the middle."""
    times_old, times_new = Counter(before[i] for i in olds), Counter(after[j] for j in news)
    place_new = {after[j]: place for place, j in enumerate(news)}
    once = [
        (place, place_new[before[i]])
        for place, i in enumerate(olds)
        if times_old[before[i]] == 1 == times_new[before[i]]
    ]
    anchors = _ascending(once)
    if anchors:
        yield from ((place_i, place_j, True) for place_i, place_j in anchors)
    else:
        yield len(olds) // 2, len(news) // 2, False
    yield len(olds), len(news), False


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest choice of pairs, given in the order of their first, whose second ascends as well."""
    lowest_ends: list[int] = []
    chains: list[_Chain] = []
    for pair in pairs:
        length = bisect_left(lowest_ends, pair[1])
        lowest_ends[length : length + 1] = [pair[1]]
        chains[length : length + 1] = [(pair, chains[length - 1] if length else None)]
    chosen = []
    chain = chains[-1] if chains else None
    while chain:
        pair, chain = chain
        chosen.append(pair)
    return chosen[::-1]


def _settle(lines: list[int], bounds: list[int], other: list[int]) -> None:
    """Move each gap between kept lines, in place, to where git would have it.

    A gap whose first line equals the kept line after it can as well begin one line later, and the other way round. So
    a gap goes up as far as it can and then down, taking in the gaps it meets. If on its last way down it passed places
    where the other text has a gap too, it ends at the lowest of them: one edit that replaces reads better than two.
    """
    gap = 1
    while gap < len(bounds):
        if _width(bounds, gap):
            gap = _settled(lines, bounds, other, gap)
        gap += 1


def _settled(lines: list[int], bounds: list[int], other: list[int], gap: int) -> int:
    """Move one gap; the answer is its new number."""
    width, beside = 0, 0
    while width != _width(bounds, gap):
        width = _width(bounds, gap)
        while gap > 1 and lines[bounds[gap - 1]] == lines[bounds[gap] - 1]:
            gap = _raised(bounds, gap)
        beside = gap if _width(other, gap) else 0
        while gap < len(bounds) - 1 and lines[bounds[gap - 1] + 1] == lines[bounds[gap]]:
            bounds[gap] = bounds[gap - 1] + 1
            gap += 1
            beside = gap if _width(other, gap) else beside
    while beside and gap > beside:
        gap = _raised(bounds, gap)
    return gap


def _width(bounds: list[int], gap: int) -> int:
    return bounds[gap] - bounds[gap - 1] - 1


def _raised(bounds: list[int], gap: int) -> int:
    bounds[gap - 1] = bounds[gap] - 1
    return gap - 1


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
    raw = os.fsencode(path)
    text = "".join(_ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw)
    # Git leaves a directory whose name ends in a space bare, and then cannot read its own header.
    return f'"{text}"' if len(text) != len(raw) or " /" in text else text


def _hunks(old: list[bytes], new: list[bytes], context: int) -> Iterator[str]:
    group: list[Edit] = []
    for edit in edits(old, new):
        if group and edit.old_start - group[-1].old_stop > 2 * context:
            yield from _hunk(group, old, new, context)
            group = []
        group.append(edit)
    if group:
        yield from _hunk(group, old, new, context)


def _hunk(group: list[Edit], old: list[bytes], new: list[bytes], context: int) -> Iterator[str]:
    lead = min(context, group[0].old_start)
    trail = min(context, len(old) - group[-1].old_stop)
    at = group[0].old_start - lead
    old_range = _span(at, group[-1].old_stop + trail)
    new_range = _span(group[0].new_start - lead, group[-1].new_stop + trail)
    yield f"@@ -{old_range} +{new_range} @@\n"
    for edit in group:
        yield from _marked(" ", old[at : edit.old_start])
        yield from _marked("-", old[edit.old_start : edit.old_stop])
        yield from _marked("+", new[edit.new_start : edit.new_stop])
        at = edit.old_stop
    yield from _marked(" ", old[at : at + trail])


def _span(start: int, stop: int) -> str:
    """A range of lines as hunk headers count them: from one, and an empty one by the line before it."""
    if stop - start == 1:
        return str(stop)
    return f"{start + (stop > start)},{stop - start}"


def _marked(mark: str, lines: list[bytes]) -> Iterator[str]:
    for line in lines:
        text = line.decode("utf-8", "surrogateescape")
        yield f"{mark}{text}" if line.endswith(b"\n") else f"{mark}{text}\n\\ No newline at end of file\n"


def _literal(content: bytes) -> Iterator[str]:
    """Content as a block of a binary patch: deflated, in base 85, each line led by a letter for its length."""
    yield f"literal {len(content)}\n"
    packed = zlib.compress(content)
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        letter = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        yield f"{letter}{base64.b85encode(piece, pad=True).decode('ascii')}\n"
    yield "\n"
