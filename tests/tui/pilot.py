"""Panels without a terminal: a fork that records decisions instead of running them, and ways to wait for the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from textual.app import App
from textual.notifications import Notification, Notifications
from textual.pilot import Pilot
from textual.screen import Screen

from forkwise.display.board import Row
from forkwise.files.store.changes import Commit, OnConflict
from forkwise.fork.combine import Combined, Prepared
from forkwise.ledger.records import ForkRecord, Summary
from forkwise.tui.fork_model import ForkSnapshot
from forkwise.tui.watch import WatchApp, WatchScreen
from tests.tui.scripted_fork import ScriptedFork

__all__ = ["COMMIT", "RecordingFork", "Scene", "play", "until", "watching"]

COMMIT = Commit(3, "commit", "/main/k3f9ab-0", datetime(2026, 1, 1, tzinfo=UTC), added=("a.txt",))


class RecordingFork(ScriptedFork):
    """The scripted fork. It records decisions in ``decisions``, and answers them with ``outcomes`` of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[tuple[Any, ...]] = []
        self.outcomes: list[Any] = []
        self.fields: dict[str, Any] = {}
        self.state = "running"
        self.rows: list[Row] | None = None
        self.printed: dict[str, bytes] = {}
        self.stepped: dict[str, list[str]] = {}
        self.others: list[Summary] = []
        self.looks = 0

    def read(self) -> ForkSnapshot:
        self.looks += 1
        look = super().read()
        fork = replace(look.fork, **{"id": self.fork, **self.fields})
        return ForkSnapshot(fork, self.state, look.rows if self.rows is None else tuple(self.rows))

    def output(self, attempt: str, start: int) -> tuple[int, bytes]:
        text = self.printed.get(attempt, b"")
        return len(text), text[start:]

    def steps(self, attempt: str, after: int) -> tuple[int, str] | None:
        lines = self.stepped.get(attempt)
        return None if lines is None else (len(lines), "".join(f"{line}\n" for line in lines[after:]))

    def forks(self) -> list[Summary]:
        return self.others

    def read_commit(self, fork: ForkRecord) -> str:
        return f"diff of commit {fork.commit}"

    def pick(
        self,
        attempt: str,
        *,
        on_conflict: OnConflict = "refuse",
        force: bool = False,
        allow_executable_config: bool | None = None,
    ) -> Commit:
        return self._record("pick", attempt, on_conflict, force, *_list_allowed(allow_executable_config))

    def combine(
        self, attempts: Sequence[str], *, force: bool = False, allow_executable_config: bool | None = None
    ) -> Combined:
        return self._record("combine", tuple(attempts), force, *_list_allowed(allow_executable_config))

    def commit(
        self, prepared: Prepared, *, on_conflict: OnConflict = "refuse", allow_executable_config: bool | None = None
    ) -> Commit:
        return self._record("commit", prepared.diff, on_conflict, *_list_allowed(allow_executable_config))

    def drop(self, prepared: Prepared) -> None:
        self._record("drop")

    def abort(self) -> None:
        self._record("abort")

    def abort_attempt(self, attempt: str) -> None:
        self._record("end", attempt)

    def undo(self, commit: int) -> Commit:
        return self._record("undo", commit)

    def _record(self, *decision: Any) -> Any:
        self.decisions.append(decision)
        outcome = self.outcomes.pop(0) if self.outcomes else COMMIT
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _list_allowed(allow_executable_config: bool | None) -> list[str]:
    return ["allowed"] if allow_executable_config else []


class RecordedNotifications(Notifications):
    """The notifications of an app. ``messages`` keeps those that have expired, which they do after a few seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def add(self, notification: Notification) -> Self:
        self.messages.append(str(notification.message))
        return super().add(notification)


@dataclass
class Scene:
    """An app under test."""

    app: App[Any]
    pilot: Pilot[Any]

    @property
    def screen(self) -> Screen[Any]:
        return self.app.screen

    @property
    def watch(self) -> WatchScreen:
        assert isinstance(self.screen, WatchScreen)
        return self.screen

    def __post_init__(self) -> None:
        self._record = self.app._notifications = RecordedNotifications()

    @property
    def notifications(self) -> str:
        """All notifications since the start, also those that are not shown any more."""
        return "\n".join(self._record.messages)

    @property
    def text(self) -> str:
        """The text on the screen."""
        lines = self.screen._compositor.render_strips(self.app.size)
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def shows(self, text: str) -> None:
        """Wait until the screen shows a text."""
        await until(lambda: text in self.text, lambda: f"{text!r} is not shown:\n{self.text}")

    async def notifies(self, text: str) -> None:
        """Wait for a notification."""
        await until(lambda: text in self.notifications, lambda: f"no {text!r} in {self.notifications}\n{self.text}")

    async def comes_back(self) -> None:
        """Wait until the watch screen is on top."""
        await self.comes_to(WatchScreen)

    async def sees(self, is_so: Callable[[ForkSnapshot], bool]) -> None:
        """Wait until a condition holds for the last snapshot of the fork."""
        await until(
            lambda: self.watch.snapshot is not None and is_so(self.watch.snapshot), lambda: f"{self.watch.snapshot}"
        )

    async def comes_to(self, kind: type[Screen[Any]]) -> None:
        """Wait until a screen of this kind is on top."""
        await until(lambda: isinstance(self.screen, kind), lambda: f"{self.screen} is up")
        await self.pilot.pause()


async def until(is_so: Callable[[], bool], why: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if is_so():
            return
        await asyncio.sleep(0.03)  # the condition may draw the screen, which is slow
    raise AssertionError(why())


def play(app: App[Any], script: Callable[[Scene], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    """Run a script on an app."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await script(Scene(app, pilot))

    asyncio.run(run())


def watching(fork: ScriptedFork, script: Callable[[Scene], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    """Run a script on the watch screen of a fork, once it shows the attempts."""

    async def begin(scene: Scene) -> None:
        await until(lambda: isinstance(scene.screen, WatchScreen) and scene.watch.table.row_count > 0)
        await script(scene)

    play(WatchApp(fork), begin, size)
