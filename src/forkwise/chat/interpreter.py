"""The interpreter: runs typed lines on a session. Results and errors are published as events."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import forkwise
from forkwise.chat import render
from forkwise.chat.events import Copied, Failed, MergeRefused, Notice, Shown, error_text
from forkwise.chat.settings import Settings, parse_form
from forkwise.chat.slash_commands import ALLOW_EXECUTABLE_CONFIG, UsageError, format_help, parse
from forkwise.concurrency import run_in_thread
from forkwise.conversation.talk import RECOMBINATIONS
from forkwise.errors import ExecutableConfigError
from forkwise.text.phrases import format_usd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from forkwise.chat.events import ChatEvent
    from forkwise.chat.forks import Forks
    from forkwise.chat.merges import Choices
    from forkwise.chat.services import ChatServices
    from forkwise.chat.session import Session
    from forkwise.chat.slash_commands import Line
    from forkwise.chat.turns import Navigation

__all__ = [
    "FORK_IS_OPEN",
    "Change",
    "Interpreter",
    "When",
    "parse_budget_change",
    "parse_count_change",
    "parse_model_change",
]


#: A text for the user, and the fields of the settings that change.
Change = tuple[str, dict[str, Any]]


def parse_count_change(settings: Settings, words: Sequence[str]) -> Change:
    """Parse ``/fork-branches``.

    >>> parse_count_change(Settings(), ["4"])
    ('fork_branch_count = 4', {'branches': 4})
    """
    if not words:
        return f"fork_branch_count = {settings.branches}", {}
    if len(words) != 1 or not words[0].isdecimal():
        raise UsageError("name a number of branches: /fork-branches N")
    return f"fork_branch_count = {int(words[0])}", {"branches": int(words[0])}


def parse_budget_change(settings: Settings, words: Sequence[str]) -> Change:
    """Parse ``/fork-budget``.

    >>> parse_budget_change(Settings(), ["per-branch", "0.25"])
    ('per-branch budget = $0.25', {'branch_budget': 0.25})
    """
    match list(words):
        case []:
            per_branch = _format_budget("per-branch", settings.branch_budget)
            return f"{per_branch}, {_format_budget('aggregate', settings.fork_budget)}", {}
        case ["clear"]:
            return "no budgets", {"branch_budget": None, "fork_budget": None}
        case ["per-branch", text]:
            return _format_budget("per-branch", _parse_dollars(text)), {"branch_budget": _parse_dollars(text)}
        case ["aggregate", text] | [text]:
            return _format_budget("aggregate", _parse_dollars(text)), {"fork_budget": _parse_dollars(text)}
    raise UsageError("name a budget: /fork-budget per-branch USD, /fork-budget aggregate USD, or /fork-budget clear")


def parse_model_change(settings: Settings, words: Sequence[str]) -> Change:
    """Parse ``/fork-model``.

    >>> parse_model_change(Settings(branches=2), ["2", "local"])
    ('Branch 2 model = local', {'models': {2: 'local'}})
    """
    match list(words):
        case []:
            lines = [f"Branch {number} model = {model}" for number, model in sorted(settings.models.items())]
            return "\n".join(lines) or "all branches run on the chat's model", {}
        case ["clear"]:
            return "all branches run on the chat's model", {"models": {}}
        case [number, "clear"]:
            rest = {n: model for n, model in settings.models.items() if n != _parse_number(settings, number)}
            return f"Branch {number} runs on the chat's model", {"models": rest}
        case [number, model]:
            n = _parse_number(settings, number)
            return f"Branch {n} model = {_check_model(model)}", {"models": {**settings.models, n: model}}
        case [model] if not model.isdecimal():
            models = {number: _check_model(model) for number in range(1, settings.branches + 1)}
            return f"All branches: model = {model}", {"models": models}
    raise UsageError("name a model: /fork-model N MODEL, /fork-model MODEL, /fork-model N clear, or /fork-model clear")


def _format_budget(name: str, usd: float | None) -> str:
    return f"{name} budget = {'unset' if usd is None else format_usd(usd)}"


def _parse_dollars(text: str) -> float:
    try:
        return float(text.removeprefix("$"))
    except ValueError:
        raise UsageError(f"{text!r} is not an amount of dollars") from None


def _parse_number(settings: Settings, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= settings.branches:
        raise UsageError(f"branches are numbered from 1 to {settings.branches}, not {text}")
    return int(text)


def _check_model(model: str) -> str:
    if model != "local" and ":" not in model:
        raise UsageError(f"{model!r} names no provider: use provider:name, local, or script:FILE")
    return model


def _build_failure(text: str, error: Exception) -> ChatEvent:
    if isinstance(error, ExecutableConfigError) and text.lstrip().startswith(("/merge", "/override")):
        return MergeRefused(tuple(error.executors.items()), f"{text.strip()} {ALLOW_EXECUTABLE_CONFIG}")
    return Failed(error_text(error))


def _split_permission(text: str) -> tuple[str, bool | None]:
    """Split the permission to merge executable configuration off a command's arguments."""
    rest = text.removesuffix(ALLOW_EXECUTABLE_CONFIG)
    is_given = rest != text and (not rest or rest[-1].isspace())
    return (rest.strip(), True) if is_given else (text, None)


