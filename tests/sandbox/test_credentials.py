"""Credentials are hidden, path by path: one sandbox for each preset reads all of them, as files and as directories."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import Confinement, Workspace
from forkwise.agents.preset import load_agents
from forkwise.linux.namespace import available
from forkwise.sandbox.confinement import AGENT_CREDENTIALS, CREDENTIAL_STORES, CREDENTIALS, SAFE_VARIABLES
from tests.need import need
from tests.sandbox.credentials_page import PAGE, updated

SECRET = "secret-2718281828"
PRESETS = ("standard", "strict", "open")
MACHINE = CREDENTIAL_STORES["the machine, for root"]
OWN = [path for path in CREDENTIALS if path not in MACHINE]

# Reports every path that exists inside and leads to the secret, directly or as a file in a directory.
READ = """
import json, os, sys
seen = []
for path in json.load(sys.stdin):
    for name in (path, path + "/key"):
        try:
            text = open(name).read()
            if sys.argv[1] in text or text and path.startswith("/etc"):
                seen.append(path)
        except OSError:
            pass
print(json.dumps([seen, dict(os.environ)]))
"""


class World:
    """A home directory and directories that variables name, outside the temporary directories that a sandbox hides."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.workspace_path = self.home / "project"
        self.workspace_path.mkdir(parents=True)
        (self.workspace_path / "a.txt").write_text("one\n")
        self.variables = {path[1:].partition("/")[0] for path in OWN if path.startswith("$")}
        self.base = base
        (self.home / "readable.txt").write_text(SECRET)

    def expand(self, path: str, kind: str) -> Path:
        """Return where a path of the table is, in the half of the world for files or for directories."""
        first, _, rest = path.partition("/")
        return self.home / rest if first == "~" else self.base / kind / first[1:] / rest

    def plant(self, kind: str) -> None:
        """Put the secret at every path of the table, as a file or in a directory."""
        for place in (self.expand(path, kind) for path in OWN):
            if kind == "directory":
                place.mkdir(parents=True)
                (place / "key").write_text(SECRET)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.is_dir():
                    place.write_text(SECRET)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Return a directory that a sandbox shows."""
    need(available(), "user namespaces are forbidden here")
    parent = "/var" if os.geteuid() == 0 else os.path.realpath(Path.home())
    need(not f"{parent}/".startswith(("/tmp/", "/var/tmp/")), "the home directory is in /tmp, which a sandbox hides")
    with tempfile.TemporaryDirectory(prefix="forkwise-credentials-", dir=parent) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def readable(base: Path) -> dict[tuple[str, str], set[str]]:
    """Return the paths of the table that a program can read, for each preset and kind of planted entry."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("file", "directory"):
            world = World(base / kind)
            world.plant(kind)
            patch.setenv("HOME", str(world.home))
            patch.setenv("FORKWISE_STATE", str(world.base / "state"))
            for name in world.variables:
                patch.setenv(name, str(world.base / kind / name))
            paths = {path: str(world.expand(path, kind)) for path in OWN}
            paths |= {path: path.replace("*", "ed25519") for path in MACHINE} | {
                "control": f"{world.home}/readable.txt"
            }
            workspace = Workspace(world.workspace_path, durable=False)
            for preset in PRESETS:
                seen, _ = read_in_sandbox(workspace, list(paths.values()), confinement=preset)
                found[preset, kind] = {path for path, place in paths.items() if place in seen}
    return found


def read_in_sandbox(workspace: Workspace, paths: list[str], **options: Any) -> tuple[list[str], dict[str, str]]:
    """Return those of the paths that hold the secret inside, and the environment inside."""
    with workspace.branch("read", on_success=None, on_error=None) as branch:
        argv = [sys.executable, "-c", READ, SECRET]
        done = branch.run(argv, input=json.dumps(paths), text=True, **options)
        branch.abort()
    assert done.returncode == 0, done.stderr
    seen, environment = json.loads(done.stdout)
    return seen, environment


@pytest.mark.parametrize("path", CREDENTIALS)
def test_a_credential_is_hidden(readable: dict[tuple[str, str], set[str]], path: str) -> None:
    for preset in ("standard", "strict"):
        assert "control" in readable[preset, "file"]
        assert path not in readable[preset, "file"]
        assert path not in readable[preset, "directory"]


def test_without_a_sandbox_they_are_readable(readable: dict[tuple[str, str], set[str]]) -> None:
    assert set(OWN) <= readable["open", "file"] | readable["open", "directory"]
    assert set(OWN) <= readable["open", "directory"]
    if os.geteuid() == 0:
        assert "/etc/shadow" in readable["open", "file"]


