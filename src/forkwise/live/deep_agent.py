"""`create_deep_agent`: a ready-made agent with files, commands, checkpoints and live forking.

The docstrings of the tools are the descriptions that the model sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import WorkspaceRef
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.workspaces import WorkspaceBackend

from forkwise.concurrency import finish_then_cancel, run_in_thread
from forkwise.errors import BranchingError
from forkwise.fork.agent_workspace import PROVIDER, BranchWorkspaceBackend
from forkwise.live.backends.backend import Backend, FileInfo
from forkwise.live.backends.foreign import adapt_backend
from forkwise.live.backends.local import DiskBackend
from forkwise.live.checkpoints import CheckpointCapability, CheckpointFrequency, CheckpointStore
from forkwise.live.deps import DeepAgentDeps, Todo
from forkwise.text.clean import escape_invalid

if TYPE_CHECKING:
    from forkwise.live.capability import LiveForkCapability

__all__ = [
    "BASE_PROMPT",
    "FORKING_PROMPT",
    "DeepAgentTools",
    "create_deep_agent",
    "create_file_toolset",
]


_MAX_LINES = 500  # in one tool result
T = TypeVar("T")


async def ls(ctx: RunContext[DeepAgentDeps], path: str = "/") -> str:
    """List the files and directories in a directory.

    Args:
        path: The directory; the top by default.
    """
    return await _run_tool(ctx, lambda files: _format_files(files.ls_info(path), f"nothing in {path}"))


async def read(ctx: RunContext[DeepAgentDeps], path: str, offset: int = 0, limit: int = 2000) -> str:
    """Read a file. Lines are numbered.

    Args:
        path: The file.
        offset: The number of lines to skip.
        limit: The most lines to read.
    """
    return await _run_tool(ctx, lambda files: files.read(path, offset, limit))


async def write(ctx: RunContext[DeepAgentDeps], path: str, content: str) -> str:
    """Write a file, replacing it if it exists.

    Args:
        path: The file.
        content: The whole new content.
    """

    def work(files: Backend) -> str:
        done = files.write(path, content)
        return f"Error: {done.error}" if done.error else f"wrote {done.path}"

    return await _run_tool(ctx, work)


async def edit(
    ctx: RunContext[DeepAgentDeps], path: str, old_string: str, new_string: str, replace_all: bool = False
) -> str:
    """Replace a text in a file. The text must occur exactly once, unless replace_all is set.

    Args:
        path: The file.
        old_string: The text to replace, with its exact white space.
        new_string: The new text.
        replace_all: Whether to replace every occurrence.
    """

    def work(files: Backend) -> str:
        done = files.edit(path, old_string, new_string, replace_all)
        return f"Error: {done.error}" if done.error else f"edited {done.path} ({done.occurrences} replaced)"

    return await _run_tool(ctx, work)


async def glob(ctx: RunContext[DeepAgentDeps], pattern: str, path: str = "/") -> str:
    """Find files by a pattern, such as `**/*.py`.

    Args:
        pattern: The pattern; `*` stays within a directory, `**` does not.
        path: The directory to search.
    """
    return await _run_tool(
        ctx, lambda files: _format_files(files.glob_info(pattern, path), f"nothing matches {pattern}")
    )


async def grep(ctx: RunContext[DeepAgentDeps], pattern: str, path: str | None = None, glob: str | None = None) -> str:
    """Search the content of files for a regular expression. Hidden files are skipped.

    Args:
        pattern: The regular expression.
        path: The file or the directory to search; everything by default.
        glob: Search only files whose names match this pattern.
    """

    def work(files: Backend) -> str:
        found = files.grep_raw(pattern, path, glob)
        if isinstance(found, str):
            return found
        lines = [f"{match['path']}:{match['line_number']}: {match['line']}" for match in found]
        return _format_lines(lines, f"nothing matches {pattern}")

    return await _run_tool(ctx, work)


async def delete(ctx: RunContext[DeepAgentDeps], path: str) -> str:
    """Delete a file, or a directory with everything in it.

    Args:
        path: The file or the directory.
    """

    def work(files: Backend) -> str:
        return f"deleted {path}" if files.delete(path) else f"Error: {path!r} does not exist"

    return await _run_tool(ctx, work)


async def execute(ctx: RunContext[DeepAgentDeps], command: str, timeout: float | None = None) -> str:
    """Run a shell command in the directory of the files, and wait for it. All processes it starts end with it.

    Args:
        command: The command, as for `sh -c`.
        timeout: The time limit in seconds; 120 by default.
    """
    try:
        done = await adapt_backend(ctx.deps.backend).async_execute(command, timeout)
    except (OSError, BranchingError) as error:
        return escape_invalid(f"Error: {error}")
    note = "\n(the output was truncated)" if done.truncated else ""
    return f"{escape_invalid(done.output)}{note}\nexit code: {done.exit_code}"


async def write_todos(ctx: RunContext[DeepAgentDeps], todos: list[Todo]) -> str:
    """Replace your todo list.

    Args:
        todos: All items: pending, in progress and completed.
    """
    ctx.deps.todos[:] = todos
    return "\n".join(f"[{todo.status}] {todo.content}" for todo in todos) or "nothing to do"


def create_file_toolset(*, include_execute: bool = True) -> FunctionToolset[DeepAgentDeps]:
    """Create the toolset that works on the backend and the todos of a run's deps.

    The tools are ``ls``, ``read``, ``write``, ``edit``, ``glob``, ``grep``, ``delete``, ``execute`` and
    ``write_todos``.
    """
    toolset: FunctionToolset[DeepAgentDeps] = FunctionToolset(
        [ls, read, write, edit, glob, grep, delete, write_todos], id="deep-files"
    )
    if include_execute:
        toolset.add_function(execute)
    return toolset


@dataclass
class DeepAgentTools(AbstractCapability[DeepAgentDeps]):
    """Gives an agent the files of its deps as tools, and delivers the messages in its queue.

    The files are also the workspace of the agent's runs, so that toolsets for workspaces use the same files.
    """

    toolset: FunctionToolset[DeepAgentDeps] = field(default_factory=create_file_toolset)

    def get_toolset(self) -> FunctionToolset[DeepAgentDeps]:
        """Return the tools."""
        return self.toolset

    def get_workspace(self, ctx: RunContext[DeepAgentDeps], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """Return the backend of the deps if it is a directory, also for a history that names another branch."""
        backend = ctx.deps.backend
        if isinstance(backend, DiskBackend) and (ref is None or ref.provider == PROVIDER):
            return BranchWorkspaceBackend(backend.files, ref)
        return None

    async def before_model_request(
        self, ctx: RunContext[DeepAgentDeps], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Deliver the queued messages."""
        for message, urgency in ctx.deps.message_queue.drain():
            ctx.enqueue(message, priority=urgency)
        return request_context


