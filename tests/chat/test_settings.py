"""Settings in a file into which users and agents can write anything."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from forkwise.chat.settings import Settings, SettingsError, load_settings, save_settings, settings_path
from tests.acceptance import write_accepted


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The workspace."""
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def file(place: Path) -> Path:
    path = settings_path(place)
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
def test_invalid_settings_are_refused(place: Path, file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(place)
    assert str(file) in str(caught.value)
    assert caught.value.path == str(file)


def test_a_file_that_is_not_regular_is_refused_at_once(place: Path, file: Path) -> None:
    os.mkfifo(file)
    for work in (load_settings, lambda directory: save_settings(directory, Settings())):
        with pytest.raises(SettingsError, match="not a regular file"):
            work(place)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(SettingsError, match="cannot read"):
        load_settings(place)
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsError):
        load_settings(place)
    file.rmdir()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError):
        load_settings(place)
    file.write_text("#" * 2_000_000)
    with pytest.raises(SettingsError, match="at most"):
        load_settings(place)


def test_a_file_that_was_not_accepted_only_narrows(place: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place.parent / "config/forkwise/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[chat]\nask = ["write"]\nfork_budget = 3\nmodel = "local"\nbranches = 4\n')
    mine = Settings(ask=("write",), fork_budget=3, model="local", branches=4)
    assert load_settings(place) == mine
    file.write_text(
        '[chat]\nask = ["execute"]\nfork_budget = 9\nbranch_budget = 1\nmodel = "script:evil.json"\nbranches = 9\n'
        'judge = "script:evil.json"\ntest = "./evil"\nmodels = { 1 = "script:evil.json" }\n'
    )
    found = load_settings(place)
    assert found == replace(mine, ask=("write", "execute"), branch_budget=1)
    (note,) = found.notes
    assert str(file) in note
    assert "fork_budget, model, branches, judge, test, models; review and accept it with: forkwise trust" in note
    with pytest.raises(SettingsError, match="is not accepted"):
        save_settings(place, Settings(branches=3))
    file.write_text("[chat]\nbranches = 1\n")
    assert load_settings(place).branches == 1


@pytest.mark.parametrize("is_accepted", [True, False])
@pytest.mark.parametrize("text", ["[chat]\nask = []\n", "[chat]\nbranches = 2\n", "", None])
def test_approvals_and_budgets_stay_until_the_user_agrees(
    place: Path, file: Path, text: str | None, is_accepted: bool
) -> None:
    before = '[chat]\nask = ["execute", "write"]\nfork_budget = 2\n'
    if is_accepted:
        write_accepted(file, before)
    else:
        file.write_text(before)
    assert load_settings(place).ask == ("execute", "write")
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    for _ in range(2):
        found = load_settings(place)
        assert set(found.ask) == {"execute", "write"}
        assert found.fork_budget == 2
        assert any("former limits apply" in note for note in found.notes)
    write_accepted(file, text or "")
    assert load_settings(place) == Settings()
    assert load_settings(place).notes == ()


def test_a_long_list_displaces_no_approval(place: Path, file: Path) -> None:
    file.write_text('[chat]\nask = ["execute"]\n')
    load_settings(place)
    for number in range(5):
        file.write_text(f"[chat]\nask = {[f'{number}-{n}' * 20 for n in range(1500)]}\n")
        load_settings(place)
    file.unlink()
    assert load_settings(place).ask[0] == "execute"


def test_an_empty_list_of_approvals_that_nobody_accepted(place: Path, file: Path) -> None:
    file.write_text("[chat]\nask = []\n")
    assert load_settings(place).ask == ("execute",)


def test_what_the_user_saves_is_accepted(place: Path, file: Path) -> None:
    save_settings(place, Settings(branches=5, model="local"), ["branches"])
    assert load_settings(place) == Settings(branches=5)
    save_settings(place, Settings(branches=5, model="local"))
    assert load_settings(place) == Settings(branches=5, model="local")
    file.write_text(file.read_text().replace("5", "6"))
    assert load_settings(place) == Settings()


def test_the_rest_of_the_file_stays(place: Path, file: Path) -> None:
    written = Settings(branches=3, fork_budget=1.5, models={2: "local"}, judge="test", ask=("execute",))
    save_settings(place, written)
    assert load_settings(place) == written
    write_accepted(file, f"# a word first\n{file.read_text()}\n[another]\nkey = 1  # and one last\n")
    save_settings(place, Settings(branches=4, judge="test"))
    assert load_settings(place) == Settings(branches=4, judge="test")
    assert file.read_text().startswith("# a word first\n")
    assert file.read_text().endswith("[another]\nkey = 1  # and one last\n")
    assert [entry.name for entry in file.parent.iterdir()] == ["config.toml"]
