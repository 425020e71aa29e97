"""Live forks under attack: killed between two writes, decided twice, ended while they are merged, called odd names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agents.live.cutting import POINTS

pytestmark = pytest.mark.anyio

A = {"a.txt": "one\n"}
X = A | {"both.txt": "x", "x.txt": "x"}
Y = A | {"both.txt": "y", "y.txt": "y"}


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the next process made of each kill."""
    home = tmp_path_factory.mktemp("cut")
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    environment.pop("FORKWISE_STATE", None)
    told = subprocess.run(
        [sys.executable, "-m", "tests.agents.live.cutting", str(home)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert told.returncode == 0, told.stderr[-3000:]
    return dict(zip(POINTS, map(json.loads, told.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    ("point", "outcome", "how"),
    [
        ("pick, decided", Y, "pick"),
        ("pick, committed", Y, "pick"),
        ("combine, decided", X | Y, "combination"),
        ("combine, committed", X | Y, "combination"),
        ("override, before", X, "vote"),
        ("override, meant", Y, "override"),
        ("override, undone", Y, "override"),
        ("override, committed", Y, "override"),
    ],
)
def test_a_kill_between_two_writes(
    cut: dict[str, dict[str, Any]], point: str, outcome: dict[str, str], how: str
) -> None:
    """What was decided is carried out, with its conversation; nothing of the rest is left."""
    told = cut[point]
    assert told["content"] == outcome
    assert (told["branches"], told["hidden"], told["mounts"]) == ([], [], [])
    [[state, winner, commit]] = told["forks"]
    assert (state, winner) == ("resolved", {"pick": "2", "combination": None, "vote": "1", "override": "2"}[how])
    assert commit is not None
    assert told["how"] == [how]
    if how != "vote":
        assert "done: write y.txt y" in told["said"]


@pytest.mark.parametrize("point", ["rewind, begun", "rewind, half"])
def test_a_rewind_that_was_cut_short_is_finished_by_who_comes_next(cut: dict[str, dict[str, Any]], point: str) -> None:
    told = cut[point]
    assert told["opened"] == told["content"] == A | {"both.txt": "0"}
