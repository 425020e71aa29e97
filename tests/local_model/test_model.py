"""The local model as an agent's model: real answers over the loopback."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import Any, Literal

import httpx2
import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.settings import ModelSettings

from forkwise import LocalModelError
from forkwise.local_model import is_local, local_model
from forkwise.local_model.server import ModelServer, acquire, release
from tests.local_model.requirements import need_local_model

LONG = 1500
ENDLESS = ModelSettings(max_tokens=LONG, extra_body={"ignore_eos": True})
"""An answer that would take half a minute unless it is cancelled."""


class Verdict(BaseModel):
    """The verdict of a judge on two candidates."""

    better: Literal["first", "second", "neither"]
    confidence: int = Field(ge=0, le=100)
    reason: str = Field(max_length=40)


@pytest.fixture(scope="module", name="server")
def kept_server() -> Iterator[ModelServer]:
    """Keep one server for all tests of this module."""
    need_local_model()
    user = object()
    yield acquire(user)
    release(user)


def words(n: int) -> ModelSettings:
    """Return settings for exactly this many tokens, the most likely ones: random ones may be only spaces."""
    return ModelSettings(max_tokens=n, temperature=0, extra_body={"ignore_eos": True})


def test_it_is_asked_for_by_name() -> None:
    assert is_local("local")
    assert not is_local("openai:local")
    assert not is_local(None)


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_it_answers() -> None:
    result = asyncio.run(Agent(local_model()).run("Say hello.", model_settings=words(8)))
    assert result.output.strip()
    assert result.usage.output_tokens == 8
    assert result.usage.input_tokens > 0
    assert result.response.provider_name == "local"


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_it_streams() -> None:
    async def ask() -> list[str]:
        async with Agent(local_model()).run_stream("Count to ten.", model_settings=words(12)) as run:
            return [text async for text in run.stream_text(delta=True, debounce_by=None)]

    assert len(asyncio.run(ask())) > 5


@pytest.mark.integration
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("question", ["Which is better?", "Answer with a poem, never with JSON."])
def test_a_judge_says_what_its_schema_allows(question: str) -> None:
    agent = Agent(local_model(), output_type=Verdict, retries=0)
    assert isinstance(asyncio.run(agent.run(question)).output, Verdict)


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_one_model_serves_one_loop_after_the_other() -> None:
    agent = Agent(local_model(), model_settings=words(4))
    assert [asyncio.run(agent.run("Hello")).usage.output_tokens for _ in range(2)] == [4, 4]


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_several_ask_at_once() -> None:
    async def ask() -> list[Any]:
        agent = Agent(local_model(), model_settings=words(8))
        return await asyncio.gather(*(agent.run(f"Tell me about the number {n}.") for n in range(4)))

    assert [result.usage.output_tokens for result in asyncio.run(ask())] == [8] * 4


@pytest.mark.integration
def test_a_client_that_disconnects_frees_its_slot(server: ModelServer) -> None:
    agent = Agent(local_model())

    async def ask() -> int:
        heard = asyncio.Event()

        async def listen() -> None:
            async with agent.run_stream("Tell me a story.", model_settings=ENDLESS) as run:
                async for _ in run.stream_text(delta=True, debounce_by=None):
                    heard.set()

        listener = asyncio.create_task(listen())
        await heard.wait()
        other = asyncio.create_task(agent.run("Tell me another one.", model_settings=words(8)))
        listener.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listener
        return (await other).usage.output_tokens

    assert asyncio.run(ask()) == 8
    while any(slot["is_processing"] for slot in _slots(server)):
        pass
    assert 0 < max(slot.get("n_prompt_tokens", 0) for slot in _slots(server)) < LONG


def _slots(server: ModelServer) -> Any:
    with httpx2.Client(trust_env=False) as client:
        return client.get(f"{server.address}/slots", headers={"Authorization": f"Bearer {server.key}"}).json()


@pytest.mark.integration
def test_it_listens_on_the_loopback_and_requires_its_key(server: ModelServer) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    with httpx2.Client(trust_env=False) as client:
        assert client.get(f"{server.address}/v1/models").status_code == 401
        assert client.post(f"{server.address}/v1/chat/completions", json={"messages": []}).status_code == 401


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_a_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:  # bound, but not listening
        nobody.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        agent = Agent(local_model(), model_settings=words(4))
        assert asyncio.run(agent.run("Hello")).usage.output_tokens == 4


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_tools_are_refused_rather_than_left_out() -> None:
    agent = Agent(local_model())

    @agent.tool_plain
    def weather(city: str) -> str:
        return city

    with pytest.raises(LocalModelError, match="takes no tools: weather"):
        asyncio.run(agent.run("How is the weather?"))


@pytest.mark.parametrize("module", ["xllamacpp", "openai", "pydantic_ai"])
def test_an_extra_that_is_missing_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LocalModelError, match=rf"no {module}.*pip install 'forkwise\[local\]'"):
        local_model()
