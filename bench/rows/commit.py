"""Commits of changed 4 KB files, compared with bare renames and links, and with a worktree and a merge in git."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count

from bench import bare, tree
from bench.figure import Figure
from bench.line import Goal, Line
from bench.peers import branchfs, git
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise import Workspace
from forkwise.files.store import trash
from forkwise.files.views.branchfs import BranchFS

__all__ = ["SIZE", "change", "measure_commit"]

SIZE = 4096
_FILES = 5_000
_COUNTS = (1, 10, 100, 1_000)
_BRANCHFS = 0.12e-3  # seconds per file, measured with a separate build

_edits = count(1)


def change(root: str, files: int) -> None:
    """Overwrite ``files`` files, twenty in each directory."""
    data = tree.content(next(_edits) * _FILES, SIZE)
    for number in _numbers(files):
        with open(f"{root}/{tree.name(number)}", "wb") as file:
            file.write(data)


def measure_commit(scratch: Scratch) -> list[Line]:
    """Measure all contenders in turn for each number of files."""
    workspace = scratch.workspace(scratch.own_tree(_FILES, SIZE))
    floor = scratch.own_tree(_FILES, SIZE)
    repository = None
    if git.is_installed():
        scratch.report(f"creating a git repository of {_FILES:,} files")
        repository = git.Repository(scratch.new_path("repository"), _FILES, SIZE, checkout=True)
    lines = []
    with ExitStack() as cleanup:
        filesystem = None
        if branchfs.is_installed():
            base = scratch.own_tree(_FILES, SIZE)
            filesystem = cleanup.enter_context(branchfs.mounted(base, scratch.make_directory("branchfs")))
        for files in _COUNTS:
            scratch.report(f"committing {files:,} files")
            contenders: dict[str, Contender] = {
                "ours": partial(_commit, workspace, files, durable=False),
                "floor": partial(_replace, scratch, floor, files),
            }
            full = 12 if files == 1_000 else 40
            figures = play(contenders, scratch.rounds(full, full // 3), warm=2)
            synced: dict[str, Contender] = {"durable": partial(_commit, workspace, files, durable=True)}
            if files == 1:
                synced["durable floor"] = partial(_replace_durably, scratch, floor, files)
            figures |= play(synced, scratch.rounds(40 if files == 1 else 5, 3), warm=2)
            slow: dict[str, Contender] = {}
            if repository is not None:
                slow["git worktree"] = partial(_through_git, scratch, repository, files)
                slow["whole"] = partial(_through_ours, workspace, files)
            if filesystem is not None:
                slow["BranchFS"] = partial(_commit_branchfs, filesystem, files)
            figures |= play(slow, scratch.rounds(3, 1), warm=0)
            lines.append(_line(files, figures))
            if files == 1:
                line = Line("commit of 1 changed file, durable=True", figures["durable"], figures["durable floor"])
                line.below_floor(2)
                lines.append(line)
    return lines


def _line(files: int, figures: dict[str, Figure]) -> Line:
    plural = "files" if files > 1 else "file"
    line = Line(f"commit of {files:,} changed {plural}", figures["ours"], figures["floor"])
    line.peers["durable=True"] = figures["durable"]
    line.peers["git worktree"] = figures.get("git worktree")
    line.peers["BranchFS"] = figures.get("BranchFS")
    if files == 1:
        line.below_floor(8)
    if files >= 100:
        line.below_floor(2 if files == 100 else 1.3)
        line.goals.append(Goal("≤ 0.12 ms a file", line.ours.median / files * 1e3, _BRANCHFS * 1e3))
    else:
        line.faster_than("git worktree", 30)
        if "whole" in figures and "git worktree" in figures:
            ratio = figures["git worktree"].median / figures["whole"].median
            line.goals.append(Goal("≥ 30 ×, branch to commit", ratio, 30, at_least=True))
    if figures.get("BranchFS") is not None:
        line.faster_than("BranchFS", 1)
    return line


def _commit(workspace: Workspace, files: int, *, durable: bool) -> float:
    branch = workspace.branch("change")
    change(str(branch.path), files)
    taken = timed(lambda: branch.commit(durable=durable))
    trash.wait_until_empty()
    return taken


def _replace(scratch: Scratch, root: str, files: int) -> float:
    new, undo = scratch.make_directory("new"), scratch.make_directory("undo")
    data = tree.content(next(_edits) * _FILES, SIZE)
    moves = []
    for slot, number in enumerate(_numbers(files)):
        with open(f"{new}/{slot}", "wb") as file:
            file.write(data)
        moves.append((f"{new}/{slot}", f"{root}/{tree.name(number)}", f"{undo}/{slot}"))
    return timed(lambda: bare.replace(moves))


def _replace_durably(scratch: Scratch, root: str, files: int) -> float:
    targets = [f"{root}/{tree.name(number)}" for number in _numbers(files)]
    content = tree.content(next(_edits) * _FILES, SIZE)
    return timed(lambda: bare.write_durably([(f"{target}.new", target) for target in targets], content))


def _through_ours(workspace: Workspace, files: int) -> float:
    """Branch, change and commit, as ``_through_git`` does."""

    def action() -> None:
        branch = workspace.branch("change")
        change(str(branch.path), files)
        branch.commit(durable=False)

    return timed(action)


def _through_git(scratch: Scratch, repository: git.Repository, files: int) -> float:
    worktree = scratch.new_path("worktree")
    branch = os.path.basename(worktree)
    steps: list[Callable[[], object]] = [
        lambda: repository.add(worktree, branch),
        lambda: change(worktree, files),
        lambda: repository.commit(worktree),
        lambda: repository.merge(branch),
        lambda: repository.remove(worktree),
    ]
    return sum(timed(step) for step in steps)


def _commit_branchfs(filesystem: BranchFS, files: int) -> float:
    name = filesystem.create(f"change-{next(_edits)}")
    change(filesystem.path(name), files)
    return timed(lambda: filesystem.commit(name))


def _numbers(files: int) -> list[int]:
    return [n // 20 * 100 + n % 20 for n in range(files)]