#: When to run a line: see `Session.submit`.
When = Literal["now", "soon", "in_order"]

FORK_IS_OPEN = "a fork is open: /merge or /abort it first, or prompt a branch with >>LABEL"
_AGENT_IS_RUNNING = "the agent is running: wait until it is done, or interrupt it first"

#: Commands that always run immediately, because a tool call waits for them.
_ANSWERS = ("approve", "deny")


class Interpreter:
    """Parses typed lines and runs them.

    It calls the parts of a session directly. Only work that must not run beside other work goes through the session,
    which has the lock.
    """

    def __init__(
        self, session: Session, services: ChatServices, forks: Forks, navigation: Navigation, choices: Choices
    ) -> None:
        self._session = session
        self._services = services
        self._forks = forks
        self._navigation = navigation
        self._choices = choices
        self._lock = asyncio.Lock()

    async def submit(self, text: str, when: When) -> None:
        """Run a line; an error is published as an event."""
        try:
            try:
                line = parse(text)
            except UsageError:
                async with self._lock if when == "in_order" else nullcontext():
                    raise
            if line is None:
                return
            if self._can_run_beside(line, when):
                await self._run(line)
                return
            if self._lock.locked() and when == "now":
                raise RuntimeError(_AGENT_IS_RUNNING)
            async with self._lock:
                await self._run(line)
        except Exception as error:  # noqa: BLE001 - an error of any kind is published, and the chat continues
            self._services.feed.publish(_build_failure(text, error))

    def _can_run_beside(self, line: Line, when: When) -> bool:
        """Whether a line may run while another one runs."""
        if line.kind == "steer":
            return when != "in_order" or self._forks.is_open
        if when == "in_order":
            return line.command is not None and line.command.name in _ANSWERS
        return line.kind == "shell" or (line.command is not None and line.command.during_turn)

    async def _run(self, line: Line) -> None:
        if line.kind == "steer":
            label, message = self._forks.parse_address(line.rest)
            if not message:
                raise UsageError(f"type a message for {label}: >>{label} message")
            await self._forks.prompt(label, message)
        elif line.kind == "shell":
            self._show(f"! {line.rest}", await self._services.run_shell(line.rest))
        elif line.kind == "prompt":
            await self._session.prompt(line.rest)
        else:
            await self._run_command(line)

    async def _run_command(self, line: Line) -> None:
        command = line.command
        assert command is not None
        if self._forks.is_open and not command.during_fork and command.name != "fork":
            raise RuntimeError(FORK_IS_OPEN)
        name = command.name.replace("-", "_").replace(" ", "_")
        method: Callable[[Line], Awaitable[None]] = getattr(self, f"_do_{name}")
        await method(line)

    def _show(self, title: str, text: str) -> None:
        self._services.feed.publish(Shown(title, text))

    def _notify(self, text: str) -> None:
        self._services.feed.publish(Notice(text))

    # Forks

    async def _do_fork(self, line: Line) -> None:
        if not self._forks.is_open and not line.rest:
            raise UsageError("name a task for the branches: /fork TASK, or /fork LABEL: TASK | LABEL: TASK")
        await self._session.open_fork(parse_form(self._services.settings, line.rest))

    async def _do_fork_diff(self, line: Line) -> None:
        if not line.rest:
            report = await run_in_thread(self._choices.diff)
            self._show("changed files", render.format_changed_paths(report))
            return
        if await self._choices.open_diff(line.rest):
            self._notify(f"opened {line.rest} in a diff tool")
            return
        report = await run_in_thread(self._choices.diff, [line.rest])
        self._show(line.rest, render.format_diffs(report))

    async def _do_fork_branches(self, line: Line) -> None:
        self._services.change_settings(*parse_count_change(self._services.settings, line.words))

    async def _do_fork_budget(self, line: Line) -> None:
        self._services.change_settings(*parse_budget_change(self._services.settings, line.words))

    async def _do_fork_model(self, line: Line) -> None:
        self._services.change_settings(*parse_model_change(self._services.settings, line.words))

    async def _do_branches(self, line: Line) -> None:
        self._show("branches", render.format_branches(self._forks.list_views()))

    async def _do_merge(self, line: Line) -> None:
        if not self._forks.is_open:
            raise RuntimeError("no fork is open: /fork opens one")
        choice, allow = _split_permission(line.rest)
        if not choice:
            await self._do_branches(line)
            self._notify("/merge LABEL keeps one branch, /merge combine:A,B several, /merge auto the judge's choice")
        elif choice == "judge":
            await self._session.judge()
        elif await self._session.merge(choice, allow_executable_config=allow) is None:
            self._notify("nothing was merged: no judge gave a verdict; /merge LABEL keeps a branch")

    async def _do_abort(self, line: Line) -> None:
        if line.rest:
            await self._forks.terminate(line.rest)
        else:
            await self._forks.abort()

    async def _do_override(self, line: Line) -> None:
        label, allow = _split_permission(line.rest)
        if not label:
            raise UsageError("name the branch to keep instead: /override LABEL")
        await self._session.override(label, allow_executable_config=allow)

    async def _do_undo(self, line: Line) -> None:
        await self._session.undo()

    async def _do_nway(self, line: Line) -> None:
        paths = [path for path in await self._choices.line_up() if not line.rest or path.path == line.rest]
        if not paths:
            raise ValueError(f"no branch that has ended changed {line.rest or 'a file'}")
        self._show(line.rest or "all files", render.format_alignment(paths, self._forks.labels_by_id))

    # Navigation

    async def _do_load(self, line: Line) -> None:
        if line.rest:
            await self._session.load(line.rest)
        else:
            self._show("checkpoints", render.format_checkpoints(await self._navigation.list_checkpoints()))

    async def _do_tree(self, line: Line) -> None:
        self._show("conversation", render.format_tree(self._services.chat.conversation))

    async def _do_go(self, line: Line) -> None:
        if not line.rest:
            raise UsageError("name a node by its number or label: /go NODE; /tree shows them")
        self._session.go(line.rest)

    async def _do_compare(self, line: Line) -> None:
        if len(line.words) != 2:
            raise UsageError("name two nodes by their numbers or labels: /compare A B; /tree shows them")
        first, second = line.words
        self._show(f"{first} and {second}", self._navigation.compare(first, second) or "no difference")

    async def _do_combine(self, line: Line) -> None:
        words = line.words
        method = words.pop(0) if words and words[0] in RECOMBINATIONS else "concatenate"
        await self._session.combine(words, method)

    # Approvals, cost, model, help

    async def _do_approve(self, line: Line) -> None:
        self._services.approvals.answer(line.rest or None, True)

    async def _do_deny(self, line: Line) -> None:
        self._services.approvals.answer(line.rest or None, False)

    async def _do_cost(self, line: Line) -> None:
        self._show("cost", render.format_cost(self._services.costs.update(), self._forks.list_views()))

    async def _do_tokens(self, line: Line) -> None:
        self._show("tokens", render.format_tokens(self._services.costs.update(), self._forks.list_views()))

    async def _do_model(self, line: Line) -> None:
        if line.rest:
            await run_in_thread(self._services.models.open, line.rest)
            self._services.use_model(line.rest)
        else:
            self._show("model", self._services.model_name)

    async def _do_copy(self, line: Line) -> None:
        answer = self._services.chat.last_answer
        if not answer:
            raise ValueError("there is no answer to copy yet")
        self._services.feed.publish(Copied(answer))

    async def _do_version(self, line: Line) -> None:
        self._show("version", forkwise.__version__)

    async def _do_help(self, line: Line) -> None:
        self._show("help", format_help(line.rest))

    async def _do_quit(self, line: Line) -> None:
        await self._session.close()
