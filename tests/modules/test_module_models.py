"""Names of models, the messages sent for a history, and prompt caching."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, CachePoint, ImageUrl, ModelRequest, TextPart, UserPromptPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.models.test import TestModel

from forkwise import Module, ModuleError, Step
from forkwise.modules.message_history import build_messages
from forkwise.modules.models import build_model
from tests.modules.brain import Asked, Brain, call, finish


@pytest.mark.parametrize(
    ("name", "kind", "model_name"),
    [
        ("anthropic/claude-sonnet-4-6", AnthropicModel, "claude-sonnet-4-6"),
        ("anthropic:claude-sonnet-4-6", AnthropicModel, "claude-sonnet-4-6"),
        ("openai/gpt-5.2", OpenAIChatModel, "gpt-5.2"),
        ("openai:gpt-5.2", OpenAIResponsesModel, "gpt-5.2"),
        ("openrouter/anthropic/claude-x:beta", OpenRouterModel, "anthropic/claude-x:beta"),
    ],
)
def test_names(name: str, kind: type, model_name: str) -> None:
    model = build_model(name, api_key="none")
    assert type(model) is kind
    assert model.model_name == model_name


def test_names_without_credentials() -> None:
    assert isinstance(build_model("test"), TestModel)


def test_metadata_goes_with_every_request_and_to_no_provider() -> None:
    brain = Brain(finish())

    class Marked(Module):
        model = brain
        metadata = {"run": 7}  # noqa: RUF012
        max_steps = 2

    Marked()()
    last = brain.asked[0].messages[-1]
    assert isinstance(last, ModelRequest)
    assert last.metadata == {"run": 7}


def test_what_a_model_said_is_sent_back_as_it_was() -> None:
    said = [TextPart("before"), call("nothing", x=1), TextPart("after", id="kept")]
    brain = Brain(said, finish())

    class Talking(Module):
        model = brain
        max_steps = 2

    Talking()()
    assert brain.asked[1].messages[1].parts == said


def test_a_branch_has_a_copy_of_the_history() -> None:
    class Meddling(Module):
        """Meddle."""

        max_steps = 2

        def on_step(self, step: Step) -> None:
            for entry in self.history:
                entry["content"] = "changed"
                for called in entry.get("tool_calls", ()):
                    called["function"]["arguments"] = "{}"

    def decide(asked: Asked) -> Any:
        if asked.system == "Meddle.":
            return call("nothing")
        if asked.system.startswith("You summarize"):
            return "Meddled."
        return [call("nothing", x=1), call("branch", name="Meddling"), finish()][asked.turn]

    class Parent(Module):
        model = Brain(decide=decide)
        branches = [Meddling]  # noqa: RUF012
        max_steps = 3

    parent = Parent()
    parent(question="Mine.")
    assert "Mine." in parent.history[1]["content"]
    assert parent.history[2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert parent.history[3]["content"] == "Error: Tool 'nothing' not found"


def prompts(history: list[dict[str, Any]], cached: tuple[int, ...] = ()) -> list[Any]:
    parts = [part for message in build_messages(history, cached) for part in message.parts]
    return [part.content for part in parts if isinstance(part, UserPromptPart)]


def test_pictures() -> None:
    pieces = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    [content] = prompts([{"role": "user", "content": pieces}])
    assert content[0] == "Look:"
    assert isinstance(content[1], ImageUrl)
    assert isinstance(content[2], BinaryContent)
    with pytest.raises(ModuleError, match="holds text and images"):
        prompts([{"role": "user", "content": [{"type": "sound"}]}])


def test_unknown_entries() -> None:
    with pytest.raises(ModuleError, match="this one has 'developer'"):
        build_messages([{"role": "developer", "content": "x"}])


def test_a_model_speaks_last_and_is_asked_to_go_on() -> None:
    assert prompts([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == ["a", "Go on."]
    assert prompts([]) == ["Go on."]


@pytest.mark.parametrize(
    ("cached", "marked"),
    [((1,), "first"), ((2,), "first"), ((3,), "second"), ((-1,), "second"), ((99,), "second"), ((0,), "")],
)
def test_marks_stand_behind_what_a_user_said(cached: tuple[int, ...], marked: str) -> None:
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "second"},
    ]
    found = [content[0] for content in prompts(history, cached) if isinstance(content[-1], CachePoint)]
    assert found == ([marked] if marked else [])
