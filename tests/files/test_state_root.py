"""Which state directories are trusted: those that only the user who runs could have written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import ForkwiseWarning, MountError, NewerStateError, Workspace
from forkwise.files.store.state_root import key_of
from tests.need import need
from tests.unprivileged import UNPRIVILEGED, as_unprivileged

FORGED = {
    "format": 1,
    "number": 1,
    "kind": "commit",
    "branch": "/main/x",
    "at": 0.0,
    "durable": False,
    "layer": None,
    "side": "history/1",
    "runs": [["", [["take", "planted", "1", 0, 1, [0, 0], 0]]]],
    "metas": [],
    "conflicts": [],
}
"""An interrupted commit whose rollback would move the slot ``1`` to ``planted`` in the workspace."""

PLANT = """
set -eu
umask 022
mkdir -p "$1/head/0+" "$1/history/1" "$1/branches" "$1/trash"
chmod -R go-w "$1"
printf '%s' "$2" > "$1/history/1/record.json"
echo evil > "$1/history/1/1"
"""


def plant(state: Path, *, as_other: bool) -> None:
    """Create a state directory with the forged record, as another user or as this one."""
    command = ["sh", "-c", PLANT, "sh", str(state), json.dumps(FORGED)]
    subprocess.run(as_unprivileged(command) if as_other else command, check=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can reach, as /srv is, with a workspace of this user in it."""
    with tempfile.TemporaryDirectory(prefix="forkwise-shared-", dir="/tmp") as made:
        directory = Path(made)
        directory.chmod(0o755)
        (directory / "ws").mkdir()
        yield directory


@pytest.fixture
def other_users() -> None:
    need(os.geteuid() == 0, "only root can become another user")
    need(shutil.which("setpriv") is not None, "setpriv is not installed")


def beside(workspace: Path) -> Path:
    return workspace.parent / f".forkwise-{os.geteuid()}" / key_of(str(workspace))


@pytest.mark.usefixtures("other_users")
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_state_that_another_user_planted_is_not_recovered(shared: Path, mode: int) -> None:
    shared.chmod(mode)
    workspace = shared / "ws"
    plant(beside(workspace), as_other=True)
    log = [sys.executable, "-c", "from forkwise.cli import main; main()", "log", "--json", "-C", str(workspace)]
    done = subprocess.run(log, capture_output=True, text=True, timeout=60, cwd=shared)
    assert done.returncode == 0, done.stderr
    assert "another user could have written it" in done.stderr
    assert f"uid {UNPRIVILEGED}" in done.stderr
    assert list(workspace.iterdir()) == []
    opened = Workspace(workspace)
    assert not opened.state.is_relative_to(shared)
    assert opened.history() == []


@pytest.mark.usefixtures("other_users")
def test_a_link_of_another_user_is_no_state_directory(shared: Path) -> None:
    shared.chmod(0o1777)
    workspace = shared / "ws"
    own = shared / "mine" / key_of(str(workspace))
    plant(own, as_other=False)  # a directory of this user, in which the link must not be believed
    subprocess.run(as_unprivileged(["ln", "-s", str(own.parent), str(beside(workspace).parent)]), check=True)
    with pytest.warns(ForkwiseWarning, match="symbolic link"):
        opened = Workspace(workspace)
    assert not opened.state.is_relative_to(shared)
    assert list(workspace.iterdir()) == []


@pytest.mark.usefixtures("other_users")
def test_own_state_in_a_directory_of_another_user_stops_with_a_remedy(shared: Path) -> None:
    workspace = shared / "ws"
    plant(beside(workspace), as_other=False)
    os.chown(shared, UNPRIVILEGED, UNPRIVILEGED)
    with pytest.raises(MountError, match=f"uid {UNPRIVILEGED}") as raised:
        Workspace(workspace)
    assert "move" in raised.value.remedy
    assert list(workspace.iterdir()) == []


@pytest.mark.usefixtures("other_users")
def test_a_workspace_may_belong_to_another_user(shared: Path) -> None:
    workspace = shared / "ws"
    os.chown(shared, UNPRIVILEGED, UNPRIVILEGED)
    os.chown(workspace, UNPRIVILEGED, UNPRIVILEGED)
    with Workspace(workspace).branch("b") as branch:
        (branch.path / "a.txt").write_text("one")
    assert (workspace / "a.txt").read_text() == "one"
    assert not (shared / f".forkwise-{os.geteuid()}").exists()


