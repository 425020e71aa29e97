"""Feed: who listens to a chat, and how they are told what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forkwise.app.chat.events import Event

__all__ = ["Feed", "Listener"]

#: Is told of each event, on the event loop, one after the other. It must not block.
Listener = Callable[[Event], None]


class Feed:
    """Any number of listeners. One that fails does not keep the others, or the chat, from going on.

    >>> from forkwise.app.chat.events import Notice
    >>> feed, heard = Feed(), []
    >>> stop = feed.listen(heard.append)
    >>> feed.tell(Notice("hello")); stop(); feed.tell(Notice("nobody hears this"))
    >>> heard
    [Notice(text='hello')]
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._held: list[Event] | None = None

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have somebody told of all that happens from now on; gives what ends that."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._listeners.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep what is told until the block is over, or has told what comes first."""
        self._held = []
        try:
            yield
        finally:
            self._let_out()

    def tell_first(self, event: Event) -> None:
        """Tell everybody, and then what was held until now."""
        self._let_out(event)

    def _let_out(self, *first: Event) -> None:
        held, self._held = self._held or [], None
        for event in (*first, *held):
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Tell everybody."""
        if self._held is not None:
            self._held.append(event)
            return
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a face that fails to show something is no reason to stop
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a listener failed on {event!r}", "exception": error}
                )
