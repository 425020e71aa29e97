"""Modules with the real clients of Anthropic and OpenAI: no provider rejects a history, however it was changed."""
# ruff: noqa: RUF012 - a module's lists are declared as the specification shows

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from forkwise import Module, ModuleError, ParseError, StreamChunk, tool
from tests.provider import Cases, Failure, Request, Script, Turns, answer, call, raw_call, think
from tests.provider.fixtures import ModelOf, StartProvider
from tests.provider.models import anthropic_model

pytestmark = pytest.mark.integration


class Answer(BaseModel):
    value: int
    words: str = ""


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_malformed_calls(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(
        Turns(
            [
                raw_call("double", '{"number": '),
                [raw_call("double", "[]"), call("double", number=2), raw_call("__finish__", "{")],
                call("nothing"),
                "I forgot to call.",
                call("__finish__", value="x"),
                call("__finish__", value=4),
            ]
        )
    )

    class Doubling(Module):
        model = model_of(server)
        tools = [double]
        max_steps = 7
        final_output = Answer

    assert Doubling()() == Answer(value=4)
    assert len(server.seen) == 6


def test_the_last_words_are_demanded(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([call("double", number=1), [call("double", number=2)], call("__finish__", value=4)]))

    class Doubling(Module):
        model = model_of(server)
        tools = [double]
        max_steps = 1
        final_output = Answer

    assert Doubling()() == Answer(value=4)
    assert [request.tool_names for request in server.seen] == [["double", "__finish__"], ["__finish__"], ["__finish__"]]
    assert server.seen[-1].tool_choice in ("required", "__finish__")


def test_one_turn(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([call("__finish__", value="x"), call("__finish__", value=4)]))

    class Single(Module):
        model = model_of(server)
        final_output = Answer

    assert Single()(question="?") == Answer(value=4)
    assert server.seen[0].tool_choice in ("required", "__finish__")


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"reasoning": "low"}, "adaptive"),
        ({"litellm_params": {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}}, "enabled"),
    ],
)
def test_thoughts_of_a_module_and_its_branch(provider: StartProvider, how: dict[str, Any], kind: str) -> None:
    """Anthropic's rules for thinking are the strictest: it is sent back unchanged, and no tool is forced."""
    looks = answer(think("Let me see."), call("double", number=1))

    class Leaf(Module):
        """Be a leaf."""

        max_steps = 3
        final_output = Answer

    def respond(request: Request) -> Any:
        if request.system == "Be a leaf.":
            return looks if request.turn == 1 else [think("So."), call("__finish__", value=4)]
        if request.tool_names == ["__finish__"]:
            return [think("Now I must."), call("__finish__", value=5)]
        return [looks, answer(think("A branch."), call("branch", name="Leaf"))][request.turn]

    server = provider(respond)

    class Thinking(Module):
        model = {
            "id": "anthropic/claude-sonnet-4-6",
            "api_key": "none",
            "api_base": server.url,
            **how,
        }
        branches = [Leaf]
        tools = [double]
        max_steps = 2
        final_output = Answer

    assert Thinking()() == Answer(value=5)
    bodies = server.requests
    assert all(body["thinking"]["type"] == kind for body in bodies)
    assert all("temperature" not in body for body in bodies)
    assert len(bodies) == 5


def test_a_branch_that_thinks_of_a_parent_that_does_not(provider: StartProvider) -> None:
    def respond(request: Request) -> Any:
        if request.system == "Think.":
            if request.turn == 1:
                return [think("Hmm."), call("double", number=1)]
            return [think("So."), call("__finish__", value=4)]
        return [call("double", number=1), call("branch", name="Thinker"), call("__finish__")][request.turn]

    server = provider(respond)
    name = {"id": "anthropic/claude-sonnet-4-6", "api_key": "none", "api_base": server.url}

    class Thinker(Module):
        """Think."""

        model = {**name, "litellm_params": {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}}
        max_steps = 3
        final_output = Answer

    class Plain(Module):
        model = name
        branches = [Thinker]
        tools = [double]
        max_steps = 3

    plain = Plain()
    plain()
    assert "<value>4</value>" in plain.history[5]["content"]


