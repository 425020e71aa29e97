"""What a ledger holds, as values: forks, attempts, and the events that made them what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forkwise.linux.process_id import ProcessId

__all__ = ["AttemptRecord", "AttemptState", "Event", "ForkRecord", "ForkState", "Summary"]

ForkState = Literal["running", "open", "resolved", "aborted"]
AttemptState = Literal["pending", "running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRecord:
    """The sibling attempts made at one point, and how they were resolved.

    ``spec`` is all that resuming it needs. ``parent`` is the attempt inside which it was made, ``origin`` the path
    among branches of what it was made from, ``/main`` for the workspace itself. ``resolution`` says ``how`` it was
    resolved or why it was aborted, ``commit`` what came of that: the number of the commit that put the winner's change
    into ``origin``, and ``undone`` that of the undo that took it out again.
    """

    id: str
    kind: str
    workspace: str
    spec: dict[str, Any]
    owner: ProcessId
    started: float
    stored: ForkState
    parent: str | None = None
    origin: str = "/main"
    generation: int = 0
    ended: float | None = None
    winner: str | None = None
    resolution: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    commit: int | None = None
    undone: int | None = None

    @property
    def state(self) -> ForkState | Literal["interrupted"]:
        """What was written of it last; ``interrupted`` where it would be running and the process it belongs to is dead.

        ``open`` means that all attempts are over and that it waits for a person's pick.
        """
        return "interrupted" if self.stored == "running" and not self.owner.alive else self.stored

    @property
    def is_over(self) -> bool:
        """Whether it is resolved or aborted, for good."""
        return self.stored in ("resolved", "aborted")

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> ForkRecord:
        """From how JSON holds it."""
        told = {name: value for name, value in document.items() if name != "state"}
        return cls(**{**told, "owner": ProcessId.load(document["owner"]), "stored": document["state"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One run of one candidate in one branch.

    ``key`` is its place in what the fork was told to try, and no other of the same ``round`` has it. ``ending`` and
    ``exit_code`` say how its process ended, ``reason`` why it counts as failed or was cancelled. ``wall`` and ``cpu``
    are seconds, ``memory`` bytes. ``scores`` is what ``score`` was made of, for comparing one after the other.
    ``tail`` is the end of its output as text; all of it is had by ``read_output``. ``unwanted`` is why somebody asked
    for it to be ended, which whoever runs it does then.
    """

    id: str
    fork: str
    key: str
    round: int
    index: int
    label: str
    branch: str
    command: list[str] | None = None
    state: AttemptState = "pending"
    reason: str | None = None
    ending: str | None = None
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    wall: float | None = None
    cpu: float | None = None
    memory: int | None = None
    score: float | None = None
    scores: list[float] | None = None
    value: Any = None
    error: dict[str, Any] | None = None
    tests: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    files: int | None = None
    last_line: str | None = None
    output_bytes: int = 0
    tail: str | None = None
    unwanted: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for good."""
        return self.state in ("succeeded", "failed", "cancelled")

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> AttemptRecord:
        """From how JSON holds it."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a fork or to an attempt of it; ``data`` are the fields it set, and sometimes more.

    A later event has a higher ``seq``, and nothing appears between two that were seen.
    """

    seq: int
    at: float
    fork: str
    attempt: str | None
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """A fork as a list shows it: how many of its attempts are in which state, the best score of any, and what the first
    of them tries."""

    fork: ForkRecord
    attempts: dict[AttemptState, int] = field(default_factory=dict)
    best: float | None = None
    label: str | None = None
