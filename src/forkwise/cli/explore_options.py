"""ExploreOptions: the values of the options that explore commands share, and the recipe built from them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import require_extra
from forkwise.cli.variation import Variation, find_variations
from forkwise.display.output import Output
from forkwise.errors import AgentError, ForkwiseWarning
from forkwise.text.clean import truncate_line, truncate_middle

if TYPE_CHECKING:
    from forkwise.agents.preset import Agent
    from forkwise.explore.recipe import Allowance, Kind, Recipe, Variant
    from forkwise.files.store.changes import OnConflict
    from forkwise.sandbox.confinement import Network

__all__ = [
    "MODEL",
    "ExploreOptions",
    "check_model",
    "check_paths",
    "check_rules",
    "find_judge",
    "find_notice_delay",
    "find_shared_paths",
    "shell_command",
]

MODEL = "model:"
"""The prefix of a model's name in options that also accept a shell command."""

_LATE = ("codex", "gemini", "goose")  # their streams report the usage only at the end
_UNCOUNTED = ("copilot", "vibe")  # their streams report no tokens
_TAKES_SEVERAL = ("speculate", "tree", "beam")
_PROGRAM = re.compile(r"[\w./+@%][\w./+@%-]*")
_OWN = re.compile(r"[A-Z]+_\*")
#: Names of variables that hold a model server's address: a URL, or a host and a port.
_ADDRESS_VARIABLE = re.compile(r".*(?:_BASE_URL|_API_BASE|_ENDPOINT|_BASE|_URL|_HOST)")
_LOOPBACK_URL = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?:[^/@]*@)?(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0)"
    r"(?::(?P<port>\d{1,5}))?(?:[/?#].*)?\Z",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"\{(?:prompt|model)\}")
