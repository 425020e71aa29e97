"""Flows: prompts in a certain order, in one line or in branches, at the place where one is or at a given node.

Each gives what was said and the nodes at which it was said, in the order of its prompts, whenever they ended. What one
branch fails with does not keep the others from ending: it is raised when all have, as a BranchesFailed that has what
the others said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import Model

from forkwise.conversation.node import Node
from forkwise.conversation.talk import Answer, Recombination, Talk, recombine, text_of
from forkwise.errors import BranchesFailed

__all__ = [
    "Condition",
    "Said",
    "branch",
    "branch_while",
    "broadcast",
    "broadcast_to_leaves",
    "chain",
    "chain_while",
    "error_in_response",
    "five_iterations",
    "leaves",
    "no_new_tools_used",
    "par_branch",
    "par_branch_while",
    "par_dispatch",
    "prompt_for",
    "prompt_while",
    "said_DONE",
    "said_READY",
    "single_prompt",
    "tool_not_used",
    "tool_used",
    "tree_of_thought",
]


#: Is shown where each prompt so far led to, the last one last, and says whether to stop.
Condition = Callable[[Sequence[Node]], bool]


def _turn(node: Node) -> list[Node]:
    """What was said since the last prompt: up to the message of a user that is more than results."""
    said = []
    for one in node.upwards():
        said.append(one)
        if isinstance(one.message, ModelRequest) and any(p.part_kind == "user-prompt" for p in one.message.parts):
            break
    return said


def _tools(node: Node) -> set[str]:
    return {call.tool_name for one in _turn(node) for call in one.calls}


def tool_used(nodes: Sequence[Node]) -> bool:
    """A tool was called."""
    return bool(_tools(nodes[-1]))


def tool_not_used(nodes: Sequence[Node]) -> bool:
    """No tool was called."""
    return not _tools(nodes[-1])


def said_DONE(nodes: Sequence[Node]) -> bool:  # noqa: N802 - it is named after the word
    """The word DONE was said."""
    return "DONE" in text_of(nodes[-1])


def said_READY(nodes: Sequence[Node]) -> bool:  # noqa: N802
    """The word READY was said."""
    return "READY" in text_of(nodes[-1])


def error_in_response(nodes: Sequence[Node]) -> bool:
    """An error was spoken of, or a tool ended in one."""
    failed = any(
        isinstance(part, ToolReturnPart) and getattr(part, "outcome", "success") not in ("success", None)
        for one in _turn(nodes[-1])
        if one.message is not None
        for part in one.message.parts
    )
    return failed or "error" in text_of(nodes[-1]).lower()


def no_new_tools_used(nodes: Sequence[Node]) -> bool:
    """Only tools were called that had been called by the prompts before."""
    before = {name for node in nodes[:-1] for name in _tools(node)}
    return _tools(nodes[-1]) <= before


def five_iterations(nodes: Sequence[Node]) -> bool:
    """There were five prompts."""
    return len(nodes) >= 5


#: What was said, and where.
Said = tuple[list[str], list[Node]]

#: Has something said at a node; gives where that led to.
_Go = Callable[[str, Node], Awaitable[Node]]

_MOST = 50  # prompts of one loop, where nobody says
_OK = "ok"

T = TypeVar("T")


async def single_prompt(talk: Talk, prompt: str, at: Node | None = None) -> tuple[str, Node]:
    """One prompt."""
    node = await talk.prompt(prompt, at)
    return text_of(node), node


async def chain(talk: Talk, prompts: Iterable[str], at: Node | None = None) -> Said:
    """One prompt after the other, each upon what came of the last."""
    return await _follow(talk, prompts, at, talk.prompt)


async def chain_while(
    talk: Talk,
    prompts: Iterable[str],
    stop: Condition = tool_not_used,
    continue_prompt: str = _OK,
    *,
    at: Node | None = None,
    most: int = _MOST,
) -> Said:
    """One prompt after the other, each gone on with until the condition holds; gives what was said last of each."""
    return await _follow(talk, prompts, at, _until(talk, stop, continue_prompt, most))


async def prompt_while(
    talk: Talk,
    first_prompt: str,
    continue_prompt: str = _OK,
    stop: Condition = tool_not_used,
    *,
    at: Node | None = None,
    most: int = _MOST,
) -> Said:
    """One prompt, gone on with until the condition holds, ``most`` times at most; gives all that was said."""
    nodes = [await talk.prompt(first_prompt, talk.conversation.here if at is None else at)]
    while not stop(nodes) and len(nodes) < most:
        nodes.append(await talk.prompt(continue_prompt, nodes[-1]))
    _move(talk, at, nodes[-1])
    return [text_of(node) for node in nodes], nodes


async def prompt_for(
    talk: Talk, items: Iterable[T], make: Callable[[T], str], *, should_branch: bool = False, at: Node | None = None
) -> Said:
    """A prompt made for each of several things, one after the other or each in a branch."""
    prompts = [make(item) for item in items]
    return await (par_branch(talk, prompts, at) if should_branch else chain(talk, prompts, at))


async def branch(talk: Talk, prompts: Iterable[str], at: Node | None = None) -> Said:
    """Each prompt in a branch of its own, one after the other in time. The place where one is stays."""
    return await _branches(talk, prompts, at, talk.prompt, at_once=1)


async def par_branch(talk: Talk, prompts: Iterable[str], at: Node | None = None) -> Said:
    """Each prompt in a branch of its own, all at once."""
    return await _branches(talk, prompts, at, talk.prompt)


async def branch_while(
    talk: Talk,
    prompts: Iterable[str],
    stop: Condition = tool_not_used,
    continue_prompt: str = _OK,
    *,
    at: Node | None = None,
    most: int = _MOST,
    at_once: int = 1,
) -> Said:
    """Each prompt in a branch of its own, gone on with until the condition holds; gives what was said last."""
    return await _branches(talk, prompts, at, _until(talk, stop, continue_prompt, most), at_once=at_once)


async def par_branch_while(
    talk: Talk,
    prompts: Iterable[str],
    stop: Condition = tool_not_used,
    continue_prompt: str = _OK,
    *,
    at: Node | None = None,
    most: int = _MOST,
) -> Said:
    """The same, all at once."""
    return await branch_while(talk, prompts, stop, continue_prompt, at=at, most=most, at_once=_MOST)


async def tree_of_thought(
    talk: Talk,
    prompts: Iterable[str],
    recombine_by: Recombination = "llm_merge",
    *,
    judge: Model | str | None = None,
    at: Node | None = None,
) -> tuple[str, Node]:
    """Each prompt in a branch, all at once, and what they said made one, which is said where they began."""
    start = talk.conversation.here if at is None else at
    prompts = list(prompts)
    said, _ = await par_branch(talk, prompts, start)
    model = judge if judge is not None else talk.options.get("model") or talk.agent.model
    made = await recombine(recombine_by, [Answer(p, s) for p, s in zip(prompts, said, strict=True)], model)
    node = await talk.prompt(f"These thoughts came of it:\n\n{made.text}", start)
    _move(talk, at, node)
    return text_of(node), node


async def par_dispatch(talks: Sequence[Talk], flow: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> list[T]:
    """The same flow with several agents, all at once."""
    return await _all([flow(talk, *args, **options) for talk in talks], _MOST)


async def broadcast(
    talk: Talk, flow: Callable[..., Awaitable[T]], *args: Any, skip: Iterable[str] = (), at: Node | None = None
) -> list[T]:
    """A flow at every leaf below a node, all at once, except at those that have one of the labels in ``skip``."""
    skipped = {talk.conversation.labels[name] for name in skip if name in talk.conversation.labels}
    found = [leaf for leaf in leaves(talk.conversation.here if at is None else at) if leaf not in skipped]
    return await _all([flow(talk, *args, at=leaf) for leaf in found], _MOST)


async def broadcast_to_leaves(talk: Talk, prompt: str, *, skip: Iterable[str] = (), at: Node | None = None) -> Said:
    """A prompt at every leaf below a node."""
    told = await broadcast(talk, single_prompt, prompt, skip=skip, at=at)
    return [text for text, _ in told], [node for _, node in told]


def leaves(node: Node) -> list[Node]:
    """The last messages of all branches from a node on, in their order: those that a prompt can follow."""
    found = []
    pending = [node]
    while pending:
        one = pending.pop()
        if one.replies:
            pending += reversed(one.replies)
        elif one.message is None or one.is_response:
            found.append(one)
    return found


def _until(talk: Talk, stop: Condition, continue_prompt: str, most: int) -> _Go:
    async def go(prompt: str, node: Node) -> Node:
        _, nodes = await prompt_while(talk, prompt, continue_prompt, stop, at=node, most=most)
        return nodes[-1]

    return go


async def _follow(talk: Talk, prompts: Iterable[str], at: Node | None, go: _Go) -> Said:
    node = talk.conversation.here if at is None else at
    nodes = []
    for prompt in prompts:
        node = await go(prompt, node)
        _move(talk, at, node)
        nodes.append(node)
    return [text_of(node) for node in nodes], nodes


async def _branches(talk: Talk, prompts: Iterable[str], at: Node | None, go: _Go, at_once: int = _MOST) -> Said:
    start = talk.conversation.here if at is None else at
    nodes = await _all([go(prompt, start) for prompt in prompts], at_once)
    return [text_of(node) for node in nodes], nodes


async def _all(works: Sequence[Awaitable[T]], at_once: int) -> list[T]:
    slots = asyncio.Semaphore(at_once)

    async def one(work: Awaitable[T]) -> T:
        async with slots:
            return await work

    ended = await asyncio.gather(*(one(work) for work in works), return_exceptions=True)
    failed = {number: error for number, error in enumerate(ended) if isinstance(error, BaseException)}
    for error in failed.values():
        if not isinstance(error, Exception):
            raise error
    if failed:
        raise BranchesFailed([e for e in ended if not isinstance(e, BaseException)], failed)  # type: ignore[arg-type]
    return [end for end in ended if not isinstance(end, BaseException)]


def _move(talk: Talk, at: Node | None, node: Node) -> None:
    """Who was told no place goes on from where they came to."""
    if at is None:
        talk.conversation.here = node
