"""Forks inside a branch survive their process: they are resumed, committed or aborted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.counts import IS_FULL, rounds
from tests.live.kill_nested import HOWS

_ROUNDS = rounds(2, 30)
_SPOKEN = 3  # responses of each nested branch


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The report of the next process for each kill."""
    home = tmp_path_factory.mktemp("nested")
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    environment.pop("FORKWISE_STATE", None)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.live.kill_nested", str(home), str(_ROUNDS), "7"],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.crash
def test_killed_at_any_moment_of_a_fork_inside_a_fork(result: list[dict[str, Any]]) -> None:
    first, *rest = result[len(HOWS) :]
    before, after = first["before"], first["after"]
    assert set(after) == {"j.txt", "after.txt"}
    assert len(rest) == 2 * _ROUNDS
    seen, inside = set(), set()
    for found, then in zip(rest[::2], rest[1::2], strict=True):
        assert found["found"] in (before, after)  # never half-merged
        assert (then["branches"], then["mounts"], then["open"], then["going"]) == ([], [], [], [])
        has_started = then["outcome"] in ("resumed", "completed") or found["found"] == after
        assert then["content"] == (after if has_started else before)
        if then["outcome"] == "resumed":
            assert then["lost"] == then["dropped"] == []
            assert then["spoken"] == [_SPOKEN, _SPOKEN]  # no message is repeated
            assert then["cost"]["a"] >= 2 * _SPOKEN + 4  # and all requests are counted
            inside.update(then["inside"])
        seen.add(then["outcome"])
    if IS_FULL:  # a few kills may all come early or late
        assert "resumed" in seen
        assert "interrupted" in inside


@pytest.mark.crash
def test_a_tool_that_repeats_its_fork_resumes_it(result: list[dict[str, Any]]) -> None:
    then = result[HOWS.index("again")]
    assert then["forks"] == [[True, "resolved"], [False, "resolved"]]  # and no other was made
    assert then["content"] == {"after.txt": "after", "quick.txt": "one", "slow.txt": "one"}
    assert (then["branches"], then["going"]) == ([], [])


@pytest.mark.crash
def test_a_fork_that_is_not_resumed_is_dropped_and_its_branch_is_writable(result: list[dict[str, Any]]) -> None:
    then = result[HOWS.index("otherwise")]
    assert then["forks"] == [[True, "resolved"], [False, "aborted"]]
    assert then["content"] == {"after.txt": "after"}
    assert (then["branches"], then["going"]) == ([], [])


@pytest.mark.crash
def test_an_open_fork_in_a_losing_branch_is_dropped(result: list[dict[str, Any]]) -> None:
    then = result[HOWS.index("merged")]
    assert then["forks"] == [[True, "resolved"], [False, "aborted"]]
    assert then["content"] == {}
    assert (then["branches"], then["going"]) == ([], [])
