"""pydantic-ai agents on the server: parallel tools, retries, structured output, streams, both providers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, ModelRetry
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model

from tests.provider import Cases, Request, Script, Turns, answer, call, raw_call, says, structured, think
from tests.provider.fixtures import ModelOf, StartProvider
from tests.provider.models import anthropic_model, provider_models

Looking = list[str]


def agent_on(model: Model, **options: Any) -> tuple[Agent[None, Any], Looking]:
    """Return an agent with a tool, and the list of the tool's arguments."""
    looked: Looking = []
    agent: Agent[None, Any] = Agent(model, **{"system_prompt": "Be brief.", **options})

    @agent.tool_plain
    def look(where: str) -> str:
        """Looks somewhere."""
        if where == "nowhere":
            raise ModelRetry("there is nothing there")
        looked.append(where)
        return f"found {where}"

    return agent, looked


def found(request: Request) -> str:
    return " and ".join(sorted(result.text for result in request.tool_results))


def test_calls_side_by_side(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([["I look.", call("look", where="here"), call("look", where="there")], found]))
    agent, looked = agent_on(model_of(server))
    done = asyncio.run(agent.run("Look."))
    assert done.output == "found here and found there"
    assert sorted(looked) == ["here", "there"]
    assert [request.turn for request in server.seen] == [0, 1]
    assert server.seen[0].system.startswith("Be brief.")
    assert done.usage.input_tokens > 0


def test_a_conversation_continues(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Cases((lambda request: request.turn % 2 == 0, call("look", where="here")), otherwise="Done."))
    agent, looked = agent_on(model_of(server))

    async def main() -> None:
        history = None
        for _ in range(3):
            done = await agent.run("Look.", message_history=history)
            history = done.all_messages()

    asyncio.run(main())
    assert looked == ["here"] * 3
    assert server.seen[-1].turn == 5


def test_retries(provider: StartProvider, model_of: ModelOf) -> None:
    wrong = [call("look", where="nowhere"), raw_call("look", '{"where": '), call("look", what=1), call("listen")]
    server = provider(Script([*wrong, call("look", where="here"), found]))
    agent, looked = agent_on(model_of(server), retries=4)
    assert asyncio.run(agent.run("Look.")).output == "found here"
    assert looked == ["here"]
    assert "there is nothing there" in server.seen[1].tool_results[0].text


class Place(BaseModel):
    name: str
    size: int


def test_structured_output(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([call("look", where="here"), structured(name="here"), structured(name="here", size=3)]))
    agent, _ = agent_on(model_of(server), output_type=Place, retries=2)
    assert asyncio.run(agent.run("Look.")).output == Place(name="here", size=3)
    assert len(server.seen) == 3


def test_streams(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([[call("look", where="here"), call("look", where="there")], "Found it, in small pieces."]))
    agent, looked = agent_on(model_of(server))

    async def main() -> list[str]:
        async with agent.run_stream("Look.") as run:
            return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]

    pieces = asyncio.run(main())
    assert "".join(pieces) == "Found it, in small pieces."
    assert len(pieces) > 2
    assert sorted(looked) == ["here", "there"]
    assert all(request.stream for request in server.seen)


def test_a_malformed_call_in_a_stream(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([raw_call("look", '{"where": '), call("look", where="here"), "Done."]))
    agent, looked = agent_on(model_of(server), retries=2)

    async def main() -> str:
        async with agent.run_stream("Look.") as run:
            return str(await run.get_output())

    assert asyncio.run(main()) == "Done."
    assert looked == ["here"]


def test_branches_of_one_conversation_at_once(provider: StartProvider) -> None:
    server = provider(
        Cases((says("left"), answer("Left.", delay=0.05)), (says("right"), "Right."), otherwise="Where to?")
    )

    async def main(model: Model) -> list[str]:
        agent, _ = agent_on(model)
        history = (await agent.run("Hello.")).all_messages()
        runs = (agent.run(f"Go {way}.", message_history=history) for way in ("left", "right", "left"))
        return [run.output for run in await asyncio.gather(*runs)]

    for model in provider_models(server).values():
        assert asyncio.run(main(model)) == ["Left.", "Right.", "Left."]
    assert len(server.seen) == 8


THINKING = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096}


def test_thinking_goes_back_as_it_came(provider: StartProvider) -> None:
    looks = answer(think("Where?"), call("look", where="here"))
    server = provider(Turns([looks, [think("So."), "Found."], looks, "Found again."]))
    agent, _ = agent_on(anthropic_model(server), model_settings=THINKING)

    async def main() -> str:
        first = await agent.run("Look.")
        async with agent.run_stream("Again?", message_history=first.all_messages()) as run:
            return str(await run.get_output())

    assert asyncio.run(main()) == "Found again."
    assert len(server.seen) == 4


def test_thinking_that_was_changed_is_refused(provider: StartProvider) -> None:
    server = provider(Turns([[think("Where?"), call("look", where="here")], "Found."]), expects_fault=True)
    agent, _ = agent_on(anthropic_model(server), model_settings=THINKING)

    async def main() -> None:
        asked, called, results, _ = (await agent.run("Look.")).all_messages()
        assert isinstance(called, ModelResponse)
        thought = called.parts[0]
        assert isinstance(thought, ThinkingPart)
        thought = replace(thought, content="There!")
        await agent.run(message_history=[asked, replace(called, parts=[thought, *called.parts[1:]]), results])

    with pytest.raises(ModelHTTPError, match="cannot be modified"):
        asyncio.run(main())


def test_an_open_call_is_refused(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Script([]), expects_fault=True)
    model = model_of(server)

    async def main() -> None:
        open_call = ModelResponse(parts=[TextPart("I look."), ToolCallPart("look", {}, "a")])
        await model_request(model, [ModelRequest.user_text_prompt("Look."), open_call])

    with pytest.raises(ModelHTTPError) as refused:
        asyncio.run(main())
    assert refused.value.status_code == 400
    assert server.faults[0].rule in ("A1", "O1")
