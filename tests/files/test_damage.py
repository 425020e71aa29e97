"""Damaged and forged state: records and branch infos are input, and each damage takes away that one thing only."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BranchError,
    BranchNotFoundError,
    CommitError,
    ForkwiseWarning,
    NewerStateError,
    StateError,
    Workspace,
)
from forkwise.files.shelf import drop_copy, restore_copy, save_copy
from tests.files.sample import picture

RECORD: dict[str, Any] = {
    "format": 1,
    "number": 1,
    "kind": "commit",
    "branch": "/main/x",
    "at": 1.0,
    "durable": False,
    "layer": None,
    "side": "history/1",
    "home": None,
    "stage": None,
    "undoes": None,
    "runs": [["", [["take", "planted", "1", 0, 1, [0, 0], 0]]]],
    "metas": [["", [493, 0, 0, 0], [493, 0, 0, 0], 0, 0, None, None]],
    "marks": [],
    "added": [],
    "changed": [],
    "deleted": [],
    "skipped": [],
    "conflicts": [],
}
"""An interrupted commit whose rollback moves the slot ``1`` to ``planted``."""

DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
NAMES = ["/etc/x", "../x", "..", ".", "a/../../x", "a//b", "x\0y", "\ud800", "n" * 5000, 7, True, None, [], {}, DEEP]
NUMBERS = ["1", -1, 1 << 70, 1.5, True, None, [], {}, DEEP]


def step(**fields: Any) -> list[Any]:
    row = {"code": "take", "name": "n", "slot": "1", "enters": 0, "leaves": 1, "changed": [0, 0], "dated": 0}
    return ["", [[*{**row, **fields}.values()]]]


def meta(**fields: Any) -> list[Any]:
    row = {
        "path": "",
        "before": [493, 0, 0, 0],
        "after": [493, 0, 0, 0],
        "changed": 0,
        "inode": 0,
        "b": None,
        "a": None,
    }
    return [*{**row, **fields}.values()]


def hostile_records() -> Iterator[tuple[str, Any]]:
    for name in NAMES:
        # An empty path is the workspace itself; a null layer or stage is none.
        yield "side", name
        yield "runs", [step(name=name)]
        yield "runs", [step(slot=name)]
        yield "runs", [[name, []]]
        yield "metas", [meta(path=name)]
        yield "marks", [[name, {}]]
        if name is not None:
            yield from ((field, name) for field in ("layer", "stage", "home"))
    for name in ("history", "history/0", "history/2", "history/01/..", "history/1/home", "branches/x", "history/1\n"):
        yield "side", name
        yield "layer", name
    for name in (".forkwise-0", ".Forkwise-0", ".forkwise-stage-0123456"):
        yield "runs", [step(name=name)]
        yield "runs", [[f"a/{name}", []]]
        yield "stage", f"{name}/x"
    for name in ("halfway", "record.json", "home", "-1", "1/2", "¹"):
        yield "runs", [step(slot=name)]
    for number in NUMBERS:
        yield "number", number
        yield "runs", [step(enters=number)]
        yield "runs", [step(changed=[0, number])] if number != -1 else [step(changed=[])]
        yield "metas", [meta(before=[number, 0, 0, 0])]
        yield "metas", [meta(after=[493, number, 0, 0])]
        if number is not None:
            yield "undoes", number
        if number not in (1.5, "1") or number is True:
            yield "at", number
    yield "metas", [meta(a={"security.capability": "00"})]
    yield "metas", [meta(a={"user.x": "zz"})]
    yield "marks", [["a", {"user.x": "00"}]]
    yield "runs", [step(code="exec")]
    yield "runs", [step(code="mkdir")]
    yield "runs", [["", [["take"]]]]
    yield "runs", [["", [[*step()[1][0], [["x", 0], None], None]]]]
    for root in BRANCH_FIELDS["root"]:
        yield "root", root
    yield "kind", "other"
    yield "durable", "yes"
    for name in ("/etc/x", "../x", "a/../../x", "", 1):
        yield "added", [name]
        yield "deleted", ["fine", name]
    yield "added", [[1]]
    yield "conflicts", [["a"]]
    yield "at", float("nan")
    yield "at", 1e300
    yield "surplus", 1
    for field in RECORD:
        yield field, DEEP


def interrupt(workspace: Path, state: Path, record: object) -> None:
    """Leave an interrupted commit with a record in the state directory."""
    history = state / "history/1"
    history.mkdir(mode=0o700)
    (history / "1").write_text("old content")
    (history / "record.json").write_text(record if isinstance(record, str) else json.dumps(record))
    (history / "record.json").chmod(0o600)
    head = state / "head"
    (head / "0").rename(head / "0+")


def clear(state: Path) -> None:
    for kept in (state / "damaged").iterdir():
        (kept / "1").unlink()
        (kept / "record.json").unlink()
        kept.rmdir()


def test_the_record_is_rolled_back_as_it_is(tmp_path: Path) -> None:
    """What the tests below change is what decides."""
    (tmp_path / "ws").mkdir()
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    interrupt(tmp_path / "ws", state, RECORD)
    Workspace(tmp_path / "ws", state=tmp_path / "state")
    assert (tmp_path / "ws/planted").read_text() == "old content"


def test_a_forged_record_is_set_aside_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a.txt").write_text("one")
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    before = picture(tmp_path / "ws")
    count = 0
    for field, value in hostile_records():
        interrupt(tmp_path / "ws", state, {**RECORD, field: value})
        with pytest.warns(ForkwiseWarning, match="was damaged and was not used") as warned:
            workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
        assert len(warned) == 1, (field, value)
        assert picture(tmp_path / "ws") == before, (field, value)
        assert workspace.history() == []
        [kept] = (state / "damaged").iterdir()
        assert (kept / "1").read_text() == "old content"
        clear(state)
        count += 1
    assert count > 150
    assert {*os.listdir(tmp_path)} <= {"state", "ws", "xdg-state"}
    with workspace.branch("b") as branch:
        (branch.path / "a.txt").write_text("two")
    assert (tmp_path / "ws/a.txt").read_text() == "two"


@pytest.mark.parametrize(
    "content", ["", "\0" * 100, "null", "[]", "{}", "{", "[" * 100_000, '{"format":' + "9" * 5000 + "}", "\xff"]
)
def test_a_torn_record_is_set_aside(tmp_path: Path, content: str) -> None:
    (tmp_path / "ws").mkdir()
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    interrupt(tmp_path / "ws", state, content)
    with pytest.warns(ForkwiseWarning, match="was damaged and was not used"):
        assert Workspace(tmp_path / "ws", state=tmp_path / "state").history() == []


@pytest.mark.parametrize("part", ["side", "history", "record.json"])
def test_no_link_is_followed_to_a_record_or_its_slots(tmp_path: Path, part: str) -> None:
    (tmp_path / "ws").mkdir()
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    if part == "side":
        interrupt(tmp_path / "ws", state, {**RECORD, "number": 2, "side": "history/1"})
        (state / "history/1").rename(state / "history/2")
        (state / "head/0+").rename(state / "head/1+")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/1").write_text("evil")
        (state / "history/1").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StateError, match="symbolic links"):
            Workspace(tmp_path / "ws", state=tmp_path / "state")
    else:
        interrupt(tmp_path / "ws", state, RECORD)
        moved = state / "history/1" if part == "history" else state / "history/1/record.json"
        moved.rename(tmp_path / "elsewhere")
        moved.symlink_to(tmp_path / "elsewhere")
        with pytest.warns(ForkwiseWarning, match="was damaged"):
            Workspace(tmp_path / "ws", state=tmp_path / "state")
    assert os.listdir(tmp_path / "ws") == []


def test_a_record_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    interrupt(tmp_path / "ws", state, {**RECORD, "format": 9})
    with pytest.raises(NewerStateError, match="format 9"):
        Workspace(tmp_path / "ws", state=tmp_path / "state")
    assert (state / "history/1/record.json").exists()


@pytest.mark.parametrize(
    "link", ["", "x", "../evil:0", ".forkwise-stage-01234567:x", "/etc:0", ".forkwise-stage-0/x:0"]
)
def test_a_damaged_stage_is_not_removed(tmp_path: Path, link: str) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "evil").mkdir()
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    if link:
        (state / "stage").symlink_to(link)
    else:
        (state / "stage").write_text("no link")
    with pytest.warns(ForkwiseWarning, match="was damaged"):
        Workspace(tmp_path / "ws", state=tmp_path / "state")
    assert (tmp_path / "evil").is_dir()
    assert not os.path.lexists(state / "stage")


@pytest.mark.parametrize("link", ["x", "[1]", '["a", 0, []]', "[0, 0, 1]", '[0, 0, [1, 2, "x"]]', "[" * 2000])
def test_a_damaged_rewind_is_set_aside(tmp_path: Path, link: str) -> None:
    (tmp_path / "ws").mkdir()
    state = Workspace(tmp_path / "ws", state=tmp_path / "state").state
    (state / "rewind").symlink_to(link)
    with pytest.warns(ForkwiseWarning, match="was damaged"):
        Workspace(tmp_path / "ws", state=tmp_path / "state")
    Workspace(tmp_path / "ws", state=tmp_path / "state")


def commit(workspace: Workspace, name: str) -> None:
    with workspace.branch(name) as branch:
        (branch.path / name).write_text(name)


def test_a_damaged_record_takes_away_its_commit_only(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
    for name in "abc":
        commit(workspace, name)
    (workspace.state / "history/2/record.json").write_text("")
    with pytest.warns(ForkwiseWarning, match="commit 2 is left out"):
        assert [c.id for c in workspace.history()] == [3, 1]
    with pytest.warns(ForkwiseWarning), pytest.raises(CommitError, match="there is no commit 2"):
        workspace.undo(2)
    with pytest.warns(ForkwiseWarning):
        assert workspace.undo().undoes == 3
    with pytest.warns(ForkwiseWarning):
        assert workspace.undo(1).undoes == 1
    assert os.listdir(tmp_path / "ws") == ["b"]


def test_a_rewind_over_a_damaged_record_is_refused(tmp_path: Path) -> None:
    from forkwise.files.undo import rewind_to

    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
    for name in "abc":
        commit(workspace, name)
    (workspace.state / "history/2/record.json").write_text("{}")
    with pytest.warns(ForkwiseWarning), pytest.raises(CommitError, match="commit 2 is damaged"):
        rewind_to(workspace, 1)
    with pytest.warns(ForkwiseWarning):
        assert [c.undoes for c in rewind_to(workspace, 2)] == [3]


BRANCH_FIELDS = {
    "view": ["", "../x", "nosuchview", "Overlay", 1, None, DEEP],
    "generation": NUMBERS,
    "forked": ["x", None, [], 1 << 80],
    "made": ["x", None, [], 1 << 80],
    "clock": ["x", None, [], 1 << 80],
    "created": ["x", None, -1, 1e300, float("nan"), True],
    "boot": [1, None, []],
    "owner": ["x", [], [1], [1, 2, 3, 4], ["a", "b", "c", "d"], [1, 2, "a", "b", "c", "d", "e"], DEEP],
    "kept": [1, "yes"],
    "unmerged": [1, [1], [{}], [{"path": 1, "kind": "changed", "detail": ""}]],
    "root": [1, [], [1, 2, 3, 4, 5], ["a", 1, 1, "", ""], [1, 1, 1, "", "", 1], DEEP],
    "surplus": [1],
    "format": ["1", 0, -1, None, True],
}


def test_a_damaged_branch_takes_away_that_branch_only(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
    good, bad = workspace.branch("good"), workspace.branch("bad")
    (good.path / "a").write_text("a")
    file = workspace.state / "branches/bad/branch.json"
    document = json.loads(file.read_text())
    for content in ["", "\0\0", "[]", "{}", "[" * 100_000]:
        file.write_text(content)
        check_only_good(workspace)
    for field, values in BRANCH_FIELDS.items():
        for value in values:
            file.write_text(json.dumps({**document, field: value}))
            check_only_good(workspace)
    for field in ("format", "view", "generation", "forked", "made", "created", "boot", "owner"):
        file.write_text(json.dumps({k: v for k, v in document.items() if k != field}))
        check_only_good(workspace)
    file.write_text(json.dumps({**document, "format": 7}))
    with pytest.raises(NewerStateError):
        workspace.open("bad")
    good.commit()
    assert (tmp_path / "ws/a").read_text() == "a"
    file.write_text(json.dumps(document))
    bad.abort()


def test_a_full_disk_damages_no_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a part of the new record; what the branch had recorded stays."""
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
    branch = workspace.branch("good")
    file = workspace.state / "branches/good/branch.json"
    before = file.read_bytes()
    write = os.write

    def write_some(fd: int, data: bytes) -> int:
        if len(data) <= 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:-100])

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        branch.keep()
    monkeypatch.undo()
    assert file.read_bytes() == before
    branch.keep()
    workspace.open("good").abort()


