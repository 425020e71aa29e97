"""``make demo``: all fixes are judged, the best is committed and undone, and nothing is left behind."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forkwise.display.output import Output
from tools import demo

pytestmark = pytest.mark.integration


def test_the_smallest_fix_that_passes_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)
    done = subprocess.run([sys.executable, "-m", "tools.demo"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout
    assert "FAILED (failures=1)" in printed
    rows = re.findall(r"^\S+ +fixes/(\w+)\.sh +(\w+) .* (\d/2) ", printed, re.MULTILINE)
    assert rows == [
        ("wrong", "failed", "1/2"),
        ("breaks", "failed", "1/2"),
        ("long", "succeeded", "2/2"),
        ("short", "won", "2/2"),
    ]
    assert "cancelled" not in printed
    assert "+        total += -value if value < VALUES[following] else value" in printed
    assert "exactly as before" in printed
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(errors="surrogateescape")


def test_an_interrupted_demo_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_home: Path, _output: Output) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "demo", interrupt)
    assert demo.main() == 130
    assert list(tmp_path.iterdir()) == []
