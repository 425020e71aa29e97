"""Chats that are killed at a certain moment, and what the next one finds and makes of it.

Run as a program of its own, with one thread, so that it can fork chats that have everything loaded already. Prints one
JSON object for each moment.
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
from tests.explore.kill_at_random import apart, content, done, mounts

MERGE = ("hello", "/fork task", "/merge b")

#: What was being done, and where it was killed: in the first call of a method, or in a later one.
MOMENTS: dict[str, tuple[tuple[str, ...], type, str, int]] = {
    "in a turn": (("hello", "write it"), StoredChat, "save", 5),
    "forked, and not noted": (("hello", "/fork task"), Forks, "_begin", 1),
    "while branches run": (("hello", "/fork a: task until | b: task", "/merge a"), Forks, "graft", 1),
    "decided, and not committed": (MERGE, Fork, "_commit", 1),
    "merged, and not noted": (MERGE, Merges, "go_on_as", 1),
    "an undo begun": ((*MERGE, "/undo"), Merges, "_take_back", 1),
    "undone, and not noted": ((*MERGE, "/undo"), Merges, "_taken_back", 1),
    "loaded, and not noted": (("write it", "more of it", "/load"), StoredChat, "graft", 1),
    "overridden, and not noted": ((*MERGE[:2], "/merge vote", "/override a"), Merges, "go_on_as", 2),
}


def dies_in(owner: type, name: str, call: int) -> None:
    """Have this process killed when a method is called for the nth time."""
    method = getattr(owner, name)
    calls = 0

    def dying(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **options)

    setattr(owner, name, dying)


async def _do(session: Session, line: str) -> None:
    if line == "/load":
        line = f"/load {(await session.checkpoints())[1].id}"
    await session.submit(line)


async def chat(project: Path, model: str, lines: tuple[str, ...]) -> None:
    async with chatting(project, model) as (session, heard):
        for line in lines:
            await _do(session, line)
        raise AssertionError(f"nobody killed this: {[as_json(event) for event in heard]}")


async def go_on(project: Path, model: str) -> dict[str, Any]:
    """What the next chat finds, and whether it can be talked with."""
    async with chatting(project, model) as (session, heard):
        told: dict[str, Any] = {
            "prompts": [line.text for line in session.said() if line.who == "user"],
            "answer": session.last_answer,
            "fork": [view.label for view in session.branches()],
            "files": {name: text for name, text in content(project).items() if name != "a.txt"},
            "last_merge": session.last_merge is not None,
        }
        if session.fork is not None:
            await session.submit("/merge b")
        await session.submit("hello again")
        told["then"] = session.last_answer
        told["files then"] = {name: text for name, text in content(project).items() if name != "a.txt"}
        told["events"] = [as_json(event) for event in heard]
    return told


def tell(work: Callable[[], dict[str, Any]]) -> None:
    print(json.dumps(work()), flush=True)


def left(project: Path) -> dict[str, Any]:
    """What is left when dead processes are cleared up."""
    workspace = Workspace(project, durable=False)
    clean_up(workspace)
    return {"branches": [branch.branch_path for branch in workspace.branches()], "mounts": mounts(project.parent)}


def main() -> None:
    home = Path(sys.argv[1])
    for number, (lines, owner, name, call) in enumerate(MOMENTS.values()):
        room = home / str(number)
        project = room / "project"
        project.mkdir(parents=True)
        (project / "a.txt").write_text("one\n")
        os.environ["XDG_STATE_HOME"] = str(room / "state")
        model = write_script(room)

        def killed(project: Path = project, model: str = model, lines: tuple[str, ...] = lines) -> None:
            dies_in(owner, name, call)  # noqa: B023 - it is called before the next round
            asyncio.run(chat(project, model, lines))

        assert done(apart(killed)) == -signal.SIGKILL, lines
        (room / "a").touch()
        assert done(apart(lambda: tell(lambda: asyncio.run(go_on(project, model))))) == 0, lines  # noqa: B023
        assert done(apart(lambda: tell(lambda: left(project)))) == 0, lines  # noqa: B023


if __name__ == "__main__":
    main()
