"""Recipe: a pattern over commands as a JSON value, so that another process can resume it.

The command line builds a recipe from its options; it is the ``spec`` of the forks that it starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forkwise.errors import LedgerError, ProcessBranchError
from forkwise.fork.agent_paths.paths import AgentPaths
from forkwise.fork.candidate import Candidate, OutputReader
from forkwise.fork.evaluation import Evaluator, OwnScore, SmallerDiff, scratch
from forkwise.fork.limits.provider_limit import ProviderRules
from forkwise.fork.limits.spend_budget import SpendLimits
from forkwise.fork.runner import Job, Runner, SandboxRunner
from forkwise.git.ignore_rules import IgnoreRules
from forkwise.sandbox.confinement import Confinement, Network
from forkwise.sandbox.limits import Limits
from forkwise.sandbox.run import arun_in_branch
from forkwise.servers.server_file import read_servers
from forkwise.text.redaction import add_secrets, find_secrets

if TYPE_CHECKING:
    from forkwise.explore.evidence.summary import Summaries
    from forkwise.explore.judges.contest import PairJudge
    from forkwise.explore.pattern import Options, Pattern
    from forkwise.explore.tree_of_thoughts import OnDeadEnd
    from forkwise.files.branch import Parent
    from forkwise.files.store.changes import OnConflict
    from forkwise.files.workspace import Workspace
    from forkwise.fork.evaluators.tests import Tests
    from forkwise.fork.run_end import RunEnd
    from forkwise.servers.server_file import Server

__all__ = [
    "Allowance",
    "CommandJudge",
    "Kind",
    "Recipe",
    "Variant",
]


_ANSWERS = {"0": 0, "a": 0, "first": 0, "1": 1, "b": 1, "second": 1}


class CommandJudge:
    """Compares two directories by running a command that gets them as its last arguments.

    The command runs in a sandbox, in a branch of ``parent`` that is dropped afterwards: if the judge is a file of the
    workspace, the parent's version is used, not a candidate's. The last word of its output names the better one: 0, a
    or first; 1, b or second. Without output, an exit code of 0 or 1 does.
    """

    def __init__(
        self,
        argv: Sequence[str],
        parent: Parent,
        *,
        confinement: Confinement,
        timeout: float | None = None,
        subdirectory: str = "",
    ) -> None:
        self._argv = tuple(argv)
        self.name = shlex.join(self._argv)
        if len(self._argv) == 4 and self._argv[:2] == ("sh", "-c"):  # the form that the command line builds
            self.name = self._argv[2].removesuffix(' "$@"')
        self._parent = parent
        self._confinement = confinement
        self._timeout = timeout
        self._subdirectory = subdirectory

    async def __call__(self, first: Path, second: Path) -> int:
        async with scratch(self._parent) as judge_branch:
            done = await arun_in_branch(
                judge_branch,
                [*self._argv, str(first), str(second)],
                confinement=replace(self._confinement, readable=(*self._confinement.readable, str(first), str(second))),
                timeout=self._timeout,
                cwd=self._subdirectory or None,
            )
        lines = done.stdout.decode(errors="replace").split()
        if lines and lines[-1].lower() in _ANSWERS:
            return _ANSWERS[lines[-1].lower()]
        if done.ending == "exit" and done.returncode in (0, 1) and not lines:
            return int(done.returncode)
        raise ProcessBranchError(f"the judge printed neither 0 nor 1, and ended with {done.returncode} ({done.ending})")


Kind = Literal[
    "run",
    "speculate",
    "best-of",
    "reflexion",
    "tournament",
    "tree",
    "beam",
    "cascade",
    "refine",
    "playoff",
    "follow-up",
]

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Permissions of the candidates that the tests and the judge do not have: those that an agent needs to work.

    ``writable`` paths that do not exist are ignored. ``shown`` paths are not hidden: an agent's own credentials.
    ``passed`` are the names, as shell patterns, of variables that are passed on although the confinement drops them;
    their values are never stored. ``withheld`` are such patterns of other agents' variables: what looks like a secret
    and is not ``passed`` is left out of the environment. ``host_ports`` are ports of this machine's loopback that they
    need. ``paths`` are the agent's own directories, of which each
    candidate gets a view.
    """

    network: Network | None = None
    host_ports: tuple[int, ...] = ()
    writable: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    paths: AgentPaths = field(default_factory=AgentPaths)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Allowance:
        """Build it from its part of a recipe's JSON."""
        return cls(**{**data, "paths": AgentPaths.from_json(data.get("paths", {}))})

    def apply_to(self, confinement: Confinement) -> Confinement:
        """Return ``confinement`` with these permissions added."""
        existing = [path for path in self.writable if os.path.exists(os.path.expanduser(path))]
        passed = {k: v for k, v in os.environ.items() if any(fnmatchcase(k, pattern) for pattern in self.passed)}
        secret = [name for name, text in os.environ.items() if name not in passed and find_secrets({name: text})]
        withheld = {name for name in secret if any(fnmatchcase(name, pattern) for pattern in self.withheld)}
        if confinement.passed is None and withheld:
            kept = tuple(name for name in os.environ if name not in withheld)
            confinement = replace(confinement, passed=kept)
        return replace(
            confinement,
            network=self.network or confinement.network,
            host_ports=tuple(dict.fromkeys((*confinement.host_ports, *self.host_ports))),
            writable=(*confinement.writable, *existing),
            shown=(*confinement.shown, *self.shown),
            branched=(*confinement.branched, *self.paths.branched),
            given={**passed, **confinement.given},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of the candidates of a recipe, in which something differs from the others.

    ``prompt`` is the number of its prompt among those of the recipe. ``variation`` names what differs, for people.
    ``stream`` names the format of its agent's output; an agent without one prints plain text. ``provider`` is the
    service that the agent uses, at most ``at_once`` attempts at the same time.
    """

    command: tuple[str, ...]
    label: str
    agent: str | None = None
    prompt: int | None = None
    environment: tuple[tuple[str, str], ...] = ()
    variation: tuple[tuple[str, str], ...] = ()
    stream: str | None = None
    provider: str | None = None
    at_once: int | None = None

    def build_candidate(self, number: int, prompts: Sequence[str]) -> Candidate:
        """Build the candidate; ``number`` is that of the variant, ``prompts`` are those of the recipe."""
        return Candidate(
            self.label,
            argv=self.command,
            environment=dict(self.environment),
            prompt=None if self.prompt is None else prompts[self.prompt],
            agent=self.agent,
            variation=dict(self.variation),
            variant=number,
            read_output=None if self.agent is None else self._read_output,
            provider=self.provider,
            at_once=self.at_once,
        )

    @property
    def model(self) -> str:
        """The model that it names, or nothing."""
        return dict(self.environment).get("FORKWISE_MODEL", "")

    def _read_output(self, directory: Path) -> OutputReader:
        from forkwise.agents.stream import FORMATS, AgentStream  # only agents need it

        return AgentStream(self.stream if self.stream in FORMATS else None, directory, model=self.model)


class _RunnerByCommand(Runner):
    """Runs each job with the runner of its command, or with a default one."""

    def __init__(self, default: Runner, runners: Mapping[tuple[str, ...], Runner]) -> None:
        self._default = default
        self._runners = runners

    async def run(self, job: Job) -> RunEnd:
        return await self._runners.get(tuple(job.argv or ()), self._default).run(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The candidates of a pattern and how it decides between them.

    Candidates: ``commands``; all kinds except ``speculate``, ``tree`` and ``beam`` have one, run ``n`` times. With
    ``variants``, these are the candidates instead, and kinds with one candidate take them in turn; ``prompts`` are what
    variants refer to. ``expand`` are the commands to run on top of a result in ``tree`` and ``beam``. ``refine`` makes
    ``n`` attempts in each of ``rounds``.

    How they run: ``allowance`` is that of all commands, except those that have their own in ``own_allowances``.
    Without a ``network``, the confinement ``standard`` has ``auto``.
    ``memory`` and ``cpus`` limit each attempt and each test run; on the cluster ``on``, which is ``ray`` or an address,
    an attempt occupies them and ``gpus`` on a node, and files travel through ``store``.
    ``SpendLimits`` has the budgets, ``ProviderRules`` has ``per_provider`` and ``provider_retries``. Candidates, tests
    and the judge start in ``subdirectory`` of the workspace. ``frozen`` is that of the workspace, for resuming. With
    ``servers``, those of the workspace's ``servers.toml`` run in each branch while its candidate runs, and while its
    tests run. ``follow-up`` starts from the changes of the attempt ``base``, and gives its candidate ``feedback``.

    How they are judged: ``tests`` is a test command, or ``auto`` to detect it; ``sealed``, ``seal``, ``held_out`` and
    ``baseline`` are those of ``Tests``. With ``cross_tests``, attempts are also scored by the tests that others added.
    ``judge`` is a command that compares two directories, ``judge_model`` a model that compares two diffs, and ``goal``
    is the task as it sees it. ``summary_model`` is the model that summarises attempts for later ones. ``stop_when`` are
    rules such as ``no-gain:3``.

    How the winner is committed: ``include_ignored`` commits ignored files as well; ``litter`` are globs of files that
    agents leave behind, which count as ignored; ``has_prompt`` and ``allow_empty`` are those of Pattern. Without
    ``retest``, a winner is not tested again if the workspace was changed meanwhile.
    """

    kind: Kind
    commands: tuple[tuple[str, ...], ...]
    variants: tuple[Variant, ...] = ()
    prompts: tuple[str, ...] = ()
    n: int = 1
    tests: str | None = None
    test_timeout: float | None = None
    repeat: int = 1
    sealed: bool = True
    seal: tuple[str, ...] = ()
    held_out: str | None = None
    baseline: bool = True
    judge: tuple[str, ...] | None = None
    judge_model: str | None = None
    goal: str = ""
    summary_model: str | None = None
    expand: tuple[tuple[str, ...], ...] = ()
    max_depth: int = 2
    on_dead_end: OnDeadEnd = "keep"
    beam_width: int = 3
    fan_out: tuple[int, ...] = (1, 2, 4)
    rounds: int = 2
    group: int = 4
    budget: int | None = None
    first_wins: bool = True
    timeout: float | None = None
    time_budget: float | None = None
    usd_budget: float | None = None
    token_budget: int | None = None
    attempt_usd_budget: float | None = None
    attempt_token_budget: int | None = None
    memory: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    on: str | None = None
    store: str | None = None
    max_parallel: int | None = None
    per_provider: int | None = None
    provider_retries: int = 5
    confinement: str = "standard"
    network: Network | None = None
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    host_ports: tuple[int, ...] = ()
    landlock_instead: bool = False
    writable: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    allowance: Allowance = Allowance()
    own_allowances: tuple[tuple[tuple[str, ...], Allowance], ...] = ()
    subdirectory: str = ""
    commit: bool = True
    keep: bool = False
    on_conflict: OnConflict = "refuse"
    retest: bool = True
    stop_when: tuple[str, ...] = ()
    cross_tests: bool = False
    include_ignored: bool = False
    litter: tuple[str, ...] = ()
    allow_empty: bool = False
    has_prompt: bool = False
    frozen: bool = False
    servers: bool = False
    base: str | None = None
    feedback: str = ""

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types; the inverse of ``from_json``."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Build the recipe from ``as_json``. Raises LedgerError for the fork of a program, which has no recipe."""
        if data.get("format") != _FORMAT:
            raise LedgerError("this fork was started by a program: only that program can resume it")
        fields = {name: _freeze(value) for name, value in data.items() if name != "format"}
        fields["allowance"] = Allowance.from_json(fields.get("allowance", {}))
        fields["own_allowances"] = tuple(
            (command, Allowance.from_json(allowance)) for command, allowance in fields.get("own_allowances", ())
        )
        fields["variants"] = tuple(Variant(**variant) for variant in fields.get("variants", ()))
        return cls(**fields)

    def build_confinement(self) -> Confinement:
        """Build the confinement of the tests and the judge; candidates get the allowance in addition."""
        preset = Confinement.preset(self.confinement)
        network = "auto" if self.confinement == "standard" else preset.network
        return replace(
            preset,
            network=self.network or network,
            allowed_hosts=self.allowed_hosts,
            denied_hosts=self.denied_hosts,
            host_ports=self.host_ports,
            landlock_instead=self.landlock_instead,
            writable=(*preset.writable, *self.writable),
            shown=(*preset.shown, *self.shown),
            given={**preset.given, **dict(self.environment)},
            limits=Limits(memory=self.memory, cpus=self.cpus),
        )

    def read_servers(self, workspace: Workspace) -> tuple[Server, ...]:
        """Read the servers of a workspace, if the recipe uses them. Raises ConfigError."""
        return read_servers(workspace.path) if self.servers else ()

    def build_tests(self, servers: Sequence[Server] = ()) -> Tests | None:
        """Build the evaluator that runs the tests, with ``servers``; None without tests."""
        if self.tests is None:
            return None
        from forkwise.fork.evaluators.tests import Tests  # loads the formats of reports

        command = None if self.tests == "auto" else self.tests
        return Tests(
            command,
            timeout=self.test_timeout,
            repeat=self.repeat,
            confinement=self.build_confinement(),
            sealed=self.sealed,
            seal=self.seal,
            held_out=self.held_out,
            baseline=self.baseline,
            require="progress" if self.compares else "all",
            subdirectory=self.subdirectory,
            servers=servers,
            servers_use_host=self.network == "host",
        )

    @property
    def compares(self) -> bool:
        """Whether the best of several attempts wins, and not the first that succeeds."""
        return self.kind in ("best-of", "tournament", "playoff", "tree", "beam", "refine") or (
            self.kind == "speculate" and not self.first_wins
        )

    def pattern(self, workspace: Workspace) -> Pattern:
        """Build the pattern that runs the recipe."""
        servers = self.read_servers(workspace)
        tests = self.build_tests(servers)
        judges: list[Evaluator] = [] if tests is None else [tests]
        if tests is not None and self.cross_tests:
            from forkwise.fork.evaluators.cross_tests import CrossTests  # as above

            judges.append(CrossTests(tests))
        if self.compares and self.kind != "tournament":
            judges += [OwnScore(), SmallerDiff()]
        options: Options = {
            "timeout": self.timeout,
            "max_parallel": self.max_parallel,
            "runner": self._build_runner(servers),
            "commit": self.commit,
            "keep": self.keep,
            "on_conflict": self.on_conflict,
            "retest": self.retest,
            "stop_when": self.stop_when,
            "time_budget": self.time_budget,
            "spend_limits": SpendLimits(
                self.usd_budget, self.token_budget, self.attempt_usd_budget, self.attempt_token_budget
            ),
            "provider_rules": ProviderRules(self.per_provider, self.provider_retries),
            "holds_on_interrupt": True,
            "ignore": None if self.include_ignored else IgnoreRules(self.litter) if self.litter else "git",
            "allow_empty": self.allow_empty,
            "has_prompt": self.has_prompt,
            "spec": self.as_json(),
            "kind": self.kind,
        }
        return self._build_pattern(workspace, judges or None, options)

    def _build_runner(self, servers: Sequence[Server]) -> Runner:
        own = {command: self._build_sandbox_runner(allowance, servers) for command, allowance in self.own_allowances}
        default = self._build_sandbox_runner(self.allowance, servers)
        return _RunnerByCommand(default, own) if own else default

    def list_agents(self) -> list[tuple[str, str]]:
        """Return the agent and the model of each attempt, assuming that none of them ends the exploration early.

        Attempts on top of others in ``tree`` and ``beam`` are not included.
        """
        counts = {"run": 1, "follow-up": 1, "cascade": sum(self.fan_out), "refine": self.n * self.rounds}
        counts |= dict.fromkeys(("speculate", "tree", "beam"), len(self.variants))
        chosen = [self.variants[i % len(self.variants)] for i in range(counts.get(self.kind, self.n)) if self.variants]
        return [(variant.agent, variant.model) for variant in chosen if variant.agent is not None]

    def build_candidate_confinement(self, command: tuple[str, ...], variant: int | None = None) -> Confinement:
        """Build the confinement of the candidate of this command; with the variables of its variant, if it has one."""
        found = self._confine(dict(self.own_allowances).get(command, self.allowance))
        is_known = variant is not None and 0 <= variant < len(self.variants)
        own = dict(self.variants[variant or 0].environment) if is_known else {}
        return replace(found, given={**found.given, **own})

    def _confine(self, allowance: Allowance) -> Confinement:
        confinement = allowance.apply_to(self.build_confinement())
        if self.held_out is not None:
            confinement = replace(confinement, hidden=(*confinement.hidden, self.held_out))
        return confinement

    def _build_sandbox_runner(self, allowance: Allowance, servers: Sequence[Server]) -> Runner:
        confinement = self._confine(allowance)
        if self.on is not None:
            return self._build_cluster_runner(confinement, allowance, servers)
        return SandboxRunner(
            confinement,
            allowance.paths,
            subdirectory=self.subdirectory,
            servers=servers,
            server_confinement=self.build_confinement(),
            servers_use_host=self.network == "host",
        )

    def _build_cluster_runner(
        self, confinement: Confinement, allowance: Allowance, servers: Sequence[Server]
    ) -> Runner:
        from forkwise.cluster.ray_runner import RayRunner  # needs the extra ray

        occupied = {"num_cpus": self.cpus or 1, "memory": self.memory, "num_gpus": self.gpus}
        return RayRunner(
            None if self.on == "ray" else self.on,
            {name: amount for name, amount in occupied.items() if amount is not None},
            self.store,
            confinement=confinement,
            agent_paths=allowance.paths,
            subdirectory=self.subdirectory,
            servers=servers,
            server_confinement=self.build_confinement(),
        )

    def _build_pattern(self, workspace: Workspace, evaluate: list[Evaluator] | None, options: Options) -> Pattern:
        candidates = self.build_candidates()
        first = candidates[0] if len(candidates) == 1 else Candidate(candidates[0].label, variants=candidates)
        match self.kind:
            case "run" | "speculate":
                from forkwise.explore.speculate import Speculate

                return Speculate(
                    candidates,
                    first_wins=self.first_wins,
                    judge=self._build_judge(workspace),
                    evaluate=evaluate,
                    **options,
                )
            case "best-of":
                from forkwise.explore.best_of_n import BestOfN

                return BestOfN(first, self.n, judge=self._build_judge(workspace), evaluate=evaluate, **options)
            case "reflexion":
                from forkwise.explore.reflexion import Reflexion

                return Reflexion(first, self.n, summaries=self._build_summaries(), evaluate=evaluate, **options)
            case "refine":
                from forkwise.explore.refine import Refine

                return Refine(
                    first,
                    self.n,
                    rounds=self.rounds,
                    summaries=self._build_summaries(),
                    evaluate=evaluate,
                    **options,
                )
            case "cascade":
                from forkwise.explore.cascaded import Cascaded

                return Cascaded(
                    first,
                    fan_out=self.fan_out,
                    summaries=self._build_summaries(),
                    evaluate=evaluate,
                    **options,
                )
            case "tournament":
                from forkwise.explore.tournament import Tournament

                judge = self._build_judge(workspace)
                assert judge is not None
                return Tournament(first, self.n, judge=judge, evaluate=evaluate, **options)
            case "playoff":
                from forkwise.explore.recursive_tournament import RecursiveTournament

                return RecursiveTournament(
                    first,
                    self.n,
                    group=self.group,
                    budget=self.budget,
                    judge=self._build_judge(workspace),
                    summaries=self._build_summaries(),
                    evaluate=evaluate,
                    **options,
                )
            case "follow-up":
                from forkwise.explore.follow_up import FollowUp

                assert self.base is not None
                return FollowUp(first, self.base, self.feedback, evaluate=evaluate, **options)
            case "tree":
                from forkwise.explore.tree_of_thoughts import TreeOfThoughts

                return TreeOfThoughts(
                    candidates,
                    expand=self._expand,
                    max_depth=self.max_depth,
                    on_dead_end=self.on_dead_end,
                    evaluate=evaluate,
                    **options,
                )
            case "beam":
                from forkwise.explore.beam_search import BeamSearch

                return BeamSearch(
                    candidates,
                    expand=self._expand,
                    beam_width=self.beam_width,
                    max_depth=self.max_depth,
                    evaluate=evaluate,
                    **options,
                )

    def _build_judge(self, workspace: Workspace) -> CommandJudge | PairJudge | None:
        if self.judge_model is not None:
            from forkwise.explore.judges.model_judge import ModelJudge  # loads pydantic-ai

            return ModelJudge(self.judge_model, goal=self.goal)
        if self.judge is None:
            return None
        return self._build_command_judge(self.judge, workspace)

    def _build_command_judge(self, argv: tuple[str, ...], workspace: Workspace) -> CommandJudge:
        return CommandJudge(
            argv,
            workspace,
            confinement=self.build_confinement(),
            timeout=self.test_timeout,
            subdirectory=self.subdirectory,
        )

    def _build_summaries(self) -> Summaries | None:
        if self.summary_model is None:
            return None
        from forkwise.explore.evidence.summary import Summaries  # loads pydantic-ai

        return Summaries(self.summary_model)

    def build_candidates(self) -> tuple[Candidate, ...]:
        """Build the candidates: one for each variant, or for each command."""
        if not self.variants:
            return tuple(map(Candidate.of, self.commands))
        for variant in self.variants:
            add_secrets(dict(variant.environment))
        return tuple(variant.build_candidate(i, self.prompts) for i, variant in enumerate(self.variants))

    def _expand(self, _path: Path, _depth: int) -> list[Candidate]:
        return list(map(Candidate.of, self.expand)) or list(self.build_candidates())


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _freeze(item) for name, item in value.items()}
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value
