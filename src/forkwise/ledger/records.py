"""The values a ledger returns: forks, attempts and their events, conversations and their messages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from forkwise.errors import LedgerError
from forkwise.linux.process_id import ProcessId

__all__ = [
    "AttemptRecord",
    "AttemptState",
    "ConversationRecord",
    "Event",
    "ForkRecord",
    "ForkState",
    "MessageRow",
    "Summary",
    "attempt_file",
]

ForkState = Literal["running", "open", "resolved", "aborted"]
AttemptState = Literal["pending", "running", "succeeded", "failed", "faulted", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRecord:
    """The sibling attempts made at one point, and how they were resolved.

    ``spec`` holds everything that ``resume`` needs. ``parent`` is the attempt inside which the fork was made.
    ``origin`` is the branch path of its source, ``/main`` for the workspace itself. ``resolution`` says ``how`` it was
    resolved or why it was aborted, ``baseline`` the test results of the base. ``commit`` is the number of the commit
    that put the winner's change into ``origin``, ``undone`` that of the undo that removed it again. ``head`` is the git
    commit that the workspace had checked out at the fork; None if it is not known. ``edits`` are
    ``paths`` that other programs changed in the workspace while it ran, and whether there were ``more``.
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
    baseline: dict[str, Any] | None = None
    commit: int | None = None
    undone: int | None = None
    head: str | None = None
    edits: dict[str, Any] | None = None

    @property
    def state(self) -> ForkState | Literal["interrupted"]:
        """The stored state, except that a running fork is ``interrupted`` if its owner process is dead.

        ``open`` means that all attempts are over and the fork waits for a person's pick.
        """
        return "interrupted" if self.stored == "running" and not self.owner.alive else self.stored

    @property
    def is_over(self) -> bool:
        """Whether it is resolved or aborted, which is final."""
        return self.stored in ("resolved", "aborted")

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> ForkRecord:
        """Build a record from its JSON document."""
        fields = {name: value for name, value in document.items() if name != "state"}
        return cls(**{**fields, "owner": ProcessId.load(document["owner"]), "stored": document["state"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One run of one candidate in one branch.

    ``key`` identifies the candidate within the fork, and is unique within a ``round``. ``ending`` and ``exit_code`` say
    how its process ended, ``reason`` why it counts as failed or was cancelled. A faulted attempt was not judged; its
    ``fault`` names what failed, such as ``sandbox`` or ``disk``. ``wall`` and ``cpu`` are seconds, ``memory`` bytes.
    ``scores`` are the parts of ``score``, to be compared in order. ``no_change`` says that it changed no file, apart
    from ignored ones; ``git`` sums up what it did in git repositories; ``needs_ignored`` are ignored paths without
    which its tests fail. ``tail`` is the end of its output as text; ``read_log`` returns all of it. ``unwanted`` is the
    reason of a request to end it, which the process that runs it carries out. ``agent`` is the coding agent that it
    runs, ``variation`` what it does differently from its siblings, ``variant`` the number of its entry in the
    ``variants`` of the fork's ``spec``. ``session`` is the agent's own id of its conversation, ``answer`` its closing
    message; ``cost`` has ``usd``, if that is known, and the numbers of tokens.
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
    fault: str | None = None
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
    no_change: bool | None = None
    git: str | None = None
    needs_ignored: list[str] | None = None
    last_line: str | None = None
    output_bytes: int = 0
    tail: str | None = None
    unwanted: str | None = None
    agent: str | None = None
    variation: dict[str, str] | None = None
    variant: int | None = None
    session: str | None = None
    answer: str | None = None

    @property
    def number(self) -> int:
        """The number in its id, from 1; 0 if the id has none."""
        digits = self.id.rpartition(".")[2]
        return int(digits) if digits.isascii() and digits.isdecimal() else 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, which is final."""
        return self.state in ("succeeded", "failed", "faulted", "cancelled")

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> AttemptRecord:
        """Build a record from its JSON document."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a fork or of one of its attempts. ``data`` holds the fields it set, and sometimes more.

    A later event has a higher ``seq``, and no event ever appears between two that were read.
    """

    seq: int
    at: float
    fork: str
    attempt: str | None
    kind: str
    data: dict[str, Any]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The agent's steps, if this event recorded any."""
        found = self.data.get("steps") if self.kind == "acted" else None
        return [step for step in found if isinstance(step, dict)] if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Summary:
    """A fork for a list: its number of attempts by state, the best score of a success, and the label of the first."""

    fork: ForkRecord
    attempts: dict[AttemptState, int] = field(default_factory=dict)
    best: float | None = None
    label: str | None = None


class MessageRow(NamedTuple):
    """A message: its node number, its parent's, the tool calls it awaits, and its text.

    ``results`` are the known results of its own tool calls, and may be saved again later.
    """

    node: int
    parent: int
    awaits: Sequence[str]
    message: str
    results: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """A conversation without its messages."""

    id: str
    here: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    title: str = ""
    updated: float = 0.0


def attempt_file(directory: str | os.PathLike[str], attempt: str, kind: str, suffix: str) -> Path:
    """Return the path of a file that is kept for an attempt: ``<ledger>/<kind>/<attempt>.<suffix>``."""
    if not re.fullmatch(r"[a-z0-9]+\.[0-9]+", attempt):
        raise LedgerError(f"{attempt!r} is not the id of an attempt, such as k3f9ab.2", subject=attempt)
    return Path(directory, kind, f"{attempt}.{suffix}")
