"""The values of live forking: their names, defaults and modules."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any, get_args

import pytest
from pydantic import ValidationError

import forkwise
from forkwise import (
    BranchDiffAgreement,
    BranchDiffOperation,
    BranchingError,
    BranchIsolation,
    BranchSpec,
    BranchState,
    Budget,
    ForkBranchLimitError,
    ForkDepthLimitError,
    JudgeVerdict,
    MergeResult,
    MergeStrategy,
    PendingApprovalRequest,
)

FROZEN = {
    "BranchChange", "BranchCost", "BranchDiffReport", "BranchIsolation", "BranchOutcome", "BranchSpec",
    "ConfidenceSignals", "DiffSummary", "FileChange", "FlushError", "FlushReport", "ForkCostSummary", "MergeStrategy",
    "PathDiff", "ResolveOutcome",
}  # fmt: skip
MUTABLE = {"BranchStatus", "ForkHandle", "MergeResult", "PendingApprovalRequest"}

DOCUMENTED = {
    "BranchSpec": "label steer model budget_usd extra_instructions",
    "BranchIsolation": "history backend memory todos message_queue team_bus",
    "BranchStatus": "id label state current_turn last_activity_at last_message_preview error",
    "ForkHandle": "fork_id parent_checkpoint_id branches merge_strategy created_at",
    "MergeStrategy": "kind judge_model judge_models confidence_threshold show_reasoning",
    "MergeResult": "fork_id winner_branch_id discarded_branches history_after_merge applied_paths applied_changes "
    "conflicts errors deleted_paths blocked_commands",
    "FileChange": "path op timestamp",
    "FlushError": "path op message",
    "FlushReport": "applied_paths applied_changes conflicts errors deleted_paths",
    "BranchChange": "branch_id branch_label operation new_content unified_diff_vs_parent size_bytes is_binary "
    "binary_sha256",
    "PathDiff": "path parent_content branches agreement",
    "DiffSummary": "total_paths_touched unanimous_paths split_paths per_branch_unique agreement_score",
    "BranchDiffReport": "fork_id paths summary",
    "BranchCost": "branch_id branch_label cumulative_usd budget_usd remaining_usd state",
    "ForkCostSummary": "fork_id per_branch aggregate_usd aggregate_budget_usd aggregate_remaining_usd",
    "ConfidenceSignals": "quality_spread test_pass_ratio internal_consistency",
    "BranchOutcome": "branch_id branch_label steer final_assistant_message cost_usd turns error_count retry_count "
    "stuck_loop_hits test_pass_ratio",
    "ResolveOutcome": "committed auto_eligible verdict signals effective_confidence merge_result judge_usage",
    "PendingApprovalRequest": "branch_id description response",
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_value_has_the_documented_fields_first_and_in_their_order(name: str) -> None:
    documented = DOCUMENTED[name].split()
    assert [field.name for field in fields(getattr(forkwise, name))][: len(documented)] == documented


@pytest.mark.parametrize("name", sorted(FROZEN | MUTABLE))
def test_frozen_values(name: str) -> None:
    kind = getattr(forkwise, name)
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen is (name in FROZEN)  # type: ignore[union-attr]


def test_what_the_guide_does_not_ask_for_has_a_default() -> None:
    for name, documented in DOCUMENTED.items():
        for field in fields(getattr(forkwise, name))[len(documented.split()) :]:
            needs_value = field.default is field.default_factory  # both MISSING
            assert not needs_value, f"{name}.{field.name}"


def test_literals() -> None:
    assert get_args(BranchState) == (
        "running", "done", "failed", "terminated", "budget_exhausted", "aggregate_budget_exhausted", "faulted",
    )  # fmt: skip
    assert get_args(BranchDiffOperation) == ("created", "modified", "deleted", "untouched")
    assert get_args(BranchDiffAgreement) == ("unanimous_change", "unanimous_no_change", "split", "unique")


def test_defaults_of_a_strategy() -> None:
    strategy = MergeStrategy()
    assert (strategy.kind, strategy.confidence_threshold) == ("auto_with_fallback", 0.80)
    assert strategy.judge_model == "anthropic:claude-haiku-4-5-20251001"
    assert strategy.judge_models is None
    assert strategy.show_reasoning
    assert strategy.conflict_policy == "keep_newer"


def test_an_empty_panel_is_refused() -> None:
    with pytest.raises(ValueError, match="judge_models is empty"):
        MergeStrategy(kind="vote", judge_models=[])


def test_defaults_of_isolation() -> None:
    assert BranchIsolation() == BranchIsolation(
        history="copy", backend="copy", memory="copy", todos="copy", message_queue="isolated", team_bus="shared"
    )


def test_a_spec_cannot_be_changed_and_takes_what_the_guide_names() -> None:
    spec = BranchSpec("a", "try", model="test", budget_usd=1.0, extra_instructions="Be brief.")
    with pytest.raises(FrozenInstanceError):
        spec.label = "b"  # type: ignore[misc]
    assert spec.extra_instructions == "Be brief."


@pytest.mark.parametrize(
    ("options", "usd"),
    [
        ({}, None),
        ({"budget_usd": 2.0}, 2.0),
        ({"budget": Budget(usd=3.0)}, 3.0),
        ({"budget_usd": 2.0, "budget": Budget(usd=1.0)}, 1.0),
    ],
)
def test_the_lower_cap_in_dollars_counts(options: dict[str, Any], usd: float | None) -> None:
    assert BranchSpec("a", "try", **options).spending.usd == usd
    assert BranchSpec("a", "try", **options).spending.is_unlimited is (usd is None)


def test_results_do_not_share_their_lists() -> None:
    one, other = (MergeResult("f", "a", [], []) for _ in range(2))
    one.applied_paths.append("x")
    assert other.applied_paths == []


@pytest.mark.parametrize("confidence", [-0.1, 1.1])
def test_confidence_is_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValidationError):
        JudgeVerdict(winner_branch_id="a", confidence=confidence, reasoning="")


def test_an_approval_is_answered_once() -> None:
    request = PendingApprovalRequest("a", "rm -r build")
    request.response.put_nowait(True)
    with pytest.raises(asyncio.QueueFull):
        request.response.put_nowait(False)


@pytest.mark.parametrize("error", [ForkBranchLimitError, ForkDepthLimitError])
def test_errors_are_in_the_tree(error: type[BranchingError]) -> None:
    assert error.__base__ is BranchingError
    assert error("too many", limit=2).limit == 2  # type: ignore[call-arg, attr-defined]
