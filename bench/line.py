"""Line: one row of the table, with the figures and goals that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.figure import Figure

__all__ = ["Goal", "Line", "times"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A value and the bound that it must reach."""

    text: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(slots=True)
class Line:
    """A measurement of forkwise beside the floor and the peers.

    A peer without a figure is not installed; one with a text could not be measured, and the text says why.
    """

    name: str
    ours: Figure
    floor: Figure | None = None
    peers: dict[str, Figure | str | None] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def below_floor(self, bound: float) -> None:
        """Require at most ``bound`` times the time of the bare system calls."""
        assert self.floor is not None
        self.goals.append(Goal(f"≤ {bound:g} × floor", self.ours.median / self.floor.median, bound))

    def faster_than(self, peer: str, bound: float) -> None:
        """Require ``bound`` times the speed of a peer, if the peer is installed."""
        figure = self.peers.get(peer)
        if isinstance(figure, Figure):
            self.goals.append(Goal(f"≥ {bound:g} × {peer}", figure.median / self.ours.median, bound, at_least=True))

    def faster_than_seen(self, peer: str, seen: float, bound: float) -> None:
        """Require ``bound`` times the speed of a peer, or a ``bound``-th of its memory.

        ``seen`` is the figure measured earlier, for machines where the peer is not installed.
        """
        figure = self.peers.get(peer)
        theirs = figure.median if isinstance(figure, Figure) else seen
        note = "" if isinstance(figure, Figure) else f" ({Figure((seen,), self.ours.unit)})"
        self.goals.append(Goal(f"≥ {bound:g} × {peer}{note}", theirs / self.ours.median, bound, at_least=True))

    def dump(self) -> dict[str, object]:
        """Return the line as JSON data."""
        return {
            "row": self.name,
            "ours": self.ours.dump(),
            "floor": self.floor and self.floor.dump(),
            "peers": {name: peer.dump() if isinstance(peer, Figure) else peer for name, peer in self.peers.items()},
            "goals": [
                {"text": g.text, "value": g.value, "bound": g.bound, "at_least": g.at_least, "met": g.is_met}
                for g in self.goals
            ],
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> Line:
        """Return the line that was dumped as ``data``.

        >>> line = Line("x", Figure((1.0,)), peers={"a": Figure((2.0,)), "b": "refused", "c": None})
        >>> line.faster_than("a", 1.5)
        >>> Line.load(line.dump()) == line
        True
        """
        peers = {name: Figure.load(peer) if isinstance(peer, dict) else peer for name, peer in data["peers"].items()}
        goals = [Goal(g["text"], g["value"], g["bound"], g["at_least"]) for g in data["goals"]]
        floor = data["floor"] and Figure.load(data["floor"])
        return cls(data["row"], Figure.load(data["ours"]), floor, peers, goals)


def times(ratio: float) -> str:
    """Format a ratio for people.

    >>> times(1.234), times(56.7), times(12345.6)
    ('1.23 ×', '57 ×', '12,346 ×')
    """
    return f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:,.0f} ×"
