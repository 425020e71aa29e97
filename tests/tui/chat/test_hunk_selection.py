"""A fork of a chat resolved hunk by hunk: accepted, rejected, previewed with its tests, then merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.tui.chat.pickers import MergePicker
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.decide import PreviewScreen
from forkwise.tui.diff_view import NwayScreen
from forkwise.tui.widgets import QuestionScreen
from tests.acceptance import write_accepted
from tests.chat.scripted_chat import call
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration

PARENT = "one\ntwo\nthree\nfour\nfive\n"


def _edits(branch: str, **changes: str) -> dict[str, Any]:
    content = PARENT
    for old, new in changes.items():
        content = content.replace(old, new)
    calls = [
        call("write", path="list.txt", content=content),
        call("write", path=f"{branch}.txt", content=f"{branch}\n"),
    ]
    return {"branch": branch, "steps": [{"calls": calls}, {"say": f"{branch} is done."}]}


RULES: list[dict[str, Any]] = [
    _edits("first", one="1"),
    _edits("second", five="5", one="ONE"),
    {"judge": True, "error": "no judge today"},
]


def test_hunks_of_several_branches_are_merged(project: Path) -> None:
    (project / "list.txt").write_text(PARENT)
    write_accepted(project / ".forkwise/config.toml", '[chat]\ntest = "grep -q 5 list.txt"\n')

    async def script(scene: ChatScene) -> None:
        await scene.write("/nway")
        await scene.notifies("no fork is open")
        await scene.write("/fork first: go | second: go")
        await scene.branches()
        await scene.write("/nway no-such")
        await scene.notifies("no branch that has ended changed no-such")

        # From the merge picker: all files. A choice that fails the tests is committed only after a confirmation.
        await scene.write("/merge")
        await scene.comes_to(MergePicker)
        await scene.press("w")
        await scene.comes_to(NwayScreen)
        await scene.shows("file 1 of 3", "first.txt")
        await scene.press("space", "enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("✗ tests: ", "from first", "+first")
        await scene.press("enter")
        await scene.shows("Its tests fail. Commit anyway?")
        await scene.press("escape", "escape")
        await scene.comes_to(NwayScreen)
        await scene.shows("accepted: 1 file")
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        assert scene.chat.stage.is_forked

        # By path: the beginning of the first branch's file, the end of the second's.
        await scene.write("/nway list.txt")
        await scene.comes_to(NwayScreen)
        await scene.shows("parent", "│first", "│second", "-one", "+1")
        await scene.press("space", "down", "right", "space")
        await scene.shows("accepted: 2 hunks")
        await scene.press("enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("✓ tests: ", "from first, second", "+1", "+5")
        assert (project / "list.txt").read_text() == PARENT
        await scene.press("enter")
        await scene.comes_to(ChatScreen)
        await scene.shows("· Merged: kept branches first, second · 1 file", "first is done.", "second is done.")
        assert (project / "list.txt").read_text() == "1\ntwo\nthree\nfour\n5\n"
        assert not (project / "first.txt").exists()
        await until(lambda: Workspace(project).branches() == [])
        await scene.write("/undo")
        await scene.shows("· Undone: the merge of fork")
        assert (project / "list.txt").read_text() == PARENT

    chatting(project, script, RULES)


def test_executable_configuration_is_asked_about(project: Path) -> None:
    steps = [{"calls": [call("write", path=".envrc", content="x\n")]}, {"say": "Done."}]

    async def choose(scene: ChatScene, answer: str) -> None:
        await scene.write("/nway")
        await scene.comes_to(NwayScreen)
        await scene.press("space", "enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("+x")
        await scene.press("enter")
        await scene.comes_to(QuestionScreen)
        await scene.shows("what your machine will run", ".envrc: direnv")
        await scene.press(answer)
        await scene.comes_to(ChatScreen)

    async def script(scene: ChatScene) -> None:
        await scene.write("/fork first: go | second: go")
        await scene.branches()
        await choose(scene, "escape")
        assert scene.chat.stage.is_forked
        await choose(scene, "y")
        await until((project / ".envrc").exists)

    chatting(project, script, [{"branch": "first", "steps": steps}, {"branch": "second", "say": "Nothing."}])


def test_a_file_changed_meanwhile_is_not_overwritten(project: Path) -> None:
    (project / "list.txt").write_text(PARENT)

    async def script(scene: ChatScene) -> None:
        await scene.write("/fork first: go | second: go")
        await scene.branches()
        await scene.write("/nway list.txt")
        await scene.comes_to(NwayScreen)
        await scene.press("space", "enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("✓ not tested", "+1")
        (project / "list.txt").write_text("mine\n")
        await scene.press("enter")
        await scene.comes_to(ChatScreen)
        await scene.shows("· Merged: kept branch first")
        assert (project / "list.txt").read_text() == "mine\n"
        kept = [branch for branch in Workspace(project).branches() if "conflicts" in branch.name]
        assert [(branch.path / "list.txt").read_text() for branch in kept] == ["1\ntwo\nthree\nfour\nfive\n"]
        kept[0].abort()

    chatting(project, script, RULES)
