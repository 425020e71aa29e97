"""``forkwise diff --tool``: branches beside what they were made from, in a program that somebody likes to read them in.

The tool gets copies of the files that changed, which are read-only and gone when it is: a tool need not be able to see
a branch, and nothing of it is changed by looking.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.errors import BranchNotFoundError
from forkwise.files.versions import changed_files
from forkwise.fork.stored_fork import StoredFork, branch_of
from forkwise.live.diff.mirror import EditorDetector, EditorKind, ForkMaterializer, directory_of, git_difftool
from forkwise.live.values import FileChange

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger
    from forkwise.text.diff import FileDiff, Side

__all__ = ["open_tool", "sides_of", "tool_commands"]

_GIT = "git"
_EDITORS: dict[str, EditorKind] = {"pycharm": "pycharm", "code": "vscode", "vscode": "vscode"}
_PROGRAMS = {"pycharm": "pycharm", "vscode": "code"}
_MOST_WINDOWS = 20
_NOTHING = Path("/dev/null")
_NAME = re.compile(r"[\w.+-]{1,40}")


def sides_of(ledger: Ledger, workspace: Workspace, first: str, second: str | None) -> dict[str, Branch]:
    """The branches that somebody means, by how they are called: one, two, or all that are left of a fork."""
    names = [first] if second is None else [first, second]
    try:
        return {name: branch_of(ledger, workspace, name) for name in names}
    except BranchNotFoundError:
        if second is not None or "." in first or first not in {fork.id for fork in ledger.forks()}:
            raise
    fork = StoredFork(ledger, workspace, first)
    labels = [attempt.label for attempt in fork.attempts]
    found = {}
    for attempt in fork.attempts:
        is_name = _NAME.fullmatch(attempt.label) and labels.count(attempt.label) == 1
        if (branch := fork.branch(attempt.branch)) is not None:
            found[attempt.label if is_name else attempt.id] = branch
    if not found:
        raise BranchNotFoundError(f"fork {fork.id} has no branches any more: it was decided", branch=first)
    return found


def open_tool(tool: str, directory: Path, sides: Mapping[str, Branch], *, between: bool) -> None:
    """Show branches in a tool, and come back when it is closed. ``between``: the first beside the second, and not both
    beside what they were made from."""
    with tempfile.TemporaryDirectory(prefix="forkwise-diff-") as room:
        kind, commands = tool_commands(tool, Path(room), sides, between=between)
        for words in commands:
            _run(words, directory)
        if kind == "pycharm":
            click.pause("Press any key when you have seen enough …")


def tool_commands(
    tool: str, room: Path, sides: Mapping[str, Branch], *, between: bool
) -> tuple[EditorKind | None, list[list[str]]]:
    """Put copies of what branches changed into a directory; gives which tool shows them (None is git's) and how it is
    called, once for each time it is to be."""
    mirror = ForkMaterializer(room / "fork", "diff", keep_artifacts=True)
    paths = _laid_out(mirror, {name: changed_files(branch) for name, branch in sides.items()})
    if not paths:
        raise click.ClickException("there is nothing to be shown: no file was changed")
    kind, command = _meant(tool)
    return kind, list(_commands(kind, command, mirror, list(sides), paths, between=between))


def _meant(tool: str) -> tuple[EditorKind | None, str]:
    """Which editor is meant, or none for git; and the command of one's own, or the tool that git is to start."""
    if not tool:
        found = EditorDetector.detect()
        return (None, "") if found == "tui" else (found, EditorDetector.custom_command() or "")
    if tool in _EDITORS:
        return _EDITORS[tool], ""
    if "{" in tool or " " in tool:
        return "custom", tool
    return None, "" if tool == _GIT else tool


def _commands(
    kind: EditorKind | None,
    command: str,
    mirror: ForkMaterializer,
    names: Sequence[str],
    paths: Sequence[str],
    *,
    between: bool,
) -> Iterator[list[str]]:
    if kind is None:
        places = [mirror.root / "branches" / directory_of(name) for name in names]
        pairs = [(places[0], places[1])] if between else [(mirror.root / "parent", place) for place in places]
        yield from (git_difftool(old, new, tool=command or None) for old, new in pairs)
        return
    if kind in _PROGRAMS and len(paths) * len(names) > _MOST_WINDOWS:
        raise click.ClickException(
            f"{len(paths)} files in {len(names)} branches are too many windows; --tool=git shows one after the other"
        )
    for path in paths:
        versions = [_there(mirror.branch_path(name, path)) for name in names]
        old = versions.pop(0) if between else _there(mirror.parent_path(path))
        for words in EditorDetector.commands(kind, old, versions, custom_cmd=command or None):
            # VS Code would be back at once, and what it shows gone.
            yield [words[0], "--wait", *words[1:]] if kind == "vscode" else words


def _there(place: Path) -> Path:
    return place if place.exists() else _NOTHING


def _run(words: Sequence[str], directory: Path) -> None:
    try:
        code = subprocess.run(words, cwd=directory, check=False).returncode
    except FileNotFoundError as error:
        raise click.ClickException(f"there is no program {words[0]!r} that can be run") from error
    if code not in (0, 1):  # 1 is what a tool says of files that differ
        raise click.ClickException(f"{words[0]} ended with {code}")


def _laid_out(mirror: ForkMaterializer, changes: Mapping[str, Sequence[FileDiff]]) -> list[str]:
    """Write both versions of what changed; a branch that left a file alone has the version it was made from."""
    before: dict[str, Side | None] = {}
    for made in changes.values():
        before |= {change.path: change.old for change in made if _is_shown(change)}
    for path, side in sorted(before.items()):
        mirror.snapshot_parent_path(path, None if side is None else side.content)
    for name, made in changes.items():
        (mirror.root / "branches" / directory_of(name)).mkdir(exist_ok=True)
        for path, side in (before | {change.path: change.new for change in made if change.path in before}).items():
            if side is not None and side.content is not None:
                mirror.flush_change(name, FileChange(path, "write", datetime.now(UTC)), side.content)
    return sorted(before)


def _is_shown(change: FileDiff) -> bool:
    return all(side is None or side.content is not None for side in (change.old, change.new))
