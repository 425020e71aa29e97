"""A fork without files: attempts succeed, fail and are cancelled, and one of them is decided for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forkwise import BestOfN, Workspace
from forkwise.errors import ForkResolvedError
from forkwise.fork.attempt import Attempt, current_attempt
from forkwise.fork.candidate import Candidate
from forkwise.fork.fork import ForkSettings
from forkwise.fork.memory_fork import MemoryFork

pytestmark = pytest.mark.anyio


async def _good(_: Path) -> bool:
    return True


async def _bad(_: Path) -> bool:
    raise ValueError("no")


async def _endless(_: Path) -> bool:
    await asyncio.Event().wait()
    return True


def _add(fork: MemoryFork, *functions: Any) -> list[Attempt]:
    return [fork.add(Candidate(function.__name__, function), n) for n, function in enumerate(functions)]


async def test_attempts_end_in_their_own_ways_and_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with MemoryFork("live", ForkSettings(max_parallel=3)) as fork:
        good, bad, endless = _add(fork, _good, _bad, _endless)
        await fork.run([good, bad])
        assert (good.state, bad.state, bad.reason, endless.state) == (
            "succeeded",
            "failed",
            "ValueError: no",
            "running",
        )
        await fork.decide(good, "pick")
        assert (endless.state, endless.reason) == ("cancelled", "another attempt won")
        with pytest.raises(ForkResolvedError):
            await fork.decide(bad, "pick")
        assert fork.ledger.fork(fork.id).winner == good.id
    assert [record.state for record in fork.ledger.attempts(fork.id)] == ["succeeded", "failed", "cancelled"]
    assert list(tmp_path.iterdir()) == []


async def test_a_fork_that_is_left_undecided_is_aborted() -> None:
    async with MemoryFork("live") as fork:
        [endless] = _add(fork, _endless)
        await asyncio.sleep(0)
    assert endless.state == "cancelled"
    assert fork.ledger.fork(fork.id).stored == "aborted"
    with pytest.raises(RuntimeError, match="no parent"):
        _ = fork.parent


async def test_a_candidate_that_ignores_its_cancellation_is_abandoned() -> None:
    async def stubborn(_: Path) -> bool:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return True

    stop = asyncio.Event()
    async with MemoryFork("live", ForkSettings(max_parallel=2)) as fork:
        attempt, good = _add(fork, stubborn, _good)
        await fork.run([good])
        await fork.decide(good, "pick")
        assert attempt.state == "cancelled"
    stop.set()


async def test_a_fork_inside_an_attempt_shares_its_ledger() -> None:
    inner: list[MemoryFork] = []

    async def forks(_: Path) -> bool:
        async with MemoryFork("live") as fork:
            inner.append(fork)
            [good] = _add(fork, _good)
            await fork.run([good])
            await fork.decide(good, "pick")
        return True

    async with MemoryFork("live") as outer:
        [attempt] = _add(outer, forks)
        await outer.run([attempt])
        assert attempt.success
        assert inner[0].ledger is outer.ledger
        assert [fork.id for fork in outer.ledger.children(attempt.id)] == [inner[0].id]


async def test_a_pattern_on_a_directory_inside_an_attempt_in_memory(tmp_path: Path) -> None:
    """An attempt in memory has no branch, so that a directory named inside is the directory itself."""

    def write(path: Path) -> bool:
        (path / "made.txt").write_text("x")
        return True

    async def explores(_: Path) -> bool:
        assert current_attempt() is not None
        outcome = await asyncio.to_thread(BestOfN([write]), Workspace(tmp_path))
        return outcome.committed

    async with MemoryFork("live") as fork:
        [attempt] = _add(fork, explores)
        await fork.run([attempt])
        assert attempt.success, attempt.reason
    assert (tmp_path / "made.txt").exists()
