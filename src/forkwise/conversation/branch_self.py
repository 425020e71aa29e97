"""`branch_self`: an agent that continues in several branches at once and receives one summary of them.

Each branch is a child of the message that called the tool. While the branches run, that message's calls have a
placeholder result; afterwards the result is the summary, on every branch. `BranchSelf` is the toolset for agents.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai import FunctionToolset, ModelRetry, RunContext
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from forkwise.conversation.adopt import adopted
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.inheritance import Files, FilesOf, inherit_options
from forkwise.conversation.node import Node
from forkwise.conversation.talk import (
    RECOMBINATIONS,
    Answer,
    Recombination,
    Recombined,
    Talk,
    Turn,
    current_turn,
    recombine,
)
from forkwise.errors import BranchingError
from forkwise.text.clean import truncate
from forkwise.text.phrases import format_number

__all__ = [
    "BranchSelf",
    "BranchSelfLimits",
    "Branched",
    "Way",
    "branch_self",
    "check_limits",
    "find_scope",
    "read_prompts",
]


_PREFIX = "(self-prompt): "
_MAX_ANSWER = 2000  # characters of one answer in the summary
_MAX_ANSWERS = 16_000  # characters of all answers in the summary
_MIN_ANSWER = 200
_MAX_PROMPT = 100
_MAX_RETRIES = 1 << 30


@dataclass(frozen=True, slots=True)
class Way:
    """The result of one prompt: the last node of its branch with its answer, or the error."""

    prompt: str
    node: Node
    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Branched:
    """The results of all prompts, in order, and their recombination.

    ``conversation`` is the id of the conversation if it is saved.
    """

    ways: tuple[Way, ...]
    recombined: Recombined
    files: str = ""
    conversation: str | None = None

    @property
    def summary(self) -> str:
        """The summary that the agent receives as the result of its call.

        It has the answers of the branches, or else their recombination. A long answer is cut, and the summary names the
        message that has all of it.
        """
        failed = sum(way.error is not None for way in self.ways)
        created = f"Successfully created {format_number(len(self.ways), 'branch')}"
        lines = [f"{created}; {failed} of them failed." if failed else f"{created}."]
        if self.files:
            lines.append(self.files)
        blocks = ["\n".join(lines)]
        blocks += [self._format(n, way) for n, way in enumerate(self.ways, 1) if way.error or not self.recombined.text]
        return "\n\n".join([*blocks, *filter(None, [self.recombined.text])])

    def _format(self, number: int, way: Way) -> str:
        name = f"Branch {number} ({truncate(way.prompt, _MAX_PROMPT)!r})"
        if way.error is not None:
            return f"{name} failed: {way.error}"
        text = way.text.strip() or "(no answer)"
        limit = min(_MAX_ANSWER, max(_MIN_ANSWER, _MAX_ANSWERS // len(self.ways)))
        if len(text) <= limit:
            return f"{name}:\n{text}"
        tree = f"conversation {self.conversation}" if self.conversation else "the conversation"
        rest = f"[{len(text) - limit} more characters in message {way.node.id} of {tree}]"
        return f"{name}:\n{text[:limit]}\n{rest}"


@dataclass(slots=True)
class BranchSelfLimits:
    """The limits of branching in one run: depth, number of branches in all and at once, and seconds per branch.

    Branches of branches count too. The number of model requests is limited by the usage limits of the run, which its
    branches share. ``made`` counts the branches so far.
    """

    max_depth: int = 3
    max_branches: int = 50
    max_parallel: int = 8
    timeout: float | None = None
    made: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a branch passes on to its own branches: the limits, and the files that they fork."""

    limits: BranchSelfLimits
    files: FilesOf


_scope: ContextVar[_Scope | None] = ContextVar("forkwise_branch_scope", default=None)


