"""Combining branches: what is merged, what clashes, how clashes are resolved, and that nothing else is touched."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkwise import (
    Branch,
    BranchError,
    BranchingError,
    BranchNotFoundError,
    BranchStaleError,
    CommitError,
    ConflictError,
    ForkwiseWarning,
    Workspace,
)
from forkwise.files import path_merge
from forkwise.files.branch import Parent
from forkwise.files.combine import Combination, combine
from forkwise.files.store import trash
from forkwise.files.store.branch_info import BranchInfo
from forkwise.text.merge3 import ConflictHunk as Hunk
from tests.counts import examples
from tests.files import sample
from tests.files.snapshot import Seen, snapshot
from tests.files.steps import Steps, in_child
from tests.need import need

Open = Callable[..., Workspace]
IN_MEMORY = True

LINES = "".join(f"line {n}\n" for n in range(1, 10))
NOBODY = 65534
NOT_UTF8 = os.fsdecode(b"caf\xe9")
OLD = 1_500_000_000_000_000_001


class Link(NamedTuple):
    """A symlink."""

    target: str


class Mode(NamedTuple):
    """A change of mode."""

    mode: int


class Note(NamedTuple):
    """A change of an extended attribute; None removes it."""

    value: bytes | None


class Directory(NamedTuple):
    """An empty directory, replacing any entry."""


Did = Mapping[str, Any]  # changes by path: text or bytes to write, None for a deletion, or one of these


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return fill(tmp_path / "project")


def fill(made: Path) -> Path:
    do(
        made,
        {
            "f": LINES,
            "g": "g\n",
            "crlf": LINES.replace("\n", "\r\n"),
            "noeol": LINES.removesuffix("\n"),
            "binary": b"\0old",
            "d/a": LINES,
            "d/b": "b\n",
            "d/deep/c": "c\n",
            "e/x": "x\n",
            "link": Link("f"),
            "hollow": Directory(),
            NOT_UTF8: LINES,
        },
    )
    os.setxattr(made / "g", "user.note", b"old")
    return made


@pytest.fixture
def workspace(project: Path, view: str, open_workspace: Open) -> Workspace:
    return open_workspace(project, view=view)


@pytest.fixture(scope="module")
def standing(view: str, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    where = tmp_path_factory.mktemp("standing")
    return Workspace(fill(where / "project"), view=view, state=where / "state", durable=False)


@pytest.fixture
def unchanged(standing: Workspace) -> Iterator[Workspace]:
    """A workspace that many tests share: none of them commits anything."""
    before = snapshot(standing.path)
    yield standing
    for branch in standing.branches():
        branch.abort()
    assert snapshot(standing.path) == before


def line(number: int, text: str) -> str:
    """Return Return LINES with one line changed."""
    return LINES.replace(f"line {number}\n", f"{text}\n")


def do(root: Path, changes: Did) -> None:
    """Apply changes, without following a symlink that is the last name."""
    for name, change in changes.items():
        path = root / name
        for one in change if isinstance(change, list) else [change]:
            if isinstance(one, Mode):
                path.chmod(one.mode)
            elif isinstance(one, Note):
                if one.value is None:
                    os.removexattr(path, "user.note")
                else:
                    os.setxattr(path, "user.note", one.value)
            else:
                put(path, one)


def put(path: Path, value: str | bytes | Link | Directory | None) -> None:
    is_text = isinstance(value, str | bytes)
    if path.is_symlink() or (path.exists() and not (is_text and path.is_file())):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if path.parent.is_symlink() or path.parent.is_file():
        path.parent.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, Link):
        path.symlink_to(value.target)
    elif isinstance(value, Directory):
        path.mkdir()
    elif isinstance(value, str | bytes):
        path.write_bytes(value if isinstance(value, bytes) else value.encode())


def look(root: Path, name: str) -> object:
    """Return the entry at a path in the form that ``do`` takes."""
    path = root / name
    if path.is_symlink():
        return Link(os.readlink(path))
    if path.is_dir():
        return Directory()
    return path.read_bytes() if path.exists() else None


def normalize(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def branches(parent: Parent, *several: Did) -> list[Branch]:
    """Create one branch for each set of changes: one, two, three."""
    made = []
    for name, changes in zip(("one", "two", "three"), several, strict=False):
        made.append(parent.branch(name))
        do(made[-1].path, changes)
    return made


def together(several: Sequence[Branch], name: str = "both", **options: Any) -> Combination:
    """Combine, and check that nothing else was touched and that the result is described correctly."""
    parent = several[0].parent
    before = [snapshot(b.path) for b in several], snapshot(parent.workspace.path)
    done = combine(parent, several, name, **options)
    assert ([snapshot(b.path) for b in several], snapshot(parent.workspace.path)) == before
    assert done.clean is not bool(done.conflicts)
    assert {c.path for c in done.branch.delta()} == {*done.merged, *done.taken}
    assert not {*done.merged} & {*done.taken}
    assert {*done.taken.values()} <= {b.name for b in several}
    return done


def beneath(root: Path, path: str) -> dict[str, Seen]:
    return {p: s for p, s in snapshot(root).items() if p == path or p.startswith(f"{path}/")}


def shown(branch: Branch) -> dict[str, Seen]:
    return snapshot(branch.path, times=False)


# Merges

TOGETHER: dict[str, tuple[Did, Did, Did]] = {
    "different files": ({"f": "1"}, {"g": "2", "d/b": None}, {"f": "1", "g": "2", "d/b": None}),
    "different files of one directory": ({"d/a": "1"}, {"d/b": "2"}, {"d/a": "1", "d/b": "2"}),
    "new files in one new directory": ({"n/a": "1"}, {"n/b": "2"}, {"n/a": "1", "n/b": "2"}),
    "new files in one new deep directory": ({"n/m/a": "1"}, {"n/m/o/b": "2"}, {"n/m/a": "1", "n/m/o/b": "2"}),
    "different lines": (
        {"f": line(2, "two")},
        {"f": line(7, "seven")},
        {"f": line(2, "two").replace("line 7", "seven")},
    ),
    "different lines that end in CRLF": (
        {"crlf": line(2, "two").replace("\n", "\r\n")},
        {"crlf": line(7, "seven").replace("\n", "\r\n")},
        {"crlf": line(2, "two").replace("line 7", "seven").replace("\n", "\r\n")},
    ),
    "different lines, the last without an end": (
        {"noeol": line(2, "two").removesuffix("\n")},
        {"noeol": line(9, "nine").removesuffix("\n")},
        {"noeol": line(2, "two").replace("line 9", "nine").removesuffix("\n")},
    ),
    "a line, and the end of the last line": (
        {"noeol": line(2, "two").removesuffix("\n")},
        {"noeol": LINES},
        {"noeol": line(2, "two")},
    ),
    "different lines of a file whose name is not UTF-8": (
        {NOT_UTF8: line(2, "two")},
        {NOT_UTF8: line(7, "seven")},
        {NOT_UTF8: line(2, "two").replace("line 7", "seven")},
    ),
    "new names that are not UTF-8": (
        {f"{NOT_UTF8}-1/{NOT_UTF8}": "1"},
        {f"{NOT_UTF8}-2": "2"},
        {f"{NOT_UTF8}-1/{NOT_UTF8}": "1", f"{NOT_UTF8}-2": "2"},
    ),
    "the same text": ({"f": "same\n"}, {"f": "same\n"}, {"f": "same\n"}),
    "the same lines and others": (
        {"f": line(2, "two")},
        {"f": line(2, "two").replace("line 7", "seven")},
        {"f": line(2, "two").replace("line 7", "seven")},
    ),
    "the same new file": ({"n": "same"}, {"n": "same"}, {"n": "same"}),
    "the same bytes": ({"binary": b"\0new"}, {"binary": b"\0new"}, {"binary": b"\0new"}),
    "the same deletion": ({"f": None}, {"f": None}, {"f": None}),
    "the same symlink": ({"link": Link("g")}, {"link": Link("g")}, {"link": Link("g")}),
    "the same new symlink": ({"n": Link("g")}, {"n": Link("g")}, {"n": Link("g")}),
    "the same directory deleted": ({"d": None}, {"d": None}, {"d": None}),
    "the same change of type": ({"f": Link("g")}, {"f": Link("g")}, {"f": Link("g")}),
    "the same file in the place of a directory": ({"d": "d"}, {"d": "d"}, {"d": "d", "d/a": None}),
    "a directory in the place of a file, filled by both": ({"g/a": "1"}, {"g/b": "2"}, {"g/a": "1", "g/b": "2"}),
    "a file written anew with the same text, and its change": ({"f": LINES}, {"f": "2"}, {"f": "2"}),
    "a file written anew with the same text, and its deletion": ({"f": LINES}, {"f": None}, {"f": None}),
    "a directory deleted, and something inside it": ({"d": None}, {"d/deep": None}, {"d": None}),
    "a directory deleted, and a file in it written anew with the same text": ({"d": None}, {"d/a": LINES}, {"d": None}),
    "a file in the place of a directory, and something inside that deleted": (
        {"d": "d"},
        {"d/a": None},
        {"d": "d"},
    ),
    "a directory renamed, and another changed": (
        {"d": None, "moved/a": LINES, "moved/b": "b\n", "moved/deep/c": "c\n"},
        {"e/x": "2"},
        {"d": None, "moved/a": LINES, "moved/deep/c": "c\n", "e/x": "2"},
    ),
    "a directory made anew, and a change inside it": (
        {"d": [None, Directory()], "d/a": LINES, "d/new": "1"},
        {"d/a": "2"},
        {"d/a": "2", "d/b": None, "d/deep": None, "d/new": "1"},
    ),
    "an empty directory that comes, one that goes": (
        {"n": Directory()},
        {"hollow": None},
        {"n": Directory(), "hollow": None},
    ),
    "an empty directory, and something in it": ({"n": Directory()}, {"n/a": "2"}, {"n/a": "2"}),
    "an empty directory that goes as a file comes beside": ({"hollow": None}, {"n": "2"}, {"hollow": None, "n": "2"}),
    "a change of a file, and the same file touched by nobody": ({"f": "1"}, {}, {"f": "1"}),
    "nothing": ({}, {}, {"f": LINES}),
}


@pytest.mark.parametrize(("one", "two", "expected"), TOGETHER.values(), ids=TOGETHER.keys())
def test_changes_that_go_together(unchanged: Workspace, one: Did, two: Did, expected: Did) -> None:
    first, second = branches(unchanged, one, two)
    done = together([first, second])
    assert done.conflicts == ()
    assert {p: look(done.branch.path, p) for p in expected} == {p: normalize(v) for p, v in expected.items()}
    changed = {*one, *two}
    untouched = {p: s for p, s in snapshot(unchanged.path).items() if not is_related(p, changed)}
    assert {p: s for p, s in snapshot(done.branch.path).items() if not is_related(p, changed)} == untouched
    assert shown(combine(unchanged, [second, first], "back").branch) == shown(done.branch)


def is_related(path: str, others: set[str]) -> bool:
    return any(path == o or path.startswith(f"{o}/") or o.startswith(f"{path}/") or not path for o in others)


def test_the_origin_of_every_path_is_reported(workspace: Workspace) -> None:
    done = together(
        branches(
            workspace,
            {"f": line(2, "two"), "d": None, "n/a": "1", "g": "same"},
            {"f": line(7, "seven"), "d/deep": None, "n/b": "2", "g": "same", ".": Mode(0o700)},
        )
    )
    assert done.merged == ("f",)
    assert done.taken == {
        ".": "two",
        "d": "one",
        "d/a": "one",
        "d/b": "one",
        "d/deep": "one",
        "d/deep/c": "one",
        "g": "one",
        "n": "one",
        "n/a": "one",
        "n/b": "two",
    }
    assert done.branch.parent is workspace
    assert done.branch.status == "open"


def test_more_than_two(workspace: Workspace) -> None:
    several = branches(workspace, {"f": line(2, "2")}, {"f": line(5, "5"), "g": "g"}, {"f": line(8, "8"), "n": "n"})
    texts = set()
    for number, order in enumerate([several, several[::-1], [several[1], several[2], several[0]]]):
        done = together(order, f"all{number}")
        assert (done.merged, done.taken) == (("f",), {"g": "two", "n": "three"})
        texts.add((done.branch.path / "f").read_text())
    assert texts == {line(2, "2").replace("line 5", "5").replace("line 8", "8")}


# Modes, owners, attributes and times

LOOKS: dict[str, tuple[Did, Did, tuple[int, bytes | None, str]]] = {
    "mode and content": ({"g": Mode(0o755)}, {"g": "2"}, (0o755, b"old", "2")),
    "mode and attribute": ({"g": Mode(0o755)}, {"g": Note(b"new")}, (0o755, b"new", "g\n")),
    "attribute gone, and content": ({"g": Note(None)}, {"g": "2"}, (0o644, None, "2")),
    "mode, attribute and content": ({"g": [Mode(0o600), Note(b"new")]}, {"g": "2"}, (0o600, b"new", "2")),
    "the same mode, and content": ({"g": Mode(0o755)}, {"g": ["2", Mode(0o755)]}, (0o755, b"old", "2")),
    "the same mode and attribute": (
        {"g": [Mode(0o755), Note(b"new")]},
        {"g": [Mode(0o755), Note(b"new")]},
        (0o755, b"new", "g\n"),
    ),
}


@pytest.mark.parametrize(("one", "two", "expected"), LOOKS.values(), ids=LOOKS.keys())
def test_metadata_and_content_go_together(
    unchanged: Workspace, one: Did, two: Did, expected: tuple[int, bytes | None, str]
) -> None:
    first, second = branches(unchanged, one, two)
    for name, order in {"both": [first, second], "back": [second, first]}.items():
        done = together(order, name)
        assert done.clean
        found = done.branch.path / "g"
        note = os.getxattr(found, "user.note") if "user.note" in os.listxattr(found) else None
        assert (stat.S_IMODE(found.stat().st_mode), note, found.read_text()) == expected


def test_the_mode_of_a_file_whose_text_is_merged(workspace: Workspace) -> None:
    done = together(branches(workspace, {"f": [line(2, "two"), Mode(0o4711)]}, {"f": [line(7, "seven"), Note(b"2")]}))
    found = done.branch.path / "f"
    assert stat.S_IMODE(found.stat().st_mode) == 0o4711
    assert os.getxattr(found, "user.note") == b"2"


def test_the_metadata_of_a_directory_and_what_is_inside(workspace: Workspace) -> None:
    done = together(branches(workspace, {"d": [Mode(0o750), Note(b"1")]}, {"d/a": "2"}))
    assert done.taken == {"d": "one", "d/a": "two"}
    found = done.branch.path / "d"
    assert (stat.S_IMODE(found.stat().st_mode), os.getxattr(found, "user.note")) == (0o750, b"1")
    done = together([workspace.open("two"), workspace.open("one")], "back")
    assert done.taken == {"d": "one", "d/a": "two"}


def test_different_metadata_of_a_directory_is_merged(workspace: Workspace) -> None:
    done = together(branches(workspace, {"d": Mode(0o750)}, {"d": Note(b"2")}))
    assert done.merged == ("d",)
    found = done.branch.path / "d"
    assert (stat.S_IMODE(found.stat().st_mode), os.getxattr(found, "user.note")) == (0o750, b"2")


def test_a_clash_over_a_directory_s_metadata_does_not_keep_what_is_inside_apart(workspace: Workspace) -> None:
    several = branches(workspace, {"d/b": "1"}, {"d": Mode(0o700), "d/a": "2"}, {"d": Mode(0o711), "d/deep/c": "3"})
    for name, options, mode in (("both", {}, 0o700), ("prefer", {"prefer": {"d": "three"}}, 0o711)):
        done = together(several, name, **options)
        assert [(c.path, c.kind, c.branches) for c in done.conflicts] == (
            [] if options else [("d", "metadata", ("two", "three"))]
        )
        assert stat.S_IMODE((done.branch.path / "d").stat().st_mode) == mode
        assert [(done.branch.path / "d" / p).read_text() for p in ("a", "b", "deep/c")] == ["2", "1", "3"]


def test_a_clash_over_the_metadata_of_the_workspace_s_own_directory(workspace: Workspace) -> None:
    several = branches(workspace, {".": Mode(0o700), "f": "1"}, {".": Mode(0o711), "g": "2"})
    done = together(several)
    assert [(c.path, c.kind) for c in done.conflicts] == [(".", "metadata")]
    assert stat.S_IMODE(done.branch.path.stat().st_mode) == 0o700
    done = together(several, "decided", prefer={".": "two"})
    assert done.clean
    assert stat.S_IMODE(done.branch.path.stat().st_mode) == 0o711
    assert (look(done.branch.path, "f"), look(done.branch.path, "g")) == (b"1", b"2")


def test_owners(workspace: Workspace) -> None:
    need(os.geteuid() == 0, "only root gives files away")
    one, two = branches(workspace, {"link": Link("g")}, {"f": "2", "d/a": "2", "link": Link("g")})
    for path, owner in {"f": (1, 2), "d": (3, 4), "link": (5, 6)}.items():
        os.chown(one.path / path, *owner, follow_symlinks=False)
    done = together([one, two])
    found = [(done.branch.path / p).lstat() for p in ("f", "d", "link")]
    assert [(s.st_uid, s.st_gid) for s in found] == [(1, 2), (3, 4), (5, 6)]
    assert (look(done.branch.path, "f"), look(done.branch.path, "d/a")) == (b"2", b"2")


def test_the_owner_of_a_symlink_and_where_it_leads(project: Path, open_workspace: Open) -> None:
    need(os.geteuid() == 0, "only root gives files away")
    one, two = branches(open_workspace(project, view="copy"), {}, {"link": Link("g")})
    os.chown(one.path / "link", 5, 6, follow_symlinks=False)
    done = together([one, two])
    assert done.merged == ("link",)
    found = (done.branch.path / "link").lstat()
    assert (look(done.branch.path, "link"), found.st_uid, found.st_gid) == (Link("g"), 5, 6)


def test_times_are_those_of_what_was_taken(workspace: Workspace) -> None:
    one, two = branches(
        workspace, {"f": "1", "n/a": "1", "l": Link("f"), "d/deep/c": "1"}, {"g": "2", "d/b": None, "n/b": "2"}
    )
    for root, ages in ((one.path, {"f": 1, "n/a": 2, "n": 3, "l": 4}), (two.path, {"g": 5, "n/b": 6, "n": 7, "d": 8})):
        for path, age in ages.items():
            os.utime(root / path, ns=(OLD + age, OLD + age), follow_symlinks=False)
    done = together([one, two])
    paths = ("f", "n/a", "n", "l", "g", "n/b", "d")
    assert [(done.branch.path / p).lstat().st_mtime_ns - OLD for p in paths] == [1, 2, 7, 4, 5, 6, 8]


def test_a_merged_text_is_new_and_a_merged_mode_is_not(workspace: Workspace) -> None:
    one, two = branches(workspace, {"f": line(2, "2"), "g": "1"}, {"f": line(7, "7"), "g": Mode(0o600)})
    for path in (one.path / "f", two.path / "f", one.path / "g"):
        os.utime(path, ns=(OLD, OLD))
    done = together([one, two])
    assert done.merged == ("f", "g")
    assert (done.branch.path / "f").stat().st_mtime_ns > OLD  # otherwise make would not rebuild it
    assert (done.branch.path / "g").stat().st_mtime_ns == OLD


# Clashes

CLASHES: dict[str, tuple[Did, Did, str, str]] = {
    "the same line": ({"f": line(3, "1")}, {"f": line(3, "2")}, "f", "content"),
    "lines that touch": ({"f": line(3, "1")}, {"f": line(4, "2")}, "f", "content"),
    "the same line, and modes": (
        {"f": [line(3, "1"), Mode(0o600)]},
        {"f": [line(3, "2"), Mode(0o640)]},
        "f",
        "content",
    ),
    "the same line of a file whose name is not UTF-8": (
        {NOT_UTF8: line(3, "1")},
        {NOT_UTF8: line(3, "2")},
        NOT_UTF8,
        "content",
    ),
    "bytes": ({"binary": b"\0one"}, {"binary": b"\0two"}, "binary", "binary"),
    "text and bytes": ({"f": "1"}, {"f": b"\0two"}, "f", "binary"),
    "a symlink's target": ({"link": Link("g")}, {"link": Link("d")}, "link", "target"),
    "deleted and changed": ({"f": None}, {"f": "2"}, "f", "deleted and changed"),
    "deleted and its mode changed": ({"f": None}, {"f": Mode(0o600)}, "f", "deleted and changed"),
    "deleted and turned into a symlink": ({"f": None}, {"f": Link("g")}, "f", "deleted and changed"),
    "a directory deleted, and changed inside": ({"d": None}, {"d/deep/c": "2"}, "d", "deleted and changed"),
    "a directory deleted, and added to": ({"d": None}, {"d/deep/n": "2"}, "d", "deleted and changed"),
    "a directory deleted, and its mode changed": ({"d": None}, {"d": Mode(0o700)}, "d", "deleted and changed"),
    "an empty directory deleted, and filled": ({"hollow": None}, {"hollow/n": "2"}, "hollow", "deleted and changed"),
    "a directory renamed, and changed inside": (
        {"d": None, "moved/a": LINES},
        {"d/a": "2"},
        "d",
        "deleted and changed",
    ),
    "a file in the place of a directory that was changed inside": ({"d": "1"}, {"d/a": "2"}, "d", "type"),
    "a symlink in the place of a directory that was added to": ({"d": Link("e")}, {"d/n": "2"}, "d", "type"),
    "a directory in the place of a file that was changed": ({"f/n": "1"}, {"f": "2"}, "f", "type"),
    "a directory in the place of a file that was deleted": ({"f/n": "1"}, {"f": None}, "f", "deleted and changed"),
    "a directory in the place of a symlink that was changed": ({"link/n": "1"}, {"link": Link("g")}, "link", "type"),
    "a symlink in the place of a file that was changed": ({"f": Link("g")}, {"f": "2"}, "f", "type"),
    "a file in the place of a directory, and none": ({"d": "1"}, {"d": None}, "d", "deleted and changed"),
    "different texts in the place of a symlink": ({"link": "1"}, {"link": "2"}, "link", "added differently"),
    "different new texts": ({"n/a": "1"}, {"n/a": "2"}, "n/a", "added differently"),
    "different new symlinks": ({"n": Link("f")}, {"n": Link("g")}, "n", "added differently"),
    "a new file and a new directory": ({"n": "1"}, {"n/a": "2"}, "n", "added differently"),
    "a new file and a new symlink": ({"n": "1"}, {"n": Link("f")}, "n", "added differently"),
    "modes": ({"f": Mode(0o600)}, {"f": Mode(0o640)}, "f", "metadata"),
    "attributes": ({"g": Note(b"1")}, {"g": Note(b"2")}, "g", "metadata"),
    "an attribute changed, and taken away": ({"g": Note(b"1")}, {"g": Note(None)}, "g", "metadata"),
    "the same new file with different modes": (
        {"n": ["n", Mode(0o600)]},
        {"n": ["n", Mode(0o640)]},
        "n",
        "metadata",
    ),
}


@pytest.mark.parametrize(("one", "two", "path", "kind"), CLASHES.values(), ids=CLASHES.keys())
def test_changes_that_clash(unchanged: Workspace, one: Did, two: Did, path: str, kind: str) -> None:
    """A clash takes the first version, or the preferred one; all other changes are combined."""
    several = branches(unchanged, {**one, "other/1": "1"}, {**two, "other/2": "2"})
    for number, order in enumerate((several, several[::-1])):
        names = tuple(b.name for b in order)
        done = together(order, f"undecided{number}")
        assert [(c.path, c.kind, c.branches) for c in done.conflicts] == [(path, kind, names)]
        assert str(done.conflicts[0]).startswith(f"{path}: ")
        assert all(name in done.conflicts[0].detail for name in names)
        assert beneath(done.branch.path, path) == beneath(order[0].path, path)
        assert sorted(os.listdir(done.branch.path / "other")) == ["1", "2"]
        done = combine(unchanged, order, f"decided{number}", prefer={path: names[1]})
        assert done.conflicts == ()
        assert beneath(done.branch.path, path) == beneath(order[1].path, path)
        assert sorted(os.listdir(done.branch.path / "other")) == ["1", "2"]


def test_the_conflicting_lines_are_reported(workspace: Workspace) -> None:
    done = together(branches(workspace, {"f": line(3, "1")}, {"f": line(3, "2")}))
    (clash,) = done.conflicts
    assert clash.hunks == (Hunk(2, 3, (b"line 3\n",), (b"1\n",), (b"2\n",)),)
    assert clash.detail == "one, two changed the same lines (of the common version: 3)"


def test_of_three_the_two_that_clash_leave_the_path_to_the_first(workspace: Workspace) -> None:
    several = branches(workspace, {"f": line(2, "1")}, {"f": line(8, "2")}, {"f": line(8, "3"), "g": "3"})
    done = together(several)
    assert [(c.path, c.kind, c.branches) for c in done.conflicts] == [("f", "content", ("one", "two", "three"))]
    assert done.conflicts[0].hunks == (Hunk(7, 8, (b"line 8\n",), (b"2\n",), (b"3\n",)),)
    assert (done.branch.path / "f").read_text() == line(2, "1")
    assert done.taken == {"f": "one", "g": "three"}


def test_of_three_two_are_merged_inside_a_directory_that_stays(workspace: Workspace) -> None:
    one, two, three = branches(workspace, {"d": None}, {"d/a": line(2, "2")}, {"d/a": line(7, "7"), "d/n": "3"})
    done = together([two, one, three])
    assert [(c.path, c.kind, c.branches) for c in done.conflicts] == [
        ("d", "deleted and changed", ("two", "one", "three"))
    ]
    assert done.conflicts[0].detail == ("two has a directory there, one has nothing there, three has a directory there")
    assert (done.branch.path / "d/a").read_text() == line(2, "2").replace("line 7", "7")
    assert sorted(os.listdir(done.branch.path / "d")) == ["a", "b", "deep", "n"]


def test_paths_inside_can_be_decided_on_their_own(workspace: Workspace) -> None:
    """A preference holds even if no branch with the directory changed the path, or if the preferred branch changed
    nothing."""
    several = branches(workspace, {"d": None, "g": "1"}, {"d/a": "2", "e/x": "2"})
    done = together(several, prefer={"d": "two", "d/b": "one", "./e//x": "one", "g": "two", "nobody/cares": "one"})
    assert done.clean
    assert {p: look(done.branch.path, p) for p in ("d/a", "d/b", "d/deep/c", "e/x", "g")} == {
        "d/a": b"2",
        "d/b": None,
        "d/deep/c": b"c\n",
        "e/x": b"x\n",
        "g": b"g\n",
    }
    assert done.taken == {"d/a": "two", "d/b": "one"}


def test_a_large_text_is_not_merged(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    several = branches(workspace, {"f": line(2, "two")}, {"f": line(7, "seven")})
    monkeypatch.setattr(path_merge, "LIMIT", len(LINES))
    assert together(several).clean
    monkeypatch.setattr(path_merge, "LIMIT", len(LINES) - 1)
    assert [(c.path, c.kind) for c in together(several, "large").conflicts] == [("f", "large")]


def test_what_one_branch_changed_is_not_read_to_be_merged(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a file of 64 GiB is combined at once, because a single version is not opened."""
    one, two = branches(workspace, {"f": "1", "d/a": "1", "n/n": "1"}, {"g": "2", "e": None})
    with (one.path / "big").open("wb") as file:
        file.truncate(1 << 36)
    monkeypatch.setattr(path_merge.Version, "content", property(lambda _: pytest.fail("it was read")))
    monkeypatch.setattr(path_merge.Version, "has_content_of", lambda *_: pytest.fail("it was read"))
    done = combine(workspace, [one, two], "both")
    assert (done.branch.path / "big").stat().st_size == 1 << 36


