"""Editors that save while a commit or an undo runs: no save is lost, whenever and however it is made."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from forkwise import CommitError, ConflictError, Workspace
from forkwise.files.store import transaction
from tests.counts import rounds
from tests.files.snapshot import Seen, snapshot

IN_MEMORY = True

Open = Callable[..., Workspace]
Hook = Callable[[], object]

_ROUNDS = rounds(4, 500)  # for each of eight races
_LONGEST_DELAY_S = 0.008  # so that the first save comes before, during or after the renames


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "d/deep").mkdir(parents=True)
    for name in ("f", "g", "d/a", "d/deep/b"):
        (made / name).write_text(f"{name} before\n")
    (made / "link").symlink_to("f")
    return made


@pytest.fixture
def workspace(project: Path, view: str, open_workspace: Open) -> Workspace:
    return open_workspace(project, view=view)


@pytest.fixture
def around_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call a function right before, and another right after, the steps of the next commit or undo."""
    apply_steps = transaction.apply_steps

    def install(before: Hook = lambda: None, after: Hook = lambda: None) -> None:
        def wrapper(*arguments: object) -> None:
            monkeypatch.setattr(transaction, "apply_steps", apply_steps)
            before()
            apply_steps(*arguments)  # type: ignore[arg-type]
            after()

        monkeypatch.setattr(transaction, "apply_steps", wrapper)

    return install


def look(root: Path) -> dict[str, Seen]:
    """Take a snapshot without the mtimes of directories, which a rollback restores."""
    return {p: s._replace(mtime=0) if stat.S_ISDIR(s.type) else s for p, s in snapshot(root).items()}


def replace(path: Path, text: str) -> None:
    beside = path.parent / ".beside"
    beside.write_text(text)
    beside.rename(path)


def replace_link(path: Path, target: str) -> None:
    beside = path.parent / ".beside"
    beside.symlink_to(target)
    beside.rename(path)


def save_with_its_old_size(path: Path, text: str) -> None:
    path.write_text(path.read_text().replace("before", "saved "))


#: What the branch does, what somebody does during the commit, and the path where that must still show.
INTERFERENCE: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str]] = {
    "changed, replaced": (lambda b: (b / "f").write_text("new\n"), lambda w: replace(w / "f", "saved\n"), "f"),
    "changed, saved in place": (
        lambda b: (b / "f").write_text("new\n"),
        lambda w: (w / "f").write_text("saved\n"),
        "f",
    ),
    "changed, saved at its size": (
        lambda b: (b / "f").write_text("new\n"),
        lambda w: save_with_its_old_size(w / "f", ""),
        "f",
    ),
    "changed, mode set": (lambda b: (b / "f").write_text("new\n"), lambda w: (w / "f").chmod(0o711), "f"),
    "changed, deleted": (lambda b: (b / "f").write_text("new\n"), lambda w: (w / "f").unlink(), "f"),
    "link changed, replaced": (
        lambda b: replace_link(b / "link", "d"),
        lambda w: replace_link(w / "link", "g"),
        "link",
    ),
    "deleted, replaced": (lambda b: (b / "f").unlink(), lambda w: replace(w / "f", "saved\n"), "f"),
    "deleted, saved in place": (lambda b: (b / "f").unlink(), lambda w: (w / "f").write_text("saved\n"), "f"),
    "added, created": (lambda b: (b / "new").write_text("new\n"), lambda w: (w / "new").write_text("saved\n"), "new"),
    "added, its directory removed": (
        lambda b: (b / "d/new").write_text("new\n"),
        lambda w: shutil.rmtree(w / "d"),
        "d",
    ),
    "directory deleted, file inside saved": (
        lambda b: shutil.rmtree(b / "d"),
        lambda w: (w / "d/deep/b").write_text("saved\n"),
        "d/deep/b",
    ),
    "directory deleted, file inside replaced": (
        lambda b: shutil.rmtree(b / "d"),
        lambda w: replace(w / "d/a", "saved\n"),
        "d/a",
    ),
    "directory deleted, file inside created": (
        lambda b: shutil.rmtree(b / "d"),
        lambda w: (w / "d/deep/new").write_text("saved\n"),
        "d/deep/new",
    ),
    "directory deleted, file inside deleted": (lambda b: shutil.rmtree(b / "d"), lambda w: (w / "d/a").unlink(), "d/a"),
    "directory replaced by a file, file inside saved": (
        lambda b: (shutil.rmtree(b / "d"), (b / "d").write_text("new\n")),
        lambda w: (w / "d/a").write_text("saved\n"),
        "d/a",
    ),
    "directory replaced by another, file inside saved": (
        lambda b: (shutil.rmtree(b / "d"), (b / "d").mkdir(), (b / "d/a").write_text("new\n")),
        lambda w: (w / "d/a").write_text("saved\n"),
        "d/a",
    ),
    "file replaced by a directory, saved": (
        lambda b: ((b / "f").unlink(), (b / "f").mkdir(), (b / "f/new").write_text("new\n")),
        lambda w: (w / "f").write_text("saved\n"),
        "f",
    ),
}


