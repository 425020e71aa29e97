"""Planning a fork: whether what is asked for makes sense and can be paid for, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import infer_model

from forkwise.agents.live.estimate import CostProjection, project_cost
from forkwise.agents.live.fork_plan import ForkPlan
from forkwise.agents.live.labels import plain_labels
from forkwise.agents.live.runtime import current_tool
from forkwise.agents.live.specs import BranchIsolation, BranchSpec, Budget, MergeStrategy
from forkwise.errors import ForkBranchLimitError

__all__ = ["check_specs", "plan_fork", "projected"]

_ANSWER = 500  # tokens of an answer, where somebody wants to know what a fork may cost


def check_specs(specs: Sequence[BranchSpec], most: int) -> None:
    """Raise where there are no branches, too many, or ones that are told nothing."""
    if not specs:
        raise ValueError("a fork has one branch at least: give a spec for each")
    if len(specs) > most:
        raise ForkBranchLimitError(
            f"{len(specs)} branches were asked for, and {most} is the most", asked=len(specs), limit=most
        )
    if blank := [spec.label for spec in specs if not spec.steer.strip()]:
        raise ValueError(f"a branch is told what to do: the steer of {', '.join(map(repr, blank))} is empty")


def plan_fork(
    specs: Sequence[BranchSpec],
    isolation: BranchIsolation | None,
    strategy: MergeStrategy | None,
    budget: Budget,
    usd: float | None,
    shares: bool,
) -> ForkPlan:
    """The plan of a fork. ``usd`` caps the dollars of the budget, the lower of both where both do."""
    labels = plain_labels(spec.label for spec in specs)
    caps = [cap for cap in (usd, budget.usd) if cap is not None]
    return ForkPlan(
        specs=tuple(replace(spec, label=label) for spec, label in zip(specs, labels, strict=True)),
        conversation="",
        isolation=isolation or BranchIsolation(),
        strategy=strategy or MergeStrategy(),
        budget=replace(budget, usd=min(caps, default=None)),
        shares=shares,
        maker=current_tool.get(),
    )


def projected(
    model: Any, specs: Sequence[BranchSpec], history: Sequence[ModelMessage], requests: int
) -> CostProjection:
    """What branches would cost, on a model where their specs name no other."""
    models = {spec.label: _model(spec.model or model) for spec in specs}
    return project_cost(models, history, requests, _ANSWER)


def _model(model: Any) -> Any:
    """A model by what names it; what cannot be had here has no price either."""
    if not isinstance(model, str):
        return model
    try:
        return infer_model(model)
    except Exception:  # noqa: BLE001 - no key, no such package: the run will say so
        return None
