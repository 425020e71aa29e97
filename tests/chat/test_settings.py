"""Settings in a file into which users and agents can write anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkwise.chat.settings import Settings, SettingsError, load_settings, save_settings, settings_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = settings_path(tmp_path)
    path.parent.mkdir()
    return path


@pytest.mark.parametrize(
    "text",
    [
        "[chat", "chat = 1", "[chat]\nbranches = 0", "[chat]\nbranches = true", "[chat]\nbranches = 99",
        "[chat]\nbranch_budget = nan", "[chat]\nfork_budget = 'x'", "[chat]\nmodels = {a = 'x'}",
        "[chat]\nmodels = {99 = 'x'}", "[chat]\nmodel = ''", "[chat]\nask = 'execute'", "[chat]\nunknown = 1",
        "x = " + "[" * 5000,
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(tmp_path: Path, file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(tmp_path)
    assert str(file) in str(caught.value)
    assert caught.value.path == str(file)


def test_a_file_that_is_not_regular_is_refused_at_once(tmp_path: Path, file: Path) -> None:
    os.mkfifo(file)
    for work in (load_settings, lambda directory: save_settings(directory, Settings())):
        with pytest.raises(SettingsError, match="not a regular file"):
            work(tmp_path)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(SettingsError, match="cannot read"):
        load_settings(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsError):
        load_settings(tmp_path)
    file.rmdir()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError):
        load_settings(tmp_path)
    file.write_text("#" * 2_000_000)
    with pytest.raises(SettingsError, match="at most"):
        load_settings(tmp_path)


def test_the_rest_of_the_file_stays(tmp_path: Path, file: Path) -> None:
    written = Settings(branches=3, fork_budget=1.5, models={2: "local"}, judge="test", ask=("execute",))
    save_settings(tmp_path, written)
    assert load_settings(tmp_path) == written
    file.write_text(f"# a word first\n{file.read_text()}\n[another]\nkey = 1  # and one last\n")
    save_settings(tmp_path, Settings(branches=4, judge="test"))
    assert load_settings(tmp_path) == Settings(branches=4, judge="test")
    assert file.read_text().startswith("# a word first\n")
    assert file.read_text().endswith("[another]\nkey = 1  # and one last\n")
    assert [entry.name for entry in file.parent.iterdir()] == ["config.toml"]
