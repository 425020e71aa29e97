"""A conversation in a terminal: streamed, stopped, and continued from a checkpoint."""

from __future__ import annotations

import asyncio
import tomllib
from functools import partial
from pathlib import Path

import pytest

from forkwise.chat import open_session
from forkwise.tui.chat.app import ChatApp
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.widgets import ChoiceScreen, PageScreen
from tests.chat.scripted_chat import write_script
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration


def test_messages_and_the_output_of_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(ChatApp, "copy_to_clipboard", lambda _, text: copied.append(text))

    async def script(scene: ChatScene) -> None:
        await scene.shows("say something · /help", "0 tokens · 0 checkpoints")
        scene.burst(*"write it", "enter")
        await scene.shows("> write it", "I will.", "tool: write x.txt", "wrote x.txt", "Wrote it.")
        await scene.shows("1 checkpoint ·")
        assert (project / "x.txt").read_text() == "X\n"
        for command, *texts in (
            ("/help", "/fork [TASK | LABEL: TASK | …]", "/merge"),
            ("/help merge", "resolve the fork"),
            ("/cost", "2 requests"),
            ("/tokens", " out"),
            ("/version", "0."),
        ):
            await scene.write(command)
            await scene.comes_to(PageScreen)
            await scene.shows(*texts, "esc back")
            await scene.press("escape")
        await scene.write("/copy")
        await until(lambda: copied == ["Wrote it."])
        await scene.write("/fork-branches 4")
        await scene.shows("· fork_branch_count = 4")
        await scene.write("/fork-budget per-branch 0.25")
        await scene.shows("· per-branch budget = $0.25")
        config = tomllib.loads((project / ".forkwise/config.toml").read_text())
        assert config["chat"] == {"branches": 4, "branch_budget": 0.25}
        await scene.write("/no-such")
        await scene.notifies("there is no command /no-such")
        await scene.write("/merge")
        await scene.notifies("no fork is open")

    chatting(project, script)


def test_going_back_to_a_checkpoint(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.write("/load")
        await scene.notifies("there is no checkpoint yet")
        await scene.write("hello")
        await scene.shows("how are you?")
        await scene.write("write it")
        await scene.shows("Wrote it.")
        await scene.write("/load")
        await scene.comes_to(ChoiceScreen)
        await scene.press("escape")
        await scene.comes_to(ChatScreen)
        assert "Wrote it." in scene.text
        await scene.write("/load")
        await scene.comes_to(ChoiceScreen)
        await scene.press("end", "enter")
        await scene.hides("Wrote it.")
        assert not (project / "x.txt").exists()

    chatting(project, script)


def test_stopping_and_leaving(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        await scene.write("wait for it")
        await scene.shows("● answering")
        await scene.write("/fork")
        await scene.notifies("the agent is running")
        await scene.press("escape")
        await scene.shows("· interrupted")
        await scene.hides("● answering")
        await scene.write("wait for it")
        await scene.shows("● answering")
        await scene.press("ctrl+c")
        await scene.notifies("stopped; ctrl+c once more ends the chat")
        await scene.hides("● answering")
        await scene.press("ctrl+c")
        session = scene.chat.session
        assert session is not None
        await until(lambda: session.is_closed)

    app = chatting(project, script)
    assert app.return_code == 0


def test_quit_saves_the_conversation(project: Path) -> None:
    async def first(scene: ChatScene) -> None:
        await scene.write("hello")
        await scene.shows("how are you?")
        await scene.write("break it")
        await scene.shows("out of order")
        await scene.write("/quit")
        session = scene.chat.session
        assert session is not None
        await until(lambda: session.is_closed)

    async def second(scene: ChatScene) -> None:
        await scene.shows("> hello", "Hi there,", "how are you?")
        await scene.press("ctrl+t")
        assert not scene.app.current_theme.dark
        await scene.press("ctrl+q")

    chatting(project, first)
    chatting(project, second)


def test_before_the_session_is_open(project: Path) -> None:
    go = asyncio.Event()
    model = write_script(project.parent)

    async def slow(**options: object) -> object:
        await go.wait()
        return await open_session(project, model=model, **options)  # type: ignore[arg-type]

    async def run() -> None:
        app = ChatApp(slow)  # type: ignore[arg-type]
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            scene = ChatScene(app, pilot)
            await scene.shows("starting …")
            await scene.write("hello")
            await scene.press("escape", "ctrl+y", "tab")
            await scene.notifies("still starting")
            go.set()
            await scene.shows("> hello", "how are you?")
            await scene.press("ctrl+q")
            await until(lambda: app.chat.session is not None and app.chat.session.is_closed)

    asyncio.run(run())


def test_a_model_that_is_not_available(project: Path) -> None:
    async def run() -> ChatApp:
        app = ChatApp(partial(open_session, project, model="script:none.toml"))
        async with app.run_test():
            await until(lambda: app.failure is not None)
        return app

    app = asyncio.run(run())
    assert "none.toml" in str(app.failure)
    assert app.return_code == 1
