"""Tool calls that wait for approval, in every tab and while another screen is on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkwise.tui.chat.approval import ApprovalScreen
from forkwise.tui.chat.screen import ChatScreen
from tests.chat.scripted_chat import SCRIPT, call
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration


def _asks(branch: str) -> dict[str, Any]:
    steps = [{"calls": [call("write", path=f"{branch}.txt", content=branch)]}, {"say": f"{branch} is done."}]
    return {"when": "^task", "branch": branch, "steps": steps}


def test_approved_and_denied_in_every_tab(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.write("write it")
        await scene.shows("the agent asks: write(path=x.txt, content=X", "ctrl+y yes · ctrl+n no")
        await scene.write("y")
        await scene.notifies("the agent is running")
        assert not (project / "x.txt").exists()
        await scene.press("ctrl+y")
        await scene.shows("Wrote it.")
        await scene.hides("asks:")
        assert (project / "x.txt").read_text() == "X\n"
        await scene.write("/fork task")
        await scene.shows("[! a] [! b]", "asks: write(path=", "1 more", "FORK: 2 · 2!")
        await scene.press("tab", "tab")
        await scene.shows("branch b · ! asks", "b asks: write(path=b.txt, content=b)")
        await scene.press("ctrl+n")
        await scene.branch("b", "done")
        await scene.shows("[! a] [✓ b]", "a asks: write(path=a.txt, content=a)", "b is done.")
        await scene.press("ctrl+o")
        await scene.comes_to(ApprovalScreen)
        await scene.shows("path: a.txt", "content: a")
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        await scene.press("ctrl+o")
        await scene.comes_to(ApprovalScreen)
        await scene.press("y", "ctrl+y")
        await scene.branch("a", "done")
        await scene.hides("asks:")
        session = scene.chat.session
        assert session is not None
        report = session.choices.diff()
        assert [path.path for path in report.paths] == ["a.txt"]

    chatting(project, script, [_asks("a"), _asks("b"), *SCRIPT], ask=("write",))


def test_asked_while_another_screen_is_up(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.write("wait, then write")
        await scene.write("/help")
        (project.parent / "script" / "go").touch()
        await scene.notifies("the agent asks: write(path=x.txt, content=x)")
        await scene.press("ctrl+y", "ctrl+n")
        assert not (project / "x.txt").exists()
        await scene.press("escape")
        await scene.shows("the agent asks:")
        await scene.press("escape")
        await scene.shows("· interrupted")
        await until(lambda: scene.chat.approval.event is None)

    steps = [{"until": "go", "calls": [call("write", path="x.txt", content="x")]}, {"say": "Done."}]
    chatting(project, script, [{"when": "^wait", "steps": steps}], ask=("write",))
