"""A state machine of users and agents that work on a workspace and its branches, compared with a model of dicts.

The model has two kinds of branches. A layered one (overlay) is a dict of its own entries, over those of its parent; a
whole one (copy) is a dict of all entries. Contents and modes are never used twice, so that equal entries are the same
entry. After every step everything is compared.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forkwise import Branch, BranchError, BranchNotFoundError, BranchStaleError, CommitError, ConflictError, Workspace
from forkwise.files.store import trash
from forkwise.linux.mountinfo import is_mount_point
from forkwise.linux.syscalls import MNT_DETACH, umount2
from tests.counts import IS_FUZZ, rounds
from tests.files.images import loop_image
from tests.need import need

pytestmark = [pytest.mark.hypothesis, pytest.mark.integration]

IN_MEMORY = True

NAMES = "abc"
CHOICES = ["refuse", "refuse", "ours", "theirs", "merge"]
WAYS = ["write", "write", "append", "replace", "delete", "chmod", "move", "move", "file", "directory", "symlink"]


class Node(NamedTuple):
    """A file, directory or symlink. ``content`` is a symlink's target."""

    kind: str
    content: str
    mode: int


Tree = dict[str, Node]


def above(path: str) -> str:
    return path.rpartition("/")[0]


def ancestors(path: str) -> list[str]:
    """Return the directories that contain a path, outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def is_beneath(path: str, directory: str) -> bool:
    return path.startswith(f"{directory}/")


def related(path: str, others: Iterable[str]) -> bool:
    """Return whether a path equals, contains, or is below one of the others."""
    return any(path == o or is_beneath(path, o) or is_beneath(o, path) for o in others)


def read(root: Path) -> Tree:
    """Read the actual entries of a directory."""
    tree: Tree = {}
    for where, directories, files in os.walk(root):
        for name in [*directories, *files]:
            full = os.path.join(where, name)
            tree[os.path.relpath(full, root)] = read_one(full)
    return tree


def read_one(path: str) -> Node:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return Node("symlink", os.readlink(path), 0)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return Node("directory", "", mode)
    with open(path) as file:
        return Node("file", file.read(), mode)


def difference(old: Tree, new: Tree) -> dict[str, str]:
    kinds = {p: "added" if p not in old else "changed" for p, n in new.items() if old.get(p) != n}
    return kinds | {p: "deleted" for p in old if p not in new}


class Base:
    """The parent of branches: the workspace, or a branch."""

    def __init__(self) -> None:
        self.head = 0
        self.lines: dict[str, Line] = {}

    def see(self) -> Tree:
        raise NotImplementedError


class Trunk(Base):
    """The workspace: a tree, and when each of its entries was last changed, in ticks of the model's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: Tree = {}
        self.ticks: dict[str, int] = {"": 0}
        self.numbers: dict[str, int] = {}  # like inode numbers: a replaced entry gets another

    def see(self) -> Tree:
        return self.tree