_TAKES_NUMBER = ("best-of", "tournament", "refine", "playoff")
_LONGEST_WORD = 128 << 10  # bytes of one argument, including its terminating NUL (Linux's MAX_ARG_STRLEN)
_LONGEST_GOAL = 20_000
_WIDEST_VALUE = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)  # each method costs milliseconds per start
class ExploreOptions:
    """The parsed options of an explore command."""

    words: tuple[str, ...] = ()
    prompt_file: str | None = None
    command: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    model: str | None = None
    agent_arguments: str | None = None
    vary: tuple[str, ...] = ()
    variations: Path | None = None
    tests: str | None = None
    test_timeout: float | None = None
    repeat: int = 1
    seal: tuple[str, ...] = ()
    unsealed: bool = False
    held_out: Path | None = None
    no_baseline: bool = False
    timeout: float | None = None
    budgets: tuple[tuple[str, float], ...] = ()
    attempt_budgets: tuple[tuple[str, float], ...] = ()
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
    variables: tuple[str, ...] = ()
    on_conflict: OnConflict = "refuse"
    allow_executable_config: bool = False
    frozen: bool = False
    no_servers: bool = False
    no_retest: bool = False
    stop_when: tuple[str, ...] = ()
    include_ignored: bool = False
    allow_empty: bool = False
    no_commit: bool = False
    keep: bool = False
    patch: Path | None = None
    report: Path | None = None
    git: str | None = None
    as_branch: str | None = None
    as_patch: str | None = None
    branches_prefix: str | None = None
    message: str | None = None
    detach: bool = False
    notify: float | None = None
    quiet: bool = False
    directory: Path
    subdirectory: str = ""
    output: Output

    def recipe(self, kind: Kind, **own: Any) -> Recipe:
        """Build the recipe of an exploration; ``own`` are the fields that only this kind has.

        Raises UsageError if options are missing or contradict each other.
        """
        from forkwise.explore.recipe import Recipe

        self._check()
        if "judge" in own:
            self._check_judge(own["judge"][2].removesuffix(' "$@"'))
        found = find_variations(self.vary, self.variations)
        subjects = self._find_subjects(found)
        if not subjects:
            raise click.UsageError("nothing to try: give -- COMMAND, -c LINE, or --agent NAME 'PROMPT'")
        is_varied_agent = any(variation.agent for variation in found)
        is_mixed = len(subjects) > 1 and not any(isinstance(subject, tuple) for subject in subjects)
        if len(subjects) > 1 and kind not in _TAKES_SEVERAL and not is_varied_agent and not is_mixed:
            raise click.UsageError(
                f"{kind} tries one command, but {len(subjects)} were given; forkwise speculate tries several"
            )
        prompts, variants = self._build_variants(subjects, found)
        commands = list(dict.fromkeys(variant.command for variant in variants))
        agents = {subject.name: subject for subject in subjects if not isinstance(subject, tuple)}
        _check_number(kind, own, len(variants), is_varied=bool(found) or is_mixed)
        if kind in ("tree", "beam"):
            own["expand"] = tuple(map(shell_command, own["expand"]))
        goal = "; ".join(prompts) or "; ".join(self.lines) or shlex.join(self.command)
        return Recipe(
            kind=kind,
            commands=tuple(commands),
            variants=tuple(variants) if found or agents or prompts or self.model else (),
            prompts=tuple(prompts),
            tests=self.tests,
            goal=truncate_middle(goal, _LONGEST_GOAL),
            test_timeout=self.test_timeout or None,
            repeat=self.repeat,
            seal=self.seal,
            sealed=not self.unsealed,
            held_out=None if self.held_out is None else os.path.realpath(self.held_out),
            baseline=not self.no_baseline,
            timeout=self.timeout,
            **self._find_budgets(agents),
            memory=self.memory,
            cpus=self.cpus,
            **self._find_cluster(),
            max_parallel=self.max_parallel,
            per_provider=self.per_provider,
            provider_retries=self.provider_retries,
            confinement=self.confinement,
            network=self.network,
            allowed_hosts=self.allowed_hosts,
            denied_hosts=self.denied_hosts,
            host_ports=self.host_ports,
            landlock_instead=self.landlock_instead,
            writable=tuple(os.path.abspath(os.path.expanduser(path)) for path in self.writable),
            shown=tuple(os.path.abspath(os.path.expanduser(path)) for path in self.shown),
            environment=tuple(self._variables_with_values()),
            **self._allowances(agents, variants),
            commit=not self.no_commit and not self.is_exported,
            keep=self.keep or self.no_commit or self.is_exported,
            on_conflict=self.on_conflict,
            retest=not self.no_retest,
            stop_when=self.stop_when,
            include_ignored=self.include_ignored,
            litter=tuple(dict.fromkeys(glob for agent in agents.values() for glob in agent.litter)),
            allow_empty=self.allow_empty,
            has_prompt=bool(agents),
            frozen=self.frozen,
            servers=not self.no_servers,
            subdirectory=self.subdirectory,
            **own,
        )

    def _find_budgets(self, agents: Mapping[str, Agent]) -> dict[str, Any]:
        """Return the fields of the recipe for budgets. Raises UsageError for a budget that could never take effect."""
        found: dict[str, float] = {}
        for option, given, names in (
            ("--budget", self.budgets, {"seconds": "time_budget", "usd": "usd_budget", "tokens": "token_budget"}),
            ("--attempt-budget", self.attempt_budgets, {"usd": "attempt_usd_budget", "tokens": "attempt_token_budget"}),
        ):
            for kind, amount in given:
                if kind not in names:
                    raise click.UsageError(
                        "--attempt-budget takes dollars or tokens; --timeout limits the time of each attempt"
                    )
                if names[kind] in found:
                    raise click.UsageError(f"{option} is given twice in {kind}: give it once")
                found[names[kind]] = int(amount) if kind == "tokens" else amount
        if found.keys() - {"time_budget"}:
            self._check_spend_budget(agents)
        return found

    def _find_cluster(self) -> dict[str, Any]:
        """Return the fields of the recipe for a cluster. Raises UsageError for options that cannot be used there."""
        if self.on is None:
            if self.gpus is not None:
                raise click.UsageError("--gpus is about the nodes of a cluster: give --on ray too")
            return {}
        if self.network == "host" or self.confinement == "open" or self.landlock_instead:
            raise click.UsageError(
                "--on needs sandboxes with their own network and mounts, because a program in a node's network could "
                "use Ray to leave its sandbox: leave out --network host, --confinement open and --landlock-instead"
            )
        is_path = self.store is not None and "://" not in self.store
        store = os.path.abspath(os.path.expanduser(self.store)) if is_path and self.store else self.store
        return {"on": self.on, "store": store or None, "gpus": self.gpus}

    def _find_own_limit(self) -> float | None:
        """Return the limit in dollars to pass to an agent that can enforce one itself."""
        return min((amount for kind, amount in (*self.budgets, *self.attempt_budgets) if kind == "usd"), default=None)

    def _check_spend_budget(self, agents: Mapping[str, Agent]) -> None:
        silent = [agent.name for agent in agents.values() if agent.stream is None or agent.stream in _UNCOUNTED]
        if silent or not agents:
            what = f"agent {silent[0]!r} does" if silent else "shell commands do"
            raise click.UsageError(
                f"a budget in dollars or tokens cannot be enforced, because {what} not report any: limit the time "
                "instead, such as --budget 30m"
            )
        if late := [agent.name for agent in agents.values() if agent.stream in _LATE]:
            names = f"{', '.join(late)} {'reports' if len(late) == 1 else 'report'}"
            message = f"{names} usage only at the end: the budget can only stop other attempts"
            warnings.warn(message, ForkwiseWarning, stacklevel=2)

    @property
    def is_exported(self) -> bool:
        """Whether results go to git branches or a patch, and the workspace stays as it is."""
        return self.as_branch is not None or self.as_patch is not None or self.branches_prefix is not None

    def _check_judge(self, line: str) -> None:
        """Raise UsageError if the judge is a shell command whose program does not exist."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise click.UsageError(f"--judge {line!r} is not a shell command: {error}") from None
        if not words:
            raise click.UsageError("--judge needs a command")
        if not _PROGRAM.fullmatch(words[0]):
            return  # a shell variable or expression: its value is not known yet
        # The shell is asked, because it also has builtins and keywords.
        found = subprocess.run(
            ["sh", "-c", 'command -v "$1"', "sh", words[0]],
            cwd=self.directory / self.subdirectory,
            capture_output=True,
            check=False,
        )
        if found.returncode != 0:
            raise click.UsageError(f"--judge: program {words[0]!r} not found, or not executable")

    def _find_subjects(self, found: Sequence[Variation]) -> list[tuple[str, ...] | Agent]:
        """Return the commands and agents to try. Raises UsageError if an agent is unknown or has no prompt."""
        varied = list(dict.fromkeys(variation.agent for variation in found if variation.agent is not None))
        if varied and (self.agents or self.lines or self.command):
            raise click.UsageError(
                "the agents come from --agent or from a variation, not from both, and cannot be mixed with commands"
            )
        if varied and not all(variation.agent for variation in found):
            raise click.UsageError("some of the variations name an agent and others do not: name one in each")
        names = [*self.agents, *varied]
        if not names and self.words and self.prompt_file is None:
            line = shlex.join([*self.words, *self.command])
            raise click.UsageError(
                f"put two dashes before the command, so that forkwise does not read its options: -- {line}"
            )
        has_prompt = any(word.strip() for word in self.words)
        if names and not has_prompt and not (found and all(variation.prompt for variation in found)):
            dash = " (put a prompt that begins with a dash in a file: --prompt-file FILE)" if self.command else ""
            raise click.UsageError(f"agent {names[0]!r} needs a prompt: --agent {names[0]} 'what to do'{dash}")
        agents = self._find_agents(names)
        return [*map(shell_command, self.lines), *self._find_command(), *agents]

    def _build_variants(
        self, subjects: Sequence[tuple[str, ...] | Agent], found: Sequence[Variation]
    ) -> tuple[list[str], list[Variant]]:
        """Return the prompts and the candidates: each subject in each variation, or the agent that it names."""
        from forkwise.explore.recipe import Variant
        from forkwise.fork.candidate import Candidate

        common = " ".join(self.words)
        prompts: dict[str, int] = {}
        variants = []
        for variation in found or [Variation()]:
            prompt = variation.prompt or common
            number = prompts.setdefault(prompt, len(prompts)) if prompt else None
            for subject in subjects:
                if not isinstance(subject, tuple) and variation.agent not in (None, subject.label):
                    continue
                model = variation.model or (None if isinstance(subject, tuple) else subject.model) or self.model
                if isinstance(subject, tuple):
                    command = _fill(subject, prompt, model, variation.arguments)
                    label = Candidate.of(subject).label
                else:
                    arguments = (*self._split_agent_arguments(), *variation.arguments)
                    command = _build_command(subject, prompt, model, arguments, self._find_own_limit())
                    label = subject.label
                named = [(key, text) for key, text in variation.names if key != "agent"]
                more = ", ".join(f"{key}={truncate_line(text, _WIDEST_VALUE)}" for key, text in named)
                own = {} if isinstance(subject, tuple) else self._agent_variables(subject)
                environment = own | dict(variation.environment) | ({} if model is None else {"FORKWISE_MODEL": model})
                variants.append(
                    Variant(
                        command=command,
                        label=f"{label} {more}" if more else label,
                        agent=None if isinstance(subject, tuple) else subject.name,
                        prompt=number,
                        environment=tuple(environment.items()),
                        variation=variation.names,
                        stream=None if isinstance(subject, tuple) else subject.stream,
                        provider=None if isinstance(subject, tuple) else subject.provider or subject.name,
                        at_once=None if isinstance(subject, tuple) else subject.at_once,
                    )
                )
        return list(prompts), variants

    def _split_agent_arguments(self) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(self.agent_arguments or ""))
        except ValueError as error:
            raise click.UsageError(
                f"--agent-args {self.agent_arguments!r} cannot be split into words: {error}"
            ) from None

    def _check(self) -> None:
        if self.agent_arguments is not None and not (self.agents or self.vary or self.variations):
            raise click.UsageError("--agent-args are arguments of a coding agent: give --agent too")
        if self.tests is not None and not self.tests.strip():
            raise click.UsageError("--test needs a command, or auto")
        if "all-green" in self.stop_when and self.tests is None:
            raise click.UsageError("--stop-when all-green needs tests: give --test 'COMMAND' or --test auto")
        if any(rule.startswith("cost") for rule in self.stop_when) and not self.agents:
            raise click.UsageError(
                "--stop-when cost: the cost of a shell command is never known, so the rule could not apply: use "
                "--agent, no-gain:N, or a limit on the number of attempts"
            )
        if self.tests is None and (self.seal or self.unsealed or self.held_out or self.no_baseline):
            raise click.UsageError(
                "--seal, --unsealed, --test-from and --no-baseline only matter for tests: give --test too"
            )
        if self.unsealed and (self.seal or self.held_out):
            raise click.UsageError("--unsealed cannot be combined with --seal or --test-from")
        if self.held_out is not None and self.landlock_instead:
            raise click.UsageError(
                "--test-from cannot be combined with --landlock-instead, which cannot hide the tests from attempts"
            )
        if self.held_out is not None and self.held_out.resolve().is_relative_to(self.directory.resolve()):
            raise click.UsageError(
                f"--test-from {self.held_out} is inside the workspace, where attempts see it; move it elsewhere"
            )
        if self.git is not None and self.no_commit:
            raise click.UsageError("--commit-to-git and --no-commit exclude each other")
        if self.git is not None and self.is_exported:
            raise click.UsageError(
                "--commit-to-git changes the workspace, but --as-branch, --as-patch and --branches-prefix leave it "
                "unchanged: give one or the other"
            )
        if self.message is not None and self.git is None and not self.is_exported:
            raise click.UsageError("-m sets the message of a git commit: give --commit-to-git or --as-branch too")
        check_rules(self.network, self.confinement, (*self.allowed_hosts, *self.denied_hosts), self.host_ports)
        check_paths(self.writable, self.shown)

    def _find_agents(self, names: Sequence[str]) -> list[Agent]:
        if not names:
            return []
        from forkwise.agents.preset import find_agent
        from forkwise.config.config_file import AGENTS, find_workspace_config

        try:
            agents = [find_agent(name, self.directory) for name in names]
        except AgentError as error:
            raise click.UsageError(str(error)) from error
        for agent in agents:
            notes = list(agent.notes)
            if agent.source == find_workspace_config(self.directory, AGENTS) and not notes:
                notes.append(f"agent {agent.name!r} is defined by {agent.source}")
            for message in dict.fromkeys(notes):
                warnings.warn(message, ForkwiseWarning, stacklevel=1)
        return agents

    def _find_command(self) -> list[tuple[str, ...]]:
        """Return the command after ``--``, if any; UsageError if its program cannot be run from the workspace."""
        if not self.command:
            return []
        program = self.command[0]
        path = os.path.join(self.directory, self.subdirectory, program) if "/" in program else program
        if shutil.which(path) is None:
            raise click.UsageError(f"program {program!r} not found, or not executable")
        return [self.command]

    def _agent_variables(self, agent: Agent) -> dict[str, str]:
        """Return the variables of an agent's table, except those that the command line overrides."""
        more = agent.environment_when_confined if self.confinement != "open" else {}
        given = {name for name, _ in self._variables_with_values()}
        return {name: text for name, text in (agent.environment | more).items() if name not in given}

    def _variables_with_values(self) -> list[tuple[str, str]]:
        pairs = [text.partition("=") for text in self.variables]
        return [(name, value) for name, separator, value in pairs if separator]

    def _allowances(self, agents: Mapping[str, Agent], variants: Sequence[Variant]) -> dict[str, Any]:
        """Return the recipe's allowances. If there are several commands, each agent has an allowance of its own."""
        if len(agents) == 1 and all(variant.agent for variant in variants):
            return {"allowance": self._build_allowance(next(iter(agents.values())))}
        own = {v.command: self._build_allowance(agents[v.agent]) for v in variants if v.agent is not None}
        return {"allowance": self._build_allowance(None), "own_allowances": tuple(own.items())}

    def _shared_paths(self) -> tuple[str, ...]:
        """Return the directories that the user's configuration shares with attempts; tests get a view of them."""
        return () if self.confinement == "open" else find_shared_paths(self.directory)

    def _find_host_ports(self, agent: Agent) -> tuple[int, ...]:
        """Find ports of this machine's loopback in the variables that an agent gets: those of its model server."""
        if self.network in ("host", "none"):
            return ()
        passed = [*agent.passes, *(text for text in self.variables if "=" not in text)]
        variables = {k: v for k, v in os.environ.items() if any(fnmatchcase(k, pattern) for pattern in passed)}
        variables |= {**agent.environment, **dict(self._variables_with_values())}
        ports: dict[int, str] = {}
        for name, value in variables.items():
            if _ADDRESS_VARIABLE.fullmatch(name) and (port := _find_loopback_port(value)) is not None:
                ports.setdefault(port, name)
        for port, name in ports.items():
            if port not in self.host_ports:
                message = f"attempts of {agent.name} can reach port {port} of this machine, which {name} names"
                warnings.warn(message, ForkwiseWarning, stacklevel=1)
        return tuple(ports)

    def _build_allowance(self, agent: Agent | None) -> Allowance:
        from forkwise.config.shared_paths import make_shared
        from forkwise.explore.recipe import Allowance

        names = [text for text in self.variables if "=" not in text]
        if agent is None:
            return Allowance(passed=tuple(dict.fromkeys(names)), writable=self._shared_paths())
        return Allowance(
            network=("host" if self.confinement == "open" else "auto") if self.network is None else None,
            host_ports=self._find_host_ports(agent),
            writable=(*agent.writable, *self._shared_paths(), *make_shared(agent.shared, agent.source, self.directory)),
            shown=tuple(dict.fromkeys([*agent.credentials, *(login.file for login in agent.paths.logins)])),
            paths=agent.paths,
            passed=tuple(dict.fromkeys([*names, *agent.passes])),
            withheld=() if self.confinement == "open" else self._find_withheld(agent),
        )

    def _find_withheld(self, agent: Agent) -> tuple[str, ...]:
        """Return the patterns of other agents' own variables: those like ``NAME_*`` that only one agent lists."""
        from forkwise.agents.preset import load_agents

        listed = Counter(p for other in load_agents(self.directory).values() for p in set(other.passes))
        own = (pattern for pattern, count in listed.items() if count == 1 and _OWN.fullmatch(pattern))
        return tuple(sorted(set(own) - set(agent.passes)))


