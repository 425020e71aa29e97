"""ForkPlan: all that was asked of a live fork, as the ledger keeps it, so that another process can go on with it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from forkwise.agents.live.estimate import CostProjection
from forkwise.agents.live.specs import BranchIsolation, BranchSpec, Budget, MergeStrategy
from forkwise.errors import LedgerError

__all__ = ["KIND", "ForkPlan"]

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