class Line(Base):
    """A branch: its own entries (None is a deletion) over its parent's, or everything, if it is whole."""

    def __init__(self, branch: Branch, parent: Base, now: int, whole: bool) -> None:
        super().__init__()
        self.branch = branch
        self.parent = parent
        self.whole = whole
        self.base = dict(parent.see())
        self.forked = now
        self.generation = parent.head
        self.own: dict[str, Node | None] = dict(self.base) if whole else {}
        self.opaque: set[str] = set()
        self.origin: dict[str, str] = {}
        self.taken: dict[str, int] = {}  # when an entry was copied from its origin
        self.modes: set[str] = set()  # directories whose mode the branch set
        self.unmerged: dict[str, bool] = {}  # conflicts of a rebase, and whether they were changed since
        self.frozen = False
        self.is_rebased = False
        self.touched: set[str] = set()

    # Reading

    def see(self) -> Tree:
        if self.whole:
            return {p: n for p, n in self.own.items() if n is not None}
        shown = {p: n for p, n in self.parent.see().items() if p not in self.own and not self.hides(p)}
        return shown | {p: n for p, n in self.own.items() if n is not None}

    def hides(self, path: str) -> bool:
        """Return whether an entry of the branch hides the parent's."""
        for directory in ancestors(path):
            if directory in self.own:
                own = self.own[directory]
                if own is None or own.kind != "directory" or directory in self.opaque:
                    return True
        return False

    # Changes, as overlayfs makes them

    def raise_up(self, path: str) -> None:
        for directory in ancestors(path):
            if directory not in self.own:
                self.own[directory] = self.parent.see()[directory]
                self.origin[directory] = directory
                self.taken[directory] = 0

    def change(self, path: str, node: Node, now: int) -> None:
        """Change an entry in place."""
        self.touch(path)
        if not self.whole:
            self.raise_up(path)
            if path not in self.own:
                self.origin[path] = path
                self.taken[path] = now
        self.own[path] = node

    def create(self, path: str, node: Node, origin: str | None = None, taken: int = 0) -> None:
        self.touch(path)
        if not self.whole:
            self.raise_up(path)
            if node.kind == "directory" and path in self.own:
                self.opaque.add(path)
            self.origin.pop(path, None)
            if origin:
                self.origin[path] = origin
                self.taken[path] = taken
        self.own[path] = node

    def delete(self, path: str) -> None:
        self.touch(path)
        if not self.whole:
            self.raise_up(path)
        for gone in [p for p in self.own if p == path or is_beneath(p, path)]:
            del self.own[gone]
            self.opaque.discard(gone)
            self.origin.pop(gone, None)
            self.modes.discard(gone)
        if not self.whole and path in self.parent.see() and not self.hides(path):
            self.own[path] = None

    def touch(self, path: str) -> None:
        self.touched.add(path)
        for left in self.unmerged:
            if left == path or is_beneath(path, left):
                self.unmerged[left] = True

    @property
    def is_stale(self) -> bool:
        return self.generation != self.parent.head

    @property
    def is_writable(self) -> bool:
        return not self.frozen and not self.lines

    def all(self) -> list[Line]:
        return [self, *(found for line in self.lines.values() for found in line.all())]


class Made(NamedTuple):
    """One commit, undo or redo of the workspace."""

    number: int
    before: Tree
    after: Tree
    at: int
    undoes: int | None

    @property
    def paths(self) -> set[str]:
        return set(difference(self.before, self.after))


