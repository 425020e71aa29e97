"""Kill a chat at certain moments, and report how the next chat recovers.

Runs as its own program with one thread, so that it can fork chats that have all modules loaded. Prints two JSON objects
for each moment: the next chat, and the leftovers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forkwise import Workspace
from forkwise.chat.events import as_json
from forkwise.chat.forks import Forks
from forkwise.chat.merges import Merges
from forkwise.chat.session import Session
from forkwise.chat.storage import StoredChat
from forkwise.fork.control import clean_up
from forkwise.fork.fork import Fork
from tests.chat.scripted_chat import chatting, write_script
from tests.explore.kill_at_random import find_mounts, read_files, run_in_process, wait_for_exit

MERGE = ("hello", "/fork task", "/merge b")

#: The submitted lines, and the method and number of the call in which the process is killed.
MOMENTS: dict[str, tuple[tuple[str, ...], type, str, int]] = {
    "in a turn": (("hello", "write it"), StoredChat, "save", 5),
    "forked, and not noted": (("hello", "/fork task"), Forks, "_register", 1),
    "while branches run": (("hello", "/fork a: task until | b: task", "/merge a"), Forks, "graft", 1),
    "decided, and not committed": (MERGE, Fork, "_commit", 1),
    "merged, and not noted": (MERGE, Merges, "continue_as", 1),
    "an undo started": ((*MERGE, "/undo"), Merges, "_undo_files", 1),
    "undone, and not noted": ((*MERGE, "/undo"), Merges, "_record_undo", 1),
    "loaded, and not noted": (("write it", "more of it", "/load"), StoredChat, "graft", 1),
    "overridden, and not noted": ((*MERGE[:2], "/merge vote", "/override a"), Merges, "continue_as", 2),
}


def kill_in(owner: type, name: str, call: int) -> None:
    """Kill this process when a method is called for the nth time."""
    method = getattr(owner, name)
    calls = 0

    def kill_or_call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **options)

    setattr(owner, name, kill_or_call)


async def _submit(session: Session, line: str) -> None:
    if line == "/load":
        line = f"/load {(await session.checkpoints())[1].id}"
    await session.submit(line)


async def chat(project: Path, model: str, lines: tuple[str, ...]) -> None:
    async with chatting(project, model) as (session, log):
        for line in lines:
            await _submit(session, line)
        raise AssertionError(f"the chat was not killed: {[as_json(event) for event in log]}")


async def resume(project: Path, model: str) -> dict[str, Any]:
    """Report what the next chat finds, and whether it answers."""
    async with chatting(project, model) as (session, log):
        report: dict[str, Any] = {
            "prompts": [line.text for line in session.said() if line.who == "user"],
            "answer": session.last_answer,
            "fork": [view.label for view in session.branches()],
            "files": {name: text for name, text in read_files(project).items() if name != "a.txt"},
            "last_merge": session.last_merge is not None,
        }
        if session.fork is not None:
            await session.submit("/merge b")
        await session.submit("hello again")
        report["then"] = session.last_answer
        report["files then"] = {name: text for name, text in read_files(project).items() if name != "a.txt"}
        report["events"] = [as_json(event) for event in log]
    return report


def print_report(work: Callable[[], dict[str, Any]]) -> None:
    print(json.dumps(work()), flush=True)


def list_leftovers(project: Path) -> dict[str, Any]:
    """List the branches and mounts that remain after cleaning up dead processes."""
    workspace = Workspace(project, durable=False)
    clean_up(workspace)
    return {"branches": [branch.branch_path for branch in workspace.branches()], "mounts": find_mounts(project.parent)}


def main() -> None:
    root = Path(sys.argv[1])
    for number, (lines, owner, name, call) in enumerate(MOMENTS.values()):
        directory = root / str(number)
        project = directory / "project"
        project.mkdir(parents=True)
        (project / "a.txt").write_text("one\n")
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        model = write_script(directory)

        def chat_until_killed(project: Path = project, model: str = model, lines: tuple[str, ...] = lines) -> None:
            kill_in(owner, name, call)  # noqa: B023 - called before the next iteration
            asyncio.run(chat(project, model, lines))

        assert wait_for_exit(run_in_process(chat_until_killed)) == -signal.SIGKILL, lines
        (directory / "a").touch()
        resumed = run_in_process(lambda: print_report(lambda: asyncio.run(resume(project, model))))  # noqa: B023
        assert wait_for_exit(resumed) == 0, lines
        assert wait_for_exit(run_in_process(lambda: print_report(lambda: list_leftovers(project)))) == 0, lines  # noqa: B023


if __name__ == "__main__":
    main()
