"""Keys of nested agents: where they are kept, and who gets to see them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from forkwise import Workspace
from forkwise.cli import forkwise_command
from forkwise.config.key_store import KeyStore, StoredKey
from forkwise.errors import ConfigError

VALUE = "sk-example-0123456789abcdef"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyStore:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return KeyStore()


def test_a_key_is_set_listed_and_removed_by_the_command_line(store: KeyStore) -> None:
    def run(*words: str, text: str = "") -> str:
        result = CliRunner().invoke(forkwise_command, ["keys", *words, "--json"], input=text)
        assert result.exit_code == 0, result.output
        assert VALUE not in result.output
        return result.stdout

    run("set", "SOME_API_KEY", text=f"{VALUE}\n")
    assert os.stat(store.path).st_mode & 0o777 == 0o600
    assert json.loads(run("ls")) == {"keys": [{"name": "SOME_API_KEY", "keyring": False}]}
    assert store.read_all() == {"SOME_API_KEY": VALUE}
    run("rm", "SOME_API_KEY")
    assert store.read_all() == {}


@pytest.mark.parametrize("name", ["", "A B", "1A", "LD_PRELOAD", "PATH", "PYTHONPATH", "GIT_SSH_COMMAND", "BASH_ENV"])
def test_what_is_no_key_is_refused(store: KeyStore, name: str) -> None:
    with pytest.raises(ConfigError):
        store.set_key(name, VALUE)
    assert not store.path.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [("", "no value"), ("two\nlines", "one line"), ("nul\0", "one line"), ("x" * 100_000, "one line")],
)
def test_what_is_no_value_is_refused(store: KeyStore, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        store.set_key("SOME_API_KEY", value)


@pytest.mark.parametrize("content", ["[", "[]", '{"A": 5}', '{"LD_PRELOAD": "x"}', "[" * 100_000])
def test_a_damaged_file_is_an_error(store: KeyStore, content: str) -> None:
    store.set_key("SOME_API_KEY", VALUE)
    store.path.write_text(content)
    with pytest.raises(ConfigError, match="damaged"):
        store.read_all()


def test_a_file_that_others_can_read_and_a_link_are_not_used(store: KeyStore, tmp_path: Path) -> None:
    store.set_key("SOME_API_KEY", VALUE)
    store.path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        store.read_all()
    store.path.rename(tmp_path / "elsewhere")
    store.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        store.read_all()


def test_a_key_in_the_systems_keyring(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match=r"forkwise\[mcp\]"):
        store.set_key("SOME_API_KEY", VALUE, in_keyring=True)
    kept: dict[str, str] = {}
    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    keyring.set_password = lambda _service, name, value: kept.update({name: value})  # type: ignore[attr-defined]
    keyring.get_password = lambda _service, name: kept.get(name)  # type: ignore[attr-defined]
    keyring.delete_password = lambda _service, name: kept.pop(name)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    store.set_key("SOME_API_KEY", VALUE, in_keyring=True)
    assert VALUE not in store.path.read_text()
    assert store.list_keys() == [StoredKey("SOME_API_KEY", is_in_keyring=True)]
    assert store.read_all() == {"SOME_API_KEY": VALUE}
    store.set_key("SOME_API_KEY", "another")
    assert kept == {}


def test_a_sandbox_hides_the_file(store: KeyStore, tmp_path: Path) -> None:
    store.set_key("SOME_API_KEY", VALUE)
    (tmp_path / "project").mkdir()
    workspace = Workspace(tmp_path / "project", state=tmp_path / "state")
    with workspace.branch("try", None, "abort") as branch:
        done = branch.run(["cat", str(store.path)], text=True)
        assert VALUE not in done.stdout + done.stderr
        branch.abort()
