"""ScriptModel: a model that plays what a file says, streamed word by word: for trying out, for tests, for pictures.

What it says next follows from what was said before alone, so that a conversation can be gone on with anywhere.
"""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from forkwise.errors import BranchingError
from forkwise.live.branch_runtime import current_branch

__all__ = ["ScriptError", "ScriptModel", "load_script"]

_PACE = 0.02  # seconds between two looks at whether a file is there
_LARGEST = 1_000_000


class ScriptError(BranchingError):
    """A file holds no script; ``path`` is the file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class Call(BaseModel):
    """A tool that is called."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    args: dict[str, Any] = Field(default_factory=dict)


class Step(BaseModel):
    """One response: words, calls, or both. ``verdict`` is for who is asked to judge: ``winner_branch_id`` may be a
    label. ``wait`` is in seconds; ``until`` is a file, beside the script, that has to be there first. ``error`` is what
    the provider fails with."""

    model_config = ConfigDict(extra="forbid")

    say: str = ""
    calls: list[Call] = Field(default_factory=list)
    verdict: dict[str, Any] | None = None
    wait: float = Field(default=0.0, ge=0)
    until: str | None = None
    error: str | None = None


class Rule(BaseModel):
    """What is said to a prompt. ``when`` is a regular expression that is found in it, ``branch`` the label of the
    branch in which it is said; without them it is said to anything, anywhere."""

    model_config = ConfigDict(extra="forbid")

    when: str | None = None
    branch: str | None = None
    judge: bool = False
    steps: list[Step] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, told: Any) -> Any:
        """A rule of one step may be written without a list of them."""
        if not isinstance(told, dict) or "steps" in told:
            return told
        own = {name: value for name, value in told.items() if name in Step.model_fields}
        return {**{name: value for name, value in told.items() if name not in own}, "steps": [own]}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.when is not None:
            re.compile(self.when)
        return self


class Script(BaseModel):
    """All rules, the first that fits counts; ``pace`` is in seconds for each word."""

    model_config = ConfigDict(extra="forbid")

    pace: float = Field(default=0.0, ge=0)
    otherwise: str = "I have nothing to say to that."
    reply: list[Rule] = Field(default_factory=list)


class ScriptModel(FunctionModel):
    """Plays a script. ``place`` is where files are that it waits for."""

    def __init__(self, script: Script, place: Path, name: str = "script") -> None:
        self.script = script
        self.place = place
        super().__init__(self._answer, stream_function=self._stream, model_name=name)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = await self._next(messages, info)
        return ModelResponse(parts=list(_parts(step, info)))

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        step = await self._next(messages, info)
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", step.say):
            await asyncio.sleep(self.script.pace)
            yield word
        for number, part in enumerate(_parts(step, info)):
            if isinstance(part, ToolCallPart):
                called = DeltaToolCall(part.tool_name, json.dumps(part.args), tool_call_id=part.tool_call_id)
                yield {number + 1: called}

    async def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Step:
        prompt, spoken = _asked(messages)
        step = self._step(prompt, spoken, is_judge=bool(info.output_tools))
        await asyncio.sleep(step.wait)
        while step.until is not None and not (self.place / step.until).exists():
            await asyncio.sleep(_PACE)
        if step.error is not None:
            raise ModelHTTPError(500, self.model_name, step.error)
        return step

    def _step(self, prompt: str, spoken: int, *, is_judge: bool) -> Step:
        branch = current_branch()
        label = None if branch is None else branch.spec.label
        for rule in self.script.reply:
            fits = (rule.branch is None or rule.branch == label) and (
                rule.when is None or re.search(rule.when, prompt) is not None
            )
            if fits and rule.judge == is_judge:
                return rule.steps[spoken] if spoken < len(rule.steps) else Step(say="Done.")
        return Step(say=self.script.otherwise)


def load_script(path: Path) -> ScriptModel:
    """The script in a TOML or JSON file; ScriptError where it holds none."""
    try:
        if not path.exists():
            raise ScriptError(f"there is no script {path}", path=str(path))
        if not path.is_file() or path.stat().st_size > _LARGEST:
            raise ScriptError(f"{path} is no plain file of at most {_LARGEST} bytes", path=str(path))
        text = path.read_text(encoding="utf-8")
        told = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return ScriptModel(Script.model_validate(told), path.parent, path.stem)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ScriptError(f"{path}: {where}: {first['msg']}", path=str(path)) from error
    except (OSError, ValueError, RecursionError, re.error) as error:
        raise ScriptError(f"{path} holds no script: {error}", path=str(path)) from error


def _asked(messages: list[ModelMessage]) -> tuple[str, int]:
    """What was said last to the model, and how often it has spoken since."""
    spoken = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            spoken += 1
            continue
        assert isinstance(message, ModelRequest)
        prompts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
        if prompts:
            return str(prompts[-1]), spoken
    return "", spoken


def _parts(step: Step, info: AgentInfo) -> Iterator[TextPart | ToolCallPart]:
    if step.say:
        yield TextPart(step.say)
    for call in step.calls:
        yield ToolCallPart(call.tool, call.args)
    if step.verdict is not None and info.output_tools:
        yield ToolCallPart(info.output_tools[0].name, step.verdict)