def check_only_good(workspace: Workspace) -> None:
    with pytest.warns(ForkwiseWarning, match="'bad' is left out"):
        assert [b.name for b in workspace.branches()] == ["good"]
    with pytest.raises(StateError, match="doctor --repair"):
        workspace.open("bad")
    with pytest.warns(ForkwiseWarning, match="'bad' is left out"):
        workspace.gc()
    with pytest.raises(BranchNotFoundError):
        workspace.open("other")


@pytest.mark.parametrize(
    "path",
    [".forkwise-0/ws-0123456789abcdef/history/1/record.json", "sub/.forkwise-1000/x", "a/b/.Forkwise-0", ".forkwise-x"],
)
def test_a_commit_cannot_bring_state_along(tmp_path: Path, path: str) -> None:
    (tmp_path / "ws/sub").mkdir(parents=True)
    workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
    branch = workspace.branch("b")
    (branch.path / path).parent.mkdir(parents=True, exist_ok=True)
    (branch.path / path).write_text("{}")
    (branch.path / "fine").write_text("")
    with pytest.raises(CommitError, match="reserved for forkwise's own state") as raised:
        branch.commit(on_conflict="ours")
    assert any(p.startswith(path.split("/", maxsplit=1)[0]) for p in raised.value.paths)
    assert os.listdir(tmp_path / "ws") == ["sub"]
    with workspace.branch("c") as other:
        nested = other.branch("d")
        (nested.path / ".forkwise-0").mkdir()
        with pytest.raises(CommitError, match="reserved"):
            nested.commit()
        nested.abort()
    branch.abort()


