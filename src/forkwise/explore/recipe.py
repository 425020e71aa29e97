"""Recipe: an exploration of commands as a value that can be written down, so that another process can go on with it.

It is what the command line makes of its words, and the ``spec`` of the forks it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from forkwise.errors import LedgerError, ProcessBranchError
from forkwise.explore.beam_search import BeamSearch
from forkwise.explore.best_of_n import BestOfN
from forkwise.explore.cascaded import Cascaded
from forkwise.explore.pattern import Options, Pattern
from forkwise.explore.reflexion import Reflexion
from forkwise.explore.speculate import Speculate
from forkwise.explore.tournament import Tournament
from forkwise.explore.tree_of_thoughts import TreeOfThoughts
from forkwise.files.branch import Parent
from forkwise.files.store.changes import OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.evaluation import Evaluator, OwnScore, SmallerDiff, Tests, scratch
from forkwise.fork.runner import SandboxRunner
from forkwise.sandbox.confinement import Confinement, Network
from forkwise.sandbox.run import arun_in_branch

__all__ = [
    "Allowance",
    "CommandJudge",
    "Kind",
    "Recipe",
]


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
            done = await arun_in_branch(
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


Kind = Literal["run", "speculate", "best-of", "reflexion", "tournament", "tree", "beam", "cascade"]

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What the candidates get, and the tests and the judge do not: what an agent needs in order to work.

    Of ``writable`` paths those count that exist. ``passed`` are the names, as shell patterns, of variables that are
    passed on although they look like secrets; their values are never written down.
    """

    network: Network | None = None
    writable: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()

    def on(self, confinement: Confinement) -> Confinement:
        """A confinement with it."""
        there = [path for path in self.writable if os.path.exists(os.path.expanduser(path))]
        passed = {k: v for k, v in os.environ.items() if any(fnmatchcase(k, pattern) for pattern in self.passed)}
        return replace(
            confinement,
            network=self.network or confinement.network,
            writable=(*confinement.writable, *there),
            given={**passed, **confinement.given},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to try and how to decide.

    ``commands`` are the candidates; all kinds but ``speculate``, ``tree`` and ``beam`` have one, tried ``n`` times.
    ``tests`` is a test command, or ``auto`` to have it found; ``expand`` are the commands tried upon a result in
    ``tree`` and ``beam``; ``judge`` compares two directories in a ``tournament``.
    """

    kind: Kind
    commands: tuple[tuple[str, ...], ...]
    n: int = 1
    tests: str | None = None
    test_timeout: float | None = None
    repeat: int = 1
    judge: tuple[str, ...] | None = None
    expand: tuple[tuple[str, ...], ...] = ()
    max_depth: int = 2
    beam_width: int = 3
    fan_out: tuple[int, ...] = (1, 2, 4)
    first_wins: bool = True
    timeout: float | None = None
    max_parallel: int | None = None
    confinement: str = "standard"
    network: Network | None = None
    writable: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    allowance: Allowance = Allowance()
    commit: bool = True
    keep: bool = False
    on_conflict: OnConflict = "refuse"

    def as_json(self) -> dict[str, Any]:
        """In the types of JSON; ``from_json`` gives it back."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """The recipe that ``as_json`` was made of; LedgerError where a fork has none, because a program made it."""
        if data.get("format") != _FORMAT:
            raise LedgerError("this fork was made by a program, and only that can go on with it")
        told = {name: _frozen(value) for name, value in data.items() if name != "format"}
        return cls(**{**told, "allowance": Allowance(**told.get("allowance", {}))})

    def confined(self) -> Confinement:
        """What its tests and its judge get, and its candidates beside their allowance."""
        preset = Confinement.preset(self.confinement)
        return replace(
            preset,
            network=self.network or preset.network,
            writable=(*preset.writable, *self.writable),
            given={**preset.given, **dict(self.environment)},
        )

    def test(self) -> Tests | None:
        """The tests that judge it, if any do."""
        if self.tests is None:
            return None
        command = None if self.tests == "auto" else self.tests
        return Tests(command, timeout=self.test_timeout, repeat=self.repeat, confinement=self.confined())

    def pattern(self, workspace: Workspace) -> Pattern:
        """The pattern that carries it out."""
        tests = self.test()
        judges: list[Evaluator] = [] if tests is None else [tests]
        if self.kind in ("best-of", "tree", "beam") or not self.first_wins:
            judges += [OwnScore(), SmallerDiff()]
        options: Options = {
            "timeout": self.timeout,
            "max_parallel": self.max_parallel,
            "runner": SandboxRunner(self.allowance.on(self.confined())),
            "commit": self.commit,
            "keep": self.keep,
            "on_conflict": self.on_conflict,
            "spec": self.as_json(),
            "kind": self.kind,
        }
        return self._made(workspace, judges or None, options)

    def _made(self, workspace: Workspace, evaluate: list[Evaluator] | None, options: Options) -> Pattern:
        first = self.commands[0]
        match self.kind:
            case "run" | "speculate":
                return Speculate(self.commands, first_wins=self.first_wins, evaluate=evaluate, **options)
            case "best-of":
                return BestOfN(first, self.n, evaluate=evaluate, **options)
            case "reflexion":
                return Reflexion(first, self.n, evaluate=evaluate, **options)
            case "cascade":
                return Cascaded(first, fan_out=self.fan_out, evaluate=evaluate, **options)
            case "tournament":
                assert self.judge is not None
                judge = CommandJudge(self.judge, workspace, confinement=self.confined(), timeout=self.test_timeout)
                return Tournament(first, self.n, judge=judge, evaluate=evaluate, **options)
            case "tree":
                return TreeOfThoughts(
                    self.commands, expand=self._expand, max_depth=self.max_depth, evaluate=evaluate, **options
                )
            case "beam":
                return BeamSearch(
                    self.commands,
                    expand=self._expand,
                    beam_width=self.beam_width,
                    max_depth=self.max_depth,
                    evaluate=evaluate,
                    **options,
                )

    def _expand(self, _path: Path, _depth: int) -> list[tuple[str, ...]]:
        return list(self.expand)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
