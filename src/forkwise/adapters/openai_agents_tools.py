"""Tools and a runner for the OpenAI Agents SDK: an agent works in a branch, or in several, once in each.

The SDK (the package ``openai-agents``) is imported only when it is used, because forkwise does not require it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.adapters.branch_shell import TIMEOUT_S, BranchShell
from forkwise.concurrency import run_in_thread
from forkwise.text.clean import clean_text

if TYPE_CHECKING:
    from forkwise.explore.pattern import SpeculationOutcome, WorkspaceLike
    from forkwise.files.branch import Branch
    from forkwise.sandbox.confinement import Confinement

__all__ = ["AgentRuns", "make_tools", "run_best_of"]

_MAX_TEXT = 64 << 10  # characters of one answer
_MAX_ENTRIES = 1000


def make_tools(
    branch: Branch, *, confinement: str | Confinement | None = None, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """Return tools for an ``Agent``: run a command, read, write, edit and list files, all in a branch.

    Paths are the workspace's, because the sandbox mounts the branch there; others are refused. Errors are returned as
    the tool's answer, so that the model can react. Commit or abort the branch when the agent is done. Raises
    ImportError without the SDK.
    """
    from agents import function_tool

    shell = BranchShell(branch, confinement, timeout_s)

    async def run_command(command: str) -> str:
        """Run a shell command in the workspace.

        Args:
            command: What sh runs.
        """
        answer = await shell.arun(command)
        return f"{_cut(answer.output)}\n[exit code {answer.exit_code}]"

    async def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: The file, from the workspace's directory.
        """
        return _cut(clean_text(await run_in_thread(shell.files.read, path)))

    async def write_file(path: str, content: str) -> str:
        """Write a text file, with missing directories.

        Args:
            path: The file, from the workspace's directory.
            content: Its whole new content.
        """
        await run_in_thread(shell.files.write, path, content.encode())
        return f"wrote {path}"

    async def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text that occurs once in a file.

        Args:
            path: The file, from the workspace's directory.
            old: The text to replace.
            new: What takes its place.
        """
        await run_in_thread(_edit, shell, path, old, new)
        return f"edited {path}"

    async def list_files(path: str) -> str:
        """List a directory.

        Args:
            path: The directory, from the workspace's directory; "." is that itself.
        """
        found = await run_in_thread(shell.files.list_directory, path)
        names = [name + "/" * (status.st_mode & 0o170000 == 0o040000) for name, status in found]
        left = f"\n[{len(names) - _MAX_ENTRIES} more]" if len(names) > _MAX_ENTRIES else ""
        return clean_text("\n".join(names[:_MAX_ENTRIES]).encode(errors="surrogateescape")) + left

    def explain(_context: Any, error: Exception) -> str:
        return f"error: {error}"

    return [
        function_tool(tool, failure_error_function=explain)
        for tool in (run_command, read_file, write_file, edit_file, list_files)
    ]


def _edit(shell: BranchShell, path: str, old: str, new: str) -> None:
    content = shell.files.read(path)
    count = content.count(old.encode()) if old else 0
    if count != 1:
        raise ValueError(f"the text to replace occurs {count} times in {path}: it must occur exactly once")
    shell.files.write(path, content.replace(old.encode(), new.encode()))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}\n[{len(text) - _MAX_TEXT} characters more]"


@dataclass(frozen=True, slots=True)
class AgentRuns:
    """The runs of an agent in branches: the decision, and the SDK's ``RunResult`` of each run that ended, by number.

    ``result`` is the winner's; its ``to_input_list()`` continues the conversation.
    """

    outcome: SpeculationOutcome
    results: dict[int, Any]

    @property
    def result(self) -> Any:
        """The ``RunResult`` of the winner; None if nothing won."""
        return None if self.outcome.winner is None else self.results.get(self.outcome.winner.branch_index)


async def run_best_of(
    agent: Any,
    prompt: Any,
    workspace: WorkspaceLike,
    n: int = 3,
    *,
    confinement: str | Confinement | None = None,
    timeout_s: float = TIMEOUT_S,
    runner: dict[str, Any] | None = None,
    **options: Any,
) -> AgentRuns:
    """Run an agent ``n`` times side by side, each in a branch of ``workspace``, and commit the best run.

    ``agent`` is an ``Agent``, which gets the tools of ``make_tools`` besides its own, or a function that takes a branch
    and a number and returns an agent, such as one of another model. ``runner`` are further arguments of
    ``Runner.run``, such as ``max_turns``. ``options`` are those of ``BestOfN``: ``evaluate=Tests("pytest -q")``,
    ``judge``, ``commit=False``. ``timeout_s`` limits each command. Raises ImportError without the SDK, and ValueError
    for a ``session``, which runs cannot share.
    """
    from agents import Agent, Runner

    from forkwise.explore.best_of_n import BestOfN
    from forkwise.fork.attempt import current_attempt

    arguments = runner or {}
    if arguments.get("session") is not None:
        raise ValueError("the runs cannot share a session: continue with result.to_input_list()")
    results: dict[int, Any] = {}

    async def attempt(_directory: Path, number: int) -> bool:
        running = current_attempt()
        assert running is not None
        branch = running.own_branch
        own = await _build(agent, branch, number) if not isinstance(agent, Agent) else agent
        tools = make_tools(branch, confinement=confinement, timeout_s=timeout_s)
        results[running.index] = await Runner.run(own.clone(tools=[*own.tools, *tools]), prompt, **arguments)
        return True

    options.setdefault("has_prompt", True)
    outcome = await BestOfN(attempt, n, **options).run(
        os.fspath(workspace) if isinstance(workspace, os.PathLike) else workspace
    )
    return AgentRuns(outcome, results)


async def _build(factory: Callable[[Branch, int], Any], branch: Branch, number: int) -> Any:
    made = factory(branch, number)
    return await made if inspect.isawaitable(made) else made