class Machine(RuleBasedStateMachine):
    view = "overlay"
    where: Path
    third_party = True

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=self.where)))
        self.root = self.directory / "project"
        self.root.mkdir()
        self.serial = count(1)
        self.clock = 0
        self.steps = 0
        self.random = Random(0)
        self.trunk = Trunk()
        self.history: list[Made] = []
        for path in ("a", "b/a", "b/b", "c/a/b"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(self.text())
        self.trunk.tree = read(self.root)
        self.workspace = self.open()

    def open(self) -> Workspace:
        return Workspace(self.root, view=self.view, state=self.directory / "state", durable=False)

    def teardown(self) -> None:
        for line in list(self.trunk.lines.values()):
            line.branch.abort()
        trash.wait_until_empty()
        self.stack.close()

    # Helpers

    def text(self) -> str:
        return f"{next(self.serial)}\n"

    def mode(self, kind: str) -> int:
        """Draw a mode that no other entry has; all differ from the defaults."""
        number = next(n for n in self.serial if n % 0o77 not in (0o44, 0o55))
        return (0o700 if kind == "directory" else 0o600) | number % 0o77 | (number // 0o77 % 8) << 9

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    @property
    def lines(self) -> list[Line]:
        return [found for line in self.trunk.lines.values() for found in line.all()]

    def line(self, pick: int, wanted: Callable[[Line], bool] = lambda _: True) -> Line | None:
        found = [line for line in self.lines if wanted(line)]
        return found[pick % len(found)] if found else None

    def remount(self) -> None:
        """Remount after a change below the mount: only a new mount is sure to show it."""
        for line in self.lines:
            seen = f"{line.branch.home}/view"
            if os.path.isdir(seen) and is_mount_point(seen):
                umount2(seen, MNT_DETACH)

    def pick(self) -> int:
        return self.random.randrange(10_000)

    def path(self) -> str:
        return "/".join(self.random.choices(NAMES, k=self.random.randint(1, 3)))

    @rule(seed=st.integers(min_value=0, max_value=(1 << 32) - 1))
    def step(self, seed: int) -> None:
        """Draw an action.

        Its details come from a separate random generator: hypothesis prefers small and equal choices, and would soon
        delete everything in the workspace.
        """
        self.steps += 1
        self.random = Random(f"{seed} {self.steps}")
        actions: list[Callable[[int], None]] = [
            *[self.edit] * 8,
            *[self.fork] * 4,
            *[self.commit] * 4,
            *[self.rebase] * 2,
            *[self.undo] * 2,
            self.abort,
            self.freeze_and_thaw,
            self.write_to_what_is_frozen,
            self.reopen,
        ]
        action = self.random.choice(actions)
        self.say(action.__name__)
        action(self.pick())

    def say(self, *words: object) -> None:
        """Print the steps of a failed run."""
        note(" ".join(map(str, words)))

    # Changes of files, in branches and in the workspace. Each function returns the paths that it touched.

    def work(self, pick: int) -> tuple[Line | None, Path, Tree] | None:
        """Choose where to work: in a writable branch, or, as a third party, in the workspace."""
        places: list[Line | None] = [line for line in self.lines if line.is_writable] * 3
        if self.third_party:
            places.append(None)
        if not places:
            return None
        line = places[pick % len(places)]
        self.say("  in", line.branch.branch_path if line else "/main")
        if line is None:
            return None, self.root, self.trunk.tree
        return line, line.branch.path, line.see()

    def done(self, line: Line | None, *, changed: Iterable[str] = (), renamed: Iterable[str] = ()) -> None:
        """Record a third party's change of the workspace: ``renamed`` means that names were added or removed."""
        if line is not None:
            return
        now = self.tick()
        for path in [*changed, *renamed]:
            self.trunk.ticks[path] = now
        for path in renamed:
            self.trunk.ticks[above(path)] = now
            self.trunk.numbers[path] = now
        self.remount()

    def put(self, line: Line | None, path: str, node: Node, *, origin: str | None = None) -> None:
        if line is None:
            self.trunk.tree[path] = node
        elif line.see().get(path, node).kind == node.kind and path in line.see() and origin is None:
            line.change(path, node, self.clock)
        else:
            line.create(path, node, origin)

    def drop(self, line: Line | None, path: str) -> None:
        if line is not None:
            line.delete(path)
            return
        for gone in [p for p in self.trunk.tree if p == path or is_beneath(p, path)]:
            del self.trunk.tree[gone]

    def edit(self, pick: int) -> None:
        """Make some edits in one directory."""
        for _ in range(self.random.randint(1, 5)):
            way, which, path = self.random.choice(WAYS), self.pick(), self.path()
            if way in ("write", "append", "replace"):
                self.write_file(pick, path, way)
            elif way == "delete":
                self.delete_entry(pick, which)
            elif way == "chmod":
                self.change_mode(pick, which)
            elif way == "move":
                self.move(pick, which, path)
            else:
                self.replace_by_another_kind(pick, which, way)
            self.say("  ", way, which, path)

    def write_file(self, pick: int, path: str, way: str) -> None:
        found = self.work(pick)
        if found is None:
            return
        line, root, tree = found
        old = tree.get(path)
        if (old and old.kind != "file") or any(
            tree.get(a, old or Node("directory", "", 0)).kind != "directory" for a in ancestors(path)
        ):
            return
        made = [a for a in ancestors(path) if a not in tree]
        for directory in made:
            (root / directory).mkdir()
            self.put(line, directory, self.give_mode(root / directory, "directory"))
        content = self.text()
        full = root / path
        if way == "replace":
            (full.parent / "beside").write_text(content)
            (full.parent / "beside").replace(full)
            if line is not None:
                if old:
                    line.delete(path)
                line.create(path, read_one(str(full)))
            else:
                self.put(line, path, read_one(str(full)))
            self.done(line, renamed=[*made, path])
            return
        if way == "append" and old:
            content = old.content + content
        with full.open("a" if way == "append" else "w") as file:
            file.write(content if way == "write" or not old else content[len(old.content) :])
        self.put(line, path, Node("file", content, read_one(str(full)).mode))
        self.done(line, changed=[path] if old else [], renamed=[*made, *([] if old else [path])])

    def give_mode(self, path: Path, kind: str) -> Node:
        mode = self.mode(kind)
        path.chmod(mode)
        return Node(kind, "", mode)

    def delete_entry(self, pick: int, which: int) -> None:
        found = self.work(pick)
        if found is None or len(found[2]) < 3:
            return
        line, root, tree = found
        path = sorted(tree)[which % len(tree)]
        self.say("   delete", path)
        shutil.rmtree(root / path) if tree[path].kind == "directory" else (root / path).unlink()
        self.drop(line, path)
        self.done(line, renamed=[path])

    def replace_by_another_kind(self, pick: int, which: int, kind: str) -> None:
        """Delete entries; a directory may be created again."""
        found = self.work(pick)
        if found is None or not found[2]:
            return
        line, root, tree = found
        path = sorted(tree)[which % len(tree)]
        self.say("   replace", path)
        full = root / path
        shutil.rmtree(full) if tree[path].kind == "directory" else full.unlink()
        self.drop(line, path)
        if kind == "file":
            full.write_text(self.text())
        elif kind == "symlink":
            full.symlink_to(self.text().strip())
        else:
            full.mkdir()
            self.give_mode(full, kind)
        node = read_one(str(full))
        if line is None:
            self.trunk.tree[path] = node
        else:
            line.create(path, node)
        self.done(line, renamed=[path])

    def change_mode(self, pick: int, which: int) -> None:
        found = self.work(pick)
        if found is None:
            return
        line, root, tree = found
        candidates = [p for p in sorted(tree) if tree[p].kind != "symlink"]
        if not candidates:
            return
        path = candidates[which % len(candidates)]
        self.say("   chmod", path)
        node = tree[path]._replace(mode=self.mode(tree[path].kind))
        (root / path).chmod(node.mode)
        if line is not None and node.kind == "directory":
            line.modes.add(path)
        self.put(line, path, node)
        self.done(line, changed=[path])

    def move(self, pick: int, which: int, onto: str) -> None:
        """Rename an entry, only in branches.

        If a file is renamed below a mounted overlay, overlayfs may take it for one that the branch changed.
        """
        found = self.work(pick)
        if found is None or found[0] is None or not found[2]:
            return
        line, root, tree = found
        path = sorted(tree)[which % len(tree)]
        self.say("   move", path, onto)
        kind = tree[path].kind
        above_onto = tree.get(above(onto)) if above(onto) else Node("directory", "", 0)
        if path == onto or is_beneath(onto, path) or above_onto is None or above_onto.kind != "directory":
            return
        if onto in tree and "directory" in (kind, tree[onto].kind):
            return
        moved = {p: n for p, n in tree.items() if p == path or is_beneath(p, path)}
        origin = line.origin.get(path, None if path in line.own else path) if kind == "file" else None
        taken = line.taken[path] if path in line.origin else self.clock
        shutil.move(root / path, root / onto)
        if onto in tree:
            line.delete(onto)
        line.delete(path)
        for old, node in sorted(moved.items()):
            line.create(onto + old[len(path) :], node, origin if old == path else None, taken)
        if self.is_marked(line, onto):
            line.opaque.add(onto)  # a directory of the branch itself is renamed as a whole

    def is_marked(self, line: Line, path: str) -> bool:
        with suppress(OSError):
            return os.getxattr(f"{line.branch.target}/{path}", "user.overlay.opaque") == b"y"
        return False

    # Operations on branches

    def fork(self, pick: int) -> None:
        """Create a branch, and write to it."""
        if len(self.lines) >= 6:
            return
        parents: list[Base] = [self.trunk, *(line for line in self.lines if line.branch.branch_path.count("/") < 5)]
        parent = parents[pick % len(parents)]
        name = f"n{next(self.serial)}"
        self.say("  ", name)
        real = parent.branch if isinstance(parent, Line) else self.workspace
        self.tick()
        branch = real.branch(name)
        line = parent.lines[name] = Line(branch, parent, self.tick(), self.view != "overlay")
        where = [one for one in self.lines if one.is_writable].index(line)
        for _ in range(self.random.randint(0, 3)):
            self.write_file(where, self.path(), "write")

    def abort(self, pick: int) -> None:
        line = self.line(pick)
        if line is None:
            return
        gone = line.all()
        line.branch.abort()
        del line.parent.lines[line.branch.name]
        for dead in gone:
            with pytest.raises(BranchNotFoundError):
                _ = dead.branch.path
        assert not os.path.exists(line.branch.home)

    def freeze_and_thaw(self, pick: int) -> None:
        line = self.line(pick)
        if line is None:
            return
        if line.frozen:
            if line.lines:
                with pytest.raises(BranchError, match="of its own"):
                    line.branch.thaw()
                return
            line.branch.thaw()
            line.frozen = False
        else:
            line.branch.freeze()
            line.frozen = True

    def write_to_what_is_frozen(self, pick: int) -> None:
        line = self.line(pick, lambda one: not one.is_writable)
        if line is None:
            return
        with pytest.raises(OSError, match="Read-only") as caught:
            (line.branch.path / "forbidden").write_text("no")
        assert caught.value.errno == errno.EROFS

    def reopen(self, _: int) -> None:
        """Open the workspace again, as another process would."""
        self.workspace = self.open()
        for line in self.lines:
            line.branch = self.workspace.open(line.branch.branch_path)
        assert [b.branch_path for b in self.workspace.branches()] == sorted(x.branch.branch_path for x in self.lines)

    def commit(self, pick: int) -> None:
        line = self.line(pick)
        if line is None:
            return
        choice = self.random.choice(CHOICES)
        if line.lines:
            with pytest.raises(BranchError, match="of its own"):
                line.branch.commit(on_conflict=choice)  # type: ignore[arg-type]
        elif line.is_stale:
            with pytest.raises(BranchStaleError):
                line.branch.commit(on_conflict=choice)  # type: ignore[arg-type]
        else:
            self.commit_in_turn(line, choice)

    def commit_in_turn(self, line: Line, choice: str) -> None:
        self.say("  ", line.branch.branch_path, choice)
        conflicts = self.conflicts(line) if line.parent is self.trunk else set()
        left = self.unresolved(line)
        parent, before, shown = line.parent, dict(line.parent.see()), line.see()
        if choice in ("refuse", "merge") and (conflicts or left):
            with pytest.raises(ConflictError) as caught:
                line.branch.commit(on_conflict=choice)  # type: ignore[arg-type]
            assert all(related(p, conflicts | set(line.unmerged)) for p in caught.value.paths), (
                caught.value,
                conflicts,
            )
            assert all(related(c, caught.value.paths) for c in conflicts | left), (caught.value, conflicts)
            return
        try:
            done = line.branch.commit(on_conflict=choice)  # type: ignore[arg-type]
        except ConflictError as error:
            # Changes to the conflicts of a rebase are detected by times, which moves and whiteouts may keep.
            if all(related(p, line.unmerged) for p in error.paths):
                return
            raise
        del parent.lines[line.branch.name]
        parent.head += 1
        now = self.tick()
        if isinstance(parent, Line):
            self.fold(line, parent, now_shown=shown, choice=choice)
            self.remount()
            return
        after = read(self.root)
        decided = {c.path for c in done.conflicts} if choice == "theirs" else set()
        for path in set(before) | set(shown) | set(after):
            wanted = self.after_commit(line, before, shown, path)
            if not related(path, decided):
                assert after.get(path) == wanted, path
            elif path in conflicts and choice == "theirs":
                assert after.get(path) == before.get(path), path
        self.remember(before, after, None, done.id, now)
        assert set(difference(before, after)) <= set(done.paths)

    def after_commit(self, line: Line, before: Tree, shown: Tree, path: str) -> Node | None:
        """Check a rebased branch: a layered one shows the result, a whole one only its changes."""
        if not line.whole or shown.get(path) != line.base.get(path):
            return shown.get(path)
        return before.get(path)

    def remember(self, before: Tree, after: Tree, undoes: int | None, number: int, now: int) -> None:
        self.trunk.tree = after
        for path in difference(before, after):
            self.trunk.ticks[path] = self.trunk.numbers[path] = now
            for directory in ["", *ancestors(path)]:
                self.trunk.ticks[directory] = now
        self.history.append(Made(number, before, dict(after), now, undoes))
        self.trunk.head = number
        self.say("  ", number, difference(before, after), undoes)
        assert [c.id for c in self.workspace.history()] == [m.number for m in reversed(self.history)]
        self.remount()

    def conflicts(self, line: Line) -> set[str]:
        """Return the paths that both the branch and a third party changed."""
        trunk, shown = self.trunk, line.see()
        tree, since = trunk.tree, line.forked
        found = set()
        changed = difference(tree, shown)
        for path in changed:
            if path in tree:
                if trunk.ticks.get(path, 0) > since:
                    found.add(path)
                continue
            origin = line.origin.get(path)
            if origin is None:
                continue
            is_elsewhere = origin != path and origin in changed and origin in tree and self.is_original(line, path)
            directory = above(path)
            is_lost = directory and directory not in tree
            if not is_elsewhere and not is_lost and trunk.ticks.get(directory, 0) > since:
                found.add(path)
        return found | {p for p in line.opaque if p in tree and trunk.ticks.get(p, 0) > since}

    def is_original(self, line: Line, path: str) -> bool:
        """Return whether the workspace still has the file that a branch's file was copied from, changed or not."""
        return self.trunk.numbers.get(line.origin[path], 0) <= line.taken[path]

    def unresolved(self, line: Line) -> set[str]:
        """Return the conflicts of a rebase that must still be refused: plain files, which have their own times."""
        shown, below = line.see(), line.parent.see()
        return {
            p
            for p, was_changed in line.unmerged.items()
            if not was_changed and p in shown and shown[p].kind == "file" and below.get(p) != shown[p]
        }

    def fold(self, line: Line, parent: Line, *, now_shown: Tree, choice: str) -> None:
        """Check a commit into a parent branch: the parent shows the changes."""
        really = read(parent.branch.path)
        left = set(line.unmerged) if choice == "theirs" else set()
        for path in list(left):  # a directory that contains an entry to keep is kept
            left |= {
                a for a in ancestors(path) if a in line.opaque or line.own.get(a, Node("directory", "", 0)) is None
            }
            left |= {a for a in ancestors(path) if a in now_shown and now_shown[a].kind != "directory"}
        for path in set(really) | set(now_shown):
            if not related(path, left):
                wanted = now_shown.get(path)
                if line.whole and wanted == line.base.get(path):
                    wanted = parent.see().get(path)
                assert really.get(path) == wanted, path
        if parent.whole:
            parent.own = dict(really)
            return
        for path, node in sorted(line.own.items()):
            if related(path, left):
                continue
            theirs = parent.own.get(path)
            if (
                node is None
                or node.kind != "directory"
                or path in line.opaque
                or (theirs and theirs.kind != "directory")
            ):
                for gone in [p for p in parent.own if is_beneath(p, path)]:
                    del parent.own[gone]
                    parent.opaque.discard(gone)
                    parent.origin.pop(gone, None)
            was_hidden = path in parent.own and (theirs is None or theirs.kind != "directory")
            if node and node.kind == "directory" and (path in line.opaque or was_hidden):
                parent.opaque.add(path)
            elif node is None or node.kind != "directory":
                parent.opaque.discard(path)
            if not (theirs and node and theirs.kind == node.kind and node.kind in ("file", "directory")):
                parent.origin.pop(path, None)
                if line.origin.get(path) == path and path not in parent.own:
                    parent.origin[path] = path
                    parent.taken[path] = line.taken[path]
            parent.own[path] = node
            parent.touch(path)
        parent.modes |= line.modes
        for path in left:  # by the chosen resolution
            for known in [p for p in parent.own if related(p, [path])]:
                if known in really:
                    parent.own[known] = really[known]

    def rebase(self, pick: int) -> None:
        line = self.line(pick)
        if line is None:
            return
        if line.lines:
            with pytest.raises(BranchError, match="of its own"):
                line.branch.rebase()
            return
        below, shown = line.parent.see(), line.see()
        self.say("  ", line.branch.branch_path)
        done = line.branch.rebase()
        self.say("  ", *done.merged, *done.conflicts)
        self.remount()
        really = read(line.branch.path)
        conflicts = {c.path for c in done.conflicts}
        for path in set(really) | set(shown) | set(below):
            self.check_rebased(line, path, really.get(path), shown.get(path), below.get(path), done.merged, conflicts)
        for path, node in really.items():
            if line.whole:
                continue
            if path in line.own and line.own[path] != node:
                line.own[path] = node
        if line.whole:
            line.own = dict(really)
        for path in [p for p, origin in line.origin.items() if p not in below and (origin == p or p in conflicts)]:
            del line.origin[path]
        line.base = dict(below)
        line.generation = line.parent.head
        line.forked = self.tick()
        line.unmerged = dict.fromkeys(conflicts, False)
        line.is_rebased = True

    def check_rebased(
        self,
        line: Line,
        path: str,
        really: Node | None,
        shown: Node | None,
        below: Node | None,
        merged: Iterable[str],
        conflicts: set[str],
    ) -> None:
        base = line.base.get(path)
        is_mine, is_theirs = shown != base, below != base
        if path in merged:
            assert shown
            assert below
            assert base
            assert really
            texts = {shown.content, below.content} - {base.content}
            assert len(texts) <= 1, "both changed the only line there is"
            assert really.content == (texts.pop() if texts else base.content)
        elif path in conflicts:
            known = path in line.unmerged or self.trunk.ticks.get(path, 0) > line.forked
            changed = [
                p for p in set(line.base) | set(line.parent.see()) if line.base.get(p) != line.parent.see().get(p)
            ]
            is_moved = line.origin.get(path, path) in changed
            is_dated = base is not None and base.kind == "directory"  # its time changes with its names
            assert known or is_moved or is_dated or related(path, changed), f"nobody else changed {path}"
        elif really and really.kind == "directory" and shown and below and shown.kind == below.kind:
            assert really.mode in (shown.mode, below.mode)
            if path in line.modes and not is_theirs:
                assert really == shown
        elif line.whole and not is_mine and not related(path, conflicts):
            assert really == below, path
        elif not related(path, conflicts) and not line.whole:
            assert really == shown, path
        if is_mine and is_theirs and shown and below and shown != below and shown.kind == below.kind == "file" and base:
            if not line.whole and (path not in line.own or line.parent is not self.trunk):
                return  # changes of the workspace are checked at the outermost branch
            assert path in merged or related(path, conflicts), (
                f"{path} was changed by both, and no conflict was reported"
            )

    # Operations on the history

    def undo(self, pick: int) -> None:
        if not self.history:
            return
        is_last = self.random.random() < 0.7
        undone = {m.undoes for m in self.history}
        if is_last:
            kinds = {c.id: c.kind for c in self.workspace.history()}
            standing = [m for m in self.history if m.number not in undone and kinds[m.number] != "undo"]
            made = standing[-1] if standing else None
        else:
            made = self.history[pick % len(self.history)]
        if made is None or made.number in undone:
            with pytest.raises(CommitError, match=r"no commit to undo|already undone"):
                self.workspace.undo(None if made is None else made.number)
            return
        before = dict(self.trunk.tree)
        later = {p for p, tick in self.trunk.ticks.items() if tick > made.at}
        try:
            done = self.workspace.undo(None if is_last else made.number)
        except ConflictError as error:
            # A third party changed a path that it would undo.
            if all(related(p, later) for p in error.paths) and any(related(p, made.paths) for p in later):
                return
            raise
        touched = {p for p in made.paths if p in later and made.after.get(p) and made.after[p].kind == "file"}
        assert all(self.trunk.tree.get(p) == made.after.get(p) for p in touched), (
            "the change of a third party was undone"
        )
        after = read(self.root)
        for path in set(before) | set(after):
            if path in made.paths and not (made.after.get(path) and made.after[path].kind == "directory"):
                assert after.get(path) == made.before.get(path), path
            elif path not in made.paths:
                assert after.get(path) == before.get(path), path
        self.remember(before, after, made.number, done.id, self.tick())

    # Invariants after every step

    @invariant()
    def workspace_is_as_modelled(self) -> None:
        assert read(self.root) == self.trunk.tree

    @invariant()
    def branches_are_as_modelled(self) -> None:
        for line in self.lines:
            shown = line.see()
            really = read(line.branch.path)
            assert really == shown, (line.branch.branch_path, difference(shown, really))
            status = "stale" if line.is_stale else "open" if line.is_writable else "frozen"
            assert line.branch.status == status
            self.check_delta(line, shown)

    def check_delta(self, line: Line, shown: Tree) -> None:
        delta = {c.path: c.kind for c in line.branch.delta()}
        expected = difference(line.parent.see(), shown)
        if line.whole:
            mine = difference(line.base, shown)
            assert set(mine) - set(delta) <= {p for p in mine if line.parent.see().get(p) == shown.get(p)}
            # Touched entries are listed even if they are unchanged, and a rebase writes conflicts again.
            extra = {p for p in delta if p not in expected and p not in mine and not related(p, line.touched)}
            assert not extra or line.is_rebased, extra
            return
        assert {p: k for p, k in delta.items() if p in expected} == expected
        # Recreated entries are listed even if they are unchanged.
        for path in set(delta) - set(expected):
            assert path in line.own
            assert path in line.opaque or line.hides(path) or line.origin.get(path) != path

    @invariant()
    def nothing_else_is_there(self) -> None:
        assert sorted(b.branch_path for b in self.workspace.branches()) == sorted(
            line.branch.branch_path for line in self.lines
        )


def run(machine: type[Machine], examples: int, steps: int) -> None:
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not IS_FUZZ,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if "FORKWISE_MODEL_SHRINK" in os.environ else [Phase.generate],
    )
    machine.TestCase().runTest()


EXAMPLES = int(os.environ.get("FORKWISE_MODEL_EXAMPLES", rounds(20, 300)))


def test_overlay(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    run(type("OverlayMachine", (Machine,), {"where": tmp_path}), EXAMPLES, 40)


def test_copy(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "freezing a copy needs root")
    run(type("CopyMachine", (Machine,), {"where": tmp_path, "view": "copy", "third_party": False}), EXAMPLES // 3, 40)


def test_reflink(tmp_path: Path) -> None:
    with loop_image("xfs", 400, tmp_path) as where:
        machine = type("ReflinkMachine", (Machine,), {"where": where, "view": "reflink", "third_party": False})
        run(machine, EXAMPLES // 6, 30)
