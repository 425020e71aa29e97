"""Lines of text, and the edits that turn those of one version into those of another.

The diff shows them, the merge combines them; everything here is a pure function of bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import compress, count, pairwise
from operator import ne
from typing import NamedTuple, TypeAlias

__all__ = ["Edit", "edits", "is_text", "lines_of"]

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
