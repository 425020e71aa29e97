"""Storage for tests: one that runs its callers in a chosen order, one that damages what is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from obstore.store import MemoryStore

__all__ = ["Interleaved", "Wrapped"]


class Wrapped:
    """A store in memory whose every call goes through ``before``; the times of old marks are two hours back."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.old_marks: set[str] = set()
        self.damaged: dict[str, Callable[[bytes], bytes | None]] = {}

    def before(self) -> None:
        """Do nothing; subclasses wait here for their turn."""

    def put(self, path: str, file: bytes, *, mode: Any = None) -> Any:
        self.before()
        return self.inner.put(path, file, mode=mode or "overwrite")

    def get(self, path: str) -> Any:
        self.before()
        found = self.inner.get(path)
        damage = self.damaged.get(path)
        return found if damage is None else _Answer(damage(bytes(found.bytes())))

    def head(self, path: str) -> Any:
        self.before()
        return self._age(self.inner.head(path))

    def list(self, prefix: str | None = None) -> Any:
        self.before()
        return [[self._age(row) for batch in self.inner.list(prefix) for row in batch]]

    def delete(self, paths: Any) -> Any:
        self.before()
        return self.inner.delete(paths)

    def _age(self, row: Any) -> Any:
        is_old = row["path"] in self.old_marks
        return {**row, "last_modified": row["last_modified"] - timedelta(hours=2 if is_old else 0)}


class _Answer:
    def __init__(self, content: bytes | None) -> None:
        self._content = content

    def bytes(self) -> bytes:
        return self._content or b""


class Interleaved(Wrapped):
    """A store that lets one of its callers proceed at a time; some of them are much slower than others."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._changed = threading.Condition()
        self._waiting: dict[int, bool] = {}
        self._running: set[int] = set()

    def before(self) -> None:
        own = threading.get_ident()
        if own not in self._running:
            return
        with self._changed:
            self._waiting[own] = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting[own])
            del self._waiting[own]

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs in threads until all have ended, one call of the store at a time."""
        order: list[int] = []

        def work(job: Callable[[], None]) -> None:
            own = threading.get_ident()
            with self._changed:
                self._running.add(own)
                order.append(own)
                self._changed.notify_all()
            try:
                job()
            finally:
                with self._changed:
                    self._running.discard(own)
                    self._changed.notify_all()

        threads = []
        for number, job in enumerate(jobs):  # one after the other, so that their order is always the same
            threads.append(threading.Thread(target=work, args=(job,)))
            threads[-1].start()
            with self._changed:
                self._changed.wait_for(lambda number=number: len(order) > number)
        pace = {own: self._random.choice((1, 1, 5, 30)) for own in order}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running == {t for t, may in self._waiting.items() if not may})
                if not self._running:
                    break
                ready = [own for own in order if own in self._running]
                if self._random.random() < 0.1:
                    pace[self._random.choice(ready)] = self._random.choice((1, 1, 5, 30))
                self._waiting[self._random.choices(ready, [pace[own] for own in ready])[0]] = True
                self._changed.notify_all()
        for thread in threads:
            thread.join()
