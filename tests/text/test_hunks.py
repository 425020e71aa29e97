"""Several aligned versions of a text, and the texts that result from choosing among their changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from forkwise.text.merge3 import Alignment, Hunk, align, merge, overlaps

# Few distinct lines, some texts without a last newline: edits have several positions, and lines could be joined.
texts = st.builds(
    lambda lines, ends: b"".join(lines) if ends else b"".join(lines).removesuffix(b"\n"),
    st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\r\n", b"\n"]), max_size=9),
    st.booleans(),
)
several = st.dictionaries(st.sampled_from(["one", "two", "three", "four"]), texts, min_size=1)


@given(base=texts, versions=several)
def test_all_hunks_of_a_version_give_that_version(base: bytes, versions: dict[str, bytes]) -> None:
    found = align(base, versions)
    for name, content in versions.items():
        assert found.apply(found.of(name)) == content
    assert found.apply([]) == base


@given(base=texts, versions=several, seed=st.randoms(use_true_random=False))
def test_the_order_of_a_choice_does_not_matter(base: bytes, versions: dict[str, bytes], seed: random.Random) -> None:
    found = align(base, versions)
    chosen = list(_compatible(found, seed))
    once = found.apply(chosen)
    seed.shuffle(chosen)
    assert found.apply(chosen) == once
    assert found.apply([*chosen, *chosen]) == once


@given(base=texts, versions=several)
def test_hunks_that_meet_are_refused_and_all_others_are_not(base: bytes, versions: dict[str, bytes]) -> None:
    found = align(base, versions)
    for first in found.hunks:
        for second in found.hunks:
            if first != second and first.meets(second):
                with pytest.raises(ValueError, match="overlap"):
                    found.apply([first, second])
                assert overlaps([first, second])
            else:
                found.apply([first, second])
                assert not overlaps([first, second])


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # most triples of such short texts conflict
@given(base=texts, ours=texts, theirs=texts)
def test_what_merges_can_be_chosen_together(base: bytes, ours: bytes, theirs: bytes) -> None:
    merged = merge(base, ours, theirs)
    assume(merged.clean)
    found = align(base, {"ours": ours, "theirs": theirs})
    if not overlaps(found.hunks):
        assert found.apply(found.hunks) == merged.content


@given(base=texts, versions=several)
def test_outside_of_the_regions_all_have_the_lines_of_the_base(base: bytes, versions: dict[str, bytes]) -> None:
    found = align(base, versions)
    for name in (None, *versions):
        built: list[bytes] = []
        at = 0
        for region in found.regions:
            assert at == 0 or region.start > at, "an unchanged line lies between two regions"
            built += found.base[at : region.start]
            built += found.part(region, name)
            at = region.stop
        built += found.base[at:]
        assert b"".join(built) == (base if name is None else versions[name])


def test_a_change_that_several_made_alike_is_one() -> None:
    found = align(b"a\nb\n", {"one": b"A\nb\n", "two": b"A\nb\n", "three": b"a\nb\n"})
    [hunk] = found.hunks
    assert (hunk.start, hunk.stop, hunk.lines, hunk.versions) == (0, 1, (b"A\n",), ("one", "two"))
    assert found.apply(align(b"a\nb\n", {"other": b"A\nb\n"}).hunks) == b"A\nb\n"
    assert found.of("three") == ()
    assert found.apply([*found.of("one"), *found.of("two")]) == b"A\nb\n"


def test_lines_are_never_joined() -> None:
    found = align(b"x\ny\n", {"short": b"x\ny", "long": b"x\ny\nz\n"})
    with pytest.raises(ValueError, match="short and by long"):
        found.apply(found.hunks)


def test_a_hunk_of_another_text_is_refused() -> None:
    found = align(b"a\n", {"one": b"b\n"})
    with pytest.raises(ValueError, match="change of line 1 is not one of this text's hunks"):
        found.apply([Hunk(0, 1, (b"c\n",), ("one",))])


def _compatible(found: Alignment, seed: random.Random) -> list[Hunk]:
    """Return some hunks that can be chosen together."""
    chosen: list[Hunk] = []
    for hunk in seed.sample(found.hunks, len(found.hunks)):
        if not any(hunk.meets(other) for other in chosen):
            chosen.append(hunk)
    return chosen
