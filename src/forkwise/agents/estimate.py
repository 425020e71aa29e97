"""An estimate of what attempts by agents will cost, from what earlier ones in the same workspace did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkwise.text.phrases import format_number, format_usd

if TYPE_CHECKING:
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["Estimate", "estimate_cost"]

_FORKS = 50  # the newest ones
_ENOUGH = 20  # attempts by each agent and model; older ones are not read then
_MODEL = "FORKWISE_MODEL"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What ``attempts`` attempts cost in dollars, if each costs as much as the median of the ``earlier`` ones."""

    usd: float
    attempts: int
    earlier: int

    def __str__(self) -> str:
        attempts = format_number(self.attempts, "attempt")
        earlier = format_number(self.earlier, "earlier one")
        return f"about {format_usd(self.usd)} for {attempts}, from {earlier}"


def estimate_cost(ledger: Ledger, planned: Iterable[tuple[str, str]]) -> Estimate | None:
    """Estimate the cost of attempts, given as their agents and models; None if one of the agents has no history here.

    An agent whose model was not used here before is assumed to cost what it did with other models.
    """
    wanted = list(planned)
    known = _read_costs(ledger, wanted) if wanted else {}
    usd, used = 0.0, set[tuple[str, str]]()
    for agent, model in wanted:
        keys = [(agent, model)] if (agent, model) in known else [key for key in known if key[0] == agent]
        costs = [cost for key in keys for cost in known[key]]
        if not costs:
            return None
        usd += _find_median(costs)
        used.update(keys)
    return Estimate(usd, len(wanted), sum(len(known[key]) for key in used)) if wanted else None


def _find_median(costs: list[float]) -> float:
    """Return the median; the module ``statistics`` takes longer to load than everything else here."""
    ordered, half = sorted(costs), len(costs) // 2
    return ordered[half] if len(costs) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _read_costs(ledger: Ledger, wanted: list[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    """Read what finished attempts have cost, the newest forks first, by agent and model."""
    found: dict[tuple[str, str], list[float]] = {}
    agents = {agent for agent, _ in wanted}
    for fork in ledger.forks(limit=_FORKS):
        if min(len(found.get(pair, ())) for pair in wanted) >= _ENOUGH:
            break
        variants = fork.spec.get("variants")
        if not isinstance(variants, list | tuple) or not variants:
            continue
        for attempt in ledger.attempts(fork.id):
            usd = (attempt.cost or {}).get("usd")
            is_known = type(usd) in (int, float) and math.isfinite(usd or 0.0)
            if attempt.agent in agents and attempt.state in ("succeeded", "failed") and is_known and usd:
                found.setdefault((attempt.agent, _find_model(fork, attempt)), []).append(float(usd))
    return found


def _find_model(fork: ForkRecord, attempt: AttemptRecord) -> str:
    variants = fork.spec.get("variants") or ()
    number = attempt.variant
    variant: Any = variants[number] if number is not None and 0 <= number < len(variants) else None
    pairs = variant.get("environment") if isinstance(variant, Mapping) else None
    for pair in pairs if isinstance(pairs, list | tuple) else ():
        if isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] == _MODEL:
            return str(pair[1])
    return ""
