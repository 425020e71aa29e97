"""The real clients against the server: whole and streamed replies, delays, and every kind of failure."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import anthropic
import openai
import pytest

from tests.provider import (
    Drop,
    Failure,
    ProviderServer,
    Reply,
    Request,
    Script,
    ScriptEnded,
    Usage,
    answer,
    call,
    raw_call,
    think,
)
from tests.provider.bodies import anthropic_body, assistant, calling, openai_body, result, tool_message, use, user
from tests.provider.fixtures import StartProvider, check_requests
from tests.provider.models import KEY, anthropic_client, openai_client

ASKED: Any = [{"role": "user", "content": "Look."}]
ANTHROPIC: Any = {"model": "claude-sonnet-4-6", "max_tokens": 100, "messages": ASKED}
OPENAI: Any = {"model": "gpt-5.2", "messages": ASKED}
BOTH = answer("I look, twice.", call("look", where="here"), call("look"), usage=Usage(30, 20, cache_read=5))


def sync_anthropic(server: ProviderServer) -> anthropic.Anthropic:
    http_client = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(api_key=KEY, base_url=server.url, max_retries=0, http_client=http_client)


def sync_openai(server: ProviderServer) -> openai.OpenAI:
    http_client = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0, http_client=http_client)


def post(server: ProviderServer, path: str, body: Any) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def check_message(message: anthropic.types.Message) -> None:
    said, first, second = message.content
    assert said.type == "text"
    assert said.text == "I look, twice."
    assert first.type == second.type == "tool_use"
    assert (first.name, first.input, second.input) == ("look", {"where": "here"}, {})
    assert first.id.startswith("toolu_")
    assert first.id != second.id
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (30, 20, 5)


def check_completion(completion: Any) -> None:
    [choice] = completion.choices
    first, second = choice.message.tool_calls
    assert choice.message.content == "I look, twice."
    assert (first.function.name, json.loads(first.function.arguments)) == ("look", {"where": "here"})
    assert first.id.startswith("call_")
    assert first.id != second.id
    assert choice.finish_reason == "tool_calls"
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (35, 20, 55)
    assert usage.prompt_tokens_details.cached_tokens == 5


def test_anthropic_waiting(provider: StartProvider) -> None:
    server = provider(Script([BOTH, BOTH]))
    with sync_anthropic(server) as client:
        check_message(client.messages.create(**ANTHROPIC))
        with client.messages.stream(**ANTHROPIC) as stream:
            assert "".join(stream.text_stream) == "I look, twice."
            check_message(stream.get_final_message())


def test_anthropic_async(provider: StartProvider) -> None:
    server = provider(Script([BOTH, BOTH]))

    async def main() -> None:
        async with anthropic_client(server) as client:
            check_message(await client.messages.create(**ANTHROPIC))
            async with client.messages.stream(**ANTHROPIC) as stream:
                assert "".join([piece async for piece in stream.text_stream]) == "I look, twice."
                check_message(await stream.get_final_message())

    asyncio.run(main())


def test_openai_waiting(provider: StartProvider) -> None:
    server = provider(Script([BOTH, BOTH]))
    with sync_openai(server) as client:
        check_completion(client.chat.completions.create(**OPENAI))
        with client.chat.completions.stream(**OPENAI, stream_options={"include_usage": True}) as stream:
            check_completion(stream.get_final_completion())


def test_openai_async(provider: StartProvider) -> None:
    server = provider(Script([BOTH, BOTH]))

    async def main() -> None:
        async with openai_client(server) as client:
            check_completion(await client.chat.completions.create(**OPENAI))
            async with client.chat.completions.stream(**OPENAI, stream_options={"include_usage": True}) as stream:
                check_completion(await stream.get_final_completion())

    asyncio.run(main())


def test_the_events_of_anthropic_in_order(provider: StartProvider) -> None:
    server = provider(Script([answer(think("Hm."), "Hello, you there.", call("look", at="x"), piece=6)]))
    with sync_anthropic(server) as client:
        events = [*client.messages.create(**ANTHROPIC, stream=True)]
    kinds = [event.type for event in events]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert list(dict.fromkeys(kinds)) == ["message_start", *block, "message_delta", "message_stop"]
    opened = [event.index for event in events if event.type == "content_block_start"]
    assert opened == [event.index for event in events if event.type == "content_block_stop"] == [0, 1, 2]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert [d.text for d in deltas if d.type == "text_delta"] == ["Hello,", " you t", "here."]
    assert "".join(d.partial_json for d in deltas if d.type == "input_json_delta") == '{"at": "x"}'
    assert [d.type for d in deltas[:2]] == ["thinking_delta", "signature_delta"]


def test_the_chunks_of_openai_in_order(provider: StartProvider) -> None:
    server = provider(Script([answer("Hello, you there.", piece=6)] * 2))
    with sync_openai(server) as client:
        chunks = [*client.chat.completions.create(**OPENAI, stream=True)]
        with_usage = [*client.chat.completions.create(**OPENAI, stream=True, stream_options={"include_usage": True})]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.content for c in chunks] == ["", "Hello,", " you t", "here.", None]
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 4 + ["stop"]
    assert len({c.id for c in chunks}) == 1
    assert all(c.usage is None for c in chunks)
    assert (with_usage[-1].choices, with_usage[-1].usage is None) == ([], False)


def test_malformed_arguments_come_as_they_are(provider: StartProvider) -> None:
    server = provider(lambda request: raw_call("look", '{"where": '))
    with sync_openai(server) as client:
        whole: Any = client.chat.completions.create(**OPENAI).choices[0].message.tool_calls
        assert whole[0].function.arguments == '{"where": '
    with sync_anthropic(server) as client:
        events = [*client.messages.create(**ANTHROPIC, stream=True)]
        deltas: Any = [event.delta for event in events if event.type == "content_block_delta"]
        assert "".join(delta.partial_json for delta in deltas) == '{"where": '
        block = client.messages.create(**ANTHROPIC).content[0]
        assert block.type == "tool_use"
        assert block.input == {}


ANTHROPIC_TALK = anthropic_body(
    user("Look."),
    assistant("I look.", use("a", input={"x": 1}), use("b")),
    user(result("b", is_error=True), result("a", content=[{"type": "text", "text": "here"}]), "And?"),
    system=[{"type": "text", "text": "Be brief."}],
    tools=[{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
    tool_choice={"type": "any"},
)
OPENAI_TALK = openai_body(
    {"role": "developer", "content": "Be brief."},
    user("Look."),
    calling("a", "b", content="I look."),
    tool_message("b"),
    tool_message("a", "here"),
    user("And?"),
    tools=[{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}],
    tool_choice="required",
)


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/messages?beta=true", ANTHROPIC_TALK), ("/v1/chat/completions", OPENAI_TALK)]
)
def test_a_script_sees_the_same_of_both(provider: StartProvider, path: str, body: Any) -> None:
    server = provider(lambda request: "Yes.")
    assert post(server, path, body)[0] == 200
    [request] = server.seen
    assert server.requests == [request.body] == [body]
    assert (request.system, request.turn, request.stream) == ("Be brief.", 1, False)
    assert (request.first_user_text, request.last_user_text) == ("Look.", "And?")
    assert (request.tool_names, request.tools[0].description, request.tool_choice) == (["look"], "Looks.", "required")
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]
    assert request.messages[1].text == "I look."
    assert [(made.id, made.name) for made in request.messages[1].calls] == [("a", "look"), ("b", "look")]
    assert [(given.id, given.name, given.text) for given in request.tool_results] == [
        ("b", "look", "found"),
        ("a", "look", "here"),
    ]


def test_a_request_that_breaks_a_rule_never_reaches_the_script(provider: StartProvider) -> None:
    server = provider(Script([]), expects_fault=True)
    with sync_anthropic(server) as client, pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ANTHROPIC | {"messages": [user("Look."), assistant(use("a"))]})
    body: Any = refused.value.body
    assert "`tool_use` ids were found without `tool_result` blocks" in body["error"]["message"]
    assert body["request_id"] == refused.value.request_id
    with sync_openai(server) as client_, pytest.raises(openai.BadRequestError) as refused_:
        client_.chat.completions.create(**OPENAI | {"messages": [user("Look."), tool_message("a")]})
    assert refused_.value.param == "messages.[1].role"
    assert [fault.rule for fault in server.faults] == ["A1", "O2"]
    assert len(server.requests) == 2
    assert server.seen == []


def test_invalid_json_and_unknown_paths(provider: StartProvider) -> None:
    server = provider(Script([]), expects_fault=True)
    assert post(server, "/v1/messages", b"{")[0] == 400
    assert post(server, "/v1/chat/completions", [])[0] == 400
    assert post(server, "/v1/embeddings", {})[0] == 404
    assert len(server.faults) == 2


@pytest.mark.parametrize(
    ("status", "error", "error_"),
    [
        (429, anthropic.RateLimitError, openai.RateLimitError),
        (500, anthropic.InternalServerError, openai.InternalServerError),
        (529, anthropic.InternalServerError, openai.InternalServerError),
    ],
)
def test_errors(provider: StartProvider, status: int, error: Any, error_: Any) -> None:
    server = provider(lambda request: Failure(status, retry_after=2))
    with sync_anthropic(server) as client, pytest.raises(error) as failed:
        client.messages.create(**ANTHROPIC)
    assert failed.value.status_code == status
    assert failed.value.response.headers["retry-after"] == "2"
    with sync_openai(server) as client_, pytest.raises(error_) as failed_:
        client_.chat.completions.create(**OPENAI)
    assert failed_.value.status_code == {529: 503}.get(status, status)


def test_a_client_that_tries_again_gets_through(provider: StartProvider) -> None:
    server = provider(Script([Failure(529, retry_after=0.01), Failure(429, retry_after=0.01), "Hello."]))
    with sync_anthropic(server) as client:
        assert client.with_options(max_retries=2).messages.create(**ANTHROPIC).content[0].type == "text"


@pytest.mark.parametrize("reply", [Drop(), answer("Hello, you there.", cut=3)], ids=["dropped", "cut"])
def test_a_connection_that_breaks(provider: StartProvider, reply: Reply | Drop) -> None:
    server = provider(lambda request: reply)
    with sync_anthropic(server) as client:
        with pytest.raises(anthropic.APIConnectionError):
            client.messages.create(**ANTHROPIC)
        with pytest.raises(Exception, match=r"disconnected|closed|Connection"):
            list(client.messages.create(**ANTHROPIC, stream=True))
    with sync_openai(server) as client_:
        with pytest.raises(openai.APIConnectionError):
            client_.chat.completions.create(**OPENAI)
        with pytest.raises(Exception, match=r"disconnected|closed|Connection"):
            list(client_.chat.completions.create(**OPENAI, stream=True))


def test_a_stream_that_ends_in_an_error(provider: StartProvider) -> None:
    server = provider(lambda request: answer("Hello, you there.", cut=4, cut_by="error"))
    with sync_anthropic(server) as client, pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        list(client.messages.create(**ANTHROPIC, stream=True))
    with sync_openai(server) as client_, pytest.raises(openai.APIError, match="had an error"):
        list(client_.chat.completions.create(**OPENAI, stream=True))


def test_fifty_at_once() -> None:
    barrier = threading.Barrier(50)

    def together(request: Request) -> str:
        barrier.wait(20)  # no request is answered before all have arrived
        return f"You said {request.last_user_text}"

    async def main(server: ProviderServer) -> list[str]:
        async with openai_client(server, keep_alive=True) as client:
            asked = [
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(n)}])
                for n in range(50)
            ]
            return [str(completion.choices[0].message.content) for completion in await asyncio.gather(*asked)]

    with ProviderServer(together) as server:
        assert asyncio.run(main(server)) == [f"You said {n}" for n in range(50)]
        assert server.peak == 50


def test_a_connection_is_kept(provider: StartProvider) -> None:
    server = provider(lambda request: "Hello.")
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
        sockets = set()
        for stream in (False, True, False):
            connection.request("POST", "/v1/messages", json.dumps({**ANTHROPIC, "stream": stream}))
            response = connection.getresponse()
            assert b"Hello" in response.read()
            sockets.add(connection.sock)
    assert len(sockets) == 1
    assert None not in sockets


async def hang_up(asking: Awaitable[object], until: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(asking)
    while not until():
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_client_that_hangs_up_is_noticed() -> None:
    async def main(server: ProviderServer) -> None:
        async with openai_client(server) as client:
            await hang_up(client.chat.completions.create(**OPENAI), lambda: bool(server.seen))
            while not server.hangups:
                await asyncio.sleep(0.005)

    with ProviderServer(lambda request: "Never.", latency=60) as server:
        asyncio.run(asyncio.wait_for(main(server), 20))


def test_it_stops_while_a_client_waits() -> None:
    failed: list[Exception] = []
    with ProviderServer(lambda request: answer("Never.", delay=60)) as server, sync_openai(server) as client:

        def ask() -> None:
            try:
                client.chat.completions.create(**OPENAI)
            except openai.APIConnectionError as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        while not server.seen:
            time.sleep(0.005)
        server.__exit__(None, None, None)
        asking.join(20)
    assert len(failed) == 1
    assert [thread.name for thread in threading.enumerate() if thread.name == "provider"] == []
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url


def test_what_a_script_raises_is_kept() -> None:
    with ProviderServer(Script([])) as server:
        assert post(server, "/v1/messages", ANTHROPIC)[0] == 500
        assert [type(error) for error in server.failures] == [ScriptEnded]
        with pytest.raises(ScriptEnded):
            check_requests(server)


def test_an_unexpected_400_fails_the_test() -> None:
    with ProviderServer(Script([], then="Hello.")) as server:
        assert post(server, "/v1/messages", ANTHROPIC)[0] == 200
        check_requests(server)
        with pytest.raises(AssertionError, match="every request kept the rules"):
            check_requests(server, expects_fault=True)
        assert post(server, "/v1/chat/completions", openai_body(tool_message("a")))[0] == 400
        with pytest.raises(AssertionError, match="1 of 2 requests broke the provider's rules: O2: Invalid parameter"):
            check_requests(server)
        check_requests(server, expects_fault=True)