def _build_command(
    agent: Agent, prompt: str, model: str | None, arguments: Sequence[str], usd: float | None
) -> tuple[str, ...]:
    """Return the command of an agent. Raises UsageError if the agent cannot take the model or the prompt."""
    try:
        return agent.argv(prompt, model, arguments, usd=usd)
    except AgentError as error:
        raise click.UsageError(str(error)) from error


def find_shared_paths(workspace: Path) -> tuple[str, ...]:
    """Return the directories that configuration files share with sandboxes, created where missing."""
    from forkwise.config.shared_paths import make_shared, read_shared_paths

    shared = read_shared_paths(workspace)
    return tuple(made for path, source in shared.items() for made in make_shared([path], source, workspace))


def check_rules(network: Network | None, confinement: str, hosts: Sequence[str], host_ports: Sequence[int]) -> None:
    """Raise UsageError if the network cannot enforce --allow-host, --deny-host and --host-port."""
    used = network or {"strict": "none", "open": "host"}.get(confinement, "auto")
    by = f"--network {network}" if network else f"--confinement {confinement}"
    if hosts and used not in ("auto", "proxy"):
        raise click.UsageError(f"--allow-host and --deny-host need --network proxy, but {by} selects another network")
    if host_ports and used == "none":
        raise click.UsageError(f"--host-port needs --network proxy or private, but {by} has no network")


