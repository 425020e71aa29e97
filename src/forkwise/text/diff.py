"""Line diffs: the shortest edits between two texts, and unified diffs in git's format.

``git apply`` and ``patch -p1`` accept the unified diffs. Finding out which paths changed is the work of ``files``.
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
    "FileVersion",
    "chunks",
    "edits",
    "is_text",
    "lines_of",
    "unified",
    "unified_file",
]


# Git searches this many bytes for a NUL; searching further would call binary what git merges and applies as text.
_SNIFFED = 8000

# The longest common subsequence needs one bit for each pair of lines; this keeps the table below 256 MiB.
_TABLE_BITS = 1 << 31

# How many of the common lines at both ends are included at first: an edit seldom has to move further.
_REACH = 1

_Chain: TypeAlias = "tuple[tuple[int, int], _Chain | None]"


class Edit(NamedTuple):
    """Lines ``old_start:old_stop`` of the old text became lines ``new_start:new_stop`` of the new one."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


def is_text(data: bytes) -> bool:
    r"""Return whether git would treat these bytes as text: no NUL near their beginning.

    >>> is_text(b"caf\xe9\r\n"), is_text(b"\x7fELF\x00")
    (True, False)
    """
    return data.find(b"\0", 0, _SNIFFED) < 0


def lines_of(data: bytes) -> list[bytes]:
    r"""Split bytes into lines, each with its ending; only a newline ends a line.

    >>> lines_of(b"one\r\ntwo\rthree")
    [b'one\r\n', b'two\rthree']
    """
    return BytesIO(data).readlines()


