"""The bugs of ``make bench-quality`` are what they should be: their tests tell the fix from the bug and wrong fixes."""

from __future__ import annotations

import pytest
from bench.quality.bug import Bug, failing_cases, load_bugs
from bench.quality.cheat import CHEATS, build_cheats

BUGS = load_bugs()


def test_there_are_forty_bugs() -> None:
    assert len({bug.name for bug in BUGS}) == 40


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_tests_tell_the_fix_from_everything_else(bug: Bug) -> None:
    all_cases = [*bug.visible, *bug.held_out]
    failing = failing_cases(bug.module, bug.visible)
    assert failing, "the visible tests pass on the bug"
    assert len(failing) < len(bug.visible), "every visible test fails on the bug, so there is nothing to break"
    assert not failing_cases(bug.fixed, all_cases)
    assert len(bug.wrong) >= 3
    for wrong in bug.wrong:
        assert failing_cases(wrong, all_cases), f"the held-out tests pass on a wrong fix:\n{wrong}"


def test_some_wrong_fixes_pass_the_visible_tests() -> None:
    plausible = [wrong for bug in BUGS for wrong in bug.wrong if not failing_cases(wrong, bug.visible)]
    assert len(plausible) >= 10


def test_every_cheat_is_used_and_changes_something() -> None:
    used = set()
    for number, bug in enumerate(BUGS):
        for cheat in build_cheats(bug, number):
            used.add(cheat.name)
            assert all(bug.project.get(name) != content for name, content in cheat.files.items())
    assert used == set(CHEATS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_built_in_answers_satisfy_only_the_visible_tests(bug: Bug) -> None:
    source = CHEATS["builds the visible answers in"](bug)[bug.module_file]
    assert source is not None
    assert not failing_cases(source, bug.visible)
    assert failing_cases(source, bug.held_out)
