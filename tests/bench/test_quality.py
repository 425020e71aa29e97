"""The benchmark of the judging: agent and judge err at their rates, and patterns choose as they should."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench.quality.agent import JUDGE_ERROR, SUCCESS_RATE, Agent, Judge
from bench.quality.bug import Patch
from bench.quality.interval import bootstrap, estimate
from bench.quality.measure import Cell, Table
from bench.quality.plot import draw
from bench.quality.policy import POLICIES, Play, Policy, play
from bench.quality.replay import start_no_threads
from bench.quality.report import build_cost_table, build_win_table, find_goals
from bench.quality.verdict import Grading, Verdict
from defusedxml.ElementTree import fromstring

PATCHES = [Patch("fix", "fix", {}), Patch("wrong", "wrong", {}), Patch("cheat", "cheat", {})]
VERDICTS: dict[Grading, list[Verdict]] = {
    "sealed": [
        Verdict(True, (1.0,), None, 1.0),
        Verdict(False, (0.5,), "tests", 1.0),
        Verdict(False, (0.0,), "tests", 1.0),
    ],
    "exit code": [
        Verdict(True, (1.0,), None, 1.0),
        Verdict(False, (0.5,), "tests", 1.0),
        Verdict(True, (1.0,), None, 1.0),
    ],
}
VERDICTS["unsealed"] = VERDICTS["exit code"]
CHEAT_FIRST = [2, 1, 0, 0, 1, 1, 2, 2]


def _play(policy: Policy, drawn: list[int]) -> Play:
    return asyncio.run(play(policy, Agent(PATCHES, 0.5, "seed", drawn=list(drawn)), VERDICTS))


def _find_policy(label: str) -> Policy:
    return next(policy for policy in POLICIES if policy.label == label)


def test_the_agent_succeeds_and_cheats_at_its_rates() -> None:
    agent = Agent(PATCHES, 0.25, "rates")
    drawn = [agent.attempt(index) for index in range(4000)]
    assert drawn.count(0) / 4000 == pytest.approx(SUCCESS_RATE, abs=0.03)
    assert drawn.count(2) / 4000 == pytest.approx(0.25, abs=0.03)
    assert [Agent(PATCHES, 0.25, "rates").attempt(index) for index in range(8)] == drawn[:8]


def test_the_judge_errs_in_a_fifth_of_all_pairs_in_either_order() -> None:
    async def find_error(seed: int) -> bool:
        good, bad = Path("/0"), Path("/1")
        judge = Judge({good: True, bad: False}, str(seed))
        answer = await judge.compare(good, bad)
        assert await judge.compare(bad, good) == 1 - answer
        assert judge.calls == 2
        return answer == 1

    async def count_errors() -> int:
        return sum([await find_error(seed) for seed in range(2000)])

    assert asyncio.run(count_errors()) / 2000 == pytest.approx(JUDGE_ERROR, abs=0.03)


@pytest.mark.parametrize(
    ("label", "winner", "tests"),
    [
        ("first success, sealed", 2, 3),
        ("first success, exit code", 0, 1),
        ("best of 8 by tests, sealed", 2, 8),
        ("best of 8 by tests, exit code", 0, 8),
        ("oracle", 2, 0),
    ],
)
def test_the_patterns_choose_on_known_verdicts(label: str, winner: int, tests: int) -> None:
    found = _play(_find_policy(label), CHEAT_FIRST)
    assert (found.winner, found.tests) == (winner, tests)
    assert found.is_fix == (winner == 2)


def test_the_judge_chooses_among_those_that_passed() -> None:
    found = _play(_find_policy("best of 8 by tests and judge, sealed"), CHEAT_FIRST)
    assert found.winner in (2, 3)
    assert found.calls == 2, "in both orders"
    assert _play(_find_policy("best of 8 by judge"), CHEAT_FIRST).calls == 56


def test_no_policy_finds_a_fix_where_there_is_none() -> None:
    with start_no_threads():
        assert not any(_play(policy, [1, 2] * 4).is_fix for policy in POLICIES)


def test_intervals_contain_their_values() -> None:
    for interval in (bootstrap([3, 5, 7], [10, 10, 10]), estimate(15, 30)):
        assert interval.value == pytest.approx(0.5)
        assert 0 < interval.low < 0.5 < interval.high < 1


def test_tables_and_plot_are_built_from_the_results() -> None:
    table: Table = {}
    for policy in POLICIES:
        for share in (0.0, 0.1, 0.25, 0.5):
            cell = table[policy.label, share] = Cell()
            for drawn in (CHEAT_FIRST, [0] * 8):
                cell.add([_play(policy, drawn)])
    assert build_win_table(table).row_count == build_cost_table(table).row_count == len(POLICIES)
    assert [goal.is_met for goal in find_goals(table)] == [True] * 5
    assert fromstring(draw(table)).tag.endswith("svg")
