"""The scenes of a fork: ``forkwise speculate`` runs for real, and the panels of ``forkwise watch`` show its ledger.

Scripted programs with the names of coding agents are the attempts: each writes other files. Everything else is real:
the branches, the sandboxes, the tests, the ledger. Only the random id of the fork and the clock are replaced, because a
test compares the pictures byte by byte.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from forkwise.concurrency import run_in_thread
from forkwise.display.board import Row
from forkwise.tui.decide import PreviewScreen
from forkwise.tui.diff_view import DiffScreen, NwayScreen
from forkwise.tui.fork_model import ForkModel, ForkSnapshot
from forkwise.tui.watch import WatchApp, WatchScreen
from forkwise.tui.widgets import QuestionScreen
from tools.screenshots.picture import SIZE, ignore_terminal_colours, temporary_state, wait_for, wait_until_settled

__all__ = ["FORK_SCENES", "draw_fork"]

#: The scenes, in the order in which they are played.
FORK_SCENES = ("watch", "pick", "diff", "nway", "preview")

_FORK = "k3f9ab"
_STARTED = 1_800_000_000.0
_NOW = _STARTED + 75
#: Seconds after the start of the fork at which each attempt starts and ends.
_TIMES: tuple[tuple[float, float | None], ...] = ((0, 41), (0, 38), (38, 50), (41, 71), (50, None), (71, None))

_COMMANDS = (
    "claude -p 'use a hash table'",
    "claude -p 'keep rows sorted'",
    "codex exec 'write a skip list'",
    "codex exec 'write a B-tree'",
    "claude -p 'write an LSM tree'",
    "gemini -p 'cache the lookups'",
    "gemini -p 'the fastest way'",
)
#: The attempts in the order in which they end; the last is aborted with a key.
_SUCCEED, _FAIL, _ABORT = (1, 0), 2, 3
_AT_ONCE = 2

_STORE = '''\
class Store:
    """Rows, found by their key."""

    def __init__(self):
        self.rows = []

    def add(self, key, value):
        self.rows.append((key, value))

    def get(self, key):
        for k, v in self.rows:
            if k == key:
                return v
        return None

    def first(self):
        return min(self, default=None)

    def __iter__(self):
        return (row[0] for row in self.rows)
'''
_HASHED = (
    _STORE.replace("= []", "= {}")
    .replace("self.rows.append((key, value))", "self.rows[key] = value")
    .replace(
        "for k, v in self.rows:\n            if k == key:\n                return v\n        return None",
        "return self.rows.get(key)",
    )
    .replace("return (row[0] for row in self.rows)", "return iter(self.rows)")
)
_SORTED = (
    _STORE.replace("class Store", "import bisect\n\n\nclass Store")
    .replace("Rows, found", "Rows in order, found")
    .replace("self.rows.append((key, value))", "bisect.insort(self.rows, (key, value))")
    .replace("return min(self, default=None)", "return next(iter(self), None)")
)
_TESTS = """\
import unittest

from store import Store


class StoreTest(unittest.TestCase):
    def setUp(self):
        self.store = Store()
        self.store.add("b", 2)
        self.store.add("a", 1)

    def test_rows_are_found(self):
        self.assertEqual(self.store.get("b"), 2)

    def test_a_missing_key_has_no_row(self):
        self.assertIsNone(self.store.get("c"))

    def test_all_keys_are_listed(self):
        self.assertEqual(sorted(self.store), ["a", "b"])
