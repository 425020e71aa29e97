"""branch_self: an agent that goes on in several ways at once, and hears what came of them in one result.

Every way is a child of the very message that called for it. While they run, the calls of that message are answered by
a word that says so; when they are done, by the summary, which all of them see from then on.
"""

from __future__ import annotations

import ast
import asyncio
import json
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

from pydantic_ai import FunctionToolset, ModelRetry, RunContext
from pydantic_ai.models import Model

from forkwise.concurrency import run_in_thread
from forkwise.conversation.adopt import adopted
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.talk import (
    WAYS,
    Answer,
    Recombination,
    Recombined,
    Talk,
    Turn,
    current_turn,
    recombine,
    text_of,
)
from forkwise.errors import BranchingError
from forkwise.files.branch import Branch
from forkwise.files.combine import combine
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import agent_workspace

__all__ = [
    "BranchSelf",
    "BranchSelfLimits",
    "Branched",
    "Files",
    "FilesOf",
    "Way",
    "branch_self",
    "read_prompts",
]


#: What branches of a conversation fork their files from; None where they have none of their own.
FilesOf = Workspace | Branch | None


class Files:
    """The files of several branches of a conversation, as an async context manager that leaves none of them behind,
    unless they are kept.

    A branch's agent has them as its workspace (``ctx.workspace``). In the end those of the chosen branch are committed;
    where none was chosen, those of all together, if nothing overlaps.
    """

    def __init__(self, parent: FilesOf, number: int) -> None:
        self._parent = parent
        self._number = number
        self._branches: list[Branch] = []
        self._kept = False

    async def __aenter__(self) -> Files:
        if self._parent is not None:
            for number in range(self._number):
                name = f"self-{secrets.token_hex(3)}-{number + 1}"
                self._branches.append(await run_in_thread(self._parent.branch, name, None, None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for branch in self._branches:
            if not self._kept and branch.status not in ("committed", "aborted"):
                await run_in_thread(branch.abort)

    def options(self, number: int) -> dict[str, Any]:
        """What a branch's run of the agent is given."""
        if not self._branches:
            return {}
        return {"workspace": agent_workspace(self._branches[number])}

    async def conclude(self, done: Sequence[int], chosen: int | None, *, keep: bool) -> str:
        """Commit what is to be committed; gives what is to be said of it."""
        if not self._branches or not done:
            return ""
        if keep:
            self._kept = True
            for number in done:
                await run_in_thread(self._branches[number].keep)
            return f"Files: kept in the branches {', '.join(self._branches[n].branch_path for n in done)}."
        try:
            if chosen is not None:
                commit = await run_in_thread(self._branches[chosen].commit)
                return f"Files: those of branch {chosen + 1} were committed ({len(commit.paths)} paths)."
            return await run_in_thread(self._together, [self._branches[number] for number in done])
        except BranchingError as error:
            return f"Files: nothing was committed: {error}"

    def _together(self, branches: Sequence[Branch]) -> str:
        assert self._parent is not None
        made = combine(self._parent, branches, f"self-{secrets.token_hex(3)}-all")
        if made.clean:
            commit = made.branch.commit()
            return f"Files: those of all branches were committed together ({len(commit.paths)} paths)."
        made.branch.abort()
        paths = ", ".join(sorted(c.path for c in made.conflicts)[:10])
        return f"Files: nothing was committed, because branches changed the same places of {paths}."


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
class BranchSelfLimits:
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
    limits: BranchSelfLimits | None = None,
    files: FilesOf = None,
    depth: int = 0,
) -> Branched:
    """Go on from a node in several ways, each in a branch of its own; gives what came of them.

    ``allow_work`` lets a branch use tools until it is done, and else it speaks once. ``recombine_by`` says how the
    answers become one; ``judge`` is the model that is asked for that, by default the agent's.
    """
    limits = limits or BranchSelfLimits()
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
    talk: Talk, prompt: str, node: Node, allow_work: bool, limits: BranchSelfLimits, depth: int, options: dict[str, Any]
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
    its own; see forkwise.conversation.branch_self.
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
