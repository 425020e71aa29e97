"""The view of the home directory: every tool can write its caches, and nothing of it reaches the host."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from forkwise import BranchContext, Confinement, Limits, Workspace
from forkwise.linux.syscalls import MNT_DETACH, mount, umount2
from forkwise.sandbox.run import spawn
from tests.need import need


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a home directory with a project, a login and forkwise's state in it."""
    home = tmp_path / "home,a:b"  # with what separates options of a mount
    (home / "work/project").mkdir(parents=True)
    (home / "work/project/a.txt").write_text("one\n")
    (home / ".ssh").mkdir()
    (home / ".ssh/id_ed25519").write_text("the-key")
    (home / ".netrc").write_text("the-key")
    (home / ".profile").write_text("export A=1\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    return home


@pytest.fixture
def workspace(home: Path) -> Workspace:
    """Return the project in the home directory as a workspace."""
    return Workspace(home / "work/project", durable=False)


def _list(directory: Path) -> dict[str, bytes]:
    """List the files below a directory with their contents, without forkwise's state."""
    walked = os.walk(directory)
    files = []
    for parent, directories, names in walked:
        if ".local" in directories:
            directories.remove(".local")
        files += [os.path.join(parent, name) for name in names]
    return {path: Path(path).read_bytes() for path in files}


WRITE = "mkdir -p ~/.cache/tool ~/.npm && echo x > ~/.cache/tool/x && echo y > ~/.npm/y && echo B=2 >> ~/.profile && "


@pytest.mark.parametrize("confinement", ["standard", "strict"])
def test_caches_are_written_and_stay_in_the_branch(workspace: Workspace, home: Path, confinement: str) -> None:
    before = _list(home)
    with workspace.branch("one", None) as one, workspace.branch("two", None) as two:
        done = one.run(["sh", "-c", f"{WRITE} rm -r ~/.npm && cat ~/.profile"], confinement=confinement, text=True)
        assert (done.returncode, done.stdout) == (0, "export A=1\nB=2\n"), done.stderr
        again = one.run(["sh", "-c", "cd; cat .cache/tool/x .profile; ls .npm"], confinement=confinement, text=True)
        assert again.stdout == "x\nexport A=1\nB=2\n"
        assert two.run(["sh", "-c", "cd; ls -A; cat .profile"], confinement=confinement, text=True).stdout.split() == [
            *(".local", ".netrc", ".profile", ".ssh", "work"),
            *("export", "A=1"),
        ]
        assert not one.delta()
        # What judges an attempt runs on a branch of its branch: it must not depend on what the attempt put there.
        with one.branch("judge", None) as judge:
            assert judge.run(["sh", "-c", "cd; ls -A .cache"], confinement=confinement).returncode
            judge.abort()
        one.abort()
        two.abort()
    assert _list(home) == before


def test_what_is_hidden_stays_hidden_through_the_view(workspace: Workspace, home: Path) -> None:
    find = (
        "cd; ls -A .ssh .local/state/forkwise; cat .netrc; grep -rs the-key . /proc/self/root/$HOME /proc/self/cwd/.."
    )
    move = "mv .ssh s; mv .netrc n; ln .netrc l; rm -rf .ssh .netrc .local; ln -s /etc .ssh; mv work w; cp -a .ssh c"
    with workspace.branch("one", None) as branch:
        for script in (find, f"cd; {move}", find):
            done = branch.run(["sh", "-c", script], text=True)
            assert "the-key" not in done.stdout + done.stderr
            if script == find:
                assert done.stdout.split() == [".local/state/forkwise:", ".ssh:"], done
        branch.abort()
    assert (home / ".ssh/id_ed25519").read_text() == "the-key"
    assert (home / "work/project/a.txt").exists()


@pytest.mark.parametrize(
    "place", ["/", "/tmp", "missing", "link", "work/project", "work/project/inner", "relative", ""]
)
def test_unusual_home_directories(workspace: Workspace, home: Path, place: str) -> None:
    (home / "work/project/inner").mkdir()
    (home / "work/link").symlink_to(home)
    named = {"link": home / "work/link", "relative": Path("relative"), "missing": home.parent / "missing"}
    value = str(named.get(place, home / place)) if place else ""
    with workspace.branch("one", None) as branch:
        done = branch.run(
            ["sh", "-c", 'pwd; echo x > "$HOME/new" && cat "$HOME/new"; cat a.txt'],
            env={**os.environ, "HOME": value},
            text=True,
        )
        assert done.stdout.splitlines()[0] == str(home / "work/project")
        assert done.stdout.splitlines()[-1] == "one"
        if place in ("link", "work/project", "work/project/inner"):
            assert "x" in done.stdout.splitlines(), done.stderr
        assert [c.path for c in branch.delta()] == {"work/project": ["new"], "work/project/inner": ["inner/new"]}.get(
            place, []
        )
        branch.abort()
    assert not (home / "new").exists()
    assert not Path("/new").exists()
    assert not Path("/tmp/new").exists()
    assert not (home.parent / "missing").exists()


def test_sandboxes_at_the_same_time_have_views_of_their_own(workspace: Workspace, home: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    reader, writer = os.pipe()
    with workspace.branch("one", None) as branch:
        first = spawn(branch, ["sh", "-c", "echo first > ~/who; echo; exec sleep 600"], (null, writer, null))
        try:
            os.read(reader, 1)
            for _ in range(2):  # each begins anew
                other = branch.run(["sh", "-c", "cat ~/who; echo other > ~/who; cat ~/who"], text=True)
                assert other.stdout == "other\n", other.stderr
        finally:
            first.kill()
            first.wait()
            first.close()
        assert branch.run(["cat", str(home / "who")], text=True).stdout == "first\n"
        branch.abort()
    for fd in (null, reader, writer):
        os.close(fd)


def test_a_function_gets_the_view(workspace: Workspace, home: Path) -> None:
    with workspace.branch("one", None) as branch:
        with BranchContext(lambda _: (home / "made").write_text("inside"), branch) as context:
            context.wait(60)
        assert branch.run(["cat", str(home / "made")], text=True).stdout == "inside"
        branch.abort()
    assert not (home / "made").exists()


def test_what_is_mounted_in_the_home_directory_stays_visible(workspace: Workspace, home: Path) -> None:
    need(os.geteuid() == 0, "only root can mount")
    (home / "data").mkdir()
    mount("test", str(home / "data"), "tmpfs", 0, "size=64k")
    try:
        (home / "data/file").write_text("on the mount\n")
        with workspace.branch("one", None) as branch:
            done = branch.run(["sh", "-c", "cat ~/data/file; echo x > ~/data/new; echo x > ~/new; ls ~/new"], text=True)
            assert done.stdout == f"on the mount\n{home}/new\n"
            assert "Read-only" in done.stderr
            branch.abort()
    finally:
        umount2(str(home / "data"), MNT_DETACH)


def test_where_the_state_cannot_hold_a_layer_the_view_is_in_memory(home: Path, tmp_path: Path) -> None:
    need(os.geteuid() == 0, "only root can mount")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{name}dir={tmp_path}/{name}" for name in ("lower", "upper", "work"))
    mount("test", str(tmp_path / "merged"), "overlay", 0, options)
    try:
        workspace = Workspace(home / "work/project", state=tmp_path / "merged/state", durable=False)
        with workspace.branch("one", None) as branch:
            done = branch.run(["sh", "-c", f"{WRITE} cat ~/.profile ~/.npm/y ~/.ssh/id_ed25519"], text=True)
            assert done.stdout == "export A=1\nB=2\ny\n", done
            assert branch.run(["sh", "-c", "ls -A ~/.npm"]).returncode  # it ended with the command
            branch.abort()
    finally:
        umount2(str(tmp_path / "merged"), MNT_DETACH)
    assert not (home / ".npm").exists()


def test_the_limit_on_disk_use_counts_the_view(workspace: Workspace) -> None:
    wanted = Confinement.standard(limits=Limits(disk=1 << 20))
    with workspace.branch("one", None) as branch:
        done = branch.run(["sh", "-c", "head -c 8000000 /dev/zero > ~/large; sleep 600"], confinement=wanted)
        assert done.limit == "disk"
        branch.abort()


def test_it_can_be_turned_off_and_writable_paths_are_shared(workspace: Workspace, home: Path) -> None:
    (home / ".npm").mkdir()
    script = ["sh", "-c", "echo x > ~/new; echo x > ~/.npm/shared; ls ~/new"]
    with workspace.branch("one", None) as branch:
        branch.run(script, confinement=Confinement.standard(has_home_view=False))
        assert not (home / ".npm/shared").exists()
        shared = branch.run(script, confinement=Confinement.standard(writable=("~/.npm",)), text=True)
        assert shared.stdout == f"{home}/new\n", shared.stderr
        branch.abort()
    assert (home / ".npm/shared").read_text() == "x\n"
    assert not (home / "new").exists()


def test_nothing_is_left_after_a_kill(workspace: Workspace, home: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    with workspace.branch("one", None) as branch:
        process = spawn(branch, ["sh", "-c", f"{WRITE} exec sleep 600"], (null, null, null))
        process.kill()
        process.close()
        assert branch.run(["sh", "-c", f"{WRITE} true"]).returncode == 0
        branch.abort()
    os.close(null)
    assert "forkwise-home" not in Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    assert sorted(p.name for p in home.iterdir()) == [".local", ".netrc", ".profile", ".ssh", "work"]


NESTED = """
import os
import shutil
from forkwise import Confinement, Workspace

os.environ["FORKWISE_STATE"] = "/tmp/.forkwise"
with open(os.path.expanduser("~/outer"), "w") as file:
    file.write("outer")
with Workspace(".", view="copy", durable=False).branch("inner", None) as branch:
    wanted = Confinement.standard(landlock_instead=True)  # the outer sandbox forbids mounts
    print(branch.run(["sh", "-c", "cat ~/outer && echo inner > ~/inner; ls -A ~/.ssh"], confinement=wanted, text=True))
    branch.abort()
"""


def test_nested_sandboxes_share_the_view(workspace: Workspace, home: Path) -> None:
    with workspace.branch("one", None) as branch:
        done = branch.run([sys.executable, "-c", NESTED], text=True)
        assert "stdout='outer'" in done.stdout, done
        assert branch.run(["cat", str(home / "inner")], text=True).stdout == "inner\n"
        branch.abort()
    assert not (home / "inner").exists()


@pytest.mark.integration
def test_package_managers_write_their_caches(workspace: Workspace, home: Path) -> None:
    need(shutil.which("npm") is not None, "npm is not installed")
    (workspace.path / "package").mkdir()
    (workspace.path / "package/package.json").write_text('{"name": "sample", "version": "1.0.0"}')
    before = _list(home)
    script = (
        f"cd package && npm pack --silent && npm cache add ./sample-1.0.0.tgz && npm cache ls && ls ~/.npm/_cacache; \
        {sys.executable} -m pip config --user set global.timeout 7 && {sys.executable} -m pip config get global.timeout"
    )
    with workspace.branch("one", None) as branch:
        done = branch.run(["sh", "-c", script], text=True, confinement="strict")
        assert "index-v5" in done.stdout, done
        assert done.stdout.splitlines()[-1] == "7", done
        branch.abort()
    assert _list(home) == before
