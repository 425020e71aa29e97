"""Interpreter: lines that are typed, carried out on a session. What comes of them is told as events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import forkwise
from forkwise.chat import render
from forkwise.chat.events import Copied, Failed, Notice, Shown, error_text
from forkwise.chat.settings import Settings, form_of
from forkwise.chat.slash_commands import Line, UsageError, help_text, parse
from forkwise.concurrency import run_in_thread
from forkwise.conversation.talk import RECOMBINATIONS

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = [
    "BLOCKED",
    "Change",
    "Interpreter",
    "When",
    "budget_change",
    "count_change",
    "model_change",
]


#: What is told, and the fields that change.
Change = tuple[str, dict[str, Any]]


def count_change(settings: Settings, words: Sequence[str]) -> Change:
    """How many branches.

    >>> count_change(Settings(), ["4"])
    ('fork_branch_count = 4', {'branches': 4})
    """
    if not words:
        return f"fork_branch_count = {settings.branches}", {}
    if len(words) != 1 or not words[0].isdecimal():
        raise UsageError("how many branches? /fork-branches N")
    return f"fork_branch_count = {int(words[0])}", {"branches": int(words[0])}


def budget_change(settings: Settings, words: Sequence[str]) -> Change:
    """What they may cost.

    >>> budget_change(Settings(), ["per-branch", "0.25"])
    ('per-branch budget = $0.25', {'branch_budget': 0.25})
    """
    match list(words):
        case []:
            return f"{_told('per-branch', settings.branch_budget)}, {_told('aggregate', settings.fork_budget)}", {}
        case ["clear"]:
            return "no budgets", {"branch_budget": None, "fork_budget": None}
        case ["per-branch", text]:
            return _told("per-branch", _dollars(text)), {"branch_budget": _dollars(text)}
        case ["aggregate", text] | [text]:
            return _told("aggregate", _dollars(text)), {"fork_budget": _dollars(text)}
    raise UsageError("what may it cost? /fork-budget per-branch USD, /fork-budget aggregate USD, /fork-budget clear")


def model_change(settings: Settings, words: Sequence[str]) -> Change:
    """Which models.

    >>> model_change(Settings(branches=2), ["2", "local"])
    ('Branch 2 model = local', {'models': {2: 'local'}})
    """
    match list(words):
        case []:
            told = [f"Branch {number} model = {model}" for number, model in sorted(settings.models.items())]
            return "\n".join(told) or "all branches run on the chat's model", {}
        case ["clear"]:
            return "all branches run on the chat's model", {"models": {}}
        case [number, "clear"]:
            left = {n: model for n, model in settings.models.items() if n != _slot(settings, number)}
            return f"Branch {number} runs on the chat's model", {"models": left}
        case [number, model]:
            slot = _slot(settings, number)
            return f"Branch {slot} model = {_named(model)}", {"models": {**settings.models, slot: model}}
        case [model] if not model.isdecimal():
            every = {number: _named(model) for number in range(1, settings.branches + 1)}
            return f"All branches: model = {model}", {"models": every}
    raise UsageError("which model? /fork-model N MODEL, /fork-model MODEL, /fork-model N clear, /fork-model clear")


def _told(name: str, usd: float | None) -> str:
    return f"{name} budget = {'unset' if usd is None else f'${usd:.2f}'}"


def _dollars(text: str) -> float:
    try:
        return float(text.removeprefix("$"))
    except ValueError:
        raise UsageError(f"{text!r} is no number of dollars") from None


def _slot(settings: Settings, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= settings.branches:
        raise UsageError(f"branches are numbered from 1 to {settings.branches}, not {text}")
    return int(text)


def _named(model: str) -> str:
    if model != "local" and ":" not in model:
        raise UsageError(f"{model!r} names no provider: say provider:name, local, or script:FILE")
    return model


#: When a line is done: see `Session.submit`.
When = Literal["now", "soon", "in_order"]

BLOCKED = "a fork is open: /merge or /abort it first, or tell a branch something with >>LABEL"
_AT_IT = "the agent is at it: wait until it is done, or interrupt it first"

#: What is done at once in any case: something waits for it.
_ANSWERS = ("approve", "deny")


class Interpreter:
    """Reads lines and does what they ask for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._alone = asyncio.Lock()

    async def submit(self, text: str, when: When) -> None:
        """Do what a line asks for; what goes wrong is told."""
        try:
            try:
                line = parse(text)
            except UsageError:
                async with self._alone if when == "in_order" else nullcontext():
                    raise
            if line is None:
                return
            if self._goes_beside(line, when):
                await self._do(line)
                return
            if self._alone.locked() and when == "now":
                raise RuntimeError(_AT_IT)
            async with self._alone:
                await self._do(line)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is told, and the chat goes on
            self._tell(Failed(error_text(error)))

    def _goes_beside(self, line: Line, when: When) -> bool:
        """Whether a line is done while something else is."""
        if line.kind == "steer":
            return when != "in_order" or self._session.fork is not None
        if when == "in_order":
            return line.command is not None and line.command.name in _ANSWERS
        return line.kind == "shell" or (line.command is not None and line.command.during_turn)

    async def _do(self, line: Line) -> None:
        session = self._session
        if line.kind == "steer":
            label, message = session.addressed(line.rest)
            if not message:
                raise UsageError(f"what is {label} to be told? >>{label} message")
            await session.say(label, message)
        elif line.kind == "shell":
            self._tell(Shown(f"! {line.rest}", await session.shell(line.rest)))
        elif line.kind == "prompt":
            await session.prompt(line.rest)
        else:
            await self._command(line)

    async def _command(self, line: Line) -> None:
        command = line.command
        assert command is not None
        if self._session.fork is not None and not command.during_fork and command.name != "fork":
            raise RuntimeError(BLOCKED)
        name = command.name.replace("-", "_").replace(" ", "_")
        doing: Callable[[Line], Awaitable[None]] = getattr(self, f"_do_{name}")
        await doing(line)

    def _tell(self, event: Copied | Failed | Notice | Shown) -> None:
        self._session.desk.feed.publish(event)

    # Forks

    async def _do_fork(self, line: Line) -> None:
        if self._session.fork is None and not line.rest:
            raise UsageError("what are the branches to do? /fork TASK, or /fork LABEL: TASK | LABEL: TASK")
        await self._session.open_fork(form_of(self._session.settings, line.rest))

    async def _do_fork_diff(self, line: Line) -> None:
        session = self._session
        if not line.rest:
            report = await run_in_thread(session.choices.diff)
            self._tell(Shown("files that branches changed", render.touched(report)))
            return
        if await session.choices.open_diff(line.rest):
            self._tell(Notice(f"opened {line.rest} in a diff tool"))
            return
        report = await run_in_thread(session.choices.diff, [line.rest])
        self._tell(Shown(line.rest, render.differences(report)))

    async def _do_fork_branches(self, line: Line) -> None:
        self._session.change(*count_change(self._session.settings, line.words))

    async def _do_fork_budget(self, line: Line) -> None:
        self._session.change(*budget_change(self._session.settings, line.words))

    async def _do_fork_model(self, line: Line) -> None:
        self._session.change(*model_change(self._session.settings, line.words))

    async def _do_branches(self, line: Line) -> None:
        self._tell(Shown("branches", render.branches(self._session.branches())))

    async def _do_merge(self, line: Line) -> None:
        session = self._session
        if session.fork is None:
            raise RuntimeError("no fork is open: /fork makes one")
        if not line.rest:
            self._tell(Shown("branches", render.branches(session.branches())))
            self._tell(Notice("/merge LABEL keeps one, /merge combine:A,B several, /merge auto what a judge says"))
        elif line.rest == "judge":
            await session.judge()
        elif await session.merge(line.rest) is None:
            self._tell(Notice("nothing was merged: that is not sure enough; /merge LABEL decides"))

    async def _do_abort(self, line: Line) -> None:
        if line.rest:
            await self._session.terminate(line.rest)
        else:
            await self._session.abort()

    async def _do_override(self, line: Line) -> None:
        if not line.rest:
            raise UsageError("which branch instead? /override LABEL")
        await self._session.override(line.rest)

    async def _do_undo(self, line: Line) -> None:
        await self._session.undo()

    async def _do_nway(self, line: Line) -> None:
        lineups = await self._session.choices.line_up()
        chosen = [one for one in lineups if not line.rest or one.path == line.rest]
        if not chosen:
            raise ValueError(f"no branch that is over changed {line.rest or 'anything'}")
        labels = {view.id: view.label for view in self._session.branches()}
        self._tell(Shown(line.rest or "all files", render.lined_up(chosen, labels)))

    # Places

    async def _do_load(self, line: Line) -> None:
        if line.rest:
            await self._session.load(line.rest)
        else:
            self._tell(Shown("checkpoints", render.checkpoints(await self._session.checkpoints())))

    async def _do_tree(self, line: Line) -> None:
        self._tell(Shown("conversation", render.tree(self._session.conversation)))

    async def _do_go(self, line: Line) -> None:
        if not line.rest:
            raise UsageError("where to? /go NODE, by its number or a label; /tree shows them")
        self._session.go(line.rest)

    async def _do_compare(self, line: Line) -> None:
        if len(line.words) != 2:
            raise UsageError("which two places? /compare A B, by their numbers or labels; /tree shows them")
        first, second = line.words
        self._tell(Shown(f"{first} and {second}", self._session.compare(first, second) or "they are the same"))

    async def _do_combine(self, line: Line) -> None:
        words = line.words
        how = words.pop(0) if words and words[0] in RECOMBINATIONS else "concatenate"
        await self._session.combine(words, how)

    # Asking and telling

    async def _do_approve(self, line: Line) -> None:
        self._session.approve(line.rest or None)

    async def _do_deny(self, line: Line) -> None:
        self._session.deny(line.rest or None)

    async def _do_cost(self, line: Line) -> None:
        self._tell(Shown("cost", render.cost(self._session.cost, self._session.branches())))

    async def _do_tokens(self, line: Line) -> None:
        self._tell(Shown("tokens", render.tokens(self._session.cost, self._session.branches())))

    async def _do_model(self, line: Line) -> None:
        if line.rest:
            await run_in_thread(self._session.desk.models.open, line.rest)
            self._session.use_model(line.rest)
        else:
            self._tell(Shown("model", self._session.model_name))

    async def _do_copy(self, line: Line) -> None:
        if not self._session.last_answer:
            raise ValueError("nothing was answered yet")
        self._tell(Copied(self._session.last_answer))

    async def _do_version(self, line: Line) -> None:
        self._tell(Shown("version", forkwise.__version__))

    async def _do_help(self, line: Line) -> None:
        self._tell(Shown("help", help_text(line.rest)))

    async def _do_quit(self, line: Line) -> None:
        await self._session.close()