"""
_README = "# Store\n\nA lookup reads all rows.\n"
_PROJECT = {"store.py": _STORE, "test_store.py": _TESTS, "README.md": _README}
_WRITTEN: dict[int, dict[str, str]] = {
    0: {"store.py": _HASHED, "README.md": _README.replace("reads all rows", "takes constant time")},
    1: {"store.py": _SORTED},
    2: {"skip_list.py": "class SkipList:\n"},
    3: {"tree.py": "class Node:\n"},
}
_PRINTED = {
    0: "I will keep the rows in a dictionary, so that a lookup need not read all of them.\n"
    "  edit store.py: Store.__init__, add, get and __iter__\n  edit README.md\n"
    "Done: a lookup takes constant time now.\n",
    1: "I will keep the rows sorted.\n  edit store.py\nDone: the first key is found at once.\n",
    2: "I will write a skip list.\n  write skip_list.py\nerror: the stream ended early\n",
}
_PRINTED_MEANWHILE = "Reading store.py\n"

_AGENT = r"""#!/bin/sh
scene=@SCENE@/$((FORKWISE_ATTEMPT - 1))
[ ! -d $scene/files ] || cp -r $scene/files/. .
cat $scene/printed
while [ ! -e $scene/end ]; do sleep 0.02; done
exit $(cat $scene/end)
"""


class _Clock(ForkModel):
    """A fork of the ledger with fixed times."""

    def now(self) -> float:
        """Return a fixed time."""
        return _NOW

    def read(self) -> ForkSnapshot | None:
        """Read the fork, and replace its times."""
        snapshot = super().read()
        if snapshot is None:
            return None
        fork = replace(snapshot.fork, started=_STARTED)
        return replace(snapshot, fork=fork, rows=tuple(map(_set_times, snapshot.rows)))


def _set_times(row: Row) -> Row:
    attempt = row.attempt
    if attempt.started is None:
        return row
    start, end = _TIMES[attempt.index]
    ended = None if end is None or attempt.ended is None else _STARTED + end
    return replace(row, attempt=replace(attempt, started=_STARTED + start, ended=ended))


async def draw_fork(themes: Mapping[str, str]) -> dict[str, str]:
    """Draw all pictures. Return them by scene and theme, such as ``watch-dark``."""
    with temporary_state() as scratch:
        project = scratch / "project"
        _write_files(project, _PROJECT)
        with _run_speculate(project, scratch) as scene_directory, ignore_terminal_colours():
            model = _Clock(project)
            app = WatchApp(model)
            app.animation_level = "none"
            try:
                async with app.run_test(size=SIZE) as pilot:
                    return await _Scenes(app, pilot, model, scene_directory, themes).play()
            finally:
                await run_in_thread(model.abort)
                model.close()


class _Scenes:
    """Presses the keys of a user, lets attempts end, and takes a picture of each scene."""

    def __init__(
        self,
        app: WatchApp,
        pilot: Pilot[None],
        model: ForkModel,
        scene_directory: Path,
        themes: Mapping[str, str],
    ) -> None:
        self.app = app
        self.pilot = pilot
        self.model = model
        self.scene_directory = scene_directory
        self.themes = themes
        self.drawn: dict[str, str] = {}

    async def play(self) -> dict[str, str]:
        """Play all scenes."""
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, WatchScreen))
        watch = self.app.screen
        assert isinstance(watch, WatchScreen)
        await self._wait_for_state(watch, 0, "running")
        for index in _SUCCEED:
            await self._end(watch, index, 0, "succeeded")
        await self._end(watch, _FAIL, 1, "failed")
        await self._abort(watch, _ABORT)
        for index in (_ABORT + 1, _ABORT + 2):
            await self._wait_for_progress(watch, index)
        await wait_for(self.pilot, lambda: watch.output.line_count > _PRINTED[0].count("\n") - 1)
        await self._take("watch")

        await self.pilot.press("p")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, QuestionScreen))
        await self._take("pick")
        await self._go_back(watch)

        await self.pilot.press("d")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, DiffScreen))
        await self._take("diff")
        await self._go_back(watch)

        await self.pilot.press("space", "space", "n")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, NwayScreen))
        await self.pilot.press("n", "down", "down", *["space", "down"] * 3, "right", "space", "down", "left", "space")
        await self._take("nway")

        def is_tested() -> bool:
            return isinstance(self.app.screen, PreviewScreen) and self.app.screen.prepared is not None

        await self.pilot.press("enter")
        await wait_for(self.pilot, is_tested)
        await self._take("preview")
        await self.pilot.press("escape")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, NwayScreen))
        return self.drawn

    async def _end(self, watch: WatchScreen, index: int, exit_code: int, state: str) -> None:
        """Let an attempt end."""
        await self._wait_for_state(watch, index, "running")
        target = self.scene_directory / str(index) / "end"
        target.with_suffix(".part").write_text(f"{exit_code}\n")
        target.with_suffix(".part").rename(target)
        await self._wait_for_state(watch, index, state)

    async def _abort(self, watch: WatchScreen, index: int) -> None:
        """Abort an attempt with the keys that a user presses."""
        await self._wait_for_state(watch, index, "running")
        await self.pilot.press(*["down"] * index, "x")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, QuestionScreen))
        await self.pilot.press("y")
        await self._wait_for_state(watch, index, "cancelled")
        await wait_for(self.pilot, lambda: self.app.screen is watch and not watch.activity)
        await self.pilot.press(*["up"] * index)

    async def _wait_for_state(self, watch: WatchScreen, index: int, state: str) -> None:
        def is_reached() -> bool:
            attempts = () if watch.snapshot is None else watch.snapshot.own
            return index < len(attempts) and attempts[index].state == state

        await wait_for(self.pilot, is_reached)

    async def _wait_for_progress(self, watch: WatchScreen, index: int) -> None:
        """Wait until the ledger has the last line of a running attempt, which is written at intervals."""
        await self._wait_for_state(watch, index, "running")

        def is_written() -> bool:
            assert watch.snapshot is not None
            return watch.snapshot.own[index].last_line == _PRINTED_MEANWHILE.strip()

        await wait_for(self.pilot, is_written)

    async def _go_back(self, watch: WatchScreen) -> None:
        await self.pilot.press("escape")
        await wait_for(self.pilot, lambda: self.app.screen is watch)

    async def _take(self, scene: str) -> None:
        self.app.clear_notifications()
        for name, theme in self.themes.items():
            self.app.theme = theme
            drawn = await wait_until_settled(self.pilot)
            assert self.model.fork is not None
            # Rich derives the names of CSS classes from the text, which contains the id.
            drawn = re.sub(r"\bterminal-\d+", f"{scene}-{name}", drawn)
            self.drawn[f"{scene}-{name}"] = drawn.replace(self.model.fork, _FORK)


@contextmanager
def _run_speculate(project: Path, scratch: Path) -> Iterator[Path]:
    """Run the fork for the block; yield the directory from which its attempts are controlled."""
    scene_directory, programs = scratch / "scene", scratch / "bin"
    for index in range(len(_COMMANDS)):
        _write_files(scene_directory / str(index) / "files", _WRITTEN.get(index, {}))
        (scene_directory / str(index) / "printed").write_text(_PRINTED.get(index, _PRINTED_MEANWHILE))
    _write_files(programs, {"claude": _AGENT.replace("@SCENE@", str(scene_directory))})
    (programs / "claude").chmod(0o755)
    for name in ("codex", "gemini"):
        (programs / name).symlink_to("claude")
    words = ["speculate", "--all", "--no-commit", "-q", "-j", str(_AT_ONCE), "--test", "python3 -m unittest"]
    lines = [word for command in _COMMANDS for word in ("-c", command)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from forkwise.cli import main; main()", *words, *lines],
        cwd=project,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield scene_directory
    finally:
        try:
            _, errors = process.communicate(timeout=60)  # the caller has aborted the fork
        except subprocess.TimeoutExpired:
            process.terminate()
            _, errors = process.communicate()
        if "Traceback" in errors:
            raise RuntimeError(f"forkwise speculate failed:\n{errors}")


def _write_files(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
