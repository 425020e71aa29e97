"""Planning a fork: whether what is asked for makes sense and can be paid for, and the plan that comes of it."""

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
    "plain_labels",
    "plan_fork",
    "projected",
]


_LONGEST = 80
_ODD = re.compile(r"[/\\\x00-\x1f\x7f]+")


def plain_labels(labels: Iterable[str]) -> list[str]:
    """The labels as they are used: without what leads out of a directory, and each once.

    >>> plain_labels(["fast", "fast", " ", "../../etc/x"])
    ['fast', 'fast-2', 'branch-3', 'etc-x']
    """
    used: set[str] = set()
    plain = []
    for number, label in enumerate(labels, start=1):
        first = name = _ODD.sub("-", label).lstrip(" .-").rstrip()[:_LONGEST] or f"branch-{number}"
        times = 1
        while name.casefold() in used:
            times += 1
            name = f"{first}-{times}"
        used.add(name.casefold())
        plain.append(name)
    return plain


#: What live forks are called in the ledger.
KIND = "live"


@dataclass(frozen=True)
class ForkPlan:
    """What a fork was asked for. ``conversation`` names the one that its branches are branches of, ``checkpoint`` what
    was saved before it; ``goal`` is what the judge is told the branches were for. ``maker`` is the tool that made it,
    where one did inside a branch."""

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
        """As the ledger holds it."""
        told: dict[str, Any] = _adapter.dump_python(self, mode="json")
        return told

    def with_names(self, checkpoint: str, goal: str) -> ForkPlan:
        """The same, with what it is to be found by."""
        return replace(self, conversation=secrets.token_hex(4), checkpoint=checkpoint, goal=goal)

    def check_affordable(self, projection: CostProjection) -> None:
        """Raise ValueError where the budget does not pay for the first request of every branch."""
        cap, least = self.budget.usd, projection.first_usd
        if cap is not None and least is not None and least > cap:
            raise ValueError(
                f"the first requests of {len(self.specs)} branches take {least:.4f} USD at least, and {cap:.4f} is all "
                "there is: ask for fewer branches, or for a larger budget"
            )

    @classmethod
    def from_json(cls, document: Mapping[str, Any], fork: str) -> ForkPlan:
        """From how the ledger holds it; LedgerError where that is no live fork."""
        try:
            return _adapter.validate_python(dict(document))
        except ValidationError as error:
            raise LedgerError(f"fork {fork} is no live fork of an agent: {error}", subject=fork) from error


_adapter = TypeAdapter(ForkPlan)


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
