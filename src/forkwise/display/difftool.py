"""``forkwise diff --tool``: show branches beside their parent in an editor or in a diff tool of git.

The tool gets read-only copies of the changed files, which are removed when it exits: a tool may be unable to see the
view of a branch, and must not change it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.errors import BranchNotFoundError
from forkwise.files.versions import changed_files
from forkwise.fork.stored_fork import StoredFork, branch_of
from forkwise.git.program import prepare_difftool
from forkwise.linux.scratch_directory import scratch_directory
from forkwise.live.diff.mirror import EditorDetector, EditorKind, ForkMaterializer, directory_of, git_difftool
from forkwise.live.values import FileChange

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger
    from forkwise.text.diff import FileDiff, FileVersion

__all__ = ["open_tool", "sides_of", "tool_commands", "tool_process"]

_GIT = "git"
_EDITORS: dict[str, EditorKind] = {"pycharm": "pycharm", "code": "vscode", "vscode": "vscode"}
_PROGRAMS = {"pycharm": "pycharm", "vscode": "code"}
_MOST_WINDOWS = 20
_NOTHING = Path("/dev/null")
_NAME = re.compile(r"[\w.+-]{1,40}")


def sides_of(ledger: Ledger, workspace: Workspace, first: str, second: str | None) -> dict[str, Branch]:
    """Return the branches that the user named, by label: one, two, or all remaining branches of a fork."""
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
        raise BranchNotFoundError(f"fork {fork.id} was decided and has no branches left", branch=first)
    return found


def open_tool(tool: str, directory: Path, sides: Mapping[str, Branch], *, between: bool) -> None:
    """Show branches in a tool, and wait until it is closed.

    With ``between``, the first branch is compared with the second; without, each is compared with its parent.
    """
    with scratch_directory("diff") as directory_of_copies:
        kind, commands = tool_commands(tool, Path(directory_of_copies), sides, between=between)
        for words in commands:
            _run(words, directory)
        if kind == "pycharm":
            click.pause("Press any key when you are done …")


def tool_commands(
    tool: str, copies: Path, sides: Mapping[str, Branch], *, between: bool
) -> tuple[EditorKind | None, list[list[str]]]:
    """Copy the changed files below ``copies``. Return the kind of tool (None for git) and the commands to run."""
    mirror = ForkMaterializer(copies / "fork", "diff", keep_artifacts=True)
    paths = _write_copies(mirror, {name: changed_files(branch) for name, branch in sides.items()})
    if not paths:
        raise click.ClickException("nothing to show: no file was changed")
    kind, command = _parse_tool(tool)
    return kind, list(_commands(kind, command, mirror, list(sides), paths, between=between))


def _parse_tool(tool: str) -> tuple[EditorKind | None, str]:
    """Return the editor (None for git), and the user's own command or the name of a tool that git starts."""
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
        directories = [mirror.root / "branches" / directory_of(name) for name in names]
        parent = mirror.root / "parent"
        pairs = [(directories[0], directories[1])] if between else [(parent, directory) for directory in directories]
        yield from (git_difftool(old, new, tool=command or None) for old, new in pairs)
        return
    if kind in _PROGRAMS and len(paths) * len(names) > _MOST_WINDOWS:
        raise click.ClickException(
            f"{len(paths)} files in {len(names)} branches are too many windows; --tool=git shows them one at a time"
        )
    for path in paths:
        versions = [_path_or_null(mirror.branch_path(name, path)) for name in names]
        old = versions.pop(0) if between else _path_or_null(mirror.parent_path(path))
        for words in EditorDetector.commands(kind, old, versions, custom_cmd=command or None):
            # Without --wait, VS Code returns at once and the copies are removed while it shows them.
            yield [words[0], "--wait", *words[1:]] if kind == "vscode" else words


def _path_or_null(path: Path) -> Path:
    return path if path.exists() else _NOTHING


def tool_process(words: Sequence[str]) -> tuple[list[str], dict[str, str] | None]:
    """Return the words and the environment (None for this process's) with which to start a diff tool's command.

    The branch, or an earlier one, may have written the configuration of the repository: git must not read it.
    """
    return prepare_difftool(words) if words[0] == _GIT else (list(words), None)


def _run(words: Sequence[str], directory: Path) -> None:
    try:
        started, environment = tool_process(words)
        code = subprocess.run(started, cwd=directory, env=environment, check=False).returncode
    except (FileNotFoundError, PermissionError) as error:
        remedy = "choose another diff tool with --tool=TOOL or $FORKWISE_DIFFTOOL"
        raise click.ClickException(f"program {words[0]!r} not found, or not executable: {remedy}") from error
    if code not in (0, 1):  # diff tools exit with 1 if the files differ
        raise click.ClickException(f"{words[0]} failed with exit code {code}")


def _write_copies(mirror: ForkMaterializer, changes: Mapping[str, Sequence[FileDiff]]) -> list[str]:
    """Write the parent's and each branch's version of every changed file, and return their paths.

    A branch that did not change a file gets the parent's version.
    """
    before: dict[str, FileVersion | None] = {}
    for diffs in changes.values():
        before |= {change.path: change.old for change in diffs if _has_content(change)}
    for path, side in sorted(before.items()):
        mirror.snapshot_parent_path(path, None if side is None else side.content)
    for name, diffs in changes.items():
        (mirror.root / "branches" / directory_of(name)).mkdir(exist_ok=True)
        for path, side in (before | {change.path: change.new for change in diffs if change.path in before}).items():
            if side is not None and side.content is not None:
                mirror.flush_change(name, FileChange(path, "write", datetime.now(UTC)), side.content)
    return sorted(before)


def _has_content(change: FileDiff) -> bool:
    return all(side is None or side.content is not None for side in (change.old, change.new))
