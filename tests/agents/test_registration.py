"""``forkwise install`` and ``uninstall``: what was there stays, and the removal is exact."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forkwise.agents.registration import CLIENTS
from forkwise.cli import forkwise_command
from forkwise.text.jsonc import add_member, find_value, remove_member

#: Where each agent reads servers from, for all projects and for one.
FILES = {
    "claude": (".claude.json", ".mcp.json"),
    "codex": (".codex/config.toml", ".codex/config.toml"),
    "gemini": (".gemini/settings.json", ".gemini/settings.json"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json"),
    "vscode": (".config/Code/User/mcp.json", ".vscode/mcp.json"),
    "opencode": (".config/opencode/opencode.json", "opencode.json"),
}
KEYS = {"codex": "mcp_servers", "vscode": "servers", "opencode": "mcp"}
TOML = '# mine\nmodel = "gpt-5" # the best\n\n[mcp_servers.other]\ncommand = "x"'
JSONC = """\
// a comment of the user's
{
\t"theme": "dark", // yes
\t"KEY": { /* servers */
\t\t"other": {"command": "x"}, // keep
\t},
}
"""
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return place


@pytest.fixture
def run(home: Path) -> Run:
    def run(*words: str, code: int = 0) -> dict[str, Any]:
        where = ["-C", "."]
        result = CliRunner().invoke(forkwise_command, [*words, *where, "--yes", "--json"])
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout))

    return run


def list_files(*roots: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for root in roots
        for path in root.rglob("*")
        if "forkwise" not in path.relative_to(root).parts[1:2]  # its own configuration
    }


def load(client: str, path: Path) -> Any:
    text = path.read_text()
    key = KEYS.get(client, "mcpServers")
    return tomllib.loads(text)[key]["forkwise"] if client == "codex" else find_value(text, [key, "forkwise"])


@pytest.mark.parametrize("scope", ["user", "project"])
@pytest.mark.parametrize("client", list(CLIENTS))
@pytest.mark.parametrize("had", ["nothing", "content", "blank"])
def test_install_is_repeatable_and_uninstall_is_exact(client: str, scope: str, had: str, home: Path, run: Run) -> None:
    project = Path.cwd()
    file = (home if scope == "user" else project) / FILES[client][scope == "project"]
    if had != "nothing":
        file.parent.mkdir(parents=True, exist_ok=True)
        text = TOML if client == "codex" else JSONC.replace("KEY", KEYS.get(client, "mcpServers"))
        file.write_text(text if had == "content" else "")
        file.chmod(0o600)
    before = list_files(home, project)
    first = run("install", client, f"--{scope}")
    assert str(file) in first["changed"]
    server = load(client, file)
    assert "mcp" in [*server.get("args", []), *server["command"]]
    if had == "content":
        assert file.stat().st_mode & 0o777 == 0o600
        assert [line for line in before[str(file)].decode().splitlines() if line not in file.read_text()] == []
    assert run("install", client, f"--{scope}")["changed"] == []
    run("uninstall", client, f"--{scope}")
    after = list_files(home, project)
    assert {k: v for k, v in after.items() if v is not None} == {k: v for k, v in before.items() if v is not None}
    assert run("uninstall", client, f"--{scope}")["changed"] == []


def test_options_of_the_server_are_registered_and_changed(home: Path, run: Run) -> None:
    for client in CLIENTS:
        file = home / FILES[client][0]
        run("install", client)
        run("install", client, "--no-confirm")
        server = load(client, file)
        assert (server.get("args") or server["command"])[-2:] == ["mcp", "--no-confirm"]
        run("uninstall", client)
        assert not file.exists()


def test_what_the_user_changed_after_the_installation_stays(home: Path, run: Run) -> None:
    file = home / ".gemini/settings.json"
    run("install", "gemini")
    text = file.read_text()
    file.write_text(add_member(text, ["theme"], "dark")[0])
    run("uninstall", "gemini")
    assert json.loads(file.read_text()) == {"theme": "dark"}


def test_a_file_that_was_formatted_anew_is_cleaned_up(home: Path, run: Run) -> None:
    for client, file in (("gemini", home / ".gemini/settings.json"), ("codex", home / ".codex/config.toml")):
        run("install", client)
        if client == "gemini":
            file.write_text(json.dumps({**json.loads(file.read_text()), "x": 1}, indent=8))
        else:
            file.write_text('model = "x"\n' + file.read_text().replace(" = ", "="))
        run("uninstall", client)
        assert "forkwise" not in file.read_text()


def test_claude_gets_a_plugin(home: Path, run: Run) -> None:
    run("install", "claude")
    plugin = home / ".claude/forkwise"
    assert json.loads((plugin / ".claude-plugin/plugin.json").read_text())["name"] == "forkwise"
    assert sorted(path.stem for path in (plugin / "commands").iterdir()) == ["best-of", "forks", "undo"]
    hooks = json.loads((plugin / "hooks/hooks.json").read_text())["hooks"]
    assert set(hooks) == {"WorktreeCreate", "WorktreeRemove"}
    settings = json.loads((home / ".claude/settings.json").read_text())
    assert settings["enabledPlugins"] == {"forkwise@forkwise": True}
    assert settings["extraKnownMarketplaces"]["forkwise"]["source"]["path"] == str(plugin)
    (plugin / "commands/undo.md").write_text("mine\n")
    assert "was changed since" in run("uninstall", "claude")["notes"][0]
    assert [path.name for path in plugin.rglob("*") if path.is_file()] == ["undo.md"]


@pytest.mark.parametrize("scope", ["user", "project"])
def test_claudes_commands_have_plain_names_and_never_replace_the_users(home: Path, run: Run, scope: str) -> None:
    commands = (Path.cwd() if scope == "project" else home) / ".claude/commands"
    commands.mkdir(parents=True)
    (commands / "undo.md").write_text("mine\n")
    planned = CliRunner().invoke(forkwise_command, ["install", "claude", "-C", ".", f"--{scope}", "--dry-run"]).stdout
    assert "commands/best-of.md" in planned
    found = run("install", "claude", f"--{scope}")
    assert found["notes"] == [f"{commands}/undo.md is your own, and stays: forkwise's is /forkwise:undo"]
    assert sorted(path.name for path in commands.iterdir()) == ["best-of.md", "forks.md", "undo.md"]
    assert run("install", "claude", f"--{scope}")["changed"] == [], "installing again changes nothing"
    (commands / "forks.md").write_text("changed\n")
    assert run("install", "claude", f"--{scope}")["changed"] == [], "nor is what the user changed"
    assert (commands / "forks.md").read_text() == "changed\n"
    run("uninstall", "claude", f"--{scope}")
    assert sorted(path.name for path in commands.iterdir()) == ["forks.md", "undo.md"]
    assert (commands / "undo.md").read_text() == "mine\n"


def test_a_command_that_the_user_wrote_the_same_way_is_not_removed(home: Path, run: Run) -> None:
    run("install", "claude")
    text = (home / ".claude/commands/undo.md").read_text()
    run("uninstall", "claude")
    assert not (home / ".claude/commands").exists()
    (home / ".claude/commands").mkdir(parents=True)
    (home / ".claude/commands/undo.md").write_text(text)
    run("install", "claude")
    run("uninstall", "claude")
    assert (home / ".claude/commands/undo.md").read_text() == text


def test_a_server_of_that_name_that_is_not_forkwises_own_stays(home: Path, run: Run) -> None:
    file = home / ".cursor/mcp.json"
    file.parent.mkdir()
    file.write_text('{"mcpServers": {"forkwise": {"command": "mine"}}}')
    assert "has another mcpServers.forkwise" in run("install", "cursor", code=1)["error"]["message"]
    assert "stays" in run("uninstall", "cursor")["notes"][0]
    assert file.read_text() == '{"mcpServers": {"forkwise": {"command": "mine"}}}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"mcpServers": []}', "not an object"),
        ('{"mcpServers": {}, "mcpServers": {}}', "more than once"),
        ('{"a": ' * 1000, "deep"),
        ("\xff", "UTF-8"),
    ],
)
def test_a_file_that_cannot_be_edited_is_left_alone(home: Path, run: Run, content: str, reason: str) -> None:
    file = home / ".gemini/settings.json"
    file.parent.mkdir()
    file.write_bytes(content.encode("latin-1"))
    assert reason in run("install", "gemini", code=1)["error"]["message"]
    assert file.read_bytes() == content.encode("latin-1")


def test_a_projects_links_lead_nothing_outside(home: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    Path(".gemini").symlink_to(tmp_path / "outside")
    assert "leads out of" in run("install", "gemini", "--project", code=1)["error"]["message"]
    (home / ".bashrc").write_text("{}")
    Path(".mcp.json").symlink_to(home / ".bashrc")
    assert "leads out of" in run("install", "claude", "--project", code=1)["error"]["message"]
    assert list((tmp_path / "outside").iterdir()) == []
    assert (home / ".bashrc").read_text() == "{}"


def test_the_users_own_links_are_followed(home: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text("{}\n")
    (home / ".gemini").mkdir()
    (home / ".gemini/settings.json").symlink_to(tmp_path / "dotfiles.json")
    run("install", "gemini")
    assert (home / ".gemini/settings.json").is_symlink()
    assert "forkwise" in (tmp_path / "dotfiles.json").read_text()
    run("uninstall", "gemini")
    assert (tmp_path / "dotfiles.json").read_text() == "{}\n"


def test_the_changes_are_shown_and_made_only_with_consent(home: Path) -> None:
    words = ["install", "codex", "-C", "."]
    shown = CliRunner().invoke(forkwise_command, [*words, "--dry-run"])
    assert "+[mcp_servers.forkwise]" in shown.stdout
    refused = CliRunner().invoke(forkwise_command, words)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert not (home / ".codex").exists()


@pytest.mark.parametrize(
    "text",
    ["{}", "{ }", "{\n}", "{\n}\n", '{"a":1}', '{\r\n    "a": 1\r\n}\r\n', '\ufeff{"a": {}}', '{"a": [1, // x\n 2,],}'],
)
@pytest.mark.parametrize("path", [["a"], ["b"], ["b", "c"], ["x", "y", "z"]])
def test_what_is_added_to_json_can_be_removed_exactly(text: str, path: list[str]) -> None:
    if find_value(text, path) is not None:
        assert find_value(remove_member(text, path), path) is None
        return
    new, inserted = add_member(text, path, {"k": ["v"]})
    assert find_value(new, path) == {"k": ["v"]}
    assert new.replace(inserted, "", 1) == text
    assert find_value(remove_member(new, path), path) is None