def test_a_model_that_begins_to_think_between_two_steps(provider: StartProvider) -> None:
    thinks = [think("Hmm."), call("double", number=1)]
    server = provider(Turns([call("double", number=1), thinks, thinks, [think("So."), call("__finish__")]]))
    plain = anthropic_model(server)
    thinking = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}

    class Waking(Module):
        model = plain
        tools = [double]
        max_steps = 5

        def on_step(self, step: Any) -> None:
            if step.counter == 1:
                step.model = AnthropicModel(plain.model_name, provider=plain.provider, settings=thinking)

    Waking()()
    assert len(server.seen) == 4
    assert "temperature" in server.requests[0]
    assert "temperature" not in server.requests[1]


def test_a_client_of_its_own_in_one_loop_after_another(provider: StartProvider) -> None:
    server = provider(
        Cases((lambda request: request.turn == 0, call("double", number=1)), otherwise=call("__finish__"))
    )

    class ByName(Module):
        model = {"id": "openai/gpt-5.2", "api_key": "none", "api_base": f"{server.url}/v1"}
        tools = [double]
        max_steps = 3

    module = ByName()
    for _ in range(3):
        module()
    assert len(server.seen) == 6


def test_a_model_object_in_one_loop_after_another(provider: StartProvider) -> None:
    server = provider(
        Cases((lambda request: request.turn == 0, call("double", number=1)), otherwise=call("__finish__"))
    )

    class ByObject(Module):
        model = AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="none", base_url=server.url))
        tools = [double]
        max_steps = 3

    module = ByObject()
    for _ in range(3):
        module()
    assert len(server.seen) == 6


class Streaming(Module):
    tools = [double]
    max_steps = 3
    stream = True
    final_output = Answer

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[StreamChunk] = []

    def on_stream(self, chunk: StreamChunk) -> None:
        self.chunks.append(chunk)


