"""Caches below the home directory that attempts share with the host, because the user's configuration says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.acceptance import write_accepted

Run = Callable[..., Result]

WRITE = "mkdir -p ~/.cache/uv ~/.cache/own; echo x > ~/.cache/uv/x; echo x > ~/.cache/own/x; echo x > n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty home directory, with the user's configuration in it."""
    home = tmp_path / "home"
    (home / ".config/forkwise").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    return home


def _list_cache(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.glob(".cache/*/*"))


@pytest.mark.parametrize("shared", ['["~/.cache/uv"]', "[]"])
def test_a_shared_cache_is_written_on_the_host(run: Run, home: Path, shared: str) -> None:
    (home / ".config/forkwise/config.toml").write_text(f"[sandbox]\nshared = {shared}\n")
    run("run", "--test", "test ! -e ~/.cache/own; echo y >> ~/.cache/uv/tests; true", "--", "sh", "-c", WRITE)
    expected = [".cache/uv/x"] if shared != "[]" else []
    assert _list_cache(home) == expected
    run("branch", "create", "one")
    run("branch", "run", "one", "--", "sh", "-c", "rm -rf ~/.cache/uv/*; echo x > ~/.cache/uv/branch || mkdir ~/new")
    assert _list_cache(home) == ([".cache/uv/branch"] if expected else [])
    assert sorted(path.name for path in home.iterdir()) == ([".cache", ".config"] if expected else [".config"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[sandbox]\nshared = ["/etc"]', "not below the home directory"),
        ('[sandbox]\nshared = ["~"]', "not below the home directory"),
        ('[sandbox]\nshared = ["~/.cache/../.."]', "not below the home directory"),
        ('[sandbox]\nshared = "~/.npm"', "a list of directories"),
        ("[sandbox]\nhared = []", "has no setting"),
        ("sandbox = 1", "is not a table"),
    ],
)
def test_invalid_settings_are_refused(run: Run, home: Path, text: str, reason: str) -> None:
    (home / ".config/forkwise/config.toml").write_text(text)
    said = run("run", "--", "true", code=1)
    assert reason in said.stderr
    assert "config.toml" in said.stderr


def test_an_agent_shares_its_own_cache(run: Run, home: Path, project: Path) -> None:
    table = '[scribe]\ncommand = ["sh", "-c", "{write} # {{prompt}}"]\n{more}'
    (home / ".config/forkwise/agents.toml").write_text(table.format(write=WRITE, more='shared = ["~/.cache/uv"]\n'))
    run("run", "--agent", "scribe", "please")
    assert _list_cache(home) == [".cache/uv/x"]
    # A workspace's table can take that away, and cannot add to it.
    (project / ".forkwise").mkdir()
    (project / ".forkwise/agents.toml").write_text('[scribe]\nshared = ["~/.cache/own"]\n')
    (home / ".cache/uv/x").unlink()
    assert "shared of [scribe]" in run("run", "--agent", "scribe", "please", "--allow-empty").stderr
    assert _list_cache(home) == []


def test_a_workspace_shares_nothing_until_it_is_accepted(run: Run, home: Path, project: Path) -> None:
    (home / ".config/forkwise/config.toml").write_text('[sandbox]\nshared = ["~/.cache/uv", "~/.cache/other"]\n')
    own = project / ".forkwise/config.toml"
    own.parent.mkdir()
    own.write_text('[sandbox]\nshared = ["~/.cache/own", "~/.cache/other"]\n')
    said = run("run", "--", "sh", "-c", WRITE).stderr
    assert "shared of [sandbox]" in said
    assert _list_cache(home) == []
    assert "[sandbox] shared = ['~/.cache/own', '~/.cache/other']" in run("trust", "--json").stdout
    write_accepted(own, own.read_text())
    assert run("run", "--allow-empty", "--", "sh", "-c", WRITE).stderr == ""
    assert _list_cache(home) == [".cache/own/x", ".cache/uv/x"]
    write_accepted(own, '[sandbox]\nshared = ["~/.ssh/../.."]\n')
    assert "config.toml: '~/.ssh/../..' in shared is not below" in run("run", "--", "true", code=1).stderr
