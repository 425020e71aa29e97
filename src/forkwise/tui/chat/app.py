"""ChatApp: the terminal of a chat, from its first frame, before anything heavy is loaded, until nothing of it runs."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from forkwise.display.output import printable
from forkwise.tui.chat.screen import ChatScreen, ListeningScreen
from forkwise.tui.widgets import LastingDriver

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = ["ChatApp", "Opening", "chat_in_panels"]

#: Opens a session; is called with ``listener``.
Opening = Callable[..., Awaitable["Session"]]

_WARNED = 3.0  # seconds in which a second ctrl+c ends the chat
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChatApp(App[None]):
    """A chat in a terminal. ``failure`` is what it could not begin or end for, ``ended_by`` the signal that ended
    it."""

    TITLE = "forkwise"
    ENABLE_COMMAND_PALETTE = False
    CSS = "ToastRack { dock: top; align: right top; }"  # not over what is being written
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "stop", show=False, priority=True),
        Binding("ctrl+q", "leave", "quit", show=False, priority=True),
        Binding("ctrl+t", "theme", "light/dark", show=False, priority=True),
    ]

    def __init__(self, opening: Opening) -> None:
        super().__init__(driver_class=LastingDriver)
        self.failure: Exception | None = None
        self.ended_by: signal.Signals | None = None
        self.chat = ChatScreen()
        self._opening = opening
        self._beginning: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._is_warned = False

    def on_mount(self) -> None:
        """Show something, then begin."""
        self.push_screen(self.chat)
        self.call_after_refresh(self._begin)

    # Beginning and ending: in tasks that no screen takes down with it

    def _begin(self) -> None:
        if self._leaving is None:
            self._beginning = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            session = await self._opening(listener=self.chat.show_event)
        except Exception as error:  # noqa: BLE001 - it is raised again when the terminal is as it was
            self.failure = error
            self.action_leave()
            return
        if not self.is_headless:
            gc.freeze()  # what was loaded stays; to look through all of it now and then keeps a key waiting
        self.chat.begin(session)

    def signalled(self, number: signal.Signals) -> None:
        """Somebody wants it to end."""
        self.ended_by = number
        self.action_leave()

    def on_listening_screen_over(self, _: ListeningScreen.Over) -> None:
        """The session has ended."""
        self.action_leave()

    def action_leave(self) -> None:
        """End the chat; a fork that is open is kept for the next one."""
        if self._leaving is None:
            self.chat.status.tell("leaving …")
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        try:
            await self.close_session()
        except Exception as error:  # noqa: BLE001 - it is raised again when the terminal is as it was
            self.failure = error
        self.exit(return_code=0 if self.failure is None else 1)

    async def close_session(self) -> None:
        """Let nothing of the session run on, begun or not."""
        if self._beginning is not None and not self._beginning.done():
            await asyncio.wait([self._beginning])
        if self.chat.session is not None:
            await self.chat.session.close()

    async def ended(self) -> None:
        """Wait until nothing runs, however the terminal was left."""
        if self._leaving is None:
            await self.close_session()
        else:
            await self._leaving

    # Keys

    def action_interrupt(self) -> None:
        """End the turn under way; once more, and end the chat. What is marked with the mouse is copied instead."""
        marked = self.screen.get_selected_text()
        if marked:
            self.copy_to_clipboard(marked)
            self.screen.clear_selection()
        elif self._is_warned:
            self.action_leave()
        else:
            self._is_warned = True
            self.set_timer(_WARNED, self._forget)
            was_busy = self.chat.session is not None and self.chat.session.interrupt()
            self.notify(f"{'stopped; ' if was_busy else ''}ctrl+c once more ends the chat", timeout=_WARNED)

    def _forget(self) -> None:
        self._is_warned = False

    def action_theme(self) -> None:
        """Light, or dark."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"


async def chat_in_panels(opening: Opening) -> signal.Signals | None:
    """Chat in this terminal until somebody ends it; gives the signal that did, if one did. Raises what it could not
    begin or end for."""
    app = ChatApp(opening)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, app.signalled, number)
    try:
        await app.run_async()
    finally:
        await app.ended()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if app.failure is not None:
        raise app.failure
    left = app.chat.left
    if left is not None:
        print(
            printable(f"fork {left.fork} is kept undecided ({', '.join(left.branches)}): the next chat goes on with it")
        )
    return app.ended_by
