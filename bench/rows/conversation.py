"""Conversations: branches of a long one, serialisation of a path, and an agent that branches itself."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch
from forkwise.conversation.branch_self import branch_self
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.talk import Talk

__all__ = ["measure_conversation"]

_MESSAGES = 1_000
_BRANCHES = 1_000
_PROMPTS = 5
_CALL = 0.1  # seconds per model request


def measure_conversation(scratch: Scratch) -> list[Line]:
    """Measure conversations in memory."""
    scratch.report("conversations")
    return [*_branches(scratch), _path(scratch), _branching(scratch)]


def _branches(scratch: Scratch) -> list[Line]:
    seconds, held = [], []
    for _ in range(scratch.rounds(7, 3)):
        talk = _long()
        trunk = talk.here
        started = time.perf_counter()
        for number in range(_BRANCHES):
            talk.fork(trunk).say(f"branch {number}")
        seconds.append(time.perf_counter() - started)
        talk = _long()
        tracemalloc.start()
        for number in range(_BRANCHES):
            talk.fork(trunk).say(f"branch {number}")
        held.append(float(tracemalloc.get_traced_memory()[0]))
        tracemalloc.stop()
    name = f"{_BRANCHES:,} branches of a {_MESSAGES:,}-message conversation"
    made, memory = Line(name, Figure(tuple(seconds))), Line(f"{name}: memory", Figure(tuple(held), "B"))
    made.goals.append(Goal("< 0.1 s", made.ours.median, 0.1))
    memory.goals.append(Goal("< 5 MB", memory.ours.median, 5e6))
    return [made, memory]


def _path(scratch: Scratch) -> Line:
    talk = _long()
    flat = talk.path()
    figures = play(
        {
            "ours": lambda: timed(lambda: ModelMessagesTypeAdapter.dump_json(talk.path())),
            "flat": lambda: timed(lambda: ModelMessagesTypeAdapter.dump_json(flat)),
        },
        scratch.rounds(30, 10),
        warm=2,
    )
    line = Line(
        f"a {_MESSAGES:,}-message path serialised (floor: pydantic-ai's own, flat)", figures["ours"], figures["flat"]
    )
    line.below_floor(1.3)
    return line


def _branching(scratch: Scratch) -> Line:
    async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(_CALL)
        return ModelResponse(parts=[TextPart("done")])

    def branch() -> float:
        talk = Talk(Agent(FunctionModel(think)))
        prompts = [f"task {number}" for number in range(_PROMPTS)]
        return timed(lambda: asyncio.run(branch_self(talk, prompts)))

    line = Line(
        f"branch_self, {_PROMPTS} prompts, {_CALL * 1000:.0f} ms a call",
        play({"ours": branch}, scratch.rounds(7, 3))["ours"],
    )
    line.goals.append(Goal("< 0.3 s", line.ours.median, 0.3))
    return line


def _long() -> Conversation:
    talk = Conversation()
    for number in range(_MESSAGES // 2):
        talk.say(f"question {number}: " + "what about it? " * 20)
        talk.reply(f"answer {number}: " + "it is like that. " * 20)
    return talk
