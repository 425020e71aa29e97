"""ChatApp: the Textual application of a chat.

It draws its first frame before a session is loaded, and exits only after the session has stopped everything it runs.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.notifications import SeverityLevel

from forkwise.display.output import printable
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.widgets import DetachableDriver, ThemedApp

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = ["ChatApp", "SessionOpener", "chat_in_panels"]

#: Opens a session; called with ``listener``.
SessionOpener = Callable[..., Awaitable["Session"]]

_CONFIRM_S = 3.0  # seconds in which a second ctrl+c ends the chat
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChatApp(ThemedApp):
    """A chat in a terminal.

    ``failure`` is the error that kept it from starting or ending, ``ended_by`` the signal that ended it.
    """

    # The chat has a line for notices. On the other screens, at the bottom they would cover keys and input.
    CSS = "ToastRack { dock: top; align: right top; } ChatScreen ToastHolder { display: none; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "stop", show=False, priority=True),
        Binding("ctrl+q", "leave", "quit", show=False, priority=True),
        Binding("ctrl+t", "theme", "light/dark", show=False, priority=True),
    ]

    def __init__(self, open_session: SessionOpener) -> None:
        super().__init__(driver_class=DetachableDriver)
        self.failure: Exception | None = None
        self.ended_by: signal.Signals | None = None
        self.chat = ChatScreen()
        self._open_session = open_session
        self._start_task: asyncio.Task[None] | None = None
        self._leave_task: asyncio.Task[None] | None = None
        self._is_confirming = False

    def on_mount(self) -> None:
        """Show the chat screen, and start the session after the first frame."""
        self.push_screen(self.chat)
        self.call_after_refresh(self._start)

    # Starting and closing run in tasks of their own: a worker would be cancelled with its screen.

    def _start(self) -> None:
        if self._leave_task is None:
            self._start_task = asyncio.create_task(self._start_session())

    async def _start_session(self) -> None:
        try:
            session = await self._open_session(listener=self.chat.show_event)
        except Exception as error:  # noqa: BLE001 - raised again after the terminal has been restored
            self.failure = error
            self.action_leave()
            return
        if not self.is_headless:
            gc.freeze()  # a garbage collection that walks all loaded modules would delay keys
        self.chat.begin(session)

    def handle_signal(self, number: signal.Signals) -> None:
        """End the chat because of a signal."""
        self.ended_by = number
        self.call_later(self.action_leave)  # the loop calls this method outside of the application's context

    def on_chat_screen_session_ended(self, _: ChatScreen.SessionEnded) -> None:
        """Leave when the session has ended."""
        self.action_leave()

    def action_leave(self) -> None:
        """End the chat; an open fork is kept for the next one."""
        if self._leave_task is None:
            self.chat.status.show_state("leaving …")
            self._leave_task = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        try:
            await self.close_session()
        except Exception as error:  # noqa: BLE001 - raised again after the terminal has been restored
            self.failure = error
        self.exit(return_code=0 if self.failure is None else 1)

    async def close_session(self) -> None:
        """Close the session, after it has started if it is just starting."""
        if self._start_task is not None and not self._start_task.done():
            await asyncio.wait([self._start_task])
        if self.chat.session is not None:
            await self.chat.session.close()

    async def wait_closed(self) -> None:
        """Wait until the session is closed, however the application was left."""
        if self._leave_task is None:
            await self.close_session()
        else:
            await self._leave_task

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a notice: in the chat's own line, or over another screen."""
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)
        self.chat.show_notice(message, severity, self.NOTIFICATION_TIMEOUT if timeout is None else timeout)

    # Keys

    def action_interrupt(self) -> None:
        """Copy the selected text; else stop the turn, and end the chat when pressed twice."""
        selected = self.screen.get_selected_text()
        if selected:
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
        elif self._is_confirming:
            self.action_leave()
        else:
            self._is_confirming = True
            self.set_timer(_CONFIRM_S, self._stop_confirming)
            was_busy = self.chat.session is not None and self.chat.session.interrupt()
            self.notify(f"{'stopped; ' if was_busy else ''}ctrl+c once more ends the chat", timeout=_CONFIRM_S)

    def _stop_confirming(self) -> None:
        self._is_confirming = False


async def chat_in_panels(open_session: SessionOpener) -> signal.Signals | None:
    """Run a chat in this terminal until the user leaves it.

    Returns the signal that ended it, if one did. Raises the error that kept it from starting or ending.
    """
    app = ChatApp(open_session)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, app.handle_signal, number)
    try:
        await app.run_async()
    finally:
        await app.wait_closed()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if app.failure is not None:
        raise app.failure
    left = app.chat.left
    if left is not None:
        labels = ", ".join(left.branches)
        print(printable(f"fork {left.fork} is still open ({labels}): the next chat continues it"))
    return app.ended_by
