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
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import compress, count, pairwise
from operator import ne
from typing import NamedTuple, TypeAlias

__all__ = [
    "LIMIT",
    "Edit",
    "FileDiff",
    "Side",
    "chunks",
    "edits",
    "is_text",
    "lines_of",
    "unified",
    "unified_file",
]


# Where git looks for a NUL; to look further would call binary what git merges and applies as text.
_SNIFFED = 8000

# The common lines of two texts are sought in a table of one bit for each pair of lines; this keeps it below 256 MiB.
_TABLE_BITS = 1 << 31

# Of the lines at both ends that two texts share, so many are looked at first: an edit seldom has to move further.
_REACH = 1

_Chain: TypeAlias = "tuple[tuple[int, int], _Chain | None]"


class Edit(NamedTuple):
    """Lines ``old_start:old_stop`` of the old text became lines ``new_start:new_stop`` of the new one."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


def is_text(data: bytes) -> bool:
    r"""Whether git would take these bytes for text: no NUL near their beginning.

    >>> is_text(b"caf\xe9\r\n"), is_text(b"\x7fELF\x00")
    (True, False)
    """
    return data.find(b"\0", 0, _SNIFFED) < 0


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
    replaced = _replaced(old, new)
    if replaced is not None:
        return replaced
    head, tail = _ends(old, new)
    reach = _REACH
    while True:
        top, bottom = max(head - reach, 0), max(tail - reach, 0)
        found = _edits_within(old[top : len(old) - bottom], new[top : len(new) - bottom], head - top, tail - bottom)
        if (not found.is_at_top or not top) and (not found.is_at_bottom or not bottom):
            return [Edit(e[0] + top, e[1] + top, e[2] + top, e[3] + top) for e in found.edits] if top else found.edits
        reach *= 8


def _replaced(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit] | None:
    """The edits where lines were replaced by as many that the old text has nowhere, while the new one has nowhere what
    they replace: as none of them can be kept, all others are, where they are, and no edit could stand elsewhere. None
    where it is not as plain as that."""
    if len(old) != len(new):
        return None
    places = [*compress(count(), map(ne, old, new))]
    if not ({old[at] for at in places}.isdisjoint(new) and {new[at] for at in places}.isdisjoint(old)):
        return None
    found: list[Edit] = []
    start = stop = -1
    for at in places:
        if at != stop:
            if stop > start:
                found.append(Edit(start, stop, start, stop))
            start = at
        stop = at + 1
    return [*found, Edit(start, stop, start, stop)] if places else found


class _Found(NamedTuple):
    """Edits, and whether one of them came to an end of the text on its way to its place."""

    edits: list[Edit]
    is_at_top: bool
    is_at_bottom: bool


def _edits_within(old: Sequence[bytes], new: Sequence[bytes], head: int, tail: int) -> _Found:
    """The edits between two texts whose first ``head`` and last ``tail`` lines are the same."""
    numbers = dict(zip({*old, *new}, count(), strict=False))
    before = [*map(numbers.__getitem__, old)]
    after = [*map(numbers.__getitem__, new)]
    pairs = _common(range(head, len(before) - tail), range(head, len(after) - tail), before, after)
    # The ends of the texts count as kept lines, so that every gap lies between two.
    bounds_before = [*range(-1, head), *[i for i, _ in pairs], *range(len(before) - tail, len(before) + 1)]
    bounds_after = [*range(-1, head), *[j for _, j in pairs], *range(len(after) - tail, len(after) + 1)]
    spans = [_settle(before, bounds_before, bounds_after), _settle(after, bounds_after, bounds_before)]
    gaps = zip(pairwise(bounds_before), pairwise(bounds_after), strict=True)
    edits = [Edit(i + 1, next_i, j + 1, next_j) for (i, next_i), (j, next_j) in gaps if next_i - i + next_j - j > 2]
    return _Found(edits, min(spans)[0] <= 1, max(top for _, top in spans) >= len(bounds_before) - 1)


def _ends(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[int, int]:
    """How many lines at the beginning, and of the rest at the end, are the same."""
    shorter = min(len(old), len(new))
    head = _agreeing(shorter, lambda start, stop: old[start:stop] == new[start:stop])
    last_old, last_new = len(old), len(new)
    tail = _agreeing(
        shorter - head,
        lambda start, stop: old[last_old - stop : last_old - start] == new[last_new - stop : last_new - start],
    )
    return head, tail


def _agreeing(most: int, is_same: Callable[[int, int], bool]) -> int:
    """How far from 0 on, at most to ``most``, all is the same; halving is fastest where slices are compared at once."""
    if is_same(0, most):
        return most
    low, high = 0, most  # the first difference lies between them
    while high - low > 1:
        middle = (low + high) // 2
        if is_same(low, middle):
            low = middle
        else:
            high = middle
    return low


def _common(olds: Sequence[int], news: Sequence[int], before: list[int], after: list[int]) -> list[tuple[int, int]]:
    """Pairs of positions, one from ``olds`` and one from ``news``, that hold the same line, both ascending."""
    if not olds or not news:
        return []
    shared = {*map(before.__getitem__, olds)} & {*map(after.__getitem__, news)}
    # A line that only one side has cannot be kept: leaving it out loses nothing and empties the table of a rewrite.
    olds = [i for i in olds if before[i] in shared]
    news = [j for j in news if after[j] in shared]
    if not olds:
        return []
    ours, its = [*map(after.__getitem__, news)], [*map(before.__getitem__, olds)]
    if ours == its:
        return [*zip(olds, news, strict=True)]
    if len(olds) * len(news) <= _TABLE_BITS:
        # Late, because it takes longer to load than all the rest, and files that only come or go do without.
        from rapidfuzz.distance import LCSseq  # noqa: PLC0415

        # New before old: of several longest runs this finds, far more often than the other way, the one git takes.
        blocks = LCSseq.opcodes(ours, its).as_matching_blocks()
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


def _settle(lines: list[int], bounds: list[int], other: list[int]) -> tuple[int, int]:
    """Move each gap between kept lines, in place, to where git would have it.

    A gap whose first line equals the kept line after it can as well begin one line later, and the other way round. So
    a gap goes up as far as it can and then down, taking in the gaps it meets. If on its last way down it passed places
    where the other text has a gap too, it ends at the lowest of them: one edit that replaces reads better than two.
    The answer is the lowest and the highest number that any gap had on its way.
    """
    gaps = [gap for gap, (start, stop) in enumerate(pairwise(bounds), start=1) if stop - start > 1]
    lowest, highest = min(gaps, default=len(bounds)), max(gaps, default=0)
    if not any(_is_movable(lines, bounds, gap) for gap in gaps):
        return lowest, highest
    gap = 1
    while gap < len(bounds):
        if bounds[gap] - bounds[gap - 1] > 1:
            gap, low, high = _settled(lines, bounds, other, gap)
            lowest, highest = min(lowest, low), max(highest, high)
        gap += 1
    return lowest, highest


def _is_movable(lines: list[int], bounds: list[int], gap: int) -> bool:
    before, after = bounds[gap - 1], bounds[gap]
    return (gap > 1 and lines[before] == lines[after - 1]) or (
        gap < len(bounds) - 1 and lines[before + 1] == lines[after]
    )


def _settled(lines: list[int], bounds: list[int], other: list[int], gap: int) -> tuple[int, int, int]:
    """Move one gap; the answer is its new number, with the lowest and the highest it had on its way."""
    width, beside = 0, 0
    lowest = highest = gap
    while width != _width(bounds, gap):
        width = _width(bounds, gap)
        while gap > 1 and lines[bounds[gap - 1]] == lines[bounds[gap] - 1]:
            gap = _raised(bounds, gap)
        lowest = min(lowest, gap)
        beside = gap if _width(other, gap) else 0
        while gap < len(bounds) - 1 and lines[bounds[gap - 1] + 1] == lines[bounds[gap]]:
            bounds[gap] = bounds[gap - 1] + 1
            gap += 1
            beside = gap if _width(other, gap) else beside
        highest = max(highest, gap)
    while beside and gap > beside:
        gap = _raised(bounds, gap)
    return gap, lowest, highest


def _width(bounds: list[int], gap: int) -> int:
    return bounds[gap] - bounds[gap - 1] - 1


def _raised(bounds: list[int], gap: int) -> int:
    bounds[gap - 1] = bounds[gap] - 1
    return gap - 1


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
