"""Forks in a terminal: created, steered, prompted, terminated, judged and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from forkwise.tui.chat.approval import AcceptanceScreen
from forkwise.tui.chat.pickers import DiffPicker, ForkPicker, MergePicker
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.widgets import QuestionScreen
from tests.acceptance import write_accepted
from tests.chat.scripted_chat import SCRIPT, call
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration

FURTHER: list[dict[str, Any]] = [
    {"when": "^also", "branch": "a", "say": "Handled errors too."},
    {"when": "^shorter", "branch": "a", "say": "Made it shorter."},
    *SCRIPT,
]


async def answered(scene: ChatScene, question: str, *keys: str) -> None:
    """Answer a question."""
    await scene.comes_to(QuestionScreen)
    await scene.shows(question)
    await scene.press(*keys)
    await scene.comes_to(ChatScreen)


def test_executable_configuration_is_asked_about(project: Path) -> None:
    steps = [{"calls": [call("write", path=".envrc", content="x\n")]}, {"say": "a is done."}]
    rules: list[dict[str, Any]] = [{"when": "^plan", "branch": "a", "steps": steps}, {"when": "^plan", "say": "b"}]

    async def script(scene: ChatScene) -> None:
        await scene.write("/fork a: plan | b: plan")
        await scene.branches()
        await scene.write("/merge a")
        await answered(scene, "This changes what your machine will run", "escape")
        assert scene.chat.stage.is_forked
        assert not (project / ".envrc").exists()
        await scene.write("/merge a")
        await answered(scene, ".envrc: direnv", "y")
        await scene.shows("Merged: kept branch a")
        assert (project / ".envrc").read_text() == "x\n"

    chatting(project, script, rules)


def test_the_fork_picker(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.write("/fork-budget per-branch 0.5")
        await scene.shows("per-branch budget = $0.50")
        await scene.write("/fork")
        await scene.comes_to(ForkPicker)
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        assert not scene.chat.stage.is_forked
        await scene.write("/fork")
        await scene.comes_to(ForkPicker)
        picker = scene.screen
        await scene.press("enter")
        await scene.shows("describe what at least one branch should try")
        await scene.press(*"task", "ctrl+up", "down", *"task b", "down", *"gone", "ctrl+down", "ctrl+up")
        assert [row.value for row in picker.query(Input).filter(".label")] == ["a", "b", "c"]
        assert [row.value for row in picker.query(Input).filter(".budget_usd")] == ["0.5"] * 3
        await scene.press("down", *"task c", "shift+tab", "backspace", "b", "enter")
        await scene.shows("two branches are called b")
        await scene.press("backspace", *"third", "tab", "tab", "tab", "tab", *"x", "enter")
        await scene.shows("x is not an amount of dollars above 0")
        await scene.press("backspace", *"0.5", "down", *"2", "up", "up", "enter")
        await scene.comes_to(ChatScreen)
        await scene.shows("[+ overview]", " a]", " b]", " third]", "FORK: 3")
        session = scene.chat.session
        assert session is not None
        views = session.branches()
        assert [(view.label, view.steer, view.budget_usd) for view in views] == [
            ("a", "task", 0.5),
            ("b", "task b", 0.5),
            ("third", "task c", 0.5),
        ]

    chatting(project, script)


def test_steer_prompt_and_merge(project: Path) -> None:
    go = project.parent / "script" / "a"

    async def script(scene: ChatScene) -> None:
        await scene.write("hello")
        await scene.shows("how are you?")
        await scene.write("/fork a: task until released | b: task")
        await scene.branch("b", "done")
        await scene.shows("[+ overview] [● a] [✓ b]", "FORK: 2 · 1● 1✓", "> task until released", "b wrote lib.txt.")
        await scene.write("anything")
        await scene.notifies("a fork is open")
        await scene.write("/fork")
        await scene.notifies("resolve it first")
        await scene.write("/fork-branches 3")
        await scene.write(">>nobody hurry")
        await scene.notifies("there is no branch 'nobody'")
        await scene.write("/merge")
        await scene.shows("judging …")
        await scene.press("escape")
        await scene.comes_to(MergePicker)
        await scene.shows("1 a  ● running", "2 b  ✓ done")
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        await scene.press("tab")
        await scene.shows("branch a · ● running · turn 1", "Waiting.", "tool: ls")
        await scene.write("also errors")
        await scene.notifies("a is still running: wait for it, or steer it with >>a")
        await scene.write(">>a shorter")
        await scene.notifies("a gets the message")
        go.touch()
        await scene.shows("> shorter", "Made it shorter.")
        await scene.branch("a", "done")
        await scene.write("also errors")
        await scene.shows("> also errors", "Handled errors too.", "branch a · ✓ done")
        await scene.press("tab")
        await scene.shows("branch b · ✓ done · turn 1")
        assert "Handled" not in scene.text
        await scene.press("shift+tab", "shift+tab")
        await scene.shows("b ✓ done")
        await scene.pilot.click("TabStrip", offset=(22, 0))
        await scene.shows("branch b ·")
        await scene.press("escape")
        await scene.notifies("b has ended; /merge resolves the fork")
        await scene.press("enter")
        await answered(scene, "keep b and drop the others?", "escape")
        await scene.press("enter")
        await answered(scene, "keep b and drop the others?", "y")
        await scene.shows("· Merged: kept branch b · 1 file", "> task", "b wrote lib.txt.", "> hello")
        await scene.hides("overview")
        assert (project / "lib.txt").read_text() == "from b\n"

    chatting(project, script, FURTHER)


def test_a_fork_left_open_is_continued(project: Path) -> None:
    async def first(scene: ChatScene) -> None:
        await scene.write("/fork a: task until released | b: task")
        await scene.branch("b", "done")
        await scene.press("tab")
        await scene.shows("branch a ·", "Waiting.")

    async def second(scene: ChatScene) -> None:
        await scene.shows("[+ overview]", " a]", "[✓ b]", "> task until released", "b wrote lib.txt.")
        await scene.press("shift+tab")
        await scene.shows("branch b · ✓ done", "tool: write lib.txt", "from b", "b wrote lib.txt.")
        await scene.write("/merge b")
        await scene.shows("· Merged: kept branch b · 1 file")

    app = chatting(project, first)
    assert app.chat.left is not None
    assert app.chat.left.branches == ("a", "b")
    chatting(project, second)


def test_terminate_and_abort(project: Path) -> None:
    steps = [{"say": "Waiting.", "calls": [call("ls")]}, {"until": "go"}]
    rules: list[dict[str, Any]] = [{"when": "task", "steps": steps}]

    async def script(scene: ChatScene) -> None:
        await scene.write("/fork task")
        await scene.shows("[● a] [● b]", "Waiting.")
        await scene.press("tab", "escape")
        await answered(scene, "terminate a?", "escape")
        await scene.press("escape")
        await answered(scene, "terminate a?", "y")
        await scene.shows("[⊘ a] [● b]", "branch a · ⊘ terminated")
        await scene.press("tab", "tab")
        await scene.pilot.click("Overview", offset=(60, 5))
        await scene.shows("branch b · ● running")
        await scene.press("tab", "escape")
        await answered(scene, "abort the entire fork?", "n")
        assert scene.chat.stage.is_forked
        await scene.press("escape")
        await answered(scene, "abort the entire fork?", "y")
        await scene.shows("· The fork was aborted")
        await scene.hides("overview")

    chatting(project, script, rules)


def test_accept_a_verdict(project: Path) -> None:
    write_accepted(project / ".forkwise/config.toml", '[chat]\ntest = "true"\n')

    async def script(scene: ChatScene) -> None:
        await scene.write("/fork task")
        await scene.branches()
        await scene.write("/merge")
        await scene.comes_to(AcceptanceScreen)
        await scene.shows("keep b · confidence", "b is shorter", "[enter] accept")
        await scene.press("d")
        await scene.comes_to(DiffScreen)
        await scene.shows("+from b")
        await scene.press("escape")
        await scene.comes_to(AcceptanceScreen)
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        assert scene.chat.stage.is_forked
        scene.chat.prompt.text = "/merge"
        scene.burst("enter", *"wait")
        await scene.shows("judged: send or clear the prompt")
        assert scene.chat.prompt.text == "wait"
        scene.chat.prompt.text = ""
        await scene.comes_to(AcceptanceScreen)
        await scene.press("H", "i")  # typed for the prompt, just after the screen opened
        await scene.comes_to(ChatScreen)
        await scene.shows("judged: send or clear the prompt")
        assert scene.chat.prompt.text == "Hi"
        scene.chat.prompt.text = ""
        await scene.comes_to(AcceptanceScreen)
        await scene.press("o")
        await scene.comes_to(MergePicker)
        await scene.shows("the judge (", "b is shorter", "2 b  ✓ done ← judge's choice", "+from b")
        await scene.press("up")
        await scene.shows("+from a")
        await scene.press("escape")
        await scene.write("/merge")
        await scene.comes_to(AcceptanceScreen)
        await scene.press("enter")
        await scene.shows("· Merged: kept branch b · 1 file")
        assert (project / "lib.txt").read_text() == "from b\n"

    chatting(project, script)


def test_pick_from_diffs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = project.parent / "seen"
    monkeypatch.setenv("FORKWISE_DIFFTOOL", f"cp -f {{branches}} {seen}")

    async def script(scene: ChatScene) -> None:
        await scene.write("/fork task")
        await scene.branches()
        await scene.write("/fork diff")
        await scene.comes_to(DiffPicker)
        await scene.shows("lib.txt  a, b", "1 ☑ a  2 ☑ b")
        await scene.press("2")
        await scene.shows("2 ☐ b")
        await scene.press("1", "enter")
        await scene.notifies("All branches that changed this file are excluded.")
        await scene.press("1", "enter")
        await until(lambda: seen.exists() and seen.read_text() == "from a\n")
        await scene.write("/merge")
        await scene.comes_to(MergePicker)
        await scene.shows("2 b  ✓ done ← judge's choice", "+from b")
        await scene.press("o")
        await until(lambda: seen.read_text() == "from b\n")
        await scene.press("c")
        await scene.notifies("Mark at least two branches")
        await scene.press("up", "space", "space")
        await scene.shows("▪1 a", "▪2 b")
        await scene.press("space", "pagedown", "pageup")
        await scene.shows(" 2 b")
        await scene.pilot.click("MergePicker OptionList", offset=(5, 1))
        await scene.shows("+from b")
        await scene.press("up")
        scene.burst("down", "up", "enter")
        await scene.shows("· Merged: kept branch a · 1 file")
        assert (project / "lib.txt").read_text() == "from a\n"

    chatting(project, script)


def test_a_fork_by_the_agent(project: Path) -> None:
    branches = [{"label": "x", "steer": "task x"}, {"label": "y", "steer": "task y"}]
    rules: list[dict[str, Any]] = [
        {"when": "^task", "branch": "x", "say": "x is ready."},
        {"when": "^task", "branch": "y", "say": "y is ready."},
        {"when": "^split", "steps": [{"calls": [call("fork_run", specs=branches)]}, {"say": "Look at them."}]},
    ]

    async def script(scene: ChatScene) -> None:
        await scene.write("split up")
        await scene.branches()
        await scene.shows("[✓ x] [✓ y]", "Look at them.", "> task x", "x is ready.", "y is ready.")
        assert "> split up" in scene.chat.stage.talk.text
        await scene.write("/fork")
        await scene.notifies("agent already forked — resolve it first")
        await scene.write("/merge y")
        await scene.shows("· Merged: kept branch y")
        await scene.hides("overview")

    chatting(project, script, rules)
