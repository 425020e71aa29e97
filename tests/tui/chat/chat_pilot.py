"""Chats without a terminal: a session with a scripted model, keys to press, and ways to wait for the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from textual.events import Key
from textual.screen import Screen

from forkwise.chat import open_session
from forkwise.tui.chat.app import ChatApp
from forkwise.tui.chat.screen import ChatScreen
from tests.chat.scripted_chat import write_script
from tests.tui.pilot import Scene

__all__ = ["ChatScene", "chatting", "until"]

PATIENCE = 60.0


async def until(is_so: Callable[[], object], why: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, why()
        await asyncio.sleep(0.03)  # the condition may draw the screen, which is slow


class ChatScene(Scene):
    """A chat under test."""

    @property
    def chat(self) -> ChatScreen:
        assert isinstance(self.app, ChatApp)
        return self.app.chat

    async def write(self, text: str) -> None:
        """Type a line into the prompt and send it."""
        await self.comes_to(ChatScreen)
        self.chat.prompt.text = text
        await self.press("enter")

    def burst(self, *keys: str) -> None:
        """Press keys all at once, as they arrive over a slow connection."""
        for key in keys:
            self.app.post_message(Key(key, key if len(key) == 1 else None))

    async def shows(self, *texts: str) -> None:
        await until(
            lambda: all(text in self.text for text in texts),
            lambda: f"not shown: {texts}\n{self.text}\n{self.notifications}",
        )

    async def hides(self, text: str) -> None:
        """Wait until a text has left the screen."""
        await until(lambda: text not in self.text, lambda: f"still shown: {text}\n{self.text}")

    async def notifies(self, text: str) -> None:
        await until(lambda: text in self.notifications, lambda: f"no {text!r} in {self.notifications}\n{self.text}")

    async def comes_to(self, kind: type[Screen[Any]]) -> None:
        await until(
            lambda: isinstance(self.screen, kind), lambda: f"{self.screen} is up\n{self.text}\n{self.notifications}"
        )
        await self.pilot.pause()

    async def branch(self, label: str, state: str) -> None:
        """Wait until a branch is in a state."""
        panels = self.chat.stage.panels
        await until(lambda: label in panels and panels[label].state == state, lambda: self.text)

    async def branches(self, state: str = "done") -> None:
        """Wait until all branches are in a state."""
        stage = self.chat.stage
        await until(
            lambda: stage.panels and all(panel.state == state for panel in stage.panels.values()), lambda: self.text
        )


def chatting(
    project: Path,
    script: Callable[[ChatScene], Awaitable[None]],
    rules: list[dict[str, Any]] | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    **options: Any,
) -> ChatApp:
    """Run a script on a chat, end the chat, check that nothing keeps running, and return the app."""
    room = project.parent / "script"
    room.mkdir(exist_ok=True)
    model = write_script(room, rules)

    async def run() -> ChatApp:
        failed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        app = ChatApp(partial(open_session, project, model=model, **options))
        async with app.run_test(size=size, notifications=True) as pilot:
            scene = ChatScene(app, pilot)
            await until(lambda: app.chat.session is not None, lambda: repr(app.failure))
            await script(scene)
            app.action_leave()
            await app.wait_closed()
        # A cancelled task needs a few turns of the event loop to end.
        await until(lambda: len(asyncio.all_tasks()) == 1, lambda: f"{asyncio.all_tasks()}")
        assert failed == [], failed
        return app

    return asyncio.run(run())
