"""Feed: tells open pages that something changed, as server-sent events.

One thread per workspace waits for the ledger's events while a page is open; without an open page nothing runs. A
message only names what changed, and the page fetches those parts again, so that a slow page cannot fall behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkwise.concurrency import post
from forkwise.errors import LedgerError

if TYPE_CHECKING:
    from forkwise.ledger.change_watch import ChangeWatch
    from forkwise.ledger.records import ForkRecord
    from forkwise.web.catalogue import Catalogue, ServedWorkspace

__all__ = ["EventFeed"]

_PACE_S = 0.15
_PROGRESS_S = 1.0  # between two checks of what the ledger does not announce: output, and processes that died
_MOST_EVENTS = 1000
_PING_S = 15.0
_SETTLE_S = 0.05  # to send several changes at once


@dataclass(eq=False)
class _Listener:
    """One open page. ``fork`` is what it shows; None is the list of all forks. ``after`` is the last event in it."""

    loop: asyncio.AbstractEventLoop
    fork: str | None
    after: int = -1
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    names: set[str] = field(default_factory=set)

    def add(self, name: str) -> None:
        self.names.add(name)
        self.wake.set()


class EventFeed:
    """The changes of all workspaces of a server."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._watchers = {served.key: _Watcher(served) for served in catalogue}
        self.is_closed = False

    def close(self) -> None:
        """End all streams and threads."""
        self.is_closed = True
        for watcher in self._watchers.values():
            watcher.close()

    async def follow(self, key: str | None = None, fork: str | None = None, after: int = -1) -> AsyncIterator[str]:
        """Yield the messages for a page, of one fork or of all workspaces, that shows events up to ``after``."""
        listener = _Listener(asyncio.get_running_loop(), fork, after)
        watchers = [one for name, one in self._watchers.items() if key in (None, name)]
        for watcher in watchers:
            watcher.add(listener)
        try:
            yield "retry: 1000\nevent: open\ndata: \n\n"
            while not self.is_closed:
                try:
                    await asyncio.wait_for(listener.wake.wait(), _PING_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                await asyncio.sleep(_SETTLE_S)
                listener.wake.clear()
                names, listener.names = listener.names, set()
                for name in sorted(names):
                    yield f"event: {name}\ndata: \n\n"
        finally:
            for watcher in watchers:
                watcher.remove(listener)


class _Watcher:
    """Waits for the events of one ledger while it has listeners."""

    def __init__(self, served: ServedWorkspace) -> None:
        self._served = served
        self._listeners: set[_Listener] = set()
        self._new: set[_Listener] = set()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, listener: _Listener) -> None:
        with self._lock:
            self._listeners.add(listener)
            self._new.add(listener)
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"feed {self._served.key}", daemon=True)
                self._thread.start()

    def remove(self, listener: _Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            self._new.discard(listener)
            if not self._listeners:
                self._wanted.clear()

    def close(self) -> None:
        self._is_closed = True
        self._wanted.set()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            _wake(listener, "closed")

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.wait()
            with self._served.ledger.watch_changes() as watch:
                self._follow(watch)

    def _follow(self, watch: ChangeWatch) -> None:
        """Report changes to the listeners, as long as there are any."""
        ledger = self._served.ledger
        seen: int | None = None
        progress: dict[str, object] = {}
        looked = 0.0
        while self._wanted.is_set() and not self._is_closed:
            with suppress(LedgerError):  # the ledger cannot be read right now: the next check retries
                if seen is None:
                    seen = ledger.last_event()
                events = ledger.events(after=seen, limit=_MOST_EVENTS)
                if events:
                    seen = events[-1].seq
                    self._tell({event.fork for event in events}, "fork")
                self._welcome(seen)
                if time.monotonic() - looked > _PROGRESS_S:
                    looked = time.monotonic()
                    found = self._look()
                    self._tell({name for name in found if found[name] != progress.get(name)}, "progress")
                    self._tell({name for name in progress if name not in found}, "fork")
                    progress = found
            watch.wait(_PACE_S, _PROGRESS_S / 2)

    def _welcome(self, seen: int) -> None:
        """Tell new listeners to fetch again if something changed after their page was rendered."""
        with self._lock:
            listeners, self._new = self._new, set()
        for listener in listeners:
            if listener.after != seen:
                _wake(listener, "fork")

    def _look(self) -> dict[str, object]:
        """Return what the ledger has no events for: the progress of attempts, and whether a fork's process is alive."""
        found: dict[str, object] = {}
        for fork in self._served.ledger.forks(state="running"):
            found[fork.id] = self._measure(fork)
        return found

    def _measure(self, fork: ForkRecord) -> object:
        with self._lock:
            origin = (_find_origin(fork) or "").partition(".")[0]
            is_wanted = any(one.fork in (None, fork.id, origin) for one in self._listeners)
        if not is_wanted:
            return None
        return [(a.id, a.files, a.output_bytes, a.last_line) for a in self._served.ledger.attempts(fork.id)]

    def _tell(self, forks: set[str], name: str) -> None:
        if not forks:
            return
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            if listener.fork is None or listener.fork in forks or self._is_around(listener.fork, forks):
                _wake(listener, name)

    def _is_around(self, outer: str, forks: set[str]) -> bool:
        """Return whether one of these forks was made inside an attempt of ``outer``, or follows up on one.

        Also True if the ledger cannot be read right now: an unnecessary fetch is better than an outdated page.
        """
        try:
            for name in forks:
                parent = _find_origin(self._served.ledger.fork(name))
                while parent is not None:
                    fork = parent.partition(".")[0]
                    if fork == outer:
                        return True
                    parent = _find_origin(self._served.ledger.fork(fork))
        except LedgerError:
            return True
        return False


def _find_origin(fork: ForkRecord) -> str | None:
    """Return the attempt that a fork was made in, or that it follows up on."""
    base = fork.spec.get("base")
    return fork.parent or (base if isinstance(base, str) else None)


def _wake(listener: _Listener, name: str) -> None:
    post(listener.loop, listener.add, name)
