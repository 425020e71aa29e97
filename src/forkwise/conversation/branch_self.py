"""branch_self: an agent that goes on in several ways at once, and hears what came of them in one result.

Every way is a child of the very message that called for it. While they run, the calls of that message are answered by
a word that says so; when they are done, by the summary, which all of them see from then on.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_ai import FunctionToolset, ModelRetry, RunContext
from pydantic_ai.models import Model

from forkwise.conversation.adoption import adopted
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.files import Files, FilesOf
from forkwise.conversation.node import Node
from forkwise.conversation.recombination import WAYS, Answer, Recombination, Recombined, recombine
from forkwise.conversation.talk import Talk, Turn, current_turn, text_of

__all__ = ["BranchSelf", "Branched", "Limits", "Way", "branch_self", "read_prompts"]

_PREFIX = "(self-prompt): "


@dataclass(frozen=True, slots=True)
class Way:
    """What came of one prompt: the last node of its branch and what was said there, or why it failed."""

    prompt: str
    node: Node
    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Branched:
    """What came of all prompts, in their order, and what was made of them."""

    ways: tuple[Way, ...]
    recombined: Recombined
    files: str = ""

    @property
    def summary(self) -> str:
        """What the agent is told."""
        done = [way for way in self.ways if way.error is None]
        lines = [f"{len(done)} of {len(self.ways)} branches completed."]
        lines += [f"Branch {n} ({w.prompt!r:.80}) failed: {w.error}" for n, w in enumerate(self.ways, 1) if w.error]
        if self.files:
            lines.append(self.files)
        return "\n\n".join(filter(None, ["\n".join(lines), self.recombined.text]))


@dataclass(slots=True)
class Limits:
    """How far branching may go: how deep, how many branches in all and at once, and how many seconds each may take. How
    often one asks its model is bounded by the agent's own usage limits."""

    max_depth: int = 3
    max_branches: int = 50
    max_parallel: int = 8
    timeout: float | None = None
    made: int = field(default=0, init=False)


async def branch_self(
    talk: Talk,
    prompts: Sequence[str],
    at: Node | None = None,
    *,
    allow_work: bool = False,
    parallel: bool = True,
    recombine_by: Recombination = "none",
    judge: Model | str | None = None,
    limits: Limits | None = None,
    files: FilesOf = None,
    depth: int = 0,
) -> Branched:
    """Go on from a node in several ways, each in a branch of its own; gives what came of them.

    ``allow_work`` lets a branch use tools until it is done, and else it speaks once. ``recombine_by`` says how the
    answers become one; ``judge`` is the model that is asked for that, by default the agent's.
    """
    limits = limits or Limits()
    start = talk.conversation.here if at is None else at
    slots = asyncio.Semaphore(limits.max_parallel if parallel else 1)
    limits.made += len(prompts)
    async with AsyncExitStack() as stack:
        places = Files(files, len(prompts))
        await stack.enter_async_context(places)
        nodes = [talk.conversation.say(_PREFIX + prompt, start) for prompt in prompts]

        async def go(number: int) -> Way:
            async with slots:
                return await _go(
                    talk, prompts[number], nodes[number], allow_work, limits, depth, places.options(number)
                )

        ways = await asyncio.gather(*(go(number) for number in range(len(prompts))))
        done = [number for number, way in enumerate(ways) if way.error is None]
        answers = [Answer(ways[number].prompt, ways[number].text) for number in done]
        model = judge if judge is not None else talk.options.get("model") or talk.agent.model
        recombined = await recombine(recombine_by, answers, model)
        chosen = None if recombined.winner is None else done[recombined.winner]
        told = await places.conclude(done, chosen, keep=recombine_by == "none")
    return Branched(tuple(ways), recombined, told)


async def _go(
    talk: Talk, prompt: str, node: Node, allow_work: bool, limits: Limits, depth: int, options: dict[str, Any]
) -> Way:
    """One branch; it fails by itself."""
    try:
        async with asyncio.timeout(limits.timeout):
            last = await talk.go_on(node, single=not allow_work, depth=depth + 1, **options)
    except TimeoutError:
        return Way(prompt, _leaf(node), error=f"it took longer than {limits.timeout:g} s")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this branch's, and the others count
        return Way(prompt, _leaf(node), error=f"{type(error).__name__}: {error}")
    return Way(prompt, last, text_of(last))


