"""Which configuration files are trusted, and files that an attempt may have prepared."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.config.config_file import (
    AGENTS,
    SETTINGS,
    ConfigFile,
    find_workspace_config,
    read_user_config,
    read_workspace_config,
)
from forkwise.config.trust import Acceptances
from forkwise.errors import ConfigError
from forkwise.files.executable_config import find_config_directory
from forkwise.files.store.state import locate
from forkwise.linux.syscalls import MS_BIND, mount, umount2
from tests.acceptance import write_accepted
from tests.need import need

TEXT = '[claude]\nwritable = ["~"]\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    (made / ".config/forkwise").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    return made


@pytest.fixture
def workspace(tmp_path: Path, home: Path) -> Path:
    made = tmp_path / "workspace"
    (made / ".forkwise").mkdir(parents=True)
    return made


def read(workspace: Path) -> ConfigFile:
    found = read_workspace_config(workspace, AGENTS)
    assert found is not None
    return found


def test_a_file_of_a_workspace_is_trusted_once_accepted_and_only_as_it_was(workspace: Path) -> None:
    path = find_workspace_config(workspace, AGENTS)
    assert read_workspace_config(workspace, AGENTS) is None
    path.write_text(TEXT)
    assert not read(workspace).is_trusted
    acceptances = Acceptances(workspace)
    acceptances.accept(path, read(workspace).sha256)
    assert read(workspace).is_trusted
    path.write_text(TEXT + "#")
    assert not read(workspace).is_trusted
    acceptances.accept(path, read(workspace).sha256)
    path.write_text(TEXT)  # what was accepted earlier is not accepted for ever
    assert not read(workspace).is_trusted
    write_accepted(path, TEXT)
    assert acceptances.revoke(path)
    assert not read(workspace).is_trusted


def test_an_acceptance_belongs_to_one_place(workspace: Path, tmp_path: Path) -> None:
    write_accepted(find_workspace_config(workspace, AGENTS), TEXT)
    other = tmp_path / "other"
    (other / ".forkwise").mkdir(parents=True)
    (other / ".forkwise" / AGENTS).write_text(TEXT)
    assert not read(other).is_trusted
    assert read(workspace).is_trusted
    linked = tmp_path / "linked"
    linked.symlink_to(workspace)
    assert read(linked).is_trusted
    (workspace / ".forkwise" / SETTINGS).write_text(TEXT)
    settings = read_workspace_config(workspace, SETTINGS)
    assert settings is not None
    assert not settings.is_trusted


def test_records_that_another_user_could_have_written_do_not_count(workspace: Path) -> None:
    path = find_workspace_config(workspace, AGENTS)
    write_accepted(path, TEXT)
    (record,) = Path(locate(workspace).state, "accepted").iterdir()
    record.chmod(0o666)
    assert not read(workspace).is_trusted
    record.chmod(0o600)
    assert read(workspace).is_trusted
    for content in ("", "[]", "{}", "[" * 100_000, '{"format": 1, "sha256": 1, "limits": {}}'):
        record.write_text(content)
        assert not read(workspace).is_trusted
    record.unlink()
    record.symlink_to("/dev/zero")
    assert not read(workspace).is_trusted
    record.unlink()
    os.mkfifo(record, 0o600)
    assert not read(workspace).is_trusted


@pytest.mark.parametrize(
    "text",
    [
        "[", "\udcff", "x = " + "[" * 50_000, "x = " + "{a = " * 20_000, "a" + ".a" * 100_000 + " = 1",
        "['a'" + ".'a'" * 50_000 + "]", "a = 1\n" * 2, "x = 1" + "1" * 10_000, "#" * 300_000, "x = " + "9" * 5000,
    ],
    ids=["open", "bytes", "arrays", "tables", "dots", "quoted dots", "twice", "number", "huge", "digits"],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_refused_at_once(workspace: Path, text: str) -> None:
    path = find_workspace_config(workspace, AGENTS)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_workspace_config(workspace, AGENTS)
    assert caught.value.path == str(path)


def test_links_fifos_and_directories_are_refused(workspace: Path, tmp_path: Path) -> None:
    path = find_workspace_config(workspace, AGENTS)
    target = tmp_path / "target.toml"
    target.write_text(TEXT)
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="cannot read"):
        read_workspace_config(workspace, AGENTS)
    path.unlink()
    for make in (os.mkfifo, os.mkdir):
        make(path)
        with pytest.raises(ConfigError, match="not a regular file"):
            read_workspace_config(workspace, AGENTS)
        path.unlink() if make is os.mkfifo else path.rmdir()
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a symbolic link"):
        read_workspace_config(workspace, AGENTS)


def test_the_users_own_file(home: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_trusted() -> bool:
        found = read_user_config(AGENTS, workspace)
        assert found is not None
        return found.is_trusted

    file = home / ".config/forkwise" / AGENTS
    assert read_user_config(AGENTS, workspace) is None
    file.write_text(TEXT)
    file.chmod(0o644)
    assert is_trusted()
    file.chmod(0o666)
    assert not is_trusted()
    file.chmod(0o644)
    moved = tmp_path / "dotfiles"
    file.parent.rename(moved)
    file.parent.symlink_to(moved)  # as programs that manage such files do
    assert is_trusted()
    monkeypatch.setenv("XDG_CONFIG_HOME", "workspace")  # relative: ignored
    monkeypatch.chdir(tmp_path)
    assert find_config_directory() == str(home / ".config/forkwise")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    assert read_user_config(AGENTS, workspace) is None


def test_another_users_file_is_not_trusted(home: Path, workspace: Path) -> None:
    need(os.geteuid() == 0, "only root can give a file to another user")
    file = home / ".config/forkwise" / AGENTS
    file.write_text(TEXT)
    os.chown(file, 65534, 65534)
    found = read_user_config(AGENTS, workspace)
    assert found is not None
    assert not found.is_trusted
    assert "65534" in found.reason
    Acceptances(workspace).accept(file, found.sha256)
    found = read_user_config(AGENTS, workspace)
    assert found is not None
    assert not found.is_trusted


@pytest.mark.parametrize("is_linked", [False, True])
def test_the_users_file_inside_the_workspace_has_to_be_accepted(home: Path, tmp_path: Path, is_linked: bool) -> None:
    """The workspace is the home directory itself, or a directory to which the user's configuration is a link."""
    file = home / ".config/forkwise" / AGENTS
    workspace = home
    if is_linked:
        workspace = home / "dotfiles"
        file.parent.rename(workspace)
        file.parent.symlink_to(workspace)
    file.write_text(TEXT)
    found = read_user_config(AGENTS, workspace)
    assert found is not None
    assert (found.is_trusted, found.reason) == (False, "it is inside the workspace")
    Acceptances(workspace).accept(file, sha256(TEXT.encode()).hexdigest())
    found = read_user_config(AGENTS, workspace)
    assert found is not None
    assert found.is_trusted
    other = tmp_path / "other"
    other.mkdir()
    found = read_user_config(AGENTS, other)
    assert found is not None
    assert found.is_trusted


def test_the_workspace_under_another_path(home: Path, tmp_path: Path) -> None:
    need(os.geteuid() == 0, "only root can bind a directory to another path without a namespace")
    (home / ".config/forkwise" / AGENTS).write_text(TEXT)
    other = tmp_path / "other"
    other.mkdir()
    mount(str(home), str(other), None, MS_BIND)
    try:
        found = read_user_config(AGENTS, other)
    finally:
        umount2(str(other))
    assert found is not None
    assert not found.is_trusted


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_delta_that_changes_the_users_file_is_labelled(home: Path, is_linked: bool) -> None:
    directory = home / ".config/forkwise"
    root, name = home, f".config/forkwise/{AGENTS}"
    if is_linked:
        root, name = home / "dotfiles", f"tools/{AGENTS}"
        root.mkdir()
        directory.rename(root / "tools")
        directory.symlink_to(root / "tools")
    branch = Workspace(root, durable=False).branch("planted", None, None)
    (branch.path / name).write_text(TEXT)
    (branch.path / "other.toml").write_text(TEXT)
    found = dict(branch.delta().executable_config)
    branch.abort()
    assert found == {name: "forkwise"}
