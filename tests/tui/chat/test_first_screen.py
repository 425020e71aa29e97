"""The first screen of a chat, its notices, what it says about the model, and text that must not be lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai.profiles import ModelProfile
from textual.geometry import Region

from forkwise.chat import script
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.widgets import PageScreen
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration


def test_what_can_be_done_is_said_until_something_was_said(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.shows("forkwise chat", str(project)[:40], "script:", "(free)", "none is open")
        await scene.shows("/fork", "/merge", "/undo", "/help", "!make", "enter sends", "ctrl+q leaves")
        assert scene.chat.stage.welcome.display
        await scene.write("hello")
        await scene.shows("Hi there")
        assert not scene.chat.stage.welcome.display
        assert "ctrl+q leaves" not in scene.text

    chatting(project, script)


def test_a_chat_that_continues_shows_its_messages(project: Path) -> None:
    async def first(scene: ChatScene) -> None:
        await scene.write("hello")
        await scene.shows("Hi there")

    async def second(scene: ChatScene) -> None:
        await scene.shows("Hi there")
        assert not scene.chat.stage.welcome.display

    chatting(project, first)
    chatting(project, second)


def test_tiny_terminals(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        for size in ((40, 10), (8, 2), (80, 24)):
            await scene.pilot.resize_terminal(*size)
            await until(lambda size=size: scene.app.size == size)  # type: ignore[misc]
        await scene.shows("/fork")

    chatting(project, script, size=(20, 5))


def test_free_models_are_free(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        assert "unknown price" not in scene.text
        await scene.write("hello")
        await scene.shows("Hi there", "free · 56 tokens")
        assert "unknown price" not in scene.text
        await scene.write("/fork a: task | b: task")
        await scene.branches()
        await scene.shows("turn 1 · free")

    chatting(project, script)


def test_a_notice_covers_neither_the_prompt_nor_the_transcript(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.write("hello")
        await scene.shows("Hi there")
        scene.app.notify("x" * 300, severity="error", timeout=600)
        await until(lambda: scene.chat.notices.display and scene.chat.notices.region.height > 1)
        await scene.shows("xxxx", "Hi there", "how are you?")
        chat = scene.chat
        taken = chat.notices.region
        for widget in (chat.prompt, chat.stage.talk, chat.status):
            assert not taken.overlaps(widget.region)
        assert {toast.region.area for toast in scene.screen.query("Toast")} == {0}
        assert Region(0, 0, *scene.app.size).contains_region(taken)
        chat.notices.clear()
        await scene.hides("xxxx")

    chatting(project, script)


def test_typed_text_survives_overlays_tabs_and_refusals(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        prompt = scene.chat.prompt
        await scene.write("/fork a: task until | b: task")
        await scene.branch("b", "done")
        await scene.press(*"draft")
        await scene.press("tab")  # another tab
        assert prompt.text == "draft"
        scene.app.push_screen(PageScreen("page", "text"))
        await scene.comes_to(PageScreen)
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        assert prompt.text == "draft"
        await scene.press(*" two")
        assert prompt.text == "draft two"
        scene.chat.choose("a")  # it still runs, and takes no prompt
        await scene.press("enter")
        await scene.notifies("a is still running")
        assert prompt.text == "draft two"
        prompt.text = "/nonsense"
        await scene.press("enter")
        await scene.notifies("there is no command /nonsense")
        assert prompt.text == "/nonsense"
        prompt.text = ""
        (project.parent / "script" / "a").touch()
        await scene.branches()

    chatting(project, script)


def test_a_model_without_tools_says_so_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = script.load_script

    def load_without_tools(path: Path) -> object:
        model = load(path)
        model._profile = ModelProfile(supports_tools=False)
        model.__dict__.pop("profile", None)
        return model

    monkeypatch.setattr("forkwise.chat.services.load_script", load_without_tools)

    async def play(scene: ChatScene) -> None:
        await scene.shows("no tools: it only answers", "no tools · script")
        await scene.notifies("has no tools: it answers, but cannot read or change files")
        assert scene.chat.session is not None
        name = scene.chat.session.model_name
        await scene.write(f"/model {name}")
        await scene.shows("model =")
        assert scene.notifications.count("has no tools") == 1

    chatting(project, play)
