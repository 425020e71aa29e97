"""Workers: scripted agents that execute the commands in their prompt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from forkwise import ForkCoordinator
from tests.modules.brain import Asked, Brain, call
from tests.modules.provider_brain import AskedProvider

__all__ = ["BEFORE", "Priced", "all_over", "driver", "last_prompts", "last_results", "work", "worker"]

#: The history before a fork.
_THEN = datetime(2026, 1, 1, tzinfo=UTC)  # the same in every process
BEFORE: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart("Name the library.", timestamp=_THEN)]),
    ModelResponse(parts=[TextPart("I can think of two ways.")], timestamp=_THEN),
]

_STEP = re.compile(r"(write|run|fail|say|ask) ?(\S*) ?(.*)", re.DOTALL)


def last_prompts(asked: Any) -> list[str]:
    """Return the user prompts of the last message."""
    if isinstance(asked, AskedProvider):
        return [asked.request.messages[-1].text] if asked.request.messages[-1].text else []
    last = asked.messages[-1]
    return [str(part.content) for part in last.parts if isinstance(part, UserPromptPart)]


def last_results(asked: Any) -> dict[str, str]:
    """Return the tool results of the last message, by tool name."""
    if isinstance(asked, AskedProvider):
        return {result.name: result.text for result in asked.request.messages[-1].results}
    last = asked.messages[-1]
    return {part.tool_name: str(part.content) for part in last.parts if isinstance(part, ToolReturnPart)}


def work(asked: Any) -> Any:
    """Execute the last prompt: ``write a.txt hello``, ``run make``, ``fail``, ``say something``.

    Steps are separated by semicolons. The last response says that all steps are done.
    """
    steps = [step.strip() for step in asked.prompts[-1].split(";")]
    since = _since_prompt(asked)
    if since >= len(steps):
        return f"done: {steps[-1]}"
    found = _STEP.match(steps[since])
    assert found, steps[since]
    verb, first, rest = found.groups()
    if verb == "write":
        return call("write_file", path=first, text=rest)
    if verb == "run":
        return call("shell", command=f"{first} {rest}")
    if verb == "ask":
        return call("dangerous", what=first)
    if verb == "fail":
        raise ValueError("the model is out of order")
    return f"{first} {rest}".strip()


def _since_prompt(asked: Any) -> int:
    """Count the responses since the last user prompt."""
    spoken = 0
    for message in reversed(asked.request.messages if isinstance(asked, AskedProvider) else asked.messages):
        if isinstance(message, ModelResponse) or getattr(message, "role", "") == "assistant":
            spoken += 1
        elif getattr(message, "text", "") or any(isinstance(p, UserPromptPart) for p in getattr(message, "parts", ())):
            break
    return spoken


def worker(brain: Any = None, **options: Any) -> Agent[Any, Any]:
    """Create an agent with a file tool and a shell in its workspace."""
    agent: Agent[Any, Any] = Agent((brain or Brain(decide=work)).model, **options)

    @agent.tool
    async def write_file(ctx: RunContext[Any], path: str, text: str) -> str:
        """Write a file."""
        await ctx.workspace.write_text(path, text)
        return f"wrote {path}"

    @agent.tool
    async def shell(ctx: RunContext[Any], command: str) -> str:
        """Run a command."""
        return (await ctx.workspace.run(command, shell=True)).stdout

    @agent.tool_plain(requires_approval=True)
    async def dangerous(what: str) -> str:
        """Do something that needs an approval."""
        return f"did {what}"

    return agent


def driver(specs: list[dict[str, Any]], decide: Callable[[dict[str, str]], str], **more: Any) -> Callable[[Any], Any]:
    """Build a model that forks on the prompt ``task``, waits for its branches, and takes the action of ``decide``.

    ``decide`` maps the branch ids by label to an action. In a branch the model works like a worker.
    """

    def think(asked: Any) -> Any:
        prompts, results = last_prompts(asked), last_results(asked)
        if prompts == ["task"]:
            return call("fork_run", specs=specs, **more)
        if prompts and prompts[-1].startswith("[Merged"):
            return "continued"
        if "merge_or_select" in results:
            return results["merge_or_select"]
        if "fork_run" in results and "Forked" not in results["fork_run"] and "You are now" not in results["fork_run"]:
            return results["fork_run"]
        if "You are now" not in results.get("fork_run", "You are now"):
            return call("inspect_branches")
        if "inspect_branches" in results:
            report = results["inspect_branches"]
            if "running" in report:
                return call("inspect_branches")
            ids = {label: name for name, label in re.findall(r"- (\S+) \(([^)]+)\)", report)}
            return call("merge_or_select", action=decide(ids))
        return work(asked)

    return think


class Priced(FunctionModel):
    """A model whose responses cost a fixed price, by the price list of a real model."""

    PER_TOKEN = Decimal("0.000005")  # the output price of the model that it names

    def __init__(self, usd: float, decide: Callable[[Asked], Any] = work, seconds: float = 0.0) -> None:
        self.calls = 0

        async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.calls += 1
            await asyncio.sleep(seconds)
            said = decide(Asked(list(messages), info))
            part = said if isinstance(said, ToolCallPart) else TextPart(said)
            usage = RequestUsage(input_tokens=1, output_tokens=int(Decimal(str(usd)) / self.PER_TOKEN))
            return ModelResponse(parts=[part], usage=usage)

        super().__init__(think, model_name="claude-haiku-4-5")

    @property
    def system(self) -> str:
        return "anthropic"

    @property
    def model(self) -> FunctionModel:
        """The model itself, with the interface of a brain."""
        return self


async def all_over(coordinator: ForkCoordinator) -> None:
    """Wait until every branch has ended."""
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
