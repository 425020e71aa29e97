"""create_deep_agent: a lean ready-made agent with files, commands, checkpoints and live forking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from forkwise.live.backends.backend import FileInfo
from forkwise.live.backends.local import PlaceBackend
from forkwise.live.checkpoints import CheckpointCapability, CheckpointFrequency, CheckpointStore
from forkwise.live.deps import DeepAgentDeps, Todo

if TYPE_CHECKING:
    from forkwise.live.capability import LiveForkCapability

__all__ = [
    "BASE_PROMPT",
    "FORKING_PROMPT",
    "DeepAgentTools",
    "create_deep_agent",
    "create_file_toolset",
]


_MOST_SHOWN = 500  # names, or lines, in one answer
T = TypeVar("T")


async def ls(ctx: RunContext[DeepAgentDeps], path: str = "/") -> str:
    """List the files and directories in a directory.

    Args:
        path: The directory; the top by default.
    """
    return await _answer(lambda: _shown(ctx.deps.backend.ls_info(path), f"nothing in {path}"))


async def read(ctx: RunContext[DeepAgentDeps], path: str, offset: int = 0, limit: int = 2000) -> str:
    """Read a file. Lines are numbered.

    Args:
        path: The file.
        offset: The number of lines to skip.
        limit: The most lines to read.
    """
    return await _answer(lambda: ctx.deps.backend.read(path, offset, limit))


async def write(ctx: RunContext[DeepAgentDeps], path: str, content: str) -> str:
    """Write a file, replacing it if it exists.

    Args:
        path: The file.
        content: All that it is to hold.
    """

    def work() -> str:
        done = ctx.deps.backend.write(path, content)
        return f"Error: {done.error}" if done.error else f"wrote {done.path}"

    return await _answer(work)


async def edit(
    ctx: RunContext[DeepAgentDeps], path: str, old_string: str, new_string: str, replace_all: bool = False
) -> str:
    """Replace a text in a file. The text has to occur exactly once, unless all occurrences are to be replaced.

    Args:
        path: The file.
        old_string: The text as it is there, with its white space.
        new_string: What is to take its place.
        replace_all: Whether to replace every occurrence.
    """

    def work() -> str:
        done = ctx.deps.backend.edit(path, old_string, new_string, replace_all)
        return f"Error: {done.error}" if done.error else f"edited {done.path} ({done.occurrences} replaced)"

    return await _answer(work)


async def glob(ctx: RunContext[DeepAgentDeps], pattern: str, path: str = "/") -> str:
    """Find files by a pattern, such as `**/*.py`.

    Args:
        pattern: The pattern; `*` stays within a directory, `**` does not.
        path: The directory to look in.
    """
    return await _answer(lambda: _shown(ctx.deps.backend.glob_info(pattern, path), f"nothing matches {pattern}"))


async def grep(ctx: RunContext[DeepAgentDeps], pattern: str, path: str | None = None, glob: str | None = None) -> str:
    """Search the content of files for a regular expression. Hidden files are left out.

    Args:
        pattern: The regular expression.
        path: The file or the directory to search; everything by default.
        glob: A pattern for the names of files to search.
    """

    def work() -> str:
        found = ctx.deps.backend.grep_raw(pattern, path, glob)
        if isinstance(found, str):
            return found
        lines = [f"{match['path']}:{match['line_number']}: {match['line']}" for match in found]
        return _some(lines, f"nothing matches {pattern}")

    return await _answer(work)


async def delete(ctx: RunContext[DeepAgentDeps], path: str) -> str:
    """Delete a file, or a directory with all it holds.

    Args:
        path: The file or the directory.
    """

    def work() -> str:
        return f"deleted {path}" if ctx.deps.backend.delete(path) else f"Error: {path!r} does not exist"

    return await _answer(work)


async def execute(ctx: RunContext[DeepAgentDeps], command: str, timeout: float | None = None) -> str:
    """Run a shell command where the files are, and wait for it. Whatever it starts ends with it.

    Args:
        command: The command, as for `sh -c`.
        timeout: The most seconds it may take; 120 by default.
    """
    try:
        done = await ctx.deps.backend.async_execute(command, timeout)
    except (OSError, BranchingError) as error:
        return _plain(f"Error: {error}")
    left_out = "\n(there was more output than this)" if done.truncated else ""
    return f"{_plain(done.output)}{left_out}\nexit code: {done.exit_code}"


async def write_todos(ctx: RunContext[DeepAgentDeps], todos: list[Todo]) -> str:
    """Write down what is to be done, in place of what was written down before.

    Args:
        todos: All that is to be done, is being done, and was done.
    """
    ctx.deps.todos[:] = todos
    return "\n".join(f"[{todo.status}] {todo.content}" for todo in todos) or "nothing to do"


def create_file_toolset(*, include_execute: bool = True) -> FunctionToolset[DeepAgentDeps]:
    """The tools ``ls``, ``read``, ``write``, ``edit``, ``glob``, ``grep``, ``delete``, ``execute`` and ``write_todos``,
    on whatever backend and todos a run's deps have."""
    toolset: FunctionToolset[DeepAgentDeps] = FunctionToolset(
        [ls, read, write, edit, glob, grep, delete, write_todos], id="deep-files"
    )
    if include_execute:
        toolset.add_function(execute)
    return toolset


