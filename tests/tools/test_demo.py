"""``make demo``: the right fix wins by the project's own tests, and all ends as it began."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forkwise.display.output import Output
from tools import demo


def test_the_right_fix_wins_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)
    done = subprocess.run([sys.executable, "-m", "tools.demo"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "FAILED (failures=1)" in said
    assert "2/2" in said
    assert "+        total += -value if value < VALUES[following] else value" in said
    assert "exactly as before" in said
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_it_cleans_up_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_home: Path, _output: Output) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "demo", fails)
    assert demo.main() == 130
    assert list(tmp_path.iterdir()) == []
