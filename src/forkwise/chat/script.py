"""A model that plays a script from a TOML or JSON file, streamed word by word: for demos, tests and screenshots.

Each response depends only on the messages before it, so a conversation can be continued from any node.
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

from forkwise.concurrency import run_in_thread
from forkwise.errors import BranchingError
from forkwise.live.backends.expression import Expression, ExpressionError
from forkwise.live.branch_runtime import current_branch

__all__ = ["ScriptError", "ScriptModel", "load_script"]

_POLL_INTERVAL_S = 0.02  # how often to check whether the file of ``until`` exists
_MAX_BYTES = 1_000_000


class ScriptError(BranchingError):
    """A file holds no valid script; ``path`` is the file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class ScriptCall(BaseModel):
    """A tool call."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    args: dict[str, Any] = Field(default_factory=dict)


class ScriptStep(BaseModel):
    """One response: text, tool calls, or both.

    ``verdict`` answers a judge's prompt; its ``winner_branch_id`` may be a label. ``wait`` is in seconds; ``until`` is
    a file next to the script that must exist first. ``error`` makes the request fail with that message.
    """

    model_config = ConfigDict(extra="forbid")

    say: str = ""
    calls: list[ScriptCall] = Field(default_factory=list)
    verdict: dict[str, Any] | None = None
    wait: float = Field(default=0.0, ge=0)
    until: str | None = None
    error: str | None = None


class Rule(BaseModel):
    """The responses to a prompt.

    ``when`` is a regular expression searched in the prompt, ``branch`` the label of the branch that was prompted. A
    rule without them matches every prompt.
    """

    model_config = ConfigDict(extra="forbid")

    when: str | None = None
    branch: str | None = None
    judge: bool = False
    steps: list[ScriptStep] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _wrap_single_step(cls, data: Any) -> Any:
        """Wrap the fields of a rule with one step, which needs no list, into a list."""
        if not isinstance(data, dict) or "steps" in data:
            return data
        step = {name: value for name, value in data.items() if name in ScriptStep.model_fields}
        return {**{name: value for name, value in data.items() if name not in step}, "steps": [step]}

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        if self.when is not None:
            re.compile(self.when)
        return self


class Script(BaseModel):
    """A list of rules; the first that matches is used. ``pace`` is the time per word in seconds."""

    model_config = ConfigDict(extra="forbid")

    pace: float = Field(default=0.0, ge=0)
    otherwise: str = "I have nothing to say to that."
    reply: list[Rule] = Field(default_factory=list)


class ScriptModel(FunctionModel):
    """A model that plays a script. ``directory`` holds the files named by ``until``."""

    def __init__(self, script: Script, directory: Path, name: str = "script") -> None:
        self.script = script
        self.directory = directory
        super().__init__(self._answer, stream_function=self._stream, model_name=f"script:{name}")

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = await self._wait_for_step(messages, info)
        return ModelResponse(parts=list(_build_parts(step, info)))

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        step = await self._wait_for_step(messages, info)
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", step.say):
            await asyncio.sleep(self.script.pace)
            yield word
        for number, part in enumerate(_build_parts(step, info)):
            if isinstance(part, ToolCallPart):
                delta = DeltaToolCall(part.tool_name, json.dumps(part.args), tool_call_id=part.tool_call_id)
                yield {number + 1: delta}

    async def _wait_for_step(self, messages: list[ModelMessage], info: AgentInfo) -> ScriptStep:
        prompt, response_count = _find_prompt(messages)
        step = await self._find_step(prompt, response_count, is_judge=bool(info.output_tools))
        await asyncio.sleep(step.wait)
        while step.until is not None and not (self.directory / step.until).exists():
            await asyncio.sleep(_POLL_INTERVAL_S)
        if step.error is not None:
            raise ModelHTTPError(500, self.model_name, step.error)
        return step

    async def _find_step(self, prompt: str, response_count: int, *, is_judge: bool) -> ScriptStep:
        branch = current_branch()
        label = None if branch is None else branch.spec.label
        for rule in self.script.reply:
            is_possible = rule.judge == is_judge and (rule.branch is None or rule.branch == label)
            if is_possible and (rule.when is None or await run_in_thread(_is_found, rule.when, prompt)):
                return rule.steps[response_count] if response_count < len(rule.steps) else ScriptStep(say="Done.")
        return ScriptStep(say=self.script.otherwise)


def _is_found(when: str, prompt: str) -> bool:
    """Return whether an expression is found in a prompt. Raises ScriptError if that takes too long."""
    try:
        with Expression(when) as expression:
            return expression.is_found_in(prompt)
    except ExpressionError as error:
        raise ScriptError(f"a rule of the script cannot be used: {error}") from error


def load_script(path: Path) -> ScriptModel:
    """Load a script from a TOML or JSON file. Raises ScriptError if it is invalid."""
    try:
        if not path.exists():
            raise ScriptError(f"there is no script {path}", path=str(path))
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise ScriptError(f"{path} is not a regular file of at most {_MAX_BYTES} bytes", path=str(path))
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return ScriptModel(Script.model_validate(data), path.parent, path.stem)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ScriptError(f"{path}: {field}: {first['msg']}", path=str(path)) from error
    except (OSError, ValueError, RecursionError, re.error) as error:
        raise ScriptError(f"{path} holds no valid script: {error}", path=str(path)) from error


def _find_prompt(messages: list[ModelMessage]) -> tuple[str, int]:
    """Find the last prompt. Return it and the number of responses since."""
    response_count = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            response_count += 1
            continue
        assert isinstance(message, ModelRequest)
        prompts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
        if prompts:
            return str(prompts[-1]), response_count
    return "", response_count


def _build_parts(step: ScriptStep, info: AgentInfo) -> Iterator[TextPart | ToolCallPart]:
    if step.say:
        yield TextPart(step.say)
    for call in step.calls:
        yield ToolCallPart(call.tool, call.args)
    if step.verdict is not None and info.output_tools:
        yield ToolCallPart(info.output_tools[0].name, step.verdict)