@dataclass
class DeepAgentTools(AbstractCapability[DeepAgentDeps]):
    """Gives an agent the files of its deps: as tools, and as the workspace of its runs, so that toolsets written for
    those work on the same files. Delivers what is put into the message queue."""

    toolset: FunctionToolset[DeepAgentDeps] = field(default_factory=create_file_toolset)

    def get_toolset(self) -> FunctionToolset[DeepAgentDeps]:
        """The tools."""
        return self.toolset

    def get_workspace(self, ctx: RunContext[DeepAgentDeps], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """The backend of the deps, if that is a directory's. A conversation that was in another branch goes on here."""
        backend = ctx.deps.backend
        if isinstance(backend, PlaceBackend) and (ref is None or ref.provider == PROVIDER):
            return BranchWorkspaceBackend(backend.files, ref)
        return None

    async def before_model_request(
        self, ctx: RunContext[DeepAgentDeps], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Deliver what was said meanwhile."""
        for message, urgency in ctx.deps.message_queue.drain():
            ctx.enqueue(message, priority=urgency)
        return request_context


async def _answer(work: Callable[[], str]) -> str:
    """What a tool says: what came of it, or why it did not. The event loop goes on meanwhile."""
    try:
        return _plain(await finish_then_cancel(run_in_thread(work)))
    except (OSError, ValueError, BranchingError) as error:
        return _plain(f"Error: {error}")


def _shown(found: list[FileInfo], otherwise: str) -> str:
    lines = [f"{info['path']}/" if info["is_dir"] else f"{info['path']} ({info['size']} bytes)" for info in found]
    return _some(lines, otherwise)


def _some(lines: list[str], otherwise: str) -> str:
    more = [f"... and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return "\n".join(lines[:_MOST_SHOWN] + more) or otherwise


def _plain(text: str) -> str:
    """The same where a name in it is not UTF-8, which no provider would take."""
    return text.encode(errors="backslashreplace").decode()


BASE_PROMPT = """\
You work on files with tools. Look at what is there before you change it, and after a change check that it does what \
it should: run the tests if there are any. Say in the end what you did, in a few sentences."""

FORKING_PROMPT = """\
## Forking
Where several approaches are worth trying, `fork_run` starts a branch for each. A branch goes on from this \
conversation with its own copy of the files; what it changes is seen by nobody else. Look at them with \
`inspect_branches` until they are done, compare them with `diff_branches`, and decide before you end your turn: \
`merge_or_select` with `pick:<id>` keeps one branch with its files, `auto` has a judge decide, `abort` drops all."""


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
    """An agent with file tools (``ls``, ``read``, ``write``, ``edit``, ``glob``, ``grep``, ``delete``) and ``execute``,
    which work on the backend of a run's `DeepAgentDeps`.

    ``forking`` lets it fork itself: True, or a `LiveForkCapability` with limits of one's own. ``include_checkpoints``
    saves checkpoints into the ``checkpoint_store`` of the deps, or into the one given here. All other options are those
    of ``pydantic_ai.Agent``.
    """
    added: list[AbstractCapability[DeepAgentDeps]] = [
        DeepAgentTools(create_file_toolset(include_execute=include_execute))
    ]
    prompts = [BASE_PROMPT]
    if include_checkpoints:
        added.append(CheckpointCapability(checkpoint_store, checkpoint_frequency, max_checkpoints))
    if forking:
        from forkwise.live.capability import LiveForkCapability  # noqa: PLC0415 - loaded when somebody forks

        added.append(LiveForkCapability() if forking is True else forking)
        prompts.append(FORKING_PROMPT)
    if instructions:
        prompts.append(instructions)
    return Agent(
        model,
        deps_type=DeepAgentDeps,
        instructions="\n\n".join(prompts),
        capabilities=[*added, *capabilities],
        **options,
    )
