"""A process that runs a pattern is killed at random moments: the fork can be resumed, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counts import IS_FULL, rounds
from tests.explore import kill_at_random

_SHARES = rounds(1, 2)
_ROUNDS = rounds(5, 100)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(_SHARES))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("FORKWISE_STATE", None)
    report = subprocess.run(
        [sys.executable, kill_at_random.__file__, str(tmp_path), str(_ROUNDS), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert report.returncode == 0, report.stderr[-3000:]
    assert report.stderr == ""  # keeps errors of the killed program's children off the terminal
    first, *rest = map(json.loads, report.stdout.splitlines())
    before, after = first["before"], first["after"]
    assert after["chosen"] == "3\n"
    assert "gone" not in after
    assert len(rest) == 2 * _ROUNDS
    seen = set()
    for found, then in zip(rest[::2], rest[1::2], strict=True):
        assert found["found"] in (before, after)
        assert found["left"] == []
        assert (then["branches"], then["mounts"], then["unfinished"]) == ([], [], [])
        if then["state"] == "interrupted":
            assert then["winner"] == 2
        assert then["content"] == (before if then["state"] == "none" else after)
        seen.add(then["state"])
    assert seen <= {"interrupted", "resolved", "none"}
    assert not IS_FULL or {"interrupted", "resolved"} <= seen  # a few kills may all come early or late