def check_paths(writable: Sequence[str], shown: Sequence[str]) -> None:
    """Raise UsageError if a path of --writable or --show does not exist."""
    for option, paths in (("--writable", writable), ("--show", shown)):
        for path in paths:
            if not os.path.exists(os.path.expanduser(path)):
                raise click.UsageError(f"{option} {path}: no such file or directory")


def _find_loopback_port(value: str) -> int | None:
    """Return the port of this machine's loopback that a URL, or a host with a port, names."""
    found = _LOOPBACK_URL.match(value.strip())
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else {"http": 80, "https": 443}.get((found["scheme"] or "").lower(), 0)
    return port if 0 < port <= 65535 else None


def _fill(command: tuple[str, ...], prompt: str, model: str | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command with ``{prompt}`` and ``{model}`` filled in, followed by ``arguments``."""
    if command[:2] == ("sh", "-c") and len(command) == 3:  # from -c: a shell finds them in variables and in $1, $2, ...
        return (*command, "sh", *arguments) if arguments else command
    values = {"{prompt}": prompt, "{model}": model or ""}
    words = [_PLACEHOLDER.sub(lambda found: values[found[0]] or found[0], word) for word in command]
    longest = max((len(word.encode("utf-8", "surrogateescape")) for word in words), default=0)
    if longest >= _LONGEST_WORD:
        raise click.UsageError(
            f"the prompt is too long for an argument ({longest} bytes, at most {_LONGEST_WORD - 1}): let the command "
            "read the file $FORKWISE_PROMPT instead"
        )
    return (*words, *arguments)


def _check_number(kind: Kind, own: dict[str, Any], variants: int, *, is_varied: bool) -> None:
    """Set the number of attempts if it was not given. Raises UsageError if it is unknown; warns if it is too small."""
    if kind == "run" and variants > 1:
        raise click.UsageError(f"run makes one attempt, but {variants} variations were given: use best-of or speculate")
    if kind in _TAKES_NUMBER and own.get("n") is None:
        if not is_varied:
            raise click.UsageError(f"Missing argument 'N': the number of attempts, as in forkwise {kind} 4")
        own["n"] = variants
    made = sum(own["fan_out"]) if "fan_out" in own else own.get("n", variants)
    if is_varied and made < variants:
        message = f"only the first {made} of {variants} variations are tried"
        warnings.warn(message, ForkwiseWarning, stacklevel=2)


def shell_command(line: str) -> tuple[str, ...]:
    """Return the command that runs ``line`` in a shell."""
    return ("sh", "-c", line)


def find_judge(text: str | None) -> dict[str, Any]:
    """Return the fields of a recipe for the value of ``--judge``: a model, or a shell command.

    Raises UsageError if no such model exists. A missing key is only a warning, because tests alone may decide.
    """
    if text is None:
        return {}
    if not text.startswith(MODEL):
        return {"judge": ("sh", "-c", f'{text} "$@"', "judge")}
    name = text.removeprefix(MODEL)
    check_model(name, f"--judge {text}", "a model as judge")
    return {"judge_model": name}


def check_model(name: str, option: str, purpose: str) -> None:
    """Raise UsageError if no such model exists; warn if it cannot be used, such as without a key."""
    from forkwise.local_model import is_local

    require_extra("local" if is_local(name) else "agents", purpose)
    if not is_local(name):
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        try:
            infer_model(name)
        except (UserError, ImportError, ValueError) as error:
            from forkwise.modules.models import describe_model_error

            reason = describe_model_error(error)
            if reason.startswith("unknown"):
                raise click.UsageError(f"{option}: {reason}; name it as provider:name, or local") from error
            role = "judge" if option.startswith("--judge") else "summary model"
            warnings.warn(f"the {role} {name} cannot be used yet: {reason}", ForkwiseWarning, stacklevel=2)


def find_notice_delay(directory: Path, given: float | None) -> float | None:
    """Return the number of seconds after which a fork's end is announced: as given, or as the user configured."""
    if given is not None or not sys.stdout.isatty():
        return given
    from forkwise.config.notice_delay import read_notice_delay

    return read_notice_delay(directory)
