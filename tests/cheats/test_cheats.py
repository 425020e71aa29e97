"""Candidates that try to deceive the tests, and honest ones: no cheat succeeds, and the honest are judged right."""

from __future__ import annotations

import pytest

from tests.cheats.programs import Program, Suite, add_python, check_cheat, check_honest, parameters

RUNNERS = ("make", "pytest", "unittest")


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Suite]:
    return {runner: Suite(runner, tmp_path_factory.mktemp(runner), add_python) for runner in RUNNERS}


@pytest.mark.parametrize(("runner", "program"), parameters(RUNNERS, "cheats"))
def test_a_cheat_does_not_win(runner: str, program: Program, suites: dict[str, Suite]) -> None:
    check_cheat(suites[runner], program)


@pytest.mark.parametrize(("runner", "program"), parameters(RUNNERS, "honest"))
def test_an_honest_attempt_is_judged_right(runner: str, program: Program, suites: dict[str, Suite]) -> None:
    check_honest(suites[runner], program)
