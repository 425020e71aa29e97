"""Random git commands of a user and of an attempt, interleaved; then the attempt is committed, and perhaps undone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forkwise.errors import ConflictError
from forkwise.files.branch import Branch
from tests.counts import rounds
from tests.git.checkout import Checkout

_COMMANDS = (
    *("commit", "commit", "commit", "edit", "edit", "amend", "add", "unstage", "status", "branch", "checkout", "tag"),
    *("stash", "reset", "pack", "gc", "merge", "detach", "delete", "back", "pop"),
)


class _Person:
    """The user or the attempt: runs one random command at a time in its directory."""

    def __init__(self, checkout: Checkout, at: Path, name: str, chance: random.Random) -> None:
        self.checkout = checkout
        self.at = at
        self.name = name
        self.chance = chance
        self.count = 0

    def act(self) -> str:
        command = self.chance.choice(_COMMANDS)
        self.count += 1
        label = f"{self.name}{self.count}"
        shared = self.chance.random() < 0.3
        name = "a.txt" if shared else f"{self.name}-{self.chance.randrange(2)}.txt"
        others = self._git("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        if command in ("commit", "edit", "add", "stash", "detach"):
            if command == "detach":
                self._git("checkout", "-q", "--detach")
            with open(self.at / name, "a") as file:
                file.write(f"{label}\n")
            if command in ("commit", "add", "detach"):
                self._git("add", name)
            if command in ("commit", "detach"):
                self._git("commit", "-qm", label)
            elif command == "edit":
                self._git("commit", "-qam", label)
            elif command == "stash":
                self._git("stash", "push", "-qm", label)
        elif command == "amend":
            self._git("commit", "-q", "--amend", "--allow-empty", "-m", label)
        elif command == "unstage":
            self._git("reset", "-q")
        elif command == "status":
            self._git("status")
        elif command == "branch":
            self._git("branch", label)
        elif command == "checkout":
            self._git("checkout", "-q", "-b", label)
        elif command == "back":
            self._git("checkout", "-q", self.chance.choice(others or ["main"]))
        elif command == "tag":
            self._git("tag", label)
        elif command == "reset":
            self._git("reset", "-q", "--hard", "HEAD~1")
        elif command == "pack":
            self._git("pack-refs", "--all")
        elif command == "gc":
            self._git("gc", "-q", "--prune=now")
        elif command == "merge":
            self._git("merge", "-q", "--no-edit", self.chance.choice(others or ["main"]))
        elif command == "delete":
            self._git("branch", "-D", self.chance.choice(others or ["main"]))
        elif command == "pop":
            self._git("stash", "pop", "-q")
        return f"{self.name}: {command} {name}"

    def _git(self, *words: str) -> str:
        return self.checkout.run(*words, at=self.at).stdout  # which may fail, as it does in life


def _reachable(checkout: Checkout, at: Path | None = None) -> set[str]:
    done = checkout.run("rev-list", "--all", "--reflog", "HEAD", at=at)
    if at is not None and done.returncode != 0:
        # A view shows references that the user created since, and after a gc in it not always their objects, nor those
        # of their parents. What the attempt committed is in the log of HEAD.
        done = checkout.run("rev-list", "--ignore-missing", "--no-walk", "--reflog", "HEAD", at=at)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def _staged(checkout: Checkout) -> dict[str, str]:
    rows = checkout.run("diff-index", "--cached", "--no-renames", "HEAD").stdout.splitlines()
    return {row.partition("\t")[2]: row.split()[3] for row in rows if row.split()[4] != "U"}


def _entries(checkout: Checkout) -> str:
    return checkout.git("ls-files", "-s")


def _refs(checkout: Checkout) -> str:
    return checkout.git("for-each-ref") + (checkout.path / ".git/HEAD").read_text()


def _commit(branch: Branch, choice: str) -> tuple[str, ...]:
    try:
        return branch.commit(on_conflict=choice).repository  # type: ignore[arg-type]
    except ConflictError as error:
        assert not any(".git" in c.path for c in error.conflicts)  # noqa: PT017 - others are expected
        return branch.commit(on_conflict="ours").repository


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(rounds(30, 300)))
def test_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    checkout = Checkout.create(tmp_path / "w")
    checkout.commit(None, "b.txt", "b\n")
    people = [_Person(checkout, checkout.path, "user", chance)]
    for _ in range(chance.randrange(2)):
        people[0].act()
    branch = checkout.workspace.branch("try")
    people.append(_Person(checkout, branch.path, "attempt", chance))
    story = [chance.choice(people).act() for _ in range(chance.randrange(3, 9))]
    theirs, ours = _reachable(checkout), _reachable(checkout, branch.path)
    staged, before, entries = _staged(checkout), _refs(checkout), _entries(checkout)
    told = _commit(branch, chance.choice(["refuse", "ours", "theirs", "merge"]))
    explain = "\n".join([*story, *told])
    checkout.check()
    after = _reachable(checkout)
    assert theirs <= after, explain
    assert ours <= after, explain
    now = checkout.run("ls-files", "-s").stdout
    for path, blob in staged.items():
        assert set(blob) == {"0"} or (blob in now and f"\t{path}\n" in now), (path, explain)
    for name in checkout.git("for-each-ref", "--format=%(refname)", "refs/heads").split():
        log = checkout.git("reflog", "show", "--format=%H", name).split()
        assert log[:1] == [checkout.git("rev-parse", name).strip()], (name, explain)
    assert checkout.git("log", "-g", "-1", "--format=%H", "HEAD") == checkout.git("rev-parse", "HEAD"), explain
    if chance.random() < 0.5:
        undone = checkout.workspace.undo()
        checkout.check()
        assert _refs(checkout) == before, (explain, undone.repository)
        assert _entries(checkout) == entries, (explain, undone.repository)
        assert theirs <= _reachable(checkout)
