"""Branched paths: commands in a branch see a copy-on-write view of paths outside the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkwise import Confinement, Limits, Workspace
from forkwise.errors import BranchError, MountError
from forkwise.linux.syscalls import MNT_DETACH, mount, umount2
from tests.need import need


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Create a directory outside the workspace."""
    directory = tmp_path / "outside"
    (directory / "sub").mkdir(parents=True)
    (directory / "a").write_text("one\n")
    (directory / "sub/b").write_text("two\n")
    return directory


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Create an empty workspace."""
    (tmp_path / "project").mkdir()
    return Workspace(tmp_path / "project", state=tmp_path / "state", durable=False)


CHANGE = "echo more >> {0}/a; rm {0}/sub/b; echo new > {0}/sub/c; mv {0}/sub {0}/moved 2>/dev/null; cat {0}/a"


@pytest.mark.parametrize("confinement", ["open", "standard", "strict"])
def test_a_view_belongs_to_its_branch(workspace: Workspace, outside: Path, confinement: str) -> None:
    wanted = Confinement.preset(confinement)
    wanted = type(wanted)(**{**{n: getattr(wanted, n) for n in wanted.__slots__}, "branched": (str(outside),)})
    with workspace.branch("one", None) as one, workspace.branch("two", None) as two:
        done = one.run(["sh", "-c", CHANGE.format(outside)], confinement=wanted, text=True)
        assert done.stdout == "one\nmore\n", done.stderr
        again = one.run(["cat", f"{outside}/a"], confinement=wanted, text=True)
        assert again.stdout == "one\nmore\n"
        assert two.run(["cat", f"{outside}/a"], confinement=wanted, text=True).stdout == "one\n"
        assert one.run(["cat", f"{outside}/a"], text=True).stdout in ("one\n", "")  # unless /tmp is its own
        assert (outside / "a").read_text() == "one\n"
        assert (outside / "sub/b").exists()
        assert not one.delta()
        one.abort()
        two.abort()


@pytest.mark.parametrize("inside", [".", "outside", "outside/sub"])
def test_a_readable_path_does_not_open_the_host(
    workspace: Workspace, outside: Path, tmp_path: Path, inside: str
) -> None:
    wanted = Confinement.standard(branched=(str(outside),), readable=(str(tmp_path / inside),))
    with workspace.branch("one", None) as branch:
        branch.run(["sh", "-c", CHANGE.format(outside)], confinement=wanted)
        assert (outside / "a").read_text() == "one\n"
        assert [p.name for p in (outside / "sub").iterdir()] == ["b"]
        branch.abort()


def test_a_command_outside_a_branch_has_no_view(workspace: Workspace, outside: Path) -> None:
    from forkwise.sandbox.run import run_in_branch

    with pytest.raises(BranchError, match="belongs to a branch"):
        run_in_branch(workspace, ["true"], confinement=Confinement.standard(branched=(str(outside),)))


def test_two_sandboxes_do_not_mount_a_view_at_once(workspace: Workspace, outside: Path) -> None:
    from forkwise.sandbox.run import spawn

    wanted = Confinement.standard(branched=(str(outside),))
    null = os.open(os.devnull, os.O_RDWR)
    with workspace.branch("one", None) as branch:
        first = spawn(branch, ["sleep", "600"], (null, null, null), confinement=wanted)
        try:
            with pytest.raises(BranchError, match="in use by another sandbox"):
                branch.run(["true"], confinement=wanted)
        finally:
            first.kill()
            first.wait()
            first.close()
        assert branch.run(["true"], confinement=wanted).returncode == 0
        branch.abort()
    os.close(null)


def test_the_limit_on_disk_use_counts_views(workspace: Workspace, outside: Path) -> None:
    wanted = Confinement.standard(branched=(str(outside),), limits=Limits(disk=1 << 20))
    with workspace.branch("one", None) as branch:
        done = branch.run(["sh", "-c", f"head -c 8000000 /dev/zero > {outside}/large; sleep 600"], confinement=wanted)
        assert done.limit == "disk"
        branch.abort()


@pytest.fixture
def state_on_overlay(tmp_path: Path) -> Path:
    """Mount an overlay for the state: a layer cannot be on one."""
    need(os.geteuid() == 0, "only root can mount")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{n}dir={tmp_path}/{n}" for n in ("lower", "upper", "work"))
    mount("test", str(tmp_path / "merged"), "overlay", 0, options)
    return tmp_path / "merged"


def test_where_only_a_copy_is_possible_it_is_small(state_on_overlay: Path, tmp_path: Path, outside: Path) -> None:
    from forkwise.sandbox.path_view import make_path_view

    try:
        (tmp_path / "project").mkdir()
        (outside / "log").mkdir()
        (outside / "log/old").write_text("old session")
        (outside / "link").symlink_to("/etc/passwd")
        with (outside / "large").open("wb") as file:
            file.truncate(1 << 30)
        workspace = Workspace(tmp_path / "project", state=state_on_overlay / "state", durable=False)
        wanted = Confinement.standard(branched=(str(outside),))
        with workspace.branch("one", None) as branch:
            view = make_path_view(branch, str(outside), ["log/*"])
            assert view.kind == "copy"
            assert sorted(p.name for p in Path(view.content).rglob("*")) == ["a", "b", "link", "log", "sub"]
            done = branch.run(["sh", "-c", CHANGE.format(outside)], confinement=wanted, text=True)
            assert done.stdout == "one\nmore\n", done.stderr
            assert (outside / "a").read_text() == "one\n"
            branch.abort()
        for number in range(40):
            (outside / f"part{number}").write_bytes(b"x" * (4 << 20))
        with workspace.branch("two", None) as branch:
            with pytest.raises(MountError, match="too large"):
                branch.run(["true"], confinement=wanted)
            branch.abort()
    finally:
        umount2(str(state_on_overlay), MNT_DETACH)
