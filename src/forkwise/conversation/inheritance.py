"""The options and files with which the branches of an agent start: `Inheritance` and `Files`.

pydantic-ai passes a tool the usage and the limits of its run, but not the toolsets, instructions and settings that were
given to ``agent.run``. They are read from what the run sent to its model.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import TracebackType
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import InstructionPart, ModelRequest
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.errors import BranchingError
from forkwise.files.branch import Branch
from forkwise.files.combine import combine
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import agent_workspace
from forkwise.text.phrases import join_first

__all__ = ["Files", "FilesOf", "Inheritance", "inherit_options"]


#: The parent of the branches' files; None if the branches have no files of their own.
FilesOf = Workspace | Branch | None


class Files:
    """The files of several branches of a conversation, as an async context manager.

    An agent in a branch has them as its workspace (``ctx.workspace``). ``conclude`` commits those of the chosen branch
    or, if none was chosen, those of all branches combined, provided that they do not conflict. Branches that were
    neither committed nor kept are aborted on exit.
    """

    def __init__(self, parent: FilesOf, count: int) -> None:
        self._parent = parent
        self._count = count
        self._branches: list[Branch] = []
        self._should_keep = False

    async def __aenter__(self) -> Files:
        if self._parent is not None:
            try:
                for number in range(self._count):
                    name = f"self-{secrets.token_hex(3)}-{number + 1}"
                    await self._create_branch(self._parent, name)
            except BaseException:
                await finish(asyncio.ensure_future(self.__aexit__(None, None, None)))
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for branch in self._branches:
            if not self._should_keep and branch.status not in ("committed", "aborted"):
                await run_in_thread(branch.abort)

    async def _create_branch(self, parent: Workspace | Branch, name: str) -> None:
        creation = run_in_thread(parent.branch, name, None, None)
        try:
            await finish_then_cancel(creation)
        finally:  # a branch that was created despite a cancellation is dropped with the others
            if creation.done() and creation.exception() is None:
                self._branches.append(creation.result())

    def branch(self, number: int) -> Branch | None:
        """Return the files of a branch, or None if there are none."""
        return self._branches[number] if self._branches else None

    def options(self, number: int) -> dict[str, Any]:
        """Return the options for the agent's run in a branch."""
        if not self._branches:
            return {}
        return {"workspace": agent_workspace(self._branches[number])}

    async def conclude(self, done: Sequence[int], chosen: int | None, *, keep: bool) -> str:
        """Commit or keep the files of the branches in ``done``. Return a sentence for the summary."""
        if not self._branches or not done:
            return ""
        if keep:
            self._should_keep = True
            for number in done:
                await run_in_thread(self._branches[number].keep)
            return f"Files: kept in the branches {', '.join(self._branches[n].branch_path for n in done)}."
        try:
            if chosen is not None:
                commit = await run_in_thread(self._branches[chosen].commit)
                return f"Files: those of branch {chosen + 1} were committed ({len(commit.paths)} paths)."
            return await run_in_thread(self._commit_combined, [self._branches[number] for number in done])
        except (BranchingError, OSError) as error:
            return f"Files: nothing was committed: {error}"

    def _commit_combined(self, branches: Sequence[Branch]) -> str:
        assert self._parent is not None
        combination = combine(self._parent, branches, f"self-{secrets.token_hex(3)}-all")
        if combination.clean:
            commit = combination.branch.commit()
            return f"Files: those of all branches were committed together ({len(commit.paths)} paths)."
        combination.branch.abort()
        paths = join_first(sorted(c.path for c in combination.conflicts), 10)
        return f"Files: nothing was committed, because the branches conflict in {paths}."


def inherit_options(ctx: RunContext[Any], settings: ModelSettings | None) -> dict[str, Any]:
    """Return the options with which a branch continues the run of ``ctx``, except for its usage and limits.

    ``settings`` are the model settings of the run's last request.
    """
    sent = next((m for m in reversed(ctx.messages) if isinstance(m, ModelRequest)), None)
    instructions = "" if sent is None else sent.instructions or ""
    inheritance: Inheritance = Inheritance(instructions, ModelSettings(**(settings or {})), ctx.tool_manager)
    options: dict[str, Any] = {"deps": ctx.deps, "model": ctx.model, "capabilities": [inheritance]}
    return {**options, "workspace": ctx.workspace} if ctx.workspace.attached else options


_MIN_SIMILARITY = 0.7


@dataclass
class Inheritance(AbstractCapability[Any]):
    """Gives a run the instructions, settings and tools of another run that it lacks itself."""

    instructions: str
    settings: ModelSettings
    tools: ToolManager[Any] | None = field(repr=False)

    def get_model_settings(self) -> ModelSettings:
        """Return the other run's settings, which replace those of the agent."""
        return self.settings

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        """Add the other run's tools."""
        return None if self.tools is None else _InheritedTools(toolset, self.tools)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Add the other run's instructions to a request, without those that the agent adds itself."""
        parameters = request_context.model_request_parameters
        own = list(parameters.instruction_parts or ())
        if rest := _subtract(self.instructions, [part.content.strip() for part in own]):
            parts = [*own, InstructionPart(rest)]
            request_context.model_request_parameters = replace(parameters, instruction_parts=parts)
        return request_context


def _subtract(instructions: str, parts: Sequence[str]) -> str:
    """Return ``instructions`` without ``parts``.

    A part that a function of the agent wrote may read a little differently now ("This is step 2."), so the paragraph
    most similar to a part that is not found is removed instead.
    """
    changed = [part for part in parts if part not in instructions]
    for part in sorted(parts, key=len, reverse=True):
        instructions = instructions.replace(part, "", 1)
    blocks = [block.strip() for block in instructions.split("\n\n") if block.strip()]
    for paragraph in (paragraph for part in changed for paragraph in part.split("\n\n")):
        for similar in get_close_matches(paragraph.strip(), blocks, n=1, cutoff=_MIN_SIMILARITY):
            blocks.remove(similar)
    return "\n\n".join(blocks)


@dataclass
class _InheritedTools(WrapperToolset[Any]):
    """The tools of a run, and those of another run under names that the first does not use."""

    manager: ToolManager[Any]

    @property
    def _others(self) -> Mapping[str, ToolsetTool[Any]]:
        return self.manager.tools or {}

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        others = {name: tool for name, tool in self._others.items() if tool.tool_def.kind != "output"}
        return {**others, **await self.wrapped.get_tools(ctx)}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        toolset = self.manager.toolset if self._others.get(name) is tool else self.wrapped
        return await toolset.call_tool(name, tool_args, ctx, tool)
