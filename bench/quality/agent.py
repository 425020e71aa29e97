"""A simulated agent and a simulated judge, both with known rates of error, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random

from bench.quality.bug import Patch

__all__ = ["JUDGE_ERROR", "SHARES", "SUCCESS_RATE", "Agent", "Judge"]

SUCCESS_RATE = 0.3
JUDGE_ERROR = 0.2
SHARES = (0.0, 0.1, 0.25, 0.5)  # of the attempts cheat


@dataclass(slots=True)
class Agent:
    """Attempts at one bug: each is the fix, a cheat or a wrong patch, independently of the others."""

    patches: Sequence[Patch]
    cheat_share: float
    seed: str
    drawn: list[int] = field(default_factory=list)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(f"agent {self.seed}")

    def attempt(self, index: int) -> int:
        """Return the number of the patch that attempt ``index`` makes."""
        while len(self.drawn) <= index:
            point = self._random.random()
            kind = "fix" if point < SUCCESS_RATE else "cheat" if point < SUCCESS_RATE + self.cheat_share else "wrong"
            self.drawn.append(self._random.choice([i for i, patch in enumerate(self.patches) if patch.kind == kind]))
        return self.drawn[index]


@dataclass(slots=True)
class Judge:
    """Compares two attempts, and names the worse one in a fifth of all pairs; between equals it tosses a coin.

    Its answer for two attempts is drawn once: asking again, or in the other order, does not correct an error.
    """

    is_fix: dict[Path, bool]
    seed: str
    calls: int = 0
    _order: dict[Path, tuple[int, bool]] = field(default_factory=dict)

    async def compare(self, first: Path, second: Path) -> int:
        """Return 0 if the judge takes the first attempt to be better, 1 for the second."""
        self.calls += 1
        if len(self._order) != len(self.is_fix):
            self._order = {path: (number, fix) for number, (path, fix) in enumerate(self.is_fix.items())}
        one, other = self._order[first], self._order[second]
        low, high = sorted((one, other))
        point = _draw(self.seed, low[0], high[0])
        prefers_low = point < 0.5 if low[1] == high[1] else low[1] == (point >= JUDGE_ERROR)
        return int(prefers_low != (one is low))


@lru_cache(maxsize=1024)
def _draw(seed: str, low: int, high: int) -> float:
    return Random(f"judge {seed} {low} {high}").random()
