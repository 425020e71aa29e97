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

__all__ = ["ISOLATED", "Forks", "files_named"]

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


class _Fork:
    """A branch of files: whether its work is over, and whether it is gone."""

    def __init__(self) -> None:
        self.worked = asyncio.Event()
        self.ended = asyncio.Event()


class Forks:
    """The branches that are made of the files of one call.

    What is committed into a parent may be seen by whoever works on another branch of it. So those that are at work at
    the same time are committed when all of them are done, in the order in which they were made.
    """

    def __init__(self) -> None:
        self._live: list[_Fork] = []

    @asynccontextmanager
    async def branch(self, parent: Parent | None, name: str) -> AsyncIterator[Branch]:
        """A branch of a parent's files for as long as the block runs: committed where it ends well, else gone.

        Who is not the first to be committed is rebased; ConflictError where another branch changed the same in a way
        that cannot be merged.
        """
        if parent is None:
            message = f"{name} wants files of its own, and its parent has no workspace: give that one"
            raise BranchError(message, branch=name)
        fork = _Fork()
        self._live.append(fork)
        making = in_thread(parent.branch, f"{name.lower()}-{secrets.token_hex(4)}", None, None)
        try:
            yield await asyncio.shield(making)
            fork.worked.set()
            await self._turn_of(fork)
            await _completed(in_thread(_commit, making.result()))
        except BaseException:
            fork.worked.set()
            await to_its_end(in_thread(_abort, await to_its_end(making)))
            raise
        finally:
            self._live.remove(fork)
            fork.ended.set()

    async def _turn_of(self, fork: _Fork) -> None:
        while working := [other for other in self._live if not other.worked.is_set()]:
            await working[0].worked.wait()
        while (first := self._live[0]) is not fork:
            await first.ended.wait()


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