def test_streams(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(
        Turns([["I look, in pieces.", call("double", number=1)], call("__finish__", value=2, words="abc")])
    )

    class Here(Streaming):
        model = model_of(server)
        stream_options = {"include_usage": True}

    here = Here()
    assert here() == Answer(value=2, words="abc")
    assert all(request.stream for request in server.seen)
    assert "".join(chunk.content or "" for chunk in here.chunks) == "I look, in pieces."
    assert "".join(c.tool_call["delta"] for c in here.chunks if c.tool_call) == '{"number": 1}'
    partials = [chunk.partial.model_dump() for chunk in here.chunks if chunk.partial is not None]
    assert partials[0] == {"value": None, "words": None}
    assert {"value": 2, "words": None} in partials
    assert partials[-1] == {"value": 2, "words": "abc"}
    assert [chunk.done for chunk in here.chunks].count(True) == 2
    assert here.chunks[-1] == StreamChunk(done=True)


def test_thoughts_that_were_streamed_go_back_as_they_came(provider: StartProvider) -> None:
    thinks = answer(think("Let me see."), "I look.", call("double", number=1))
    server = provider(Turns([thinks, thinks, [think("So."), call("__finish__", value=2)]]))
    named = anthropic_model(server)

    class Here(Streaming):
        model = AnthropicModel(
            named.model_name,
            provider=named.provider,
            settings={"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}},
        )

    here = Here()
    assert here() == Answer(value=2)
    assert [entry.get("reasoning_content") for entry in here.history if entry["role"] == "assistant"] == [
        "Let me see.",
        "Let me see.",
        "So.",
    ]


def test_fallbacks(provider: StartProvider, model_of: ModelOf) -> None:
    failing = provider(Script([], then=Failure(529, "overloaded")))
    working = provider(Script([], then=call("__finish__", value=1)))

    class Falling(Module):
        model = model_of(failing)
        model_fallbacks = [model_of(working)]
        max_steps = 2
        final_output = Answer

    assert Falling()() == Answer(value=1)
    assert (len(failing.seen), len(working.seen)) == (1, 1)

    class Streamed(Falling):
        stream = True

        def on_stream(self, chunk: StreamChunk) -> None:
            assert chunk.content is None

    assert Streamed()() == Answer(value=1)


def test_no_fallback_once_something_was_heard(provider: StartProvider, model_of: ModelOf) -> None:
    cut = provider(Script([], then=answer("Half of what was to be said, and no more.", cut=8, piece=4)))
    working = provider(Script([], then=call("__finish__")))

    class Streamed(Module):
        model = model_of(cut)
        model_fallbacks = [model_of(working)]
        max_steps = 2
        stream = True
        heard = ""

        def on_stream(self, chunk: StreamChunk) -> None:
            self.heard += chunk.content or ""

    streamed = Streamed()
    with pytest.raises(ModuleError, match="LLM call failed"):
        streamed()
    assert streamed.heard  # after the first chunk no fallback is tried
    assert not working.seen


def test_caches(provider: StartProvider, model_of: ModelOf) -> None:
    class Leaf(Module):
        """Be a leaf."""

        max_steps = 2
        final_output = Answer

    def respond(request: Request) -> Any:
        if request.system == "Be a leaf.":
            return call("__finish__", value=1)
        return call("branch", name="Leaf") if request.turn == 0 else call("__finish__")

    server = provider(respond)

    class Cached(Module):
        """Remember."""

        model = model_of(server)
        cache: Any = True
        branches = [Leaf]
        max_steps = 3

    Cached()(question="long")
    if server.seen[0].provider == "anthropic":
        root, leaf = (str(body) for body in server.requests[:2])
        assert root.count("cache_control") >= 2
        assert leaf.count("cache_control") >= 2

    class Pointed(Cached):
        cache: Any = [{"location": "message", "index": 1}, {"location": "message", "role": "system"}]

    Pointed()(question="long")


def test_a_history_that_was_changed_in_any_way(provider: StartProvider, model_of: ModelOf) -> None:
    """Entries are dropped, doubled, moved, blanked and invented at random; providers accept the messages."""
    server = provider(
        Cases(
            (lambda r: r.turn < 12, [call("double", number=1), call("double", number=2)]), otherwise=call("__finish__")
        )
    )

    class Vandal(Module):
        model = model_of(server)
        tools = [double]
        max_steps = 6
        seed = 0

        def on_step(self, step: Any) -> None:
            dice = random.Random(f"{self.seed} {step.counter}")
            history = self.history
            at = dice.randrange(len(history))
            match dice.randrange(7):
                case 0:
                    del history[at]
                case 1:
                    history.insert(at, dict(history[at]))
                case 2:
                    history.append(history.pop(at))
                case 3:
                    history[at]["content"] = "  "
                case 4:
                    history.insert(at, {"role": "user", "content": [{"type": "text", "text": "hello"}]})
                case 5:
                    history.insert(at, {"role": "assistant", "content": "made up"})
                case 6:
                    history[:] = history[at:]

    for seed in range(25):
        module = Vandal()
        module.seed = seed
        module()
    assert len(server.seen) > 60


def test_a_provider_that_fails_is_an_error(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Script([], then=Failure(401, "no such key")))

    class Refused(Module):
        model = model_of(server)
        max_steps = 2

    with pytest.raises(ModuleError, match=r"LLM call failed: .*401"):
        Refused()()


def test_invalid_output_is_a_parse_error(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Script([], then=call("__finish__", value="x")))

    class Wrong(Module):
        model = model_of(server)
        final_output = Answer

    with pytest.raises(ParseError) as error:
        Wrong()()
    assert error.value.raw_output is not None
    assert len(server.seen) == 3


def test_many_at_once(provider: StartProvider) -> None:
    server = provider(
        Cases((lambda request: request.turn == 0, call("double", number=1)), otherwise=call("__finish__"))
    )

    class One(Module):
        model = anthropic_model(server)
        tools = [double]
        max_steps = 3

    one = One()

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(10)))

    asyncio.run(main())
    assert len(server.seen) == 20
