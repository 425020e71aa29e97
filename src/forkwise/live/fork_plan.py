"""The plan of a fork: the checked request of the caller, as the ledger stores it.

Checks that the specs are valid and that the budget pays for the first requests.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import infer_model

from forkwise.errors import ForkBranchLimitError, LedgerError
from forkwise.live.branch_runtime import current_tool
from forkwise.live.budget import CostProjection, project_cost
from forkwise.live.values import BranchIsolation, BranchSpec, Budget, MergeStrategy

__all__ = [
    "KIND",
    "ForkPlan",
    "check_specs",
    "clean_labels",
    "plan_fork",
    "project_fork_cost",
]


_MAX_LABEL_LENGTH = 80
_UNSAFE_CHARACTERS = re.compile(r"[/\\\x00-\x1f\x7f]+")


def clean_labels(labels: Iterable[str]) -> list[str]:
    """Make labels safe as file names, and unique.

    >>> clean_labels(["fast", "fast", " ", "../../etc/x"])
    ['fast', 'fast-2', 'branch-3', 'etc-x']
    """
    used: set[str] = set()
    cleaned = []
    for number, label in enumerate(labels, start=1):
        base = _UNSAFE_CHARACTERS.sub("-", label).lstrip(" .-").rstrip()[:_MAX_LABEL_LENGTH] or f"branch-{number}"
        name, suffix = base, 1
        while name.casefold() in used:
            suffix += 1
            name = f"{base}-{suffix}"
        used.add(name.casefold())
        cleaned.append(name)
    return cleaned


#: The kind of live forks in the ledger.
KIND = "live"


@dataclass(frozen=True)
class ForkPlan:
    """The plan of one fork.

    ``conversation`` is the id of the stored conversation that the branches share, ``checkpoint`` the id of the
    checkpoint before the fork. ``goal`` is the task in the judge's prompt. ``maker`` names the tool that started the
    fork, if a tool inside a branch did.
    """

    specs: tuple[BranchSpec, ...]
    conversation: str
    isolation: BranchIsolation = field(default_factory=BranchIsolation)
    strategy: MergeStrategy = field(default_factory=MergeStrategy)
    budget: Budget = field(default_factory=Budget)
    shares: bool = False
    checkpoint: str | None = None
    goal: str = ""
    maker: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the plan as the ledger stores it."""
        document: dict[str, Any] = _adapter.dump_python(self, mode="json")
        return document

    def with_names(self, checkpoint: str | None, goal: str) -> ForkPlan:
        """Return a copy with a new conversation id, and with the given checkpoint and goal."""
        return replace(self, conversation=secrets.token_hex(4), checkpoint=checkpoint, goal=goal)

    def check_affordable(self, projection: CostProjection) -> None:
        """Raise ValueError if the budget does not pay for the first request of every branch."""
        cap, least = self.budget.usd, projection.first_usd
        if cap is not None and least is not None and least > cap:
            raise ValueError(
                f"the budget of {cap:.4f} USD is too small: the first requests of {len(self.specs)} branches take "
                f"{least:.4f} USD at least. Start fewer branches, or raise the budget"
            )

    @classmethod
    def from_json(cls, document: Mapping[str, Any], fork: str) -> ForkPlan:
        """Parse a plan from the ledger. Raises LedgerError if it is not the plan of a live fork."""
        try:
            return _adapter.validate_python(dict(document))
        except ValidationError as error:
            raise LedgerError(f"fork {fork} is not a live fork of an agent: {error}", subject=fork) from error


_adapter = TypeAdapter(ForkPlan)


_PROJECTED_OUTPUT_TOKENS = 500  # per response, in a projection


def check_specs(specs: Sequence[BranchSpec], max_branches: int) -> None:
    """Raise ValueError or ForkBranchLimitError if there are no specs, too many, or one with an empty steer."""
    if not specs:
        raise ValueError("a fork needs at least one branch: pass a spec for each")
    if len(specs) > max_branches:
        raise ForkBranchLimitError(
            f"{len(specs)} branches were requested, and the limit is {max_branches}: request fewer branches",
            asked=len(specs),
            limit=max_branches,
        )
    if blank := [spec.label for spec in specs if not spec.steer.strip()]:
        raise ValueError(f"the steer of {', '.join(map(repr, blank))} is empty: say what the branch is to do")


def plan_fork(
    specs: Sequence[BranchSpec],
    isolation: BranchIsolation | None,
    strategy: MergeStrategy | None,
    budget: Budget,
    usd: float | None,
    shares: bool,
) -> ForkPlan:
    """Plan a fork. The lower of ``usd`` and ``budget.usd`` limits the dollars."""
    labels = clean_labels(spec.label for spec in specs)
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


def project_fork_cost(
    model: Any, specs: Sequence[BranchSpec], history: Sequence[ModelMessage], requests: int
) -> CostProjection:
    """Project the cost of branches on the models of their specs, or on ``model``."""
    models = {spec.label: _infer_model(spec.model or model) for spec in specs}
    return project_cost(models, history, requests, _PROJECTED_OUTPUT_TOKENS)


def _infer_model(model: Any) -> Any:
    """Return the model that a name stands for; None if it is not available here, and so has no price."""
    if not isinstance(model, str):
        return model
    try:
        return infer_model(model)
    except Exception:  # noqa: BLE001 - a missing key or package: the run reports it
        return None
