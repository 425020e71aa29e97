"""Figure: a measurement with several samples, shown as its median and half of its interquartile range."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Figure", "Unit"]

Unit = Literal["s", "B"]

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((1024.0 * 1024, "MB"), (1024.0, "KB"), (1.0, "B"))


@dataclass(frozen=True, slots=True)
class Figure:
    """The samples of one measurement."""

    samples: tuple[float, ...]
    unit: Unit = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half of the interquartile range."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / 2

    def __str__(self) -> str:
        median = self.median
        size, name = next(
            (s for s in (_SECONDS if self.unit == "s" else _BYTES) if median >= s[0]),
            (_SECONDS if self.unit == "s" else _BYTES)[-1],
        )
        shown = f"{_digits(median / size)} {name}"
        return shown if len(self.samples) < 2 else f"{shown} ± {_digits(self.spread / size)}"

    def dump(self) -> dict[str, object]:
        """Return the figure as JSON data."""
        return {"median": self.median, "spread": self.spread, "unit": self.unit, "samples": list(self.samples)}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Figure:
        """Return the figure that was dumped as ``data``."""
        return cls(tuple(data["samples"]), data["unit"])


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