def test_the_page_lists_them() -> None:
    """``python -m tests.sandbox.credentials_page`` updates it."""
    assert updated(PAGE.read_text()) == PAGE.read_text()


def test_a_preset_sees_its_own_login_and_no_other(tmp_path: Path) -> None:
    agents = load_agents(tmp_path)
    for name, agent in agents.items():
        for other, paths in AGENT_CREDENTIALS.items():
            shown = {p for p in paths if any(p == own or p.startswith(f"{own}/") for own in agent.credentials)}
            assert shown == (set(paths) if other == name else set()), (name, other)


@pytest.fixture
def world(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir=base) as made:
        world = World(Path(made))
        monkeypatch.setenv("HOME", str(world.home))
        monkeypatch.setenv("FORKWISE_STATE", str(world.base / "state"))
        yield world


def test_what_is_shown_and_what_is_writable(world: World) -> None:
    for name in (".ssh/id_rsa", ".ssh/config", ".docker/config.json", ".docker/buildx/state", ".netrc"):
        place = world.home / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(SECRET)
    workspace = Workspace(world.workspace_path, durable=False)
    paths = [str(p) for p in world.home.rglob("*") if p.is_file()]
    shown = Confinement.standard(shown=("~/.ssh/config", "~/.netrc"), writable=("~/.docker/buildx",))
    seen, _ = read_in_sandbox(workspace, paths, confinement=shown)
    assert {os.path.relpath(p, world.home) for p in seen} == {
        ".ssh/config", ".netrc", ".docker/buildx/state", "readable.txt",
    }  # fmt: skip


def test_links_and_a_workspace_that_is_the_home_directory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = world.base / "elsewhere"
    keys.mkdir()
    (keys / "id_rsa").write_text(SECRET)
    (world.home / ".ssh").symlink_to(keys)
    (world.home / ".aws").mkdir()
    (world.home / ".aws/credentials").write_text(SECRET)
    linked = world.base / "linked-home"
    linked.symlink_to(world.home)
    monkeypatch.setenv("HOME", str(linked))
    monkeypatch.setenv("GNUPGHOME", str(world.home))  # a variable that names the whole home directory hides nothing
    paths = [str(keys / "id_rsa"), *(f"{home}/{name}" for home in (linked, world.home) for name in
             (".ssh/id_rsa", ".aws/credentials", "readable.txt"))]  # fmt: skip
    for directory in (world.workspace_path, world.home):
        seen, _ = read_in_sandbox(Workspace(directory, durable=False), paths)
        assert seen == [f"{linked}/readable.txt", f"{world.home}/readable.txt"]


def test_a_workspace_inside_a_hidden_directory(world: World) -> None:
    inside = world.home / ".config/gh/extension"
    inside.mkdir(parents=True)
    (inside / "main.sh").write_text(SECRET)
    (inside.parent / "hosts.yml").write_text(SECRET)
    seen, _ = read_in_sandbox(Workspace(inside, durable=False), [f"{inside}/main.sh", f"{inside.parent}/hosts.yml"])
    assert seen == [f"{inside}/main.sh"]


def test_the_home_directory_of_the_command_counts_too(world: World) -> None:
    other = world.base / "other"
    (other / ".ssh").mkdir(parents=True)
    (other / ".ssh/id_rsa").write_text(SECRET)
    workspace = Workspace(world.workspace_path, durable=False)
    seen, _ = read_in_sandbox(workspace, [f"{other}/.ssh/id_rsa"], env={**os.environ, "HOME": str(other)})
    assert seen == []


def test_strict_passes_variables_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "SLACK_WEBHOOK", "MY_KEY", "api_token", "LC_TOKEN", "PGPASSFILE"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HTTPS_PROXY", "http://name:word@proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    workspace = Workspace(world.workspace_path, durable=False)
    _, inside = read_in_sandbox(workspace, [], confinement=Confinement.strict(given={"MY_OWN_TOKEN": "y"}))
    assert {"HOME", "PATH", "LC_ALL", "HTTP_PROXY", "MY_OWN_TOKEN"} <= set(inside)
    assert not {"DATABASE_URL", "SLACK_WEBHOOK", "MY_KEY", "api_token", "LC_TOKEN", "PGPASSFILE"} & set(inside)
    assert "HTTPS_PROXY" not in inside  # its value holds a password
    passed = Confinement(passed=SAFE_VARIABLES).environment(dict.fromkeys(inside, ""))
    assert set(inside) - set(passed) == {"MY_OWN_TOKEN"}