@pytest.mark.usefixtures("other_users")
@pytest.mark.parametrize("environment", ["HOME", "XDG_STATE_HOME"])
def test_root_with_the_home_of_a_user_keeps_its_state_out_of_it(
    shared: Path, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    home = shared / "home"
    home.mkdir()
    os.chown(home, UNPRIVILEGED, UNPRIVILEGED)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv(environment, str(home))
    if environment == "HOME":
        home = home / ".local/state"
    plant(home / "forkwise" / key_of(str(shared / "ws")), as_other=True)
    with pytest.warns(ForkwiseWarning, match="is ignored"):
        state = Workspace(shared / "ws").state
    assert not state.is_relative_to(home)
    shutil.rmtree(state)


@pytest.mark.usefixtures("other_users")
@pytest.mark.parametrize("how", ["owner", "open", "link", "above"])
def test_a_given_state_directory_is_checked(shared: Path, how: str) -> None:
    given = shared / "state"
    given.mkdir(mode=0o700)
    if how == "owner":
        os.chown(given, UNPRIVILEGED, UNPRIVILEGED)
    elif how == "open":
        given.chmod(0o770)
    elif how == "above":
        os.chown(shared, UNPRIVILEGED, UNPRIVILEGED)
    else:
        given.rename(shared / "elsewhere")
        given.symlink_to("elsewhere")
    with pytest.raises(MountError, match="FORKWISE_STATE"):
        Workspace(shared / "ws", state=given)


@pytest.mark.usefixtures("other_users")
def test_another_user_who_is_faster_gains_nothing(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root is created by another user between the check that it does not exist and its creation."""
    shared.chmod(0o1777)
    monkeypatch.setenv("XDG_STATE_HOME", str(shared / "home"))
    os.mkdir(shared / "home", 0o700)
    root = shared / "home/forkwise"
    make = os.makedirs

    def raced(path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        if path == str(root) and not root.exists():
            plant(root / key_of(str(shared / "ws")), as_other=False)
            subprocess.run(["chown", "-R", str(UNPRIVILEGED), str(root)], check=True)
        make(path, mode, exist_ok)

    monkeypatch.setattr("os.makedirs", raced)
    state = Workspace(shared / "ws").state
    assert not state.is_relative_to(root)
    assert list((shared / "ws").iterdir()) == []


def test_state_that_a_clone_brought_along_is_not_read(shared: Path) -> None:
    (shared / "ws/.git").mkdir()
    (shared / "ws/sub").mkdir()
    plant(beside(shared / "ws/sub"), as_other=False)
    with pytest.raises(MountError, match="git work tree"):
        Workspace(shared / "ws/sub")
    assert list((shared / "ws/sub").iterdir()) == []


def test_state_inside_another_workspace_is_not_read(shared: Path) -> None:
    (shared / "ws/sub").mkdir()
    Workspace(shared / "ws")
    plant(beside(shared / "ws/sub"), as_other=False)
    with pytest.raises(MountError, match="is a workspace itself"):
        Workspace(shared / "ws/sub")
    assert list((shared / "ws/sub").iterdir()) == []


def test_state_of_a_newer_version_is_refused(shared: Path) -> None:
    state = Workspace(shared / "ws").state
    document = json.loads((state / "workspace.json").read_text())
    assert document["path"] == str(shared / "ws")
    (state / "workspace.json").write_text(json.dumps({**document, "format": 1000}))
    with pytest.raises(NewerStateError, match=r"format 1000.*install a newer forkwise"):
        Workspace(shared / "ws")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": true}', "[" * 100_000, '{"format": 1e999}'])
def test_a_damaged_note_of_the_workspace_is_written_anew(shared: Path, content: str) -> None:
    state = Workspace(shared / "ws").state
    (state / "workspace.json").write_text(content)
    assert json.loads((Workspace(shared / "ws").state / "workspace.json").read_text())["path"] == str(shared / "ws")
