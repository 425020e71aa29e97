"""Scenes: operations on a workspace that lose power, and what must be true when it is opened again.

A scene changes the workspace from one known state to the next, and marks each as soon as it is acknowledged. Afterwards
the workspace must be in one of these states exactly, and not in one before the last acknowledged.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from forkwise import Workspace
from forkwise.errors import ForkwiseError, ForkwiseWarning
from forkwise.files.branch import Branch
from forkwise.files.combine import combine
from forkwise.files.store import trash
from tests.files.sample import Picture, alter, grow, picture

__all__ = ["SCENES", "Scene", "Site"]


@dataclass(frozen=True)
class Site:
    """Where a scene takes place: the disk of the workspace, the disk of its state, and the view."""

    disk: Path
    state_disk: Path
    view: str

    @property
    def root(self) -> Path:
        return self.disk / "workspace"

    @property
    def state(self) -> Path:
        return self.state_disk / "state"

    def open(self) -> Workspace:
        return Workspace(self.root, view=self.view, state=self.state)


@dataclass
class Scene:
    """A commit of a few paths. ``states`` are the states of the workspace, ``kept`` the content of kept branches.

    ``is_used`` says whether the state directory exists before.
    """

    name: ClassVar[str] = "commit"
    is_used: ClassVar[bool] = True
    mark: Callable[[str], None] = lambda text: None
    states: list[Picture] = field(default_factory=list)
    kept: dict[str, Picture] = field(default_factory=dict)

    def prepare(self, root: Path) -> None:
        """Fill the workspace, before power cuts are possible."""
        for name in ("a", "b", "c", "d"):
            (root / name).write_text(f"old {name}\n" * 50)
        for name in ("one", "two", "three"):
            (root / name).mkdir()
            (root / name / "file").write_text(f"old {name}\n")
        os.symlink("a", root / "link")

    def act(self, site: Site) -> None:
        """Run the operations that lose power."""
        branch = site.open().branch("b")
        change(branch.path)
        self.commit(branch)

    def commit(self, branch: Branch) -> None:
        branch.commit()
        self.reach(branch.workspace.path)

    def reach(self, root: Path) -> None:
        """Acknowledge a new state of the workspace."""
        self.mark(f"state {len(self.states)}")
        self.states.append(picture(root))

    def keep(self, branch: Branch) -> None:
        branch.keep()
        self.mark(f"kept {branch.name}")
        self.kept[branch.name] = _plain(picture(branch.path))

    def judge(self, site: Site, marks: list[str]) -> str:
        """Check what the power cut left. Return the state that the workspace is in."""
        acknowledged = [int(m.removeprefix("state ")) for m in marks if m.startswith("state ")]
        workspace = site.open()
        number = self._find_state(workspace)
        assert number >= max(acknowledged, default=0), f"state {number} although {acknowledged} were acknowledged"
        assert not os.path.lexists(site.state / "stage")
        workspace.branches()
        workspace.gc()
        self._check_kept(workspace, [m.removeprefix("kept ") for m in marks if m.startswith("kept ")], number)
        self._check_others(workspace, number)
        workspace.gc(force=True)
        for branch in reversed(workspace.branches()):
            branch.abort()
        assert workspace.branches() == []
        self._check_usable(workspace)
        trash.wait_until_empty()
        workspace.gc()
        return str(number)

    def _find_state(self, workspace: Workspace) -> int:
        number = len(workspace.history())
        now = picture(workspace.path)
        assert number < len(self.states), f"{number} commits are recorded"
        if now != self.states[number]:
            found = [n for n, state in enumerate(self.states) if state == now]
            shown = {p: (self.states[number].get(p), now.get(p)) for p in {*now, *self.states[number]}}
            different = {p: v for p, v in shown.items() if v[0] != v[1]}
            raise AssertionError(f"mixed: {number} commits are recorded, the files are those of {found}: {different}")
        return number

    def _check_kept(self, workspace: Workspace, names: list[str], number: int) -> None:
        """Check that an acknowledged branch is complete."""
        for name in names:
            branch = workspace.open(name)
            assert branch.kept
            found = _plain(picture(branch.path))
            assert found == self.kept[name], {
                p for p in {*found, *self.kept[name]} if found.get(p) != self.kept[name].get(p)
            }

    def _check_others(self, workspace: Workspace, number: int) -> None:
        """Check that a commit of any branch that is left is refused, or leads to the next state."""
        for branch in reversed(workspace.branches()):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ForkwiseWarning)
                    branch.commit()
            except ForkwiseError:
                assert picture(workspace.path) == self.states[number]
                continue
            now = _plain(picture(workspace.path))
            allowed = [*map(_plain, self.states[number : number + 2]), *self.kept.values()]
            assert now in allowed, f"a commit of {branch.branch_path} was incomplete"
            workspace.undo()
            assert picture(workspace.path) == self.states[number]

    def _check_usable(self, workspace: Workspace) -> None:
        before = picture(workspace.path)
        if [c.kind for c in workspace.history()] == ["commit"]:
            for state in (self.states[0], before):
                workspace.undo(workspace.history()[0].id)
                assert picture(workspace.path) == state
        with workspace.branch("later") as branch:
            (branch.path / "later").write_text("later\n")
        assert (workspace.path / "later").read_text() == "later\n"
        workspace.undo()
        assert picture(workspace.path) == before


class FileCommit(Scene):
    """A commit of a few files and no directories, for which only files and directories are synced."""

    name = "file-commit"

    def act(self, site: Site) -> None:
        branch = site.open().branch("b")
        change_files(branch.path)
        self.commit(branch)


class FirstCommit(FileCommit):
    """The same commit, and everything else that forkwise ever wrote."""

    name = "first-commit"
    is_used = False


class LargeCommit(Scene):
    """A commit of more than fifty paths of all kinds, for which whole filesystems are synced."""

    name = "large-commit"

    def prepare(self, root: Path) -> None:
        grow(root)

    def act(self, site: Site) -> None:
        branch = site.open().branch("b")
        alter(branch.path)
        self.commit(branch)


class Undo(Scene):
    """Two commits and an undo of each."""

    name = "undo"

    def act(self, site: Site) -> None:
        workspace = site.open()
        for name, make in (("b", change), ("c", change_again)):
            branch = workspace.branch(name)
            make(branch.path)
            self.commit(branch)
        for _ in range(2):
            workspace.undo()
            self.reach(workspace.path)


class Keep(Scene):
    """Branches that are kept, one of them nested, beside others that are not."""

    name = "keep"

    def act(self, site: Site) -> None:
        workspace = site.open()
        kept, passing = workspace.branch("kept"), workspace.branch("passing")
        change(passing.path)
        change(kept.path)
        self.keep(kept)
        change(workspace.branch("more").path)
        change_again(passing.path)
        self.keep(passing)


class Abort(Scene):
    """Branches that are dropped, one of them with a nested branch, beside a kept one."""

    name = "abort"

    def act(self, site: Site) -> None:
        workspace = site.open()
        kept = workspace.branch("kept")
        change(kept.path)
        self.keep(kept)
        outer, passing = workspace.branch("outer"), workspace.branch("passing")
        change(outer.path)
        change(passing.path)
        outer.keep()
        change_again(outer.branch("inner").path)
        outer.abort()
        passing.abort()
        self.mark("aborted")


class Combine(Scene):
    """Two branches combined, and the combination committed."""

    name = "combine"

    def act(self, site: Site) -> None:
        workspace = site.open()
        one, two = workspace.branch("one"), workspace.branch("two")
        (one.path / "a").write_text("new a\n" + "old a\n" * 49)
        shutil.rmtree(one.path / "three")
        (two.path / "a").write_text("old a\n" * 49 + "end of a\n")
        (two.path / "new").mkdir()
        (two.path / "new/file").write_text("new\n")
        self.commit(combine(workspace, [one, two], "both").branch)


class Rebase(Scene):
    """A kept branch rebased onto a commit of its sibling, and committed."""

    name = "rebase"

    def act(self, site: Site) -> None:
        workspace = site.open()
        one, two = workspace.branch("one"), workspace.branch("two")
        (two.path / "d").write_text("new d\n" * 400)
        shutil.rmtree(two.path / "three")
        (two.path / "added").mkdir()
        (two.path / "added/file").write_text("added\n")
        self.keep(two)
        (one.path / "a").write_text("new a\n")
        os.rename(one.path / "c", one.path / "renamed")
        self.commit(one)
        two.hide()  # a mounted FUSE view shows names that are gone beneath it
        self.kept["stale"] = _plain(picture(two.path))
        two.rebase()
        self.mark("rebased")
        self.kept["rebased"] = _plain(picture(two.path))
        self.commit(two)

    def _check_kept(self, workspace: Workspace, names: list[str], number: int) -> None:
        """Check that the branch is complete until it is committed, as it was before its rebase or after."""
        if names and number < 2:
            branch = workspace.open("two")
            assert branch.kept
            found = _plain(picture(branch.path))
            different = [
                {p: (found.get(p), kept.get(p)) for p in {*found, *kept} if found.get(p) != kept.get(p)}
                for kept in self.kept.values()
            ]
            assert not all(different), different


class Nested(Scene):
    """A branch of a branch committed into it, and that committed into the workspace."""

    name = "nested"

    def act(self, site: Site) -> None:
        outer = site.open().branch("outer")
        change(outer.path)
        inner = outer.branch("inner")
        change_again(inner.path)
        inner.commit()
        self.mark("inner")
        self.commit(outer)


def change(root: Path) -> None:
    """Change, add, delete and rename files and directories."""
    (root / "b").unlink()
    (root / "a").write_text("new a\n" * 500)
    os.rename(root / "c", root / "renamed")
    (root / "new").mkdir()
    (root / "new/file").write_text("new\n")
    shutil.rmtree(root / "one")
    shutil.copytree(root / "two", root / "moved", copy_function=shutil.copyfile)
    shutil.rmtree(root / "two")
    os.unlink(root / "link")
    os.symlink("renamed", root / "link")


def change_files(root: Path) -> None:
    """Change, add, delete and rename files."""
    (root / "b").unlink()
    (root / "a").write_text("new a\n" * 500)
    (root / "three/file").write_text("new three\n")
    os.rename(root / "c", root / "renamed")
    (root / "new").write_text("new\n")


def change_again(root: Path) -> None:
    """Make further changes."""
    (root / "a").write_text("newer a\n" * 300)
    (root / "d").write_text("new d\n")
    shutil.rmtree(root / "new")
    (root / "new").write_text("a file now\n")
    (root / "three/more").write_text("more\n")
    (root / "three").chmod(0o700)


def _plain(found: Picture) -> Picture:
    """Leave out times and attributes, and the modes of links."""
    return {
        p: (kind, None if kind == stat.S_IFLNK else mode, content)
        for p, (kind, mode, _, _, content, _) in found.items()
    }


SCENES = {
    scene.name: scene
    for scene in (Scene, FileCommit, FirstCommit, LargeCommit, Undo, Keep, Abort, Combine, Rebase, Nested)
}


def make_root(site: Site) -> None:
    """Create the workspace's directory; a subvolume for the view btrfs."""
    if site.view == "btrfs":
        subprocess.run(["btrfs", "-q", "subvolume", "create", str(site.root)], check=True)
    else:
        site.root.mkdir()