def _leaf(node: Node) -> Node:
    """How far a branch that failed had come."""
    while node.replies:
        node = node.replies[-1]
    return node


class BranchSelf(FunctionToolset[Any]):
    """The tool ``branch_self``, for any agent: ``Agent(model, toolsets=[BranchSelf()])``.

    In a run that a Talk started, the branches become part of its conversation; in any other, ``conversation`` is the
    tree of the last run that branched. With ``workspace``, a forkwise Workspace or Branch, each branch has files of
    its own; see forkwise.conversation.files.
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
        self.limits = Limits(max_depth, max_branches, max_parallel, timeout)
        self.conversation: Conversation | None = None
        self._judge = judge
        self._workspace = workspace
        self.add_function(self.branch_self, takes_ctx=True)

    async def branch_self(
        self,
        ctx: RunContext[Any],
        self_prompts: list[str] | str,
        allow_work: bool = False,
        parallel: bool = True,
        recombine: str = "none",
    ) -> str:
        """Go on in several ways at once: one branch of this conversation for each prompt, with what was said so far.

        Args:
            self_prompts: what each branch is to do, as a list
            allow_work: whether branches may use tools until they are done, or answer once
            parallel: whether they run at the same time
            recombine: how their answers become one: none, concatenate, llm_merge, llm_vote or llm_judge
        """
        prompts = read_prompts(self_prompts)
        if recombine not in WAYS:
            raise ModelRetry(f"recombine is one of {', '.join(WAYS)}, not {recombine!r}")
        turn = current_turn() or self._turn_of(ctx)
        if turn.depth >= self.limits.max_depth:
            raise ModelRetry(f"branches are {turn.depth} deep already, and go no deeper: do it here")
        if self.limits.made + len(prompts) > self.limits.max_branches:
            left = self.limits.max_branches - self.limits.made
            raise ModelRetry(f"{left} more branches can be made, not {len(prompts)}: use fewer, or do it here")
        caller = turn.take(ctx.messages)
        done = await branch_self(
            turn.talk,
            prompts,
            caller,
            allow_work=allow_work,
            parallel=parallel,
            recombine_by=recombine,  # type: ignore[arg-type]
            judge=self._judge if self._judge is not None else cast("Model", ctx.model),
            limits=self.limits,
            files=self._workspace,
            depth=turn.depth,
        )
        summary = done.summary
        if ctx.tool_call_id is not None:
            turn.talk.conversation.settle(caller, turn.called(ctx.tool_call_id), summary)
        return summary

    def _turn_of(self, ctx: RunContext[Any]) -> Turn:
        """For a run that no Talk started: a conversation of what it said so far."""
        assert ctx.agent is not None
        said = ctx.messages[:-1]
        talk = Talk(ctx.agent, deps=ctx.deps, model=ctx.model)
        start = talk.conversation.extend(adopted(said))
        self.conversation = talk.conversation
        return Turn(talk, start, seen=len(said))


def read_prompts(prompts: list[str] | str) -> list[str]:
    """Prompts from a list, or from the text of one, in JSON or as Python writes it; any other text is one prompt.

    >>> read_prompts("['do a, then b', 'do c']")
    ['do a, then b', 'do c']
    >>> read_prompts("do a, then b")
    ['do a, then b']
    """
    read: object = prompts
    if isinstance(prompts, str):
        read = _read(prompts.strip())
        if read is None and prompts.strip().startswith("["):
            raise ModelRetry("self_prompts looks like a list and is none: give a list of strings")
        read = [prompts] if read is None else read
    if not isinstance(read, list | tuple) or not all(isinstance(p, str) and p.strip() for p in read) or not read:
        raise ModelRetry("self_prompts is a list of at least one prompt, each a text")
    return list(read)


def _read(text: str) -> object:
    if not text.startswith(("[", "(")):
        return None
    for reader in (json.loads, ast.literal_eval):
        try:
            return reader(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None