def test_what_it_costs_does_not_depend_on_the_workspace(tmp_path: Path, open_workspace: Open) -> None:
    need(os.geteuid() == 0, "mounting an overlay needs root")

    def calls(files: int) -> int:
        """Count the system calls of a combination."""
        root = tmp_path / str(files)
        do(root, {f"{directory}/{number}": "" for number in range(files) for directory in ("d", "e")})
        several = branches(open_workspace(root, view="overlay"), {"d/1": "1", "d/n": "1"}, {"d/2": "2", "e/1": "2"})
        made = []

        def count(_frame: object, event: str, function: Any) -> None:
            if event == "c_call" and function.__module__ in (None, "posix"):
                made.append(function)

        sys.setprofile(count)
        try:
            combine(several[0].parent, several, "both")
        finally:
            sys.setprofile(None)
        return len(made)

    calls(3)  # loads modules that are imported on first use
    assert calls(1_000) - calls(10) < 500


# Against git

TEXTS = {
    "far apart": (LINES, line(2, "2"), line(8, "8")),
    "one line between": (LINES, line(4, "4"), line(6, "6")),
    "none between": (LINES, line(4, "4"), line(5, "5")),
    "alike": (LINES, line(4, "4"), line(4, "4")),
    "added at both ends": (LINES, f"first\n{LINES}", f"{LINES}last\n"),
    "added at the same end": (LINES, f"{LINES}1\n", f"{LINES}2\n"),
    "deleted and changed elsewhere": (LINES, LINES.replace("line 2\n", ""), line(8, "8")),
    "deleted and changed": (LINES, LINES.replace("line 3\n", ""), line(3, "3")),
    "all deleted": (LINES, "", line(3, "3")),
    "CRLF": tuple(t.replace("\n", "\r\n") for t in (LINES, line(2, "2"), line(8, "8"))),
    "CRLF of one only": (LINES, LINES.replace("\n", "\r\n"), line(8, "8")),
    "no end": (LINES[:-1], line(2, "2")[:-1], line(8, "8")[:-1]),
    "an end put there": (LINES[:-1], line(2, "2")[:-1], LINES),
    "an end put there, and the last line changed": (LINES[:-1], line(9, "9")[:-1], LINES),
    "lines that repeat": ("a\n" * 9, "a\n" * 4 + "b\n" + "a\n" * 5, "c\n" + "a\n" * 9),
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS.keys())
def test_texts_are_merged_as_git_merges_them(tmp_path: Path, open_workspace: Open, texts: tuple[str, str, str]) -> None:
    need(shutil.which("git") is not None, "git, which the merge is held against, is not installed")
    base, ours, theirs = texts
    do(tmp_path, {"project/f": base, "git/ours": ours, "git/base": base, "git/theirs": theirs})
    ran = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=tmp_path / "git", capture_output=True
    )
    assert 0 <= ran.returncode < 128, ran.stderr
    workspace = open_workspace(tmp_path / "project", view="copy")
    done = together(branches(workspace, {"f": ours}, {"f": theirs}))
    assert done.clean is (ran.returncode == 0)
    assert (done.branch.path / "f").read_bytes() == (ran.stdout if done.clean else ours.encode())