@pytest.mark.parametrize("case", INTERFERENCE)
def test_a_change_between_the_comparison_and_the_renames_is_a_conflict(
    workspace: Workspace, around_steps: Callable[..., None], case: str
) -> None:
    change, interfere, path = INTERFERENCE[case]
    branch = workspace.branch("b")
    change(branch.path)
    (branch.path / "g").write_text("new g\n")
    expected = []

    def interfere_and_look() -> None:
        interfere(workspace.path)
        expected.append(look(workspace.path))

    around_steps(interfere_and_look)
    with pytest.raises(ConflictError, match="by another process during the commit") as caught:
        branch.commit()
    assert any(p == path or path.startswith(f"{p}/") or p.startswith(f"{path}/") for p in caught.value.paths)
    assert look(workspace.path) == expected[0]
    if case != "directory deleted, file inside deleted":  # which both sides want
        with pytest.raises(ConflictError):  # from now on it is an ordinary conflict
            branch.commit()
    branch.commit(on_conflict="theirs")
    assert (workspace.path / "g").read_text() == "new g\n"


def test_with_merge_or_theirs_the_commit_is_tried_again(
    workspace: Workspace, around_steps: Callable[..., None]
) -> None:
    lines = [f"{n}\n" for n in range(9)]
    (workspace.path / "f").write_text("".join(lines))
    branch = workspace.branch("b")
    (branch.path / "f").write_text("".join(["ours\n", *lines[1:]]))
    (branch.path / "g").write_text("ours\n")
    around_steps(lambda: (workspace.path / "g").write_text("theirs\n"))
    commit = branch.commit(on_conflict="theirs")
    assert [c.path for c in commit.conflicts] == ["g"]
    assert (workspace.path / "g").read_text() == "theirs\n"
    assert (workspace.path / "f").read_text().startswith("ours\n")


