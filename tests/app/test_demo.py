"""``make demo``: it ends as it began, and leaves nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from forkwise.app import demo
from forkwise.app.cli.output import Output


def test_it_shows_three_diffs_and_ends_as_it_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo.main() == 0
    said = capsys.readouterr().out
    for text in ("What annotate did", "What return-text did", "What start-over did", "exactly as before"):
        assert text in said
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_it_cleans_up_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_home: Path, _output: Output) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "demo", fails)
    assert demo.main() == 130
    assert list(tmp_path.iterdir()) == []
