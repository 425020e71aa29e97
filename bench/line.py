"""Line: one line of the table, with what it is held against."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.figure import Figure

__all__ = ["Goal", "Line", "times"]


@dataclass(frozen=True, slots=True)
class Goal:
    """Something a line must reach: a number and its bound."""

    text: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(slots=True)
class Line:
    """One measurement of ours beside the others. A peer without a figure is not installed."""

    name: str
    ours: Figure
    floor: Figure | None = None
    peers: dict[str, Figure | None] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def below_floor(self, bound: float) -> None:
        """Ours must take at most so many times what the bare system calls take."""
        assert self.floor is not None
        self.goals.append(Goal(f"≤ {bound:g} × floor", self.ours.median / self.floor.median, bound))

    def faster_than(self, peer: str, bound: float) -> None:
        """Ours must be so many times faster than a peer, where that is installed."""
        figure = self.peers.get(peer)
        if figure is not None:
            self.goals.append(Goal(f"≥ {bound:g} × {peer}", figure.median / self.ours.median, bound, at_least=True))

    def faster_than_seen(self, peer: str, seen: float, bound: float) -> None:
        """Ours must be so many times faster than a peer, or than that was seen to be where it is not installed; of
        memory, it must hold so many times less."""
        figure = self.peers.get(peer)
        theirs = seen if figure is None else figure.median
        note = "" if figure is not None else f" ({Figure((seen,), self.ours.unit)})"
        self.goals.append(Goal(f"≥ {bound:g} × {peer}{note}", theirs / self.ours.median, bound, at_least=True))

    def dump(self) -> dict[str, object]:
        """As JSON holds it."""
        return {
            "row": self.name,
            "ours": self.ours.dump(),
            "floor": self.floor and self.floor.dump(),
            "peers": {name: figure and figure.dump() for name, figure in self.peers.items()},
            "goals": [{"text": g.text, "value": g.value, "bound": g.bound, "met": g.is_met} for g in self.goals],
        }


def times(ratio: float) -> str:
    """A ratio, for people.

    >>> times(1.234), times(56.7), times(12345.6)
    ('1.23 ×', '57 ×', '12,346 ×')
    """
    return f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:,.0f} ×"