@pytest.mark.parametrize("kind", ["open", "mapped"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_file_that_somebody_has_open_for_writing_is_a_conflict(
    workspace: Workspace, kind: str, deleted: bool
) -> None:
    branch = workspace.branch("b")
    if deleted:
        shutil.rmtree(branch.path / "d")
    else:
        (branch.path / "d/a").write_text("new\n")
    fd = os.open(workspace.path / "d/a", os.O_RDWR)
    mapped = mmap.mmap(fd, 4) if kind == "mapped" else None
    if mapped:
        os.close(fd)
    with pytest.raises(ConflictError, match="d/a: opened for writing by another process"):
        branch.commit()
    if mapped:
        mapped[:4] = b"more"
        mapped.close()
    else:
        os.write(fd, b"more")
        os.close(fd)
    assert (workspace.path / "d/a").read_text().startswith("more")


def test_a_file_that_is_open_for_reading_is_no_conflict(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    (branch.path / "f").write_text("new\n")
    with open(workspace.path / "f") as reader:
        branch.commit()
        assert reader.read() == "f before\n"


def test_ours_replaces_what_was_saved_meanwhile(workspace: Workspace, around_steps: Callable[..., None]) -> None:
    branch = workspace.branch("b")
    (branch.path / "f").write_text("new\n")
    around_steps(lambda: replace(workspace.path / "f", "saved\n"))
    branch.commit(on_conflict="ours")
    assert (workspace.path / "f").read_text() == "new\n"


@pytest.mark.parametrize("save", [replace, Path.write_text])
def test_a_save_right_after_the_renames_stays(
    workspace: Workspace, around_steps: Callable[..., None], save: Callable[[Path, str], object]
) -> None:
    """It belongs to the time after the commit: the commit succeeds, and its undo is refused."""
    branch = workspace.branch("b")
    (branch.path / "f").write_text("new\n")
    (branch.path / "added").mkdir()
    (branch.path / "added/x").write_text("new\n")
    around_steps(after=lambda: [save(workspace.path / name, "saved\n") for name in ("f", "added/x")])
    branch.commit()
    with pytest.raises(ConflictError) as caught:
        workspace.undo()
    assert {path.partition("/")[0] for path in caught.value.paths} == {"f", "added"}
    assert (workspace.path / "f").read_text() == "saved\n"


@pytest.mark.parametrize("save", [replace, Path.write_text])
def test_a_save_right_after_the_renames_survives_a_rollback(
    workspace: Workspace, around_steps: Callable[..., None], save: Callable[[Path, str], object]
) -> None:
    branch = workspace.branch("b")
    for name in ("f", "g"):
        (branch.path / name).write_text("new\n")
    (branch.path / "added").mkdir()
    (branch.path / "added/x").write_text("new\n")
    (branch.path / "future").write_text("new\n")
    os.utime(branch.path / "future", (2**32, 2**32))  # no save, although it is dated later than the commit

    def interfere() -> None:
        save(workspace.path / "f", "saved\n")
        save(workspace.path / "added/x", "saved\n")

    around_steps(before=lambda: replace(workspace.path / "g", "saved\n"), after=interfere)
    with pytest.raises(
        ConflictError, match=r"except paths that another process changed meanwhile: (added, f|f, added)"
    ):
        branch.commit()
    assert {(workspace.path / name).read_text() for name in ("f", "g", "added/x")} == {"saved\n"}
    assert not (workspace.path / "future").exists()


@pytest.mark.parametrize("save", [replace, Path.write_text])
def test_a_save_during_an_undo_is_a_conflict(
    workspace: Workspace, around_steps: Callable[..., None], save: Callable[[Path, str], object]
) -> None:
    with workspace.branch("b") as branch:
        (branch.path / "f").write_text("new\n")
        (branch.path / "added").mkdir()
        (branch.path / "added/x").write_text("new\n")
    around_steps(lambda: save(workspace.path / "f", "saved\n"))
    with pytest.raises(ConflictError, match="by another process during"):
        workspace.undo()
    assert (workspace.path / "f").read_text() == "saved\n"
    assert (workspace.path / "added/x").read_text() == "new\n"
    (workspace.path / "f").write_text("new\n")
    with pytest.raises(ConflictError):
        workspace.undo()


class Editor:
    """A process that saves files of a project again and again, in one way, while a round lasts."""

    def __init__(self, directory: Path, count: int, save: Callable[[Path, str], object]) -> None:
        self.line, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=self._run, args=(theirs, directory, count, save), daemon=True)
        self.process.start()

    @staticmethod
    def _run(line: Connection, directory: Path, count: int, save: Callable[[Path, str], object]) -> None:
        number = 0
        while (seed := line.recv()) is not None:
            chosen, saved = random.Random(seed), {}
            line.poll(chosen.random() * _LONGEST_DELAY_S)
            while not line.poll():
                path = directory / str(chosen.randrange(count))
                number += 1
                try:
                    save(path, f"saved {number}\n")
                except (FileNotFoundError, NotADirectoryError):
                    continue
                saved[path.name] = f"saved {number}\n"
            line.recv()
            line.send(saved)

    def start(self, seed: int) -> None:
        self.line.send(seed)

    def stop(self) -> dict[str, str]:
        self.line.send("stop")
        saved = self.line.recv()
        assert isinstance(saved, dict)
        return saved

    def close(self) -> None:
        self.line.send(None)
        self.process.join()


def save_in_place(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)  # an editor does not create a file that is gone
    os.write(fd, text.encode())
    os.close(fd)


def save_by_rename(path: Path, text: str) -> None:
    os.stat(path)
    replace(path, text)


@pytest.fixture(params=[save_by_rename, save_in_place])
def editor(request: pytest.FixtureRequest, project: Path) -> Iterator[Editor]:
    (project / "many").mkdir()
    editor = Editor(project / "many", 20, request.param)
    yield editor
    editor.close()


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["change", "delete", "delete directory", "undo"])
def test_an_editor_that_saves_all_the_time_loses_nothing(
    project: Path, editor: Editor, kind: str, open_workspace: Open
) -> None:
    workspace = open_workspace(project)
    outcomes = []
    for number in range(_ROUNDS):
        (project / "many").mkdir(exist_ok=True)
        for name in range(20):
            (project / "many" / str(name)).write_text("before\n")
        branch = workspace.branch("b")
        if kind == "delete directory":
            shutil.rmtree(branch.path / "many")
        for name in range(20 if kind != "delete directory" else 0):
            path = branch.path / "many" / str(name)
            path.unlink() if kind == "delete" else path.write_text("branch\n")
        if kind == "undo":
            branch.commit()
        editor.start(number)
        try:
            workspace.undo() if kind == "undo" else branch.commit()
            outcomes.append("done")
        except CommitError:
            outcomes.append("refused")
        saved = editor.stop()
        found = {name: (project / "many" / name).read_text() for name in saved if (project / "many" / name).exists()}
        assert found == saved, f"round {number}: {outcomes[-1]}"
        if workspace.branches():
            branch.abort()
    print(outcomes.count("done"), "of", len(outcomes))
