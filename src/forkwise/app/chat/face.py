"""The face without panels: reads lines until there are no more, and prints what happens."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from forkwise.app.chat.events import Ended, Event, Notice
from forkwise.app.chat.feed import Listener
from forkwise.app.chat.interpreter import When
from forkwise.app.chat.opening import open_session
from forkwise.app.chat.session import Session

__all__ = ["chat_in_lines"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def chat_in_lines(
    directory: Path,
    show: Listener,
    *,
    model: str | None,
    conversation: str | None,
    is_new: bool,
    ask: Sequence[str],
    source: TextIO = sys.stdin,
) -> signal.Signals | None:
    """Chat until the lines end, or somebody does; gives the signal that ended it, if one did."""
    face = _Face(show, "soon" if source.isatty() else "in_order")
    session = await open_session(
        directory, model=model, conversation=conversation, is_new=is_new, ask=ask, listener=face.heard
    )
    with _handling(lambda number: face.signalled(session, number)):
        try:
            await face.read(session, source)
        finally:
            await session.close()
    if face.is_unheard:
        raise BrokenPipeError
    return face.ended_by


class _Face:
    def __init__(self, show: Listener, when: When) -> None:
        self._show = show
        self._over = asyncio.Event()
        self._is_warned = False
        self._when: When = when
        self.ended_by: signal.Signals | None = None
        self.is_unheard = False

    async def read(self, session: Session, source: TextIO) -> None:
        """Do what the lines ask for. Those that cannot be done now wait until they can."""
        lines = _lines_of(source)
        over = asyncio.create_task(self._over.wait())
        doing: set[asyncio.Task[None]] = set()
        try:
            while not over.done():
                following = asyncio.create_task(lines.get())
                await asyncio.wait({following, over}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                elif (line := following.result()) is not None:
                    self._is_warned = False
                    task = asyncio.create_task(session.submit(line, self._when))
                    doing.add(task)
                    task.add_done_callback(doing.discard)
                else:
                    session.nobody_answers()
                    await self._finished(doing)
                    return
        finally:
            over.cancel()
            session.interrupt()
            for task in list(doing):
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)

    async def _finished(self, doing: set[asyncio.Task[None]]) -> None:
        """Wait until all is done, or somebody ends the chat."""
        over = asyncio.ensure_future(self._over.wait())
        while doing and not over.done():
            await asyncio.wait({*doing, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()

    def heard(self, event: Event) -> None:
        """Show what happens. It may end the chat; and where nobody reads on, that ends it too."""
        try:
            if not self.is_unheard:
                self._show(event)
        except BrokenPipeError:
            self.is_unheard = True
        if isinstance(event, Ended) or self.is_unheard:
            self._over.set()

    def signalled(self, session: Session, number: signal.Signals) -> None:
        """The first Ctrl-C ends the turn under way, the second the chat; any other signal the chat at once."""
        if number is signal.SIGINT and not self._is_warned:
            self._is_warned = True
            if not session.interrupt():
                self.heard(Notice("Ctrl-C once more ends the chat"))
            return
        self.ended_by = number
        self._over.set()


def _lines_of(source: TextIO) -> asyncio.Queue[str | None]:
    """The lines of a file as they come, then None. Read in a thread that nobody waits for."""
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="replace")
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody wants more
            with suppress(OSError, ValueError):
                for line in source:
                    loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, name="forkwise chat input", daemon=True).start()
    return queue


class _handling:  # noqa: N801 - it is used as a function is
    """Have signals told to somebody within a block."""

    def __init__(self, told: Callable[[signal.Signals], None]) -> None:
        self._told = told

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._told, number)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
