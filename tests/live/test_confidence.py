"""Confidence: the documented formula, the merge confidence, and the calibration of judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
)

from forkwise import ConfidenceSignals, JudgeVerdict, compute_confidence, count_retry_parts, count_stuck_loop_hits
from forkwise.live.judging.confidence import (
    MERGE_SIGNALS,
    Evidence,
    JudgedFork,
    Signal,
    calibrate,
    measure_signals,
    merge_confidence,
)
from tests.live.fork_scene import outcome, report_of

THRESHOLD = 0.80
shares = st.floats(0, 1)


@pytest.mark.parametrize(
    ("signals", "judge", "confidence"),
    [
        ((1.0, 1.0, 1.0), 1.0, 1.0),
        ((1.0, 1.0, 1.0), 0.5, 0.5),
        ((1.0, 0.0, 0.0), 1.0, 0.4),
        ((0.0, 1.0, 0.0), 1.0, 0.4),
        ((0.0, 0.0, 1.0), 1.0, 0.2),
        ((0.5, 0.5, 0.5), 0.8, 0.4),
        ((1.0, None, 1.0), 1.0, 0.6),
        ((2.0, None, 1.0), 1.0, 0.65),  # the cap applies whatever the other signals are
        ((2.0, 1.0, 1.0), 1.0, 1.0),
        ((-1.0, 0.0, 0.0), 1.0, 0.0),
    ],
)
def test_the_formula(signals: tuple[float, float | None, float], judge: float, confidence: float) -> None:
    assert compute_confidence(ConfidenceSignals(*signals), judge) == pytest.approx(confidence)


@given(shares, shares | st.none(), shares, shares)
def test_it_stays_between_0_and_1(spread: float, tests: float | None, consistency: float, judge: float) -> None:
    assert 0.0 <= compute_confidence(ConfidenceSignals(spread, tests, consistency), judge) <= 1.0


def test_without_tests_the_threshold_is_out_of_reach() -> None:
    assert compute_confidence(ConfidenceSignals(1.0, None, 1.0), 1.0) < THRESHOLD


def evidence(report: Any, judge: float = 0.9, **tests: float | None) -> Evidence:
    outcomes = [outcome(name, test_pass_ratio=ratio) for name, ratio in tests.items()]
    return Evidence(report, outcomes, JudgeVerdict(winner_branch_id="a", confidence=judge, reasoning="because"))


ALIKE = report_of({"x": b"1\n"}, a={"x": b"2\n"}, b={"x": b"2\n"})
SPLIT = report_of({"x": b"1\n"}, a={"x": b"2\n"}, b={"x": b"3\n"})
APART = report_of({}, a={"x": b"2\n"}, b={"y": b"3\n"})


def test_the_guides_signals() -> None:
    case = Evidence(
        SPLIT,
        [outcome("a", turns=10, retry_count=2, stuck_loop_hits=1, test_pass_ratio=0.5), outcome("b")],
        JudgeVerdict(winner_branch_id="a", confidence=1.0, reasoning=""),
    )
    assert measure_signals(case) == ConfidenceSignals(1.0, 0.5, pytest.approx(0.7))
    troubled = Evidence(SPLIT, [outcome("a", turns=0, retry_count=5)], case.verdict)
    assert measure_signals(troubled).internal_consistency == 0.0


def test_unanimous_branches_that_pass_their_tests_reach_the_threshold() -> None:
    case = evidence(ALIKE, a=1.0, b=1.0)
    assert compute_confidence(measure_signals(case), 0.9) < THRESHOLD  # by the documented formula
    assert merge_confidence(case).value == pytest.approx(0.9)


def test_passing_where_others_fail_reaches_the_threshold() -> None:
    assert merge_confidence(evidence(SPLIT, a=1.0, b=0.0)).value >= THRESHOLD


@given(st.sampled_from([ALIKE, SPLIT, APART]), st.sampled_from([0.0, 1.0, None]), shares)
def test_where_the_formula_reaches_the_threshold_the_decision_does(
    report: Any, tests: float | None, judge: float
) -> None:
    case = evidence(report, judge, a=tests, b=1.0)
    if compute_confidence(measure_signals(case), judge) >= THRESHOLD:
        assert merge_confidence(case).value >= THRESHOLD


def test_the_table_of_the_docs() -> None:
    page = Path(__file__).parents[2] / "docs/diffs-and-judges.md"
    cases = {
        "all the same, all pass": evidence(ALIKE, a=1.0, b=1.0),
        "different, only the winner passes": evidence(SPLIT, a=1.0, b=0.0),
        "different, all pass": evidence(SPLIT, a=1.0, b=1.0),
        "in different files, all pass": evidence(APART, a=1.0, b=1.0),
        "different, no tests": evidence(SPLIT, a=None, b=None),
        "different, the winner fails": evidence(SPLIT, a=0.0, b=0.0),
    }
    for name, case in cases.items():
        figures = compute_confidence(measure_signals(case), 0.9), merge_confidence(case).value
        assert f"| {name} | {figures[0]:.2f} | {figures[1]:.2f} |" in page.read_text()


@pytest.mark.parametrize("report", [ALIKE, SPLIT, APART])
def test_failing_tests_never_reach_the_threshold(report: Any) -> None:
    assert merge_confidence(evidence(report, judge=1.0, a=0.0, b=0.0)).value < 0.5


def test_no_tests_are_capped_here_too() -> None:
    decided = merge_confidence(evidence(ALIKE, judge=1.0, a=None, b=None))
    assert decided.value == pytest.approx(0.65)
    assert decided.measured == {"tests": None, "consistency": 1.0, "standing": 1.0}


def test_agreement_counts_for_a_branch() -> None:
    assert merge_confidence(evidence(ALIKE, a=1.0, b=1.0)).value > merge_confidence(evidence(APART, a=1.0, b=1.0)).value


def test_a_signal_can_be_added() -> None:
    case = evidence(ALIKE, judge=1.0, a=1.0, b=1.0)
    sceptic = Signal("lint", 1.0, lambda _: 0.0)
    silent = Signal("types", 5.0, lambda _: None)
    capping = Signal("review", 1.0, lambda _: None, cap_without=0.3)
    assert merge_confidence(case, [*MERGE_SIGNALS, sceptic]).value == pytest.approx(0.5)
    assert merge_confidence(case, [*MERGE_SIGNALS, silent]).value == pytest.approx(1.0)
    assert merge_confidence(case, [*MERGE_SIGNALS, capping]).value == pytest.approx(0.3)
    assert merge_confidence(case, []).value == 0.0


def test_retries_are_counted_in_every_form() -> None:
    looping = "You are stuck in a loop: the same arguments again."
    legacy = ModelMessagesTypeAdapter.validate_python(
        [{"kind": "request", "parts": [{"part_kind": "retry-prompt", "content": "Try another."}]}]
    )
    messages: list[ModelMessage] = [
        ModelResponse([TextPart("I am stuck in a loop.")]),
        ModelRequest([ToolReturnPart("read", looping, tool_call_id="1", outcome="retried")]),
        ModelRequest([ToolReturnPart("read", "stuck in a loop", tool_call_id="2")]),
        *legacy,
    ]
    assert count_retry_parts(messages) == 2
    assert count_stuck_loop_hits(messages) == 1
    assert count_retry_parts([]) == count_stuck_loop_hits([]) == 0


def test_calibration_by_judge() -> None:
    records = [
        JudgedFork("haiku", 0.9),
        JudgedFork("haiku", 0.9, was_undone=True),
        JudgedFork("haiku", 0.1, was_overridden=True),
        JudgedFork("gpt", 1.0),
    ]
    found = calibrate(records)
    haiku = found["haiku"]
    assert (haiku.picks, haiku.undone, haiku.overridden) == (3, 1, 1)
    assert haiku.hold_rate == pytest.approx(1 / 3)
    assert haiku.brier == pytest.approx((0.01 + 0.81 + 0.01) / 3)
    assert haiku.bands == {9: (2, 1), 1: (1, 0)}
    assert found["gpt"].bands == {9: (1, 1)}
    assert found["gpt"].brier == 0.0
    assert calibrate([]) == {}


def test_a_judge_that_was_wrong_is_worth_less_and_one_that_was_right_more() -> None:
    wrong = calibrate([JudgedFork("j", 0.85, was_undone=True)] * 10)["j"]
    right = calibrate([JudgedFork("j", 0.85)] * 10)["j"]
    assert wrong.adjusted(0.85) < 0.5 < 0.85 < right.adjusted(0.85) <= 1.0
    assert wrong.adjusted(0.3) == pytest.approx(0.3)  # no record in that range


@pytest.mark.parametrize(
    "message",
    [
        "You called `read` with identical arguments 3 times in a row. Try a different approach.",
        "You're alternating between `read` and `write` in a loop (3 cycles). Step back and try a different strategy.",
        "`read` returned the same result 3 times in a row. The operation has no effect — try something different.",
    ],
)
def test_the_messages_of_the_detectors_of_pydantic_deep_are_stuck_loops(message: str) -> None:
    """The API page: "relies on the marker strings matching the ModelRetry messages raised by StuckLoopDetection"."""
    retried = ToolReturnPart("read", message, tool_call_id="1", outcome="retried")
    assert count_stuck_loop_hits([ModelRequest([retried])]) == 1
