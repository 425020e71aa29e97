"""Files: a branch of a workspace for each branch of a conversation, and what becomes of them in the end."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from forkwise.errors import BranchingError
from forkwise.files.branch import Branch
from forkwise.files.combine import combine
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import agent_workspace
from forkwise.sandbox.threads import in_thread

__all__ = ["Files", "FilesOf"]

#: What branches of a conversation fork their files from; None where they have none of their own.
FilesOf = Workspace | Branch | None


class Files:
    """The files of several branches of a conversation, as an async context manager that leaves none of them behind,
    unless they are kept.

    A branch's agent has them as its workspace (``ctx.workspace``). In the end those of the chosen branch are committed;
    where none was chosen, those of all together, if nothing overlaps.
    """

    def __init__(self, parent: FilesOf, number: int) -> None:
        self._parent = parent
        self._number = number
        self._branches: list[Branch] = []
        self._kept = False

    async def __aenter__(self) -> Files:
        if self._parent is not None:
            for number in range(self._number):
                name = f"self-{secrets.token_hex(3)}-{number + 1}"
                self._branches.append(await in_thread(self._parent.branch, name, None, None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for branch in self._branches:
            if not self._kept and branch.status not in ("committed", "aborted"):
                await in_thread(branch.abort)

    def options(self, number: int) -> dict[str, Any]:
        """What a branch's run of the agent is given."""
        if not self._branches:
            return {}
        return {"workspace": agent_workspace(self._branches[number])}

    async def conclude(self, done: Sequence[int], chosen: int | None, *, keep: bool) -> str:
        """Commit what is to be committed; gives what is to be said of it."""
        if not self._branches or not done:
            return ""
        if keep:
            self._kept = True
            for number in done:
                await in_thread(self._branches[number].keep)
            return f"Files: kept in the branches {', '.join(self._branches[n].branch_path for n in done)}."
        try:
            if chosen is not None:
                commit = await in_thread(self._branches[chosen].commit)
                return f"Files: those of branch {chosen + 1} were committed ({len(commit.paths)} paths)."
            return await in_thread(self._together, [self._branches[number] for number in done])
        except BranchingError as error:
            return f"Files: nothing was committed: {error}"

    def _together(self, branches: Sequence[Branch]) -> str:
        assert self._parent is not None
        made = combine(self._parent, branches, f"self-{secrets.token_hex(3)}-all")
        if made.clean:
            commit = made.branch.commit()
            return f"Files: those of all branches were committed together ({len(commit.paths)} paths)."
        made.branch.abort()
        paths = ", ".join(sorted(c.path for c in made.conflicts)[:10])
        return f"Files: nothing was committed, because branches changed the same places of {paths}."
