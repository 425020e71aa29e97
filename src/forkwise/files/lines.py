"""Lines of text, and the edits that turn those of one version into those of another.

The diff shows them, the merge combines them; everything here is a pure function of bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from typing import NamedTuple, TypeAlias

__all__ = ["Edit", "edits", "is_text", "lines_of"]

# Where git looks for a NUL; to look further would call binary what git merges and applies as text.
_SNIFFED = 8000

# The common lines of two texts are sought in a table of one bit for each pair of lines; this keeps it below 256 MiB.
_TABLE_BITS = 1 << 31

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