def edits(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    r"""Find the fewest lines to remove and insert that turn ``old`` into ``new``.

    The edits are in order, with an equal line between any two. An edit with several equivalent positions is placed
    where git places it: next to another edit if possible, else as far down as possible.

    >>> edits([b"a\n", b"b\n", b"c\n"], [b"a\n", b"c\n", b"d\n"])
    [Edit(old_start=1, old_stop=2, new_start=1, new_stop=1), Edit(old_start=3, old_stop=3, new_start=2, new_stop=3)]
    """
    replacements = _find_replacements(old, new)
    if replacements is not None:
        return replacements
    head, tail = _ends(old, new)
    reach = _REACH
    while True:
        top, bottom = max(head - reach, 0), max(tail - reach, 0)
        found = _edits_within(old[top : len(old) - bottom], new[top : len(new) - bottom], head - top, tail - bottom)
        if (not found.is_at_top or not top) and (not found.is_at_bottom or not bottom):
            return [Edit(e[0] + top, e[1] + top, e[2] + top, e[3] + top) for e in found.edits] if top else found.edits
        reach *= 8


def _find_replacements(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit] | None:
    """Find the edits of the simplest case, line-by-line replacement; return None if it is not that case.

    Every changed line was replaced by a line that the old text has nowhere, and the new text has the replaced lines
    nowhere. So none of these lines can be common, all others are, and no edit has another equivalent position.
    """
    if len(old) != len(new):
        return None
    changed = [*compress(count(), map(ne, old, new))]
    if not (
        {old[number] for number in changed}.isdisjoint(new) and {new[number] for number in changed}.isdisjoint(old)
    ):
        return None
    found: list[Edit] = []
    start = stop = -1
    for number in changed:
        if number != stop:
            if stop > start:
                found.append(Edit(start, stop, start, stop))
            start = number
        stop = number + 1
    return [*found, Edit(start, stop, start, stop)] if changed else found


class _PlacedEdits(NamedTuple):
    """Edits, and whether one of them reached the top or the bottom of the text while it was placed."""

    edits: list[Edit]
    is_at_top: bool
    is_at_bottom: bool


def _edits_within(old: Sequence[bytes], new: Sequence[bytes], head: int, tail: int) -> _PlacedEdits:
    """Find the edits between two texts whose first ``head`` and last ``tail`` lines are equal."""
    numbers = dict(zip({*old, *new}, count(), strict=False))
    before = [*map(numbers.__getitem__, old)]
    after = [*map(numbers.__getitem__, new)]
    pairs = _common(range(head, len(before) - tail), range(head, len(after) - tail), before, after)
    # The ends of the texts count as common lines, so that every gap is between two of them.
    bounds_before = [*range(-1, head), *[i for i, _ in pairs], *range(len(before) - tail, len(before) + 1)]
    bounds_after = [*range(-1, head), *[j for _, j in pairs], *range(len(after) - tail, len(after) + 1)]
    spans = [_place_gaps(before, bounds_before, bounds_after), _place_gaps(after, bounds_after, bounds_before)]
    gaps = zip(pairwise(bounds_before), pairwise(bounds_after), strict=True)
    edits = [Edit(i + 1, next_i, j + 1, next_j) for (i, next_i), (j, next_j) in gaps if next_i - i + next_j - j > 2]
    return _PlacedEdits(edits, min(spans)[0] <= 1, max(top for _, top in spans) >= len(bounds_before) - 1)


def _ends(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[int, int]:
    """Count the equal lines at the beginning of both texts, and in what remains, those at the end."""
    shorter = min(len(old), len(new))
    head = _equal_prefix(shorter, lambda start, stop: old[start:stop] == new[start:stop])
    last_old, last_new = len(old), len(new)
    tail = _equal_prefix(
        shorter - head,
        lambda start, stop: old[last_old - stop : last_old - start] == new[last_new - stop : last_new - start],
    )
    return head, tail


def _equal_prefix(most: int, is_same: Callable[[int, int], bool]) -> int:
    """Return the length of the equal prefix, at most ``most``; bisection is fastest because slices compare in C."""
    if is_same(0, most):
        return most
    low, high = 0, most  # the first difference is between them
    while high - low > 1:
        middle = (low + high) // 2
        if is_same(low, middle):
            low = middle
        else:
            high = middle
    return low


def _common(olds: Sequence[int], news: Sequence[int], before: list[int], after: list[int]) -> list[tuple[int, int]]:
    """Pair positions in ``olds`` with positions in ``news`` that have the same line, both ascending."""
    if not olds or not news:
        return []
    shared = {*map(before.__getitem__, olds)} & {*map(after.__getitem__, news)}
    # A line that only one text has cannot be common: dropping it loses nothing, and keeps the table of a rewrite small.
    olds = [i for i in olds if before[i] in shared]
    news = [j for j in news if after[j] in shared]
    if not olds:
        return []
    ours, its = [*map(after.__getitem__, news)], [*map(before.__getitem__, olds)]
    if ours == its:
        return [*zip(olds, news, strict=True)]
    if len(olds) * len(news) <= _TABLE_BITS:
        # Imported late: it takes longer to load than everything else, and added or deleted files do not need it.
        from rapidfuzz.distance import LCSseq  # noqa: PLC0415

        # New before old: of several longest subsequences, this order finds the one that git uses far more often.
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
    """Yield where to cut two texts too large for one table: at lines that both have once, else in the middle."""
    times_old, times_new = Counter(before[i] for i in olds), Counter(after[j] for j in news)
    index_new = {after[j]: index for index, j in enumerate(news)}
    once = [
        (index, index_new[before[i]])
        for index, i in enumerate(olds)
        if times_old[before[i]] == 1 == times_new[before[i]]
    ]
    anchors = _longest_ascending(once)
    if anchors:
        yield from ((index_i, index_j, True) for index_i, index_j in anchors)
    else:
        yield len(olds) // 2, len(news) // 2, False
    yield len(olds), len(news), False


def _longest_ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of pairs, sorted by their first number, whose second numbers ascend too."""
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


def _place_gaps(lines: list[int], bounds: list[int], other: list[int]) -> tuple[int, int]:
    """Move each gap between common lines, in place, to where git would have it.

    A gap whose first line equals the common line after it could just as well begin one line later, and vice versa. So a
    gap moves up as far as possible and then down, and absorbs the gaps that it meets. If it passed positions on its
    last way down where the other text has a gap too, it ends at the lowest of them: one edit that replaces lines reads
    better than a removal and an insertion. Return the lowest and the highest number that any gap had on its way.
    """
    gaps = [gap for gap, (start, stop) in enumerate(pairwise(bounds), start=1) if stop - start > 1]
    lowest, highest = min(gaps, default=len(bounds)), max(gaps, default=0)
    if not any(_is_movable(lines, bounds, gap) for gap in gaps):
        return lowest, highest
    gap = 1
    while gap < len(bounds):
        if bounds[gap] - bounds[gap - 1] > 1:
            gap, low, high = _place_gap(lines, bounds, other, gap)
            lowest, highest = min(lowest, low), max(highest, high)
        gap += 1
    return lowest, highest


def _is_movable(lines: list[int], bounds: list[int], gap: int) -> bool:
    before, after = bounds[gap - 1], bounds[gap]
    return (gap > 1 and lines[before] == lines[after - 1]) or (
        gap < len(bounds) - 1 and lines[before + 1] == lines[after]
    )


def _place_gap(lines: list[int], bounds: list[int], other: list[int], gap: int) -> tuple[int, int, int]:
    """Move one gap; return its new number, and the lowest and the highest that it had on its way."""
    width, beside = 0, 0
    lowest = highest = gap
    while width != _width(bounds, gap):
        width = _width(bounds, gap)
        while gap > 1 and lines[bounds[gap - 1]] == lines[bounds[gap] - 1]:
            gap = _move_up(bounds, gap)
        lowest = min(lowest, gap)
        beside = gap if _width(other, gap) else 0
        while gap < len(bounds) - 1 and lines[bounds[gap - 1] + 1] == lines[bounds[gap]]:
            bounds[gap] = bounds[gap - 1] + 1
            gap += 1
            beside = gap if _width(other, gap) else beside
        highest = max(highest, gap)
    while beside and gap > beside:
        gap = _move_up(bounds, gap)
    return gap, lowest, highest


def _width(bounds: list[int], gap: int) -> int:
    return bounds[gap] - bounds[gap - 1] - 1


def _move_up(bounds: list[int], gap: int) -> int:
    bounds[gap - 1] = bounds[gap] - 1
    return gap - 1


#: The largest version of a file, in bytes, whose content a diff shows.
LIMIT = 8 * 1024 * 1024

_NO_BLOB = "0" * 40
_SMALL = 64 * 1024
_NO_NEWLINE = b"\n\\ No newline at end of file\n"
_PLAIN = re.compile(r"[ !#-\[\]-~]*")  # printable ASCII without quotes and backslashes
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One version of a path.

    ``mode`` is the full ``st_mode``. ``content`` is the target for a symlink, and None if it is too large or was not
    kept; ``size`` is then its size and ``digest`` a hash of it, if these are known.
    """

    mode: int
    content: bytes | None
    size: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A path before and after a change; None if it did not exist then."""

    path: str
    old: FileVersion | None
    new: FileVersion | None


def chunks(
    changes: Iterable[FileDiff], *, context: int = 3, binary: bool = False, limit: int | None = LIMIT
) -> Iterator[str]:
    """Yield the text of ``unified`` file by file, so that only one file of a large diff is in memory at a time."""
    if context < 0:
        raise ValueError(f"context must not be negative, got {context}")
    for change in changes:
        if text := unified_file(change, context=context, binary=binary, limit=limit):
            yield text


def unified(changes: Iterable[FileDiff], *, context: int = 3, binary: bool = False, limit: int | None = LIMIT) -> str:
    r"""Format a diff in git's format; encode it as UTF-8 with ``surrogateescape`` to get its exact bytes.

    ``binary`` includes the content of binary files, so that ``git apply`` can restore them. A version of more than
    ``limit`` bytes (None: no limit) is only reported to differ, in a way that makes ``git apply`` refuse the diff
    instead of applying half of it. Git's diffs cannot express directories and special files; they are left out.

    >>> old, new = FileVersion(0o100644, b"one\ntwo\n"), FileVersion(0o100644, b"one\n2\n")
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
    """Format the diff of one path."""
    old, new = _file_or_link(change.old), _file_or_link(change.new)
    if old and new and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        deletion = _file(change.path, old, None, context, binary, limit)
        return deletion + _file(change.path, None, new, context, binary, limit)
    return _file(change.path, old, new, context, binary, limit) if old or new else ""


def _file_or_link(side: FileVersion | None) -> FileVersion | None:
    return side if side and (stat.S_ISREG(side.mode) or stat.S_ISLNK(side.mode)) else None


def _file(
    path: str, old: FileVersion | None, new: FileVersion | None, context: int, binary: bool, limit: int | None
) -> str:
    """Format the diff of one path whose versions, if there are two, are of the same type."""
    old_mode, new_mode = _mode(old), _mode(new)
    is_same = bool(old and new and _is_same(old, new))
    if is_same and old_mode == new_mode:
        return ""
    old_name, new_name = _quote(f"a/{path}"), _quote(f"b/{path}")
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
    if any(side and side.content is None and side.digest is not None for side in (old, new)):
        return f"{head}Binary files {old_label} and {new_label} differ\n"  # text is kept with its content
    if _is_over(old, limit) or _is_over(new, limit):
        # Git parses a line of this form as a binary file; otherwise it would silently create or delete an empty file.
        return f"{head}Files {old_label}{_size(old)} and {new_label}{_size(new)} differ\n"
    before, after = (old and old.content) or b"", (new and new.content) or b""
    head += f"index {_blob(old)}..{_blob(new)}" + (f" {old_mode}\n" if old_mode == new_mode else "\n")
    if is_text(before) and is_text(after):
        if before == after:
            return head
        # Without the tab, `patch` would end a name at its first space.
        tab = "\t" if " " in path else ""
        labels = f"--- {old_label}{tab if old else ''}\n+++ {new_label}{tab if new else ''}\n"
        return "".join([head, labels, *_hunks(_lines(before), _lines(after), context)])
    if binary:
        return "".join([head, "GIT binary patch\n", *_literal(after), *_literal(before)])
    return f"{head}Binary files {old_label} and {new_label} differ\n"


def _is_same(old: FileVersion, new: FileVersion) -> bool:
    """Return whether two versions are known to have the same content."""
    if old.content is None or new.content is None:
        return old.digest is not None and old.digest == new.digest
    return old.content == new.content


def _mode(side: FileVersion | None) -> str:
    """Return the mode as git stores it: of the permissions, only whether the owner may execute."""
    if side is None:
        return ""
    if stat.S_ISLNK(side.mode):
        return "120000"
    return "100755" if side.mode & stat.S_IXUSR else "100644"


def _is_over(side: FileVersion | None, limit: int | None) -> bool:
    return side is not None and (side.content is None or (limit is not None and len(side.content) > limit))


def _size(side: FileVersion | None) -> str:
    if side is None:
        return ""
    size = side.size if side.content is None else len(side.content)
    return " (of unknown size)" if size is None else f" ({size} bytes)"


def _blob(side: FileVersion | None) -> str:
    """Return git's object id of this content, which it checks before it applies a binary patch."""
    if side is None or side.content is None:
        return _NO_BLOB
    return _small_blob(side.content) if len(side.content) <= _SMALL else _blob_of(side.content)


def _blob_of(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def _lines(content: bytes) -> list[bytes]:
    return _small_lines(content) if len(content) <= _SMALL else lines_of(content)


# Cached because several versions of a file are usually diffed one after the other against the same one.
_small_blob = lru_cache(maxsize=4)(_blob_of)
_small_lines = lru_cache(maxsize=4)(lines_of)


def _quote(path: str) -> str:
    r"""Quote a path as git does: in C's quotes if anything in it needs them, bytes beyond ASCII in octal.

    >>> print(_quote("plain name"), _quote('say "hi"'), _quote("caf\u00e9"))
    plain name "say \"hi\"" "caf\303\251"
    """
    if _PLAIN.fullmatch(path) and " /" not in path:
        return path
    raw = os.fsencode(path)
    text = "".join(_ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw)
    # Git does not quote a directory whose name ends in a space, and then cannot parse its own header.
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
        parts.append(_prefix(b" ", old[at : edit.old_start]))
        parts.append(_prefix(b"-", old[edit.old_start : edit.old_stop]))
        parts.append(_prefix(b"+", new[edit.new_start : edit.new_stop]))
        at = edit.old_stop
    parts.append(_prefix(b" ", old[at : at + trail]))
    return f"@@ -{old_range} +{new_range} @@\n{b''.join(parts).decode('utf-8', 'surrogateescape')}"


def _prefix(mark: bytes, lines: list[bytes]) -> bytes:
    """Put a mark before each line."""
    if not lines:
        return b""
    text = mark + mark.join(lines)
    # Only the last line of a text can lack a newline.
    return text if text.endswith(b"\n") else text + _NO_NEWLINE


def _span(start: int, stop: int) -> str:
    """Format a range of lines for a hunk header: lines count from one, and an empty range names the line before it."""
    if stop - start == 1:
        return str(stop)
    return f"{start + (stop > start)},{stop - start}"


def _literal(content: bytes) -> Iterator[str]:
    """Yield a block of a binary patch: the content deflated, in base 85, each line with a letter for its length."""
    yield f"literal {len(content)}\n"
    packed = zlib.compress(content)
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        letter = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        yield f"{letter}{base64.b85encode(piece, pad=True).decode('ascii')}\n"
    yield "\n"
