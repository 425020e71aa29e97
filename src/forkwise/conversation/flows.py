"""Flows: sequences of prompts, in one line or in branches, from the current node or a given one.

A flow returns the answers and their nodes in the order of the prompts. If a branch fails, the others still finish;
then `BranchesFailed` is raised, which has the answers of the others. The conditions that end a loop are here too.
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
    "FlowResult",
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


#: Given the answer node of each prompt so far, in order, returns whether to stop.
Condition = Callable[[Sequence[Node]], bool]


def _turn(node: Node) -> list[Node]:
    """Return the nodes since the last user prompt, that one included; requests with only results are not prompts."""
    nodes = []
    for ancestor in node.upwards():
        nodes.append(ancestor)
        message = ancestor.message
        if isinstance(message, ModelRequest) and any(p.part_kind == "user-prompt" for p in message.parts):
            break
    return nodes


def _tools(node: Node) -> set[str]:
    return {call.tool_name for turn_node in _turn(node) for call in turn_node.calls}


def tool_used(nodes: Sequence[Node]) -> bool:
    """Return whether the last prompt led to a tool call."""
    return bool(_tools(nodes[-1]))


def tool_not_used(nodes: Sequence[Node]) -> bool:
    """Return whether the last prompt led to no tool call."""
    return not _tools(nodes[-1])


def said_DONE(nodes: Sequence[Node]) -> bool:  # noqa: N802 - named after the word
    """Return whether the last answer contains the word DONE."""
    return "DONE" in text_of(nodes[-1])


def said_READY(nodes: Sequence[Node]) -> bool:  # noqa: N802
    """Return whether the last answer contains the word READY."""
    return "READY" in text_of(nodes[-1])


def error_in_response(nodes: Sequence[Node]) -> bool:
    """Return whether the last answer mentions an error, or a tool call failed."""
    failed = any(
        isinstance(part, ToolReturnPart) and getattr(part, "outcome", "success") not in ("success", None)
        for node in _turn(nodes[-1])
        if node.message is not None
        for part in node.message.parts
    )
    return failed or "error" in text_of(nodes[-1]).lower()


def no_new_tools_used(nodes: Sequence[Node]) -> bool:
    """Return whether the last prompt led only to calls of tools that earlier prompts had called."""
    before = {name for node in nodes[:-1] for name in _tools(node)}
    return _tools(nodes[-1]) <= before


def five_iterations(nodes: Sequence[Node]) -> bool:
    """Return whether there were five prompts."""
    return len(nodes) >= 5


#: The answers, and the nodes of the answers.
FlowResult = tuple[list[str], list[Node]]

#: Sends a prompt at a node; returns the node of the answer.
_Send = Callable[[str, Node], Awaitable[Node]]

_MAX_PROMPTS = 50  # of one loop, by default; also the number of branches that run at once
_OK = "ok"

T = TypeVar("T")


async def single_prompt(talk: Talk, prompt: str, at: Node | None = None) -> tuple[str, Node]:
    """Send one prompt."""
    node = await talk.prompt(prompt, at)
    return talk.answer(node), node


async def chain(talk: Talk, prompts: Iterable[str], at: Node | None = None) -> FlowResult:
    """Send prompts one after another, each after the answer to the last."""
    return await _follow(talk, prompts, at, talk.prompt)


async def chain_while(
    talk: Talk,
    prompts: Iterable[str],
    stop: Condition = tool_not_used,
    continue_prompt: str = _OK,
    *,
    at: Node | None = None,
    most: int = _MAX_PROMPTS,
) -> FlowResult:
    """Send prompts one after another, each repeated until ``stop`` holds. Return the last answer to each.

    See ``prompt_while`` for the repetition.
    """
    return await _follow(talk, prompts, at, _repeat_until(talk, stop, continue_prompt, most))


async def prompt_while(
    talk: Talk,
    first_prompt: str,
    continue_prompt: str = _OK,
    stop: Condition = tool_not_used,
    *,
    at: Node | None = None,
    most: int = _MAX_PROMPTS,
) -> FlowResult:
    """Send a prompt, then ``continue_prompt`` until ``stop`` holds, ``most`` prompts at most. Return all answers."""
    nodes = [await talk.prompt(first_prompt, talk.conversation.here if at is None else at)]
    while not stop(nodes) and len(nodes) < most:
        nodes.append(await talk.prompt(continue_prompt, nodes[-1]))
    _move(talk, at, nodes[-1])
    return [talk.answer(node) for node in nodes], nodes


async def prompt_for(
    talk: Talk, items: Iterable[T], make: Callable[[T], str], *, should_branch: bool = False, at: Node | None = None
) -> FlowResult:
    """Send the prompt that ``make`` returns for each item, one after another or each in a branch."""
    prompts = [make(item) for item in items]
    return await (par_branch(talk, prompts, at) if should_branch else chain(talk, prompts, at))


async def branch(talk: Talk, prompts: Iterable[str], at: Node | None = None) -> FlowResult:
    """Send each prompt in its own branch, one branch at a time. The current node does not move."""
    return await _branches(talk, prompts, at, talk.prompt, at_once=1)


async def par_branch(talk: Talk, prompts: Iterable[str], at: Node | None = None) -> FlowResult:
    """Send each prompt in its own branch, all at once."""
    return await _branches(talk, prompts, at, talk.prompt)


async def branch_while(
    talk: Talk,
    prompts: Iterable[str],
    stop: Condition = tool_not_used,
    continue_prompt: str = _OK,
    *,
    at: Node | None = None,
    most: int = _MAX_PROMPTS,
    at_once: int = 1,
) -> FlowResult:
    """Send each prompt in its own branch, repeated as by ``prompt_while``. Return the last answer of each branch."""
    return await _branches(talk, prompts, at, _repeat_until(talk, stop, continue_prompt, most), at_once=at_once)


async def par_branch_while(
    talk: Talk,
    prompts: Iterable[str],
    stop: Condition = tool_not_used,
    continue_prompt: str = _OK,
    *,
    at: Node | None = None,
    most: int = _MAX_PROMPTS,
) -> FlowResult:
    """Run ``branch_while`` with all branches at once."""
    return await branch_while(talk, prompts, stop, continue_prompt, at=at, most=most, at_once=_MAX_PROMPTS)


async def tree_of_thought(
    talk: Talk,
    prompts: Iterable[str],
    recombine_by: Recombination = "llm_merge",
    *,
    judge: Model | str | None = None,
    at: Node | None = None,
) -> tuple[str, Node]:
    """Send each prompt in its own branch, recombine the answers, and continue from the start with the result."""
    start = talk.conversation.here if at is None else at
    prompts = list(prompts)
    texts, _ = await par_branch(talk, prompts, start)
    model = judge if judge is not None else talk.options.get("model") or talk.agent.model
    answers = [Answer(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    recombined = await recombine(recombine_by, answers, model)
    node = await talk.prompt(f"These are the resulting thoughts:\n\n{recombined.text}", start)
    _move(talk, at, node)
    return talk.answer(node), node


async def par_dispatch(talks: Sequence[Talk], flow: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> list[T]:
    """Run one flow with several agents, all at once."""
    return await _gather([flow(talk, *args, **options) for talk in talks], _MAX_PROMPTS)


async def broadcast(
    talk: Talk, flow: Callable[..., Awaitable[T]], *args: Any, skip: Iterable[str] = (), at: Node | None = None
) -> list[T]:
    """Run a flow at every leaf below a node, all at once, except at leaves with a label in ``skip``."""
    skipped = {talk.conversation.labels[name] for name in skip if name in talk.conversation.labels}
    found = [leaf for leaf in leaves(talk.conversation.here if at is None else at) if leaf not in skipped]
    return await _gather([flow(talk, *args, at=leaf) for leaf in found], _MAX_PROMPTS)


async def broadcast_to_leaves(
    talk: Talk, prompt: str, *, skip: Iterable[str] = (), at: Node | None = None
) -> FlowResult:
    """Send a prompt at every leaf below a node."""
    results = await broadcast(talk, single_prompt, prompt, skip=skip, at=at)
    return [text for text, _ in results], [node for _, node in results]


def leaves(node: Node) -> list[Node]:
    """Return the last nodes of all branches below a node, in order: those that a prompt can follow."""
    found = []
    pending = [node]
    while pending:
        current = pending.pop()
        if current.replies:
            pending += reversed(current.replies)
        elif current.message is None or current.is_response:
            found.append(current)
    return found


def _repeat_until(talk: Talk, stop: Condition, continue_prompt: str, most: int) -> _Send:
    async def send(prompt: str, node: Node) -> Node:
        _, nodes = await prompt_while(talk, prompt, continue_prompt, stop, at=node, most=most)
        return nodes[-1]

    return send


async def _follow(talk: Talk, prompts: Iterable[str], at: Node | None, send: _Send) -> FlowResult:
    node = talk.conversation.here if at is None else at
    nodes = []
    for prompt in prompts:
        node = await send(prompt, node)
        _move(talk, at, node)
        nodes.append(node)
    return [talk.answer(node) for node in nodes], nodes


async def _branches(
    talk: Talk, prompts: Iterable[str], at: Node | None, send: _Send, at_once: int = _MAX_PROMPTS
) -> FlowResult:
    start = talk.conversation.here if at is None else at
    nodes = await _gather([send(prompt, start) for prompt in prompts], at_once)
    return [talk.answer(node) for node in nodes], nodes


async def _gather(awaitables: Sequence[Awaitable[T]], at_once: int) -> list[T]:
    """Await all, ``at_once`` at a time, and return their results. If some failed, raise `BranchesFailed` at the end."""
    slots = asyncio.Semaphore(at_once)

    async def run(awaitable: Awaitable[T]) -> T:
        async with slots:
            return await awaitable

    outcomes = await asyncio.gather(*(run(awaitable) for awaitable in awaitables), return_exceptions=True)
    results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    failed = {number: error for number, error in enumerate(outcomes) if isinstance(error, BaseException)}
    for error in failed.values():
        if not isinstance(error, Exception):
            raise error
    if failed:
        raise BranchesFailed(results, failed)  # type: ignore[arg-type]
    return results


def _move(talk: Talk, at: Node | None, node: Node) -> None:
    """Move the current node to ``node``, unless the caller named a node to start from."""
    if at is None:
        talk.conversation.here = node
