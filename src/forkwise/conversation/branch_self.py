"""`branch_self`: an agent that continues in several branches at once and receives one summary of them.

Each branch is a child of the message that called the tool. While the branches run, that message's calls have a
placeholder result; afterwards the result is the summary, on every branch. `Files` are the branches' own files,
`BranchSelf` is the toolset for agents.
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
    RECOMBINATIONS,
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


#: The parent of the branches' files; None if the branches have no files of their own.
FilesOf = Workspace | Branch | None


class Files:
    """The files of several branches of a conversation, as an async context manager.

    An agent in a branch has them as its workspace (``ctx.workspace``). ``conclude`` commits those of the chosen branch
    or, if none was chosen, those of all branches combined, provided that they do not conflict. Branches that were
    neither committed nor kept are aborted on exit.
    """

    def __init__(self, parent: FilesOf, count: int) -> None:
        self._parent = parent
        self._count = count
        self._branches: list[Branch] = []
        self._should_keep = False

    async def __aenter__(self) -> Files:
        if self._parent is not None:
            for number in range(self._count):
                name = f"self-{secrets.token_hex(3)}-{number + 1}"
                self._branches.append(await run_in_thread(self._parent.branch, name, None, None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for branch in self._branches:
            if not self._should_keep and branch.status not in ("committed", "aborted"):
                await run_in_thread(branch.abort)

    def options(self, number: int) -> dict[str, Any]:
        """Return the options for the agent's run in a branch."""
        if not self._branches:
            return {}
        return {"workspace": agent_workspace(self._branches[number])}

    async def conclude(self, done: Sequence[int], chosen: int | None, *, keep: bool) -> str:
        """Commit or keep the files of the branches in ``done``. Return a sentence for the summary."""
        if not self._branches or not done:
            return ""
        if keep:
            self._should_keep = True
            for number in done:
                await run_in_thread(self._branches[number].keep)
            return f"Files: kept in the branches {', '.join(self._branches[n].branch_path for n in done)}."
        try:
            if chosen is not None:
                commit = await run_in_thread(self._branches[chosen].commit)
                return f"Files: those of branch {chosen + 1} were committed ({len(commit.paths)} paths)."
            return await run_in_thread(self._commit_combined, [self._branches[number] for number in done])
        except BranchingError as error:
            return f"Files: nothing was committed: {error}"

    def _commit_combined(self, branches: Sequence[Branch]) -> str:
        assert self._parent is not None
        combination = combine(self._parent, branches, f"self-{secrets.token_hex(3)}-all")
        if combination.clean:
            commit = combination.branch.commit()
            return f"Files: those of all branches were committed together ({len(commit.paths)} paths)."
        combination.branch.abort()
        paths = ", ".join(sorted(c.path for c in combination.conflicts)[:10])
        return f"Files: nothing was committed, because the branches conflict in {paths}."


_PREFIX = "(self-prompt): "


@dataclass(frozen=True, slots=True)
class Way:
    """The result of one prompt: the last node of its branch with its text, or the error."""

    prompt: str
    node: Node
    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Branched:
    """The results of all prompts, in order, and their recombination."""

    ways: tuple[Way, ...]
    recombined: Recombined
    files: str = ""

    @property
    def summary(self) -> str:
        """The summary that the agent receives as the result of its call."""
        done = [way for way in self.ways if way.error is None]
        lines = [f"{len(done)} of {len(self.ways)} branches completed."]
        lines += [f"Branch {n} ({w.prompt!r:.80}) failed: {w.error}" for n, w in enumerate(self.ways, 1) if w.error]
        if self.files:
            lines.append(self.files)
        return "\n\n".join(filter(None, ["\n".join(lines), self.recombined.text]))


@dataclass(slots=True)
class BranchSelfLimits:
    """The limits of branching: depth, number of branches in all and at once, and seconds per branch.

    The number of model requests is limited by the agent's own usage limits. ``made`` counts the branches so far.
    """

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
    """Continue from a node with several prompts, each in its own branch, and return their results.

    ``at`` is the node, by default the conversation's current one. With ``allow_work`` a branch uses tools until it is
    done; without, it answers once. ``recombine_by`` selects how the answers become one, and ``judge`` is the model that
    does it, by default the agent's. With ``files`` each branch has its own files, forked from there.
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
            async with slots:
                return await _run_branch(
                    talk, prompts[number], nodes[number], allow_work, limits, depth, branch_files.options(number)
                )

        ways = await asyncio.gather(*(run(number) for number in range(len(prompts))))
        done = [number for number, way in enumerate(ways) if way.error is None]
        answers = [Answer(ways[number].prompt, ways[number].text) for number in done]
        model = judge if judge is not None else talk.options.get("model") or talk.agent.model
        recombined = await recombine(recombine_by, answers, model)
        chosen = None if recombined.winner is None else done[recombined.winner]
        files_note = await branch_files.conclude(done, chosen, keep=recombine_by == "none")
    return Branched(tuple(ways), recombined, files_note)


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
    return Way(prompt, last, text_of(last))


def _leaf(node: Node) -> Node:
    """Return the last node that a failed branch reached."""
    while node.replies:
        node = node.replies[-1]
    return node


class BranchSelf(FunctionToolset[Any]):
    """The tool ``branch_self`` for any agent: ``Agent(model, toolsets=[BranchSelf()])``.

    In a run that a `Talk` started, the branches become part of its conversation. In any other run, ``conversation`` is
    the tree of the last run that branched. With ``workspace``, a `Workspace` or `Branch`, each branch has its own
    files. ``judge`` is the model that recombines answers, by default the agent's.
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
        """Continue in several branches at once: one branch of this conversation per prompt, with the history so far.

        Args:
            self_prompts: a list with one prompt per branch
            allow_work: whether branches may use tools until they are done, or answer once
            parallel: whether the branches run at the same time
            recombine: how the answers become one: none, concatenate, llm_merge, llm_vote or llm_judge
        """
        prompts = read_prompts(self_prompts)
        if recombine not in RECOMBINATIONS:
            raise ModelRetry(f"recombine must be one of {', '.join(RECOMBINATIONS)}, not {recombine!r}")
        turn = current_turn() or self._start_turn(ctx)
        if turn.depth >= self.limits.max_depth:
            raise ModelRetry(f"branches are {turn.depth} deep already and can go no deeper: do it without branching")
        if self.limits.made + len(prompts) > self.limits.max_branches:
            left = self.limits.max_branches - self.limits.made
            raise ModelRetry(
                f"{left} more branches can be made, not {len(prompts)}: use fewer, or do it without branching"
            )
        caller = turn.record(ctx.messages)
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
            turn.talk.conversation.settle(caller, turn.call_id(ctx.tool_call_id), summary)
        return summary

    def _start_turn(self, ctx: RunContext[Any]) -> Turn:
        """Start a conversation from the messages of a run that no `Talk` started."""
        assert ctx.agent is not None
        history = ctx.messages[:-1]
        talk = Talk(ctx.agent, deps=ctx.deps, model=ctx.model)
        start = talk.conversation.extend(adopted(history))
        self.conversation = talk.conversation
        return Turn(talk, start, seen=len(history))


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
