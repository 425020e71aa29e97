"""Isolation: the files that a call works on, and a branch of them for each branch of it that wants its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from forkwise.errors import BranchError, BranchStaleError, ConflictError
from forkwise.files.branch import Branch
from forkwise.files.parent import Parent
from forkwise.files.workspace import Workspace
from forkwise.sandbox.threads import in_thread, to_its_end

__all__ = ["ISOLATED", "files_named", "own_files"]

#: What a module says that wants its branches, or itself as a branch, to have files of their own.
ISOLATED = "branch"


def files_named(workspace: Any) -> Parent | None:
    """The files that a module says it works on; those of the current directory where it says how but not on which."""
    match workspace:
        case None | Parent():
            return workspace
        case str() | Path():
            return Workspace("." if workspace == ISOLATED else workspace)
    raise ValueError(f"a workspace is a directory, a Workspace, a Branch, or {ISOLATED!r}; not {workspace!r}")


@asynccontextmanager
async def own_files(parent: Parent | None, name: str, turn: asyncio.Lock) -> AsyncIterator[Branch]:
    """A branch of a parent's files for as long as the block runs: committed where it ends well, else gone.

    ``turn`` lets those that commit into the same parent do so one after the other. Who is not the first is rebased;
    ConflictError where another branch changed the same in a way that cannot be merged.
    """
    if parent is None:
        raise BranchError(f"{name} wants files of its own, and its parent has no workspace: give that one", branch=name)
    unique = f"{name.lower()}-{secrets.token_hex(4)}"
    making = in_thread(parent.branch, unique, None, None)
    try:
        yield await asyncio.shield(making)
        async with turn:
            await _completed(in_thread(_commit, making.result()))
    except BaseException:
        await to_its_end(in_thread(_abort, await to_its_end(making)))
        raise


async def _completed(work: asyncio.Future[None]) -> None:
    """Wait for what must not be left halfway; who is cancelled meanwhile is cancelled after it."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await to_its_end(work)
        raise


def _commit(branch: Branch) -> None:
    while True:
        try:
            branch.commit()
            return
        except BranchStaleError:
            conflicts = branch.rebase().conflicts
            if conflicts:
                paths = ", ".join(sorted({c.path for c in conflicts}))
                message = f"another branch changed the same and was committed first: {paths}"
                raise ConflictError(message, branch=branch.name, conflicts=conflicts) from None


def _abort(branch: Branch) -> None:
    if branch.status not in ("committed", "aborted"):
        branch.abort()