async def branch_self(
    talk: Talk,
    prompts: Sequence[str],
    at: Node | None = None,
    *,
    allow_work: bool = False,
    parallel: bool = True,
    recombine_by: Recombination = "none",
    judge: Model | str | None = None,
    limits: BranchSelfLimits | None = None,
    files: FilesOf = None,
    depth: int = 0,
    **options: Any,
) -> Branched:
    """Continue from a node with several prompts, each in its own branch, and return their results.

    ``at`` is the node, by default the conversation's current one. With ``allow_work`` a branch uses tools until it is
    done; without, it answers once. ``recombine_by`` selects how the answers become one, and ``judge`` is the model that
    does it, by default the agent's. With ``files`` each branch has its own files, forked from there. ``options`` go to
    the runs of the branches.
    """
    limits = limits or BranchSelfLimits()
    start = talk.conversation.here if at is None else at
    slots = asyncio.Semaphore(limits.max_parallel if parallel else 1)
    limits.made += len(prompts)
    async with AsyncExitStack() as stack:
        branch_files = Files(files, len(prompts))
        await stack.enter_async_context(branch_files)
        nodes = [talk.conversation.say(_PREFIX + prompt, start) for prompt in prompts]

        async def run(number: int) -> Way:
            _scope.set(_Scope(limits, branch_files.branch(number)))  # in the context of this branch's task
            async with slots:
                own = {**options, **branch_files.options(number)}
                return await _run_branch(talk, prompts[number], nodes[number], allow_work, limits, depth, own)

        ways = await asyncio.gather(*(run(number) for number in range(len(prompts))))
        done = [number for number, way in enumerate(ways) if way.error is None]
        answers = [Answer(ways[number].prompt, ways[number].text, number + 1) for number in done]
        model = judge if judge is not None else talk.options.get("model") or talk.agent.model
        usage = {name: options[name] for name in ("usage", "usage_limits") if name in options}
        recombined = await recombine(recombine_by, answers, model, **usage)
        chosen = None if recombined.winner is None else done[recombined.winner]
        keep = recombine_by == "none" or recombined.error is not None
        files_note = await branch_files.conclude(done, chosen, keep=keep)
    return Branched(tuple(ways), recombined, files_note, talk.saved_id)


async def _run_branch(
    talk: Talk, prompt: str, node: Node, allow_work: bool, limits: BranchSelfLimits, depth: int, options: dict[str, Any]
) -> Way:
    """Run one branch. Its failure is a result, so that the other branches still count."""
    try:
        async with asyncio.timeout(limits.timeout):
            last = await talk.go_on(node, single=not allow_work, depth=depth + 1, **options)
    except TimeoutError:
        return Way(prompt, _leaf(node), error=f"it took longer than {limits.timeout:g} s")
    except Exception as error:  # noqa: BLE001 - any failure is that of this branch only
        return Way(prompt, _leaf(node), error=f"{type(error).__name__}: {error}")
    return Way(prompt, last, talk.answer(last) or _format_calls(last))


def _format_calls(node: Node) -> str:
    """Format the calls of a branch that answered once, with calls alone."""
    results = {id_: part.model_response_str() for id_, part in node.results.items()}
    return "\n".join(
        f"called {call.tool_name}({call.args_as_json_str()}): {results.get(call.tool_call_id, 'no result')}"
        for call in node.calls
    )


def _leaf(node: Node) -> Node:
    """Return the last node that a failed branch reached."""
    while node.replies:
        node = node.replies[-1]
    return node