def test_a_commit_cannot_change_the_users_own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home/.local/state/forkwise").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/.local/state"))
    with Workspace(tmp_path / "home", state=tmp_path / "state").branch("b", on_success=None) as branch:
        (branch.path / ".local/state/forkwise/x").write_text("")
        with pytest.raises(CommitError, match="reserved"):
            branch.commit()
        (branch.path / ".local/state/forkwise/x").unlink()
        (branch.path / ".local/state/other").write_text("")
        branch.commit()


def test_configuration_of_a_project_is_committed_as_any_file(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    with Workspace(tmp_path / "ws", state=tmp_path / "state").branch("b") as branch:
        (branch.path / ".forkwise").mkdir()
        (branch.path / ".forkwise/notes.txt").write_text("")
    assert (tmp_path / "ws/.forkwise/notes.txt").exists()


def test_reading_sound_state_warns_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", state=tmp_path / "state")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in "ab":
            commit(workspace, name)
        workspace.undo()
        assert len(workspace.history()) == 3
        workspace.gc(keep=0)
        assert workspace.history() == []


@pytest.mark.parametrize("name", ["../../../victim", "/etc", "..", "", ".last"])
def test_the_name_of_a_copy_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", view="overlay", state=tmp_path / "state")
    branch = workspace.branch("b")
    (branch.path / "a").write_text("a")
    save_copy(branch)
    victim = workspace.state / "victim"
    (victim / "layer").mkdir(parents=True)
    drop_copy(branch, name)
    with pytest.raises(BranchError, match="no saved copy"):
        restore_copy(branch, name)
    assert victim.is_dir()
    assert (branch.path / "a").read_text() == "a"
    branch.abort()
