"""Rewinding: a workspace brought back to how it stood at a commit, over as many undos as that takes, as one.

What is meant is written down first. Whoever opens the workspace after a kill finishes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from forkwise.errors import CommitError, ForkwiseWarning
from forkwise.files.commit import Commit
from forkwise.files.owner import Owner
from forkwise.files.standing import to_be_undone

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = ["finish_rewind", "go_back", "is_rewind_interrupted"]


def go_back(workspace: Workspace, head: int) -> list[Commit]:
    """Undo and redo until all stands as it did when ``head`` was the last commit: all of it, or nothing.

    Gives what was done. CommitError where that cannot be had, because somebody changed one of the paths since or
    because too old a commit was collected; all is then as before.
    """
    before = workspace.place.head
    if not to_be_undone(workspace.history(), head):
        return []
    _write_intent(workspace, head, before)
    try:
        done = _go(workspace, head)
    except BaseException:
        _go(workspace, before)
        _forget_intent(workspace)
        raise
    _forget_intent(workspace)
    return done


def is_rewind_interrupted(workspace: Workspace) -> bool:
    """Whether somebody began to go back; a quick question."""
    return os.path.lexists(_intent(workspace))


def finish_rewind(workspace: Workspace) -> None:
    """Finish what a killed process began; what another one is at is left to it. Where it cannot be finished, because
    somebody changed something meanwhile, it is taken back."""
    fd = os.open(f"{_intent(workspace)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # several may come after one that was killed
        try:
            head, before, owner = json.loads(os.readlink(_intent(workspace)))
        except FileNotFoundError:
            return
        if not Owner.load(owner).alive:
            _finish(workspace, head, before)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _finish(workspace: Workspace, head: int, before: int) -> None:
    for wanted in (head, before):
        with suppress(CommitError):
            _go(workspace, wanted)
            _forget_intent(workspace)
            return
    _forget_intent(workspace)
    warnings.warn(
        f"a rewind of {workspace.path} was cut short and can neither be finished nor taken back, because files were "
        "changed since: see its history, and undo by hand what is to be undone",
        ForkwiseWarning,
        stacklevel=3,
    )


def _go(workspace: Workspace, head: int) -> list[Commit]:
    return [workspace.undo(number) for number in to_be_undone(workspace.history(), head)]


def _intent(workspace: Workspace) -> str:
    return f"{workspace.place.state}/rewind"


def _write_intent(workspace: Workspace, head: int, before: int) -> None:
    """As the target of a symbolic link: it is there whole or not at all, and only once."""
    for _ in range(2):
        try:
            os.symlink(json.dumps([head, before, Owner.me().dump()]), _intent(workspace))
            return
        except FileExistsError:
            finish_rewind(workspace)  # unless somebody is at it
    raise CommitError(f"{workspace.path} is being rewound already: wait until that is done")


def _forget_intent(workspace: Workspace) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_intent(workspace))
