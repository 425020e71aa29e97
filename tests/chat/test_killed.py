"""A killed chat is resumed: files and conversation match, whatever the moment of the kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat.kill_at_moment import MOMENTS
from tests.need import need_recorded_changes

pytestmark = pytest.mark.crash

B = {"lib.txt": "from b\n"}
MERGED = {"prompts": ["hello", "task"], "answer": "b wrote lib.txt.", "fork": [], "files": B, "last_merge": True}
BEFORE = {"prompts": ["hello"], "answer": "Hi there,\nhow are you?", "fork": [], "files": {}, "last_merge": False}
OPEN = {**BEFORE, "fork": ["a", "b"]}

#: What the next chat finds, the files after its next turn, and a part of its notice.
FOUND: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "in a turn": (
        {"prompts": ["hello", "write it"], "answer": "I will.", "fork": [], "last_merge": False},
        {"x.txt": "X\n"},
        "",
    ),
    "forked, and not noted": (OPEN, B, ""),
    "while branches run": (OPEN, B, ""),
    "decided, and not committed": (MERGED, B, "it is merged now"),
    "merged, and not noted": (MERGED, B, "continues from there"),
    "an undo started": (BEFORE, {}, "finished the undo"),
    "undone, and not noted": (BEFORE, {}, "finished the undo"),
    "loaded, and not noted": (
        {"prompts": ["write it"], "answer": "Wrote it.", "files": {"x.txt": "X\n"}},
        {"x.txt": "X\n"},
        "finished loading",
    ),
    "overridden, and not noted": (
        {"answer": "a wrote lib.txt.", "files": {"lib.txt": "from a\n"}, "last_merge": True},
        {"lib.txt": "from a\n"},
        "continues from there",
    ),
}


def test_killed_at_every_moment_that_counts(tmp_path: Path) -> None:
    (tmp_path / "like-the-project").mkdir()
    need_recorded_changes(tmp_path / "like-the-project")
    environment = {name: value for name, value in os.environ.items() if name != "FORKWISE_STATE"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.chat.kill_at_moment", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = list(map(json.loads, done.stdout.splitlines()))
    assert len(lines) == 2 * len(MOMENTS)
    for moment, found, leftovers in zip(MOMENTS, lines[::2], lines[1::2], strict=True):
        expected, files, notice = FOUND[moment]
        assert {name: found[name] for name in expected} == expected, moment
        assert (found["then"], found["files then"]) == ("Hi there,\nhow are you?", files), moment
        assert [event for event in found["events"] if event["event"] == "failed"] == [], moment
        notices = [event["text"] for event in found["events"] if event["event"] == "notice"]
        assert not notice or any(notice in text for text in notices), (moment, notices)
        assert leftovers == {"branches": [], "mounts": []}, moment