# What can be combined


def test_one_branch_combined_is_that_branch(tmp_path: Path, view: str, open_workspace: Open) -> None:
    """Including times and attributes, for more than fifty kinds of changes."""
    (tmp_path / "sample").mkdir()
    sample.grow(tmp_path / "sample")
    workspace = open_workspace(tmp_path / "sample", view=view)
    one, unchanged = workspace.branch("one"), workspace.branch("unchanged")
    sample.alter(one.path)
    expected = snapshot(one.path)
    done = together([one])
    assert done.merged == ()
    assert {*done.taken.values()} == {"one"}
    assert snapshot(done.branch.path) == expected
    assert os.path.samefile(done.branch.path / "new-pair-1", done.branch.path / "new-pair-2")
    assert (done.branch.path / "new-sparse").stat().st_blocks < 1 << 8
    assert snapshot(together([unchanged, one, one], "more").branch.path) == expected
    done.branch.commit()
    assert snapshot(workspace.path) == expected


def test_a_clean_combination_is_committed_like_any_branch(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    one, two = branches(workspace, {"f": line(2, "two"), "d": None}, {"f": line(7, "seven"), "n/n": "2"})
    done = together([one, two])
    seen = snapshot(done.branch.path)
    commit = done.branch.commit()
    assert snapshot(workspace.path) == seen
    assert {*commit.paths} == {*done.merged, *done.taken}
    assert (one.status, two.status) == ("stale", "stale")
    workspace.undo()
    assert snapshot(workspace.path) == before


def test_a_combination_can_be_combined_again(workspace: Workspace) -> None:
    one, two, three = branches(workspace, {"f": line(2, "2")}, {"f": line(5, "5")}, {"f": line(8, "8")})
    done = together([together([one, two]).branch, three], "all")
    assert done.clean
    assert (done.branch.path / "f").read_text() == line(2, "2").replace("line 5", "5").replace("line 8", "8")


def test_frozen_branches_and_branches_with_branches(workspace: Workspace) -> None:
    one, two = branches(workspace, {"f": "1"}, {"g": "2"})
    one.freeze()
    do(two.branch("inner").path, {"d/a": "not two's"})
    done = together([one, two])
    assert (one.status, two.status) == ("frozen", "frozen")
    assert done.taken == {"f": "one", "g": "two"}
    do(done.branch.path, {"g": "written"})


def test_branches_of_a_branch(workspace: Workspace) -> None:
    outer = workspace.branch("outer")
    do(outer.path, {"f": line(5, "5"), "d/b": None, "o/o": "o", "e": None, "e/y": "y"})
    one, two, three = branches(
        outer,
        {"f": line(5, "5").replace("line 2", "2"), "d/a": None, "o/1": "1"},
        {"f": line(5, "5").replace("line 8", "8"), "o/o": None, "o/2": "2", "e/z": "z"},
        {"o": None},
    )
    done = together([one, two])
    assert done.clean
    assert done.merged == ("f",)
    clash = together([one, two, three], "all")
    assert [(c.path, c.kind, c.branches) for c in clash.conflicts] == [
        ("o", "deleted and changed", ("one", "two", "three"))
    ]
    clash.branch.abort()
    seen = shown(done.branch)
    done.branch.commit()
    for branch in (one, two, three):
        branch.abort()
    assert shown(outer) == seen
    outer.commit()
    assert snapshot(workspace.path, times=False) == seen
    assert (workspace.path / "f").read_text() == line(5, "5").replace("line 2", "2").replace("line 8", "8")
    assert sorted(os.listdir(workspace.path / "o")) == ["1", "2"]
    assert sorted(os.listdir(workspace.path / "e")) == ["y", "z"]


@pytest.fixture
def nothing_left(workspace: Workspace) -> Iterator[None]:
    """A test that must leave no new branch: neither its name nor its files nor, as all tests, its mount."""
    yield
    trash.wait_until_empty()
    assert {b.name for b in workspace.branches()} <= {"one", "two", "three", "inner"}
    assert "both" not in os.listdir(workspace.state / "branches")
    assert os.listdir(workspace.state / "trash") == []


@pytest.mark.usefixtures("nothing_left")
class TestRefusals:
    def test_a_stale_branch(self, workspace: Workspace) -> None:
        one, two, three = branches(workspace, {"f": line(2, "2")}, {"f": line(7, "7")}, {"g": "3"})
        three.commit()
        with pytest.raises(BranchStaleError, match="rebase") as caught:
            combine(workspace, [one, two], "both")
        assert caught.value.branch == "one"
        one.rebase()
        with pytest.raises(BranchStaleError) as caught:
            combine(workspace, [one, two], "both")
        assert caught.value.branch == "two"
        two.rebase()
        done = together([one, two])
        assert (done.merged, done.taken) == (("f",), {})
        done.branch.abort()

    def test_a_branch_that_is_gone(self, workspace: Workspace) -> None:
        one, two = branches(workspace, {"f": "1"}, {"g": "2"})
        two.abort()
        with pytest.raises(BranchNotFoundError):
            combine(workspace, [one, two], "both")

    def test_branches_that_are_no_siblings(self, workspace: Workspace) -> None:
        one, _ = branches(workspace, {"f": "1"}, {"g": "2"})
        inner = one.branch("inner")
        for parent, several in ((workspace, [one, inner]), (one, [inner, one])):
            with pytest.raises(BranchError, match="siblings"):
                combine(parent, several, "both")

    def test_a_name_that_is_taken(self, workspace: Workspace) -> None:
        several = branches(workspace, {"f": "1"}, {"g": "2"})
        for name, said in {"one": "already exists", "a/b": "not a valid branch name"}.items():
            with pytest.raises(BranchError, match=said):
                combine(workspace, several, name)
        assert look(several[0].path, "f") == b"1"

    def test_arguments_that_make_no_sense(self, workspace: Workspace) -> None:
        several = branches(workspace, {"f": "1"}, {"g": "2"})
        with pytest.raises(ValueError, match="no branch"):
            combine(workspace, [], "both")
        with pytest.raises(ValueError, match="prefer names three, but the combined branches are one, two"):
            combine(workspace, several, "both", prefer={"f": "three"})
        for path in ("..", "../f", "d/../../f", "/f"):
            with pytest.raises(ValueError, match="inside"):
                combine(workspace, several, "both", prefer={path: "one"})

    @pytest.mark.parametrize("theirs", [{"f": "third"}, {"f": None}], ids=["changed", "deleted"])
    def test_a_branch_that_conflicts_with_a_third_party(self, workspace: Workspace, theirs: Did) -> None:
        """Otherwise the commit of the new, younger branch would overwrite it."""
        several = branches(workspace, {"f": line(2, "1")}, {"g": "2"})
        do(workspace.path, theirs)
        with pytest.raises(ConflictError) as caught:
            combine(workspace, several, "both")
        assert (caught.value.branch, caught.value.paths) == ("one", ("f",))
        (left,) = several[0].rebase().conflicts
        with pytest.raises(ConflictError) as caught:
            combine(workspace, several, "both")
        assert caught.value.conflicts == (left,)
        do(several[0].path, {"f": "settled"})
        done = together(several)
        assert look(done.branch.path, "f") == b"settled"
        done.branch.abort()

    def test_a_third_party_s_other_changes_are_no_matter(self, workspace: Workspace) -> None:
        several = branches(workspace, {"f": "1", "n": "same"}, {"g": "2"})
        do(workspace.path, {"e/x": "third", "n": "same", "d/n": "third"})
        done = combine(workspace, several, "both")
        assert done.clean
        assert (look(done.branch.path, "e/x"), look(done.branch.path, "f")) == (b"third", b"1")
        done.branch.commit()
        for branch in several:
            branch.abort()

    def test_what_may_have_been_torn_by_a_restart(self, workspace: Workspace) -> None:
        several = branches(workspace, {"f": "1"}, {"g": "2"})
        info = BranchInfo.load(several[0].home)
        info.boot = "another"
        info.save(several[0].home)
        with pytest.raises(CommitError, match="restarted"):
            combine(workspace, several, "both")
        several[0].keep()
        together(several).branch.abort()

    def test_whatever_call_fails(self, workspace: Workspace) -> None:
        several = branches(
            workspace,
            {"f": line(2, "2"), "d": None, "g": Mode(0o600), "n/n": "1", "link": Link("g"), "e": Mode(0o700)},
            {"f": line(7, "7"), "g": "2", "hollow": "2", "e": Note(b"2")},
        )
        before = [snapshot(b.path) for b in several]
        failed = 0
        for at in range(1, 200):
            steps = Steps(at, errno.ENOSPC)
            try:
                with steps.watched():
                    done = combine(workspace, several, "both")
            except (BranchingError, OSError):
                failed += 1
                assert [b.name for b in workspace.branches()] == ["one", "two"], at
                continue
            if len(steps.seen) < at:
                break
            done.branch.abort()
        assert failed > 20
        assert len(steps.seen) < at
        assert [snapshot(b.path) for b in several] == before
        done.branch.abort()


def test_files_that_stand_for_something_that_runs_are_left_out(workspace: Workspace) -> None:
    several = branches(workspace, {"f": "1", "n/n": "1"}, {"g": "2"})
    os.mkfifo(several[0].path / "fifo")
    os.mkfifo(several[0].path / "n" / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(several[1].path, os.O_PATH)
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    with pytest.warns(ForkwiseWarning, match="fifo, n/fifo, socket"):
        done = combine(workspace, several, "both")
    assert {*done.taken} == {"f", "g", "n", "n/n"}
    assert not [p for p in snapshot(done.branch.path) if "fifo" in p or "socket" in p]


def test_directories_and_files_that_may_not_be_written_to() -> None:
    """Root may write anyway; other users must first change the mode, which is restored at the end."""
    need(os.geteuid() == 0, "only root can become another user")

    def scene(directory: Path) -> dict[str, tuple[int, object]]:
        do(directory / "project", {"d/a": LINES, "d/b": "b", "closed/x": "x", "closed": Mode(0o555)})
        workspace = Workspace(directory / "project", view="copy", state=directory / "state", durable=False)
        several = branches(
            workspace,
            {"d/a": [line(2, "2"), Mode(0o444)], "d": Mode(0o555), "n/n": ["n", Mode(0o400)], "n": Mode(0o500)},
            {"d/a": line(7, "7"), "d/b": None, "closed": Mode(0o755), "closed/x": "2"},
        )
        several[1].path.joinpath("closed").chmod(0o555)
        done = together(several)
        assert done.clean
        return {p: (s.mode, look(done.branch.path, p)) for p, s in snapshot(done.branch.path).items() if p}

    expected = {
        "d": (0o555, Directory()),
        "d/a": (0o444, line(2, "2").replace("line 7", "7").encode()),
        "n": (0o500, Directory()),
        "n/n": (0o400, b"n"),
        "closed": (0o555, Directory()),
        "closed/x": (0o644, b"2"),
    }
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        assert scene(Path(one)) == expected  # root loads modules that other users may not read
        os.chmod(two, 0o1777)
        outcome = in_child(lambda: scene(Path(two)), user=NOBODY)
        assert (outcome.raised, outcome.value) == (None, expected)


# Commits of a combination with conflicts


@pytest.mark.parametrize(
    ("one", "two", "paths"),
    [
        ({"f": "1"}, {"f": "2"}, ("f",)),
        ({"f": None}, {"f": "2"}, ("f",)),
        ({"d": None}, {"d/a": "2"}, ("d",)),
        ({"d/a": "1", "d/n": "1"}, {"d": None}, ("d/a", "d/n")),
        ({"d": Mode(0o700)}, {"d": Mode(0o711)}, ("d",)),
        ({".": Mode(0o700)}, {".": Mode(0o711)}, (".",)),
    ],
    ids=str,
)
def test_a_commit_refuses_undecided_conflicts(workspace: Workspace, one: Did, two: Did, paths: tuple[str, ...]) -> None:
    done = together(branches(workspace, {**one, "g": "1"}, {**two, "e/x": "2"}))
    before = snapshot(workspace.path)
    again = workspace.open("both")  # as another process would
    with pytest.raises(ConflictError) as caught:
        again.commit()
    assert caught.value.paths == paths
    assert done.conflicts[0].detail in str(caught.value)
    assert snapshot(workspace.path) == before
    seen = shown(done.branch)
    again.commit(on_conflict="ours")
    assert snapshot(workspace.path, times=False) == seen


def test_conflicts_resolved_by_hand_are_committed(workspace: Workspace) -> None:
    done = together(branches(workspace, {"f": "1"}, {"f": "2"}))
    do(done.branch.path, {"f": "1 and 2"})
    done.branch.commit()
    assert look(workspace.path, "f") == b"1 and 2"


@pytest.mark.parametrize("theirs", [{"f": "third"}, {"f": None}], ids=["changed", "deleted"])
def test_what_a_third_party_does_later_is_a_conflict(workspace: Workspace, theirs: Did) -> None:
    done = together(branches(workspace, {"f": line(2, "2")}, {"f": line(7, "7")}))
    done.branch.path.stat()
    do(workspace.path, theirs)
    with pytest.raises(ConflictError) as caught:
        done.branch.commit()
    assert caught.value.paths == ("f",)


@pytest.mark.crash
def test_a_combination_that_was_killed_is_not_committed_by_halves(workspace: Workspace) -> None:
    several = branches(
        workspace,
        {"f": line(2, "2"), "d": None, "g": Mode(0o600), "n/n": "1"},
        {"f": line(7, "7"), "g": "2", "hollow": "2", "link": Link("g")},
    )
    whole = shown(together(several, "whole").branch)
    before = snapshot(workspace.path)
    refused = 0
    for at in range(1, 200):
        outcome = in_child(lambda: combine(workspace, several, "both") and None, Steps(at))
        if not outcome.killed:
            break
        left = [b for b in workspace.branches() if b.name == "both"]
        for branch in left:
            seen = shown(branch)
            if seen not in (whole, snapshot(workspace.path, times=False)):
                refused += 1
                with pytest.raises(ConflictError, match="interrupted"):
                    branch.commit()
            branch.abort()
    assert not outcome.killed
    assert refused > 10
    assert snapshot(workspace.path) == before
    assert shown(workspace.open("both")) == whole


# Symlinks planted by a branch


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory that must not change."""
    made = tmp_path / "outside"
    do(made, {"a": "outside\n", "b": "outside\n", "deep/c": "outside\n"})
    seen = look_closely(made)
    yield made
    assert look_closely(made) == seen


def look_closely(root: Path) -> dict[str, tuple[Seen, int, int]]:
    found = {p: (s, (root / p).lstat()) for p, s in snapshot(root).items()}
    return {p: (s, e.st_ino, e.st_ctime_ns) for p, (s, e) in found.items()}


@pytest.mark.parametrize("place", ["d", "d/deep", "d/a"])
@pytest.mark.parametrize("wanted", ["one", "two", None])
def test_nothing_is_written_or_read_through_a_planted_symlink(
    workspace: Workspace, outside: Path, place: str, wanted: str | None
) -> None:
    one, two, three = branches(
        workspace,
        {place: Link(str(outside / place.removeprefix("d").strip("/")))},
        {"d/a": line(2, "2"), "d/b": None, "d/deep/c": "2", "d/deep/n": "2", "d/deep": Mode(0o700), "d": Mode(0o700)},
        {"d/a": line(7, "7"), "d/n": "3"},
    )
    for number, order in enumerate(([one, two, three], [two, one, three], [three, two, one])):
        done = together(order, f"all{number}", prefer={place: wanted} if wanted else {})
        assert [c.path for c in done.conflicts] == ([] if wanted else [place])
        first = wanted or ("one" if order[0] is one else "two")
        assert (done.branch.path / place).is_symlink() is (first == "one")
        assert "outside" not in str(done.branch.diff().replace(str(outside), ""))


# Any changes of anything, against a model

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a")
WORDS = ("x", "y")


class Node(NamedTuple):
    """A file, directory or symlink; the content of a file is its lines, that of a symlink its target."""

    kind: str
    content: tuple[str, ...]
    mode: int


class Op(NamedTuple):
    """One operation on a tree."""

    way: str
    path: str
    number: int
    word: str


Tree = dict[str, Node]
PLAIN = tuple(f"line {n}" for n in range(5))


def ops(*ways: str) -> st.SearchStrategy[Op]:
    return st.builds(
        Op, st.sampled_from(ways), st.sampled_from(NAMES), st.sampled_from([0, 2, 4]), st.sampled_from(WORDS)
    )


changes = ops("write", "write", "write", "delete", "chmod", "link")
anything = changes | ops("mkdir", "again")


def play(tree: Tree, op: Op, root: Path) -> None:
    """Apply one operation to the model and to a real directory, if possible."""
    path = root / op.path
    old = tree.get(op.path)
    above = op.path.split("/")[:-1]
    parents = ["/".join(above[: n + 1]) for n in range(len(above))]
    if any(tree.get(p, Node("directory", (), 0)).kind != "directory" for p in parents):
        return
    if op.way == "write" and (old is None or old.kind == "file"):
        make(tree, parents, root)
        lines = list(old.content if old else PLAIN)
        lines[op.number] = op.word
        tree[op.path] = Node("file", tuple(lines), old.mode if old else 0o644)
        path.write_text("\n".join(lines))
    elif op.way == "delete" and old:
        drop(tree, op.path, path)
    elif op.way == "chmod" and old and old.kind != "symlink":
        tree[op.path] = old._replace(mode=0o700 if op.word == "x" else 0o710)
        path.chmod(tree[op.path].mode)
    elif op.way == "link":
        make(tree, parents, root)
        drop(tree, op.path, path)
        tree[op.path] = Node("symlink", (op.word,), 0)
        path.symlink_to(op.word)
    elif op.way == "mkdir" and old is None:
        make(tree, [*parents, op.path], root)
    elif op.way == "again" and old and old.kind == "file":  # as editors do: a new file renamed over the old one
        (root / "beside").write_bytes(path.read_bytes())
        (root / "beside").chmod(old.mode)
        (root / "beside").rename(path)


def make(tree: Tree, directories: Sequence[str], root: Path) -> None:
    for directory in directories:
        if directory not in tree:
            tree[directory] = Node("directory", (), 0o755)
            (root / directory).mkdir()


def drop(tree: Tree, name: str, path: Path) -> None:
    for gone in [p for p in tree if p == name or p.startswith(f"{name}/")]:
        del tree[gone]
    put(path, None)


def read(root: Path) -> Tree:
    tree: Tree = {}
    for path in root.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            node = Node("symlink", (os.readlink(path),), 0)
        elif path.is_dir():
            node = Node("directory", (), mode)
        else:
            node = Node("file", tuple(path.read_text().split("\n")), mode)
        tree[str(path.relative_to(root))] = node
    return tree


def merged(base: Node | None, several: Sequence[Node | None]) -> Node | None:
    """Return the combined version of one path: every line and mode that a branch changed; at most one value each."""
    changed = {node for node in several if node != base}
    if len(changed) < 2:
        return changed.pop() if changed else base
    assert base is not None, "it was added differently, and no clash was reported"
    assert {n and n.kind for n in changed} == {base.kind}, "it clashes, and no clash was reported"
    real = [node for node in changed if node]
    lines = [only(old, {n.content[i] for n in real}) for i, old in enumerate(base.content)]
    return Node(base.kind, tuple(lines), only(base.mode, {n.mode for n in real}))


def only(old: Any, new: set[Any]) -> Any:
    changed = new - {old}
    assert len(changed) < 2, "it clashes, and no clash was reported"
    return changed.pop() if changed else old


class World:
    """A separate workspace for every example, and branches with the model of their content."""

    def __init__(self, where: Path, view: str) -> None:
        self.directory = Path(tempfile.mkdtemp(dir=where))
        root = self.directory / "project"
        root.mkdir()
        self.base: Tree = {}
        for name in ("a", "d/a", "d/b", "d/e/a"):
            play(self.base, Op("write", name, 0, "line 0"), root)
        self.workspace = Workspace(root, view=view, state=self.directory / "state", durable=False)

    def branches(self, doings: Sequence[Sequence[Op]]) -> list[tuple[Branch, Tree]]:
        made = []
        for number, doing in enumerate(doings):
            branch, tree = self.workspace.branch(f"b{number}"), dict(self.base)
            for op in doing:
                play(tree, op, branch.path)
            assert read(branch.path) == tree
            made.append((branch, tree))
        return made

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for branch in self.workspace.branches():
            branch.abort()
        trash.wait_until_empty()
        shutil.rmtree(self.directory)


def related(one: str, two: str) -> bool:
    return one == two or one.startswith(f"{two}/") or two.startswith(f"{one}/")


def some(number: int) -> settings:
    return settings(max_examples=examples(number), suppress_health_check=[HealthCheck.function_scoped_fixture])


@some(30)
@given(doings=st.lists(st.lists(anything, max_size=5), min_size=2, max_size=3))
def test_any_changes_come_to_what_the_model_says(tmp_path: Path, view: str, doings: list[list[Op]]) -> None:
    with World(tmp_path, view) as world:
        made = world.branches(doings)
        trees = [tree for _, tree in made]
        done = together([branch for branch, _ in made])
        found = read(done.branch.path)
        clashes = [c.path for c in done.conflicts]
        for path in {p for tree in (world.base, found, *trees) for p in tree}:
            if not any(related(path, c) for c in clashes):
                assert found.get(path) == merged(world.base.get(path), [t.get(path) for t in trees]), path
        for clash in done.conflicts:
            changed = [
                t
                for t in trees
                if {p: n for p, n in t.items() if related(p, clash.path)}
                != {p: n for p, n in world.base.items() if related(p, clash.path)}
            ]
            assert len(changed) > 1, clash
            first = trees[int(clash.branches[0][1:])]
            assert found.get(clash.path) == first.get(clash.path)
        back = together([branch for branch, _ in reversed(made)], "back")
        assert back.clean is done.clean
        if done.clean:
            assert read(back.branch.path) == found
        for branch, tree in made:
            alone = together([branch], f"only-{branch.name}")
            assert (alone.clean, read(alone.branch.path)) == (True, tree)
            assert snapshot(alone.branch.path) == snapshot(branch.path)


@some(30)
@given(doings=st.lists(st.lists(changes, max_size=4), min_size=2, max_size=2))
def test_what_can_be_committed_one_after_the_other_comes_to_the_same(
    tmp_path: Path, view: str, doings: list[list[Op]]
) -> None:
    """Leave out entries that a branch wrote again unchanged.

    A layer does not record the entry that it replaced: if a commit deleted that entry since, the branch's own entry
    appears again. A combination knows all versions.
    """
    with World(tmp_path, view) as world:
        (one, _), (two, _) = world.branches(doings)
        done = together([one, two])
        combined, is_clean = read(done.branch.path), done.clean
        done.branch.abort()
        one.commit()
        rebased = two.rebase()
        if is_clean and not rebased.conflicts:
            two.commit()
            assert read(world.workspace.path) == combined


@some(25)
@given(doings=st.tuples(*(st.lists(anything, max_size=4) for _ in range(3))))
def test_changes_of_different_paths_are_those_of_each(
    tmp_path: Path, view: str, doings: tuple[list[Op], list[Op], list[Op]]
) -> None:
    """Every branch works in a directory of its own, and none of them clashes with another."""
    with World(tmp_path, view) as world:
        own = ("a", "d/b", "d/e")
        made = world.branches(
            [
                [op._replace(path=name if name == "d/b" else f"{name}-own/{op.path}") for op in doing]
                for name, doing in zip(own, doings, strict=True)
            ]
        )
        done = together([branch for branch, _ in made])
        assert done.conflicts == ()
        assert done.merged == ()
        expected = dict(world.base)
        for _, tree in made:
            expected |= {p: n for p, n in tree.items() if n != world.base.get(p)}
            expected = {p: n for p, n in expected.items() if p in tree or p not in world.base}
        assert read(done.branch.path) == expected
        done.branch.commit()
        assert read(world.workspace.path) == expected