class BranchSelf(FunctionToolset[Any]):
    """The tool ``branch_self`` for any agent: ``Agent(model, toolsets=[BranchSelf()])``.

    In a run that a `Talk` started, the branches become part of its conversation. In any other run, ``conversation`` is
    the tree of the last run that branched, and the branches have the toolsets, instructions and model settings of that
    run. The branches' requests count in the usage of the run, and its usage limits hold for all of them together. With
    ``workspace``, a `Workspace` or `Branch`, each branch has its own files. ``judge`` is the model that recombines
    answers, by default the agent's.
    """

    def __init__(
        self,
        *,
        max_depth: int = 3,
        max_branches: int = 50,
        max_parallel: int = 8,
        timeout: float | None = None,
        judge: Model | str | None = None,
        workspace: FilesOf = None,
    ) -> None:
        super().__init__()
        self.limits = BranchSelfLimits(max_depth, max_branches, max_parallel, timeout)
        self.conversation: Conversation | None = None
        self._judge = judge
        self._workspace = workspace
        self._shared = self
        self._turn: Turn | None = None
        self._request_ctx: RunContext[Any] | None = None
        self._add_tool()

    def _add_tool(self) -> None:
        # A malformed call is answered every time: usage limits end a run, not the number of errors.
        self.add_function(self.branch_self, takes_ctx=True, retries=_MAX_RETRIES)

    async def for_run(self, ctx: RunContext[Any]) -> BranchSelf:
        """Return a copy for one run, with limits and branches of its own."""
        own = copy(self)
        own.tools = {}
        own.limits = replace(self.limits)
        own._turn = own._request_ctx = None
        own._add_tool()
        return own

    async def get_instructions(self, ctx: RunContext[Any]) -> Any:
        """Return no instructions. The context receives the settings of the request, which the branches inherit."""
        self._request_ctx = ctx
        return await super().get_instructions(ctx)

    async def branch_self(
        self,
        ctx: RunContext[Any],
        self_prompts: list[str] | str,
        allow_work: bool = False,
        parallel: bool = True,
        recombine: str = "none",
    ) -> str:
        """Continue in several branches at once: one branch of this conversation per prompt, with the history so far.

        The result has the answer of each branch, or their recombination.

        Args:
            self_prompts: a list with one prompt per branch
            allow_work: whether branches may use tools until they are done, or answer once
            parallel: whether the branches run at the same time
            recombine: how the answers become one: none, concatenate, llm_merge, llm_vote or llm_judge
        """
        prompts = read_prompts(self_prompts)
        if recombine not in RECOMBINATIONS:
            raise ModelRetry(f"recombine must be one of {', '.join(RECOMBINATIONS)}, not {recombine!r}")
        turn = current_turn(ctx.run_id) or self._start_turn(ctx)
        limits, files = find_scope(turn, self.limits, self._workspace)
        check_limits(limits, turn.depth, len(prompts))
        caller = turn.record(ctx.messages)
        try:
            done = await branch_self(
                turn.talk,
                prompts,
                caller,
                allow_work=allow_work,
                parallel=parallel,
                recombine_by=recombine,  # type: ignore[arg-type]
                judge=self._judge if self._judge is not None else cast("Model", ctx.model),
                limits=limits,
                files=files,
                depth=turn.depth,
                usage=ctx.usage,
                usage_limits=ctx.usage_limits,
            )
        except (BranchingError, OSError) as error:
            return f"Error: no branches were created: {error}"
        summary = done.summary
        if ctx.tool_call_id is not None:
            turn.talk.conversation.settle(caller, turn.call_id(ctx.tool_call_id), summary)
        return summary

    def _start_turn(self, ctx: RunContext[Any]) -> Turn:
        """Return the conversation of a run that no `Talk` started; its first branching starts it."""
        settings = None if self._request_ctx is None else self._request_ctx.model_settings
        options = inherit_options(ctx, cast("ModelSettings | None", settings))
        if self._turn is None:
            assert ctx.agent is not None
            history = ctx.messages[:-1]
            talk = Talk(ctx.agent)
            start = talk.conversation.extend(adopted(history))
            self._shared.conversation = talk.conversation
            self._turn = Turn(talk, start, seen=len(history))
        self._turn.talk.options = options  # the toolsets of the current step, because they may change between steps
        return self._turn


def find_scope(turn: Turn, limits: BranchSelfLimits, files: FilesOf = None) -> tuple[BranchSelfLimits, FilesOf]:
    """Return the limits and files for the branches of a turn: its own if it is a branch itself, else those given."""
    scope = _scope.get() if turn.depth else None
    return (limits, files) if scope is None else (scope.limits, scope.files)


def check_limits(limits: BranchSelfLimits, depth: int, count: int) -> None:
    """Raise `ModelRetry` if ``count`` branches at ``depth`` would exceed the limits."""
    if depth >= limits.max_depth:
        raise ModelRetry(f"branches are {depth} deep already and can go no deeper: do it without branching")
    if limits.made + count > limits.max_branches:
        left = limits.max_branches - limits.made
        raise ModelRetry(f"{left} more branches can be made, not {count}: use fewer, or do it without branching")


def read_prompts(prompts: list[str] | str) -> list[str]:
    """Return prompts from a list, or from a list written as JSON or Python; any other text is one prompt.

    >>> read_prompts("['do a, then b', 'do c']")
    ['do a, then b', 'do c']
    >>> read_prompts("do a, then b")
    ['do a, then b']
    """
    value: object = prompts
    if isinstance(prompts, str):
        value = _parse_list(prompts.strip())
        if value is None and prompts.strip().startswith("["):
            raise ModelRetry("self_prompts looks like a list but cannot be parsed: pass a list of strings")
        value = [prompts] if value is None else value
    if not isinstance(value, list | tuple) or not all(isinstance(p, str) and p.strip() for p in value) or not value:
        raise ModelRetry("self_prompts must be a list of at least one prompt, each a non-empty string")
    return list(value)


def _parse_list(text: str) -> object:
    if not text.startswith(("[", "(")):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None