async def _run_tool(ctx: RunContext[DeepAgentDeps], work: Callable[[Backend], str]) -> str:
    """Run a tool on the files in a thread. Return its answer, or the error as text."""
    try:
        files = adapt_backend(ctx.deps.backend)
        return escape_invalid(await finish_then_cancel(run_in_thread(work, files)))
    except (OSError, ValueError, BranchingError) as error:
        return escape_invalid(f"Error: {error}")


def _format_files(found: list[FileInfo], otherwise: str) -> str:
    sizes = ["/" if info["is_dir"] else "" if info["size"] is None else f" ({info['size']} bytes)" for info in found]
    lines = [f"{info['path']}{size}" for info, size in zip(found, sizes, strict=True)]
    return _format_lines(lines, otherwise)


def _format_lines(lines: list[str], otherwise: str) -> str:
    more = [f"... and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    return "\n".join(lines[:_MAX_LINES] + more) or otherwise


_FILES_PROMPT = """\
You work on files with tools. Look at what is there before you change it, and after a change check that it does what \
it should: run the tests if there are any. Say in the end what you did, in a few sentences."""

FORKING_PROMPT = """\
## Forking
If several approaches are worth trying, `fork_run` starts a branch for each. A branch continues this conversation \
with its own copy of the files; nobody else sees its changes. Call `inspect_branches` until the branches are done, \
compare them with `diff_branches`, and decide before you end your turn: `merge_or_select` with `pick:<id>` keeps one \
branch with its files, `auto` has a judge decide, `abort` drops all."""

#: The instructions of an agent of `create_deep_agent` that can fork itself.
BASE_PROMPT = f"{_FILES_PROMPT}\n\n{FORKING_PROMPT}"


def create_deep_agent(
    model: Model | str | None = None,
    *,
    instructions: str | None = None,
    forking: bool | LiveForkCapability = False,
    include_checkpoints: bool = False,
    checkpoint_store: CheckpointStore | None = None,
    checkpoint_frequency: CheckpointFrequency = "every_tool",
    max_checkpoints: int = 20,
    include_execute: bool = True,
    capabilities: Sequence[AbstractCapability[DeepAgentDeps]] = (),
    **options: Any,
) -> Agent[DeepAgentDeps, Any]:
    """Create an agent with tools for files and commands, which work on the backend of a run's `DeepAgentDeps`.

    The tools are those of `create_file_toolset`. ``forking`` lets the agent fork itself: True, or a configured
    `LiveForkCapability`. ``include_checkpoints`` saves checkpoints into the ``checkpoint_store`` of the deps, or into
    the one given here. All other options are those of ``pydantic_ai.Agent``. Raises TypeError for an unknown option, or
    if ``forking`` is something else.
    """
    _check_options(options, forking)
    added: list[AbstractCapability[DeepAgentDeps]] = [
        DeepAgentTools(create_file_toolset(include_execute=include_execute))
    ]
    prompts = [BASE_PROMPT if forking else _FILES_PROMPT]
    if include_checkpoints:
        added.append(CheckpointCapability(checkpoint_store, checkpoint_frequency, max_checkpoints))
    if forking:
        from forkwise.live.capability import LiveForkCapability  # noqa: PLC0415 - slow to import, loaded only for forking

        added.append(LiveForkCapability() if forking is True else forking)
    if instructions:
        prompts.append(instructions)
    return Agent(
        model,
        deps_type=DeepAgentDeps,
        instructions="\n\n".join(prompts),
        capabilities=[*added, *capabilities],
        **options,
    )


def _check_options(options: Mapping[str, Any], forking: object) -> None:
    known = inspect.signature(Agent.__init__).parameters.keys() - {"self", "deps_type"}
    for name in options:
        if name not in known:
            near = get_close_matches(name, [*known, *inspect.signature(create_deep_agent).parameters], n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"create_deep_agent() got an unexpected keyword argument {name!r}{hint}")
    if not isinstance(forking, bool | AbstractCapability):
        raise TypeError(f"forking must be True, False or a LiveForkCapability, not {forking!r}")
