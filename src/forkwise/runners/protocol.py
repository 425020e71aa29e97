"""Runner: where one attempt's work is done. What every place offers, and the two values that cross: a job and its end.

A runner knows nothing of forks, scores or records; it runs one thing in one branch and says how that ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forkwise.files.branch import Branch

__all__ = ["Ended", "Ending", "Function", "Job", "Runner"]

Ending = Literal["returned", "raised", "exit", "signal", "timeout", "out of memory", "killed"]

#: A function that is called with the branch's directory; what it returns may be awaitable.
Function = Callable[[Path], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A function or a command (``argv``), and the branch in which it is to run. ``timeout`` is its own wall clock.

    ``environment`` is added to a command's, ``writable`` to what it may write; ``on_output`` is called with
    ``"stdout"`` or ``"stderr"`` and each piece of what it prints.
    """

    branch: Branch
    function: Function | None = None
    argv: Sequence[str] | None = None
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    writable: tuple[str, ...] = ()
    on_output: Callable[[str, bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: a function ``returned`` its ``value`` or ``raised`` an ``error``, a command came to its
    ``exit_code``, or it was stopped. ``limit`` names the limit that stopped it."""

    ending: Ending
    value: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    wall: float = 0.0
    cpu: float | None = None
    memory: int | None = None
    limit: str | None = None


class Runner(ABC):
    """A place where jobs run. ``run`` may be awaited for many jobs at once."""

    @abstractmethod
    async def run(self, job: Job) -> Ended:
        """Run a job to its end. Cancelled, it ends the job first, with all descendants, where that can be done."""
