"""A judge that is a command: it is shown two directories and says which is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forkwise.errors import ProcessBranchError
from forkwise.files.parent import Parent
from forkwise.fork.scratch import scratch
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.running import arun

__all__ = ["CommandJudge"]

_WORDS = {"0": 0, "a": 0, "first": 0, "1": 1, "b": 1, "second": 1}


class CommandJudge:
    """Runs a command with the two directories behind its own words, in a sandbox and in a branch of ``parent`` that is
    dropped afterwards, so that the judge is the workspace's and neither candidate's.

    The last line it prints says who is better: 0, a or first; 1, b or second. Where it prints nothing of the kind, its
    exit code does, if that is 0 or 1.
    """

    def __init__(
        self, argv: Sequence[str], parent: Parent, *, confinement: Confinement, timeout: float | None = None
    ) -> None:
        self._argv = tuple(argv)
        self._parent = parent
        self._confinement = confinement
        self._timeout = timeout

    async def __call__(self, first: Path, second: Path) -> int:
        async with scratch(self._parent) as ground:
            done = await arun(
                ground,
                [*self._argv, str(first), str(second)],
                confinement=replace(self._confinement, readable=(*self._confinement.readable, str(first), str(second))),
                timeout=self._timeout,
            )
        lines = done.stdout.decode(errors="replace").split()
        if lines and lines[-1].lower() in _WORDS:
            return _WORDS[lines[-1].lower()]
        if done.ending == "exit" and done.returncode in (0, 1) and not lines:
            return int(done.returncode)
        raise ProcessBranchError(f"the judge said neither 0 nor 1, and ended with {done.returncode} ({done.ending})")
