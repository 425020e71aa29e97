"""`branch_self` as a plain function, for tools that call it: ``branch_self("['Approach A', 'Approach B']")``.

It finds the agent that runs the tool, so it takes only what a model writes. Also usable as a tool itself:
``Agent(model, tools=[branch_self])``. `BranchSelf` is the same as a toolset, with limits, a judge and files.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai import ModelRetry

from forkwise.concurrency import run_sync
from forkwise.conversation import branch_self as branching
from forkwise.conversation.talk import RECOMBINATIONS, Turn, current_turn
from forkwise.errors import BranchingError, ConversationError

__all__ = ["branch_self"]

_BOOLEANS = {"true": True, "false": False}

_limits: WeakKeyDictionary[Turn, branching.BranchSelfLimits] = WeakKeyDictionary()


def branch_self(
    self_prompts: list[str] | str,
    allow_work: bool | str = "False",
    parallel: bool | str = "True",
    recombine: str = "none",
) -> str:
    """Continue in several branches at once: one branch of this conversation per prompt, with the history so far.

    The result has the answer of each branch, or their recombination; or "Error: ..." with what is wrong. Raises
    `ConversationError` unless it is called in a tool that is not async, of an agent that a `Talk` runs.

    Args:
        self_prompts: a list with one prompt per branch
        allow_work: whether branches may use tools until they are done, or answer once
        parallel: whether the branches run at the same time
        recombine: how the answers become one: none, concatenate, llm_merge, llm_vote or llm_judge
    """
    turn = current_turn()
    if turn is None or turn.loop is None:
        raise ConversationError("branch_self needs an agent: call it in a tool of an agent that a Talk runs")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        work = _branch(turn, self_prompts, allow_work, parallel, recombine)
        return run_sync(work, turn.loop)
    raise ConversationError("branch_self would block the event loop here: call it in a tool that is not async")


async def _branch(
    turn: Turn, self_prompts: list[str] | str, allow_work: bool | str, parallel: bool | str, recombine: str
) -> str:
    assert turn.run is not None
    try:
        prompts = branching.read_prompts(self_prompts)
        if recombine not in RECOMBINATIONS:
            raise ModelRetry(f"recombine must be one of {', '.join(RECOMBINATIONS)}, not {recombine!r}")
        limits, files = branching.find_scope(turn, _limits.setdefault(turn, branching.BranchSelfLimits()))
        branching.check_limits(limits, turn.depth, len(prompts))
        done = await branching.branch_self(
            turn.talk,
            prompts,
            turn.record(turn.run.all_messages()),
            allow_work=_parse_boolean("allow_work", allow_work),
            parallel=_parse_boolean("parallel", parallel),
            recombine_by=recombine,  # type: ignore[arg-type]
            limits=limits,
            files=files,
            depth=turn.depth,
            usage=turn.run.usage,
        )
    except (ModelRetry, BranchingError, OSError) as error:
        return f"Error: {error}"
    return done.summary


def _parse_boolean(name: str, value: Any) -> bool:
    found = value if isinstance(value, bool) else _BOOLEANS.get(str(value).strip().lower())
    if found is None:
        raise ModelRetry(f"{name} must be True or False, not {value!r}")
    return found
