"""AgentFiles: the files an agent works on, in a branch or in a workspace, and the commands it runs there.

Apart from what agents see of it (pydantic-ai's workspaces, the backends of live forking), because all of them read,
write and run through here. On this floor because it needs branches, sandboxes and a way to land a change.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from forkwise.errors import ForkwiseWarning
from forkwise.files.addressed import AddressedTree
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.landing import land
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.process import Finished
from forkwise.sandbox.running import arun, run
from forkwise.sandbox.threads import before_leaving, in_thread, to_its_end

__all__ = ["AgentFiles"]

_CONFINEMENT = Confinement.standard(drops_secrets=True)


class AgentFiles:
    """The files of a branch, or of a workspace, spoken of by the workspace's own paths.

    What is done in a branch stays there. In a workspace itself each change, and each command, is a commit of its own:
    all of it or nothing, and it can be undone. Where a branch is a whole copy of the files, or another filesystem's,
    changes are made as they are, with a warning. Commands run in a sandbox at the workspace's own path; unless told
    otherwise they get no variables that look like secrets.
    """

    def __init__(self, place: Workspace | Branch, confinement: str | Confinement = _CONFINEMENT) -> None:
        self.place = place
        self.confinement = Confinement.preset(confinement)
        self.where = os.fspath(place.workspace.path)
        self._tree: AddressedTree | None = None

    @cached_property
    def is_recorded(self) -> bool:
        """Whether each change is a commit of its own."""
        if isinstance(self.place, Branch):
            return False
        from forkwise.files.mounted import MountedWorkspace  # noqa: PLC0415 - few have such

        if isinstance(self.place, MountedWorkspace) or self.place.view_of_children().whole:
            warnings.warn(
                f"what an agent changes in {self.where} itself cannot be undone: with the view {self.place.fstype} a "
                "branch for each change would cost too much; forkwise doctor says what would help",
                ForkwiseWarning,
                stacklevel=3,
            )
            return False
        return True

    def tree(self) -> AddressedTree:
        """The files, to be read; in a branch also to be written."""
        seen = os.fspath(self.place.path)
        if self._tree is None or self._tree.root != seen:
            self._tree = AddressedTree(seen, self.where)
        return self._tree

    @contextmanager
    def changing(self) -> Iterator[AddressedTree]:
        """The files, to be written. Where changes are recorded, who raises has changed nothing."""
        if not self.is_recorded:
            yield self.tree()
            return
        with self._recorded() as branch:
            yield AddressedTree(os.fspath(branch.path), self.where)

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command and wait for it; the options are those of forkwise.sandbox.running.RunOptions."""
        options = {"confinement": self.confinement, **options}
        if not self.is_recorded:
            return run(self.place, argv, **options)
        with self._recorded() as branch:
            return run(branch, argv, **options)

    async def arun(self, argv: Sequence[str], **options: Any) -> Finished:
        """The same for asyncio programs. Cancelled, it ends the command with all its descendants; where changes are
        recorded, what it did is gone."""
        options = {"confinement": self.confinement, **options}
        if isinstance(self.place, Branch) or not await in_thread(lambda: self.is_recorded):
            return await arun(self.place, argv, **options)
        making = in_thread(self._begin)
        try:
            branch = await before_leaving(making)
        except asyncio.CancelledError:
            if not making.exception():
                await to_its_end(in_thread(_drop, making.result()))
            raise
        try:
            done = await arun(branch, argv, **options)
            await before_leaving(in_thread(self._end, branch))
        except BaseException:
            await to_its_end(in_thread(_drop, branch))
            raise
        return done

    @contextmanager
    def _recorded(self) -> Iterator[Branch]:
        branch = self._begin()
        try:
            yield branch
            self._end(branch)
        except BaseException:
            _drop(branch)
            raise

    def _begin(self) -> Branch:
        return self.place.branch(f"agent-{secrets.token_hex(4)}", None, None)

    def _end(self, branch: Branch) -> None:
        """What is written last is what the agent wants; nothing is recorded where nothing was changed."""
        if len(branch.delta()):
            land(branch, "last_write_wins")
        else:
            branch.abort()


def _drop(branch: Branch) -> None:
    """Abort a branch that may have come to its end already."""
    if branch.status not in ("committed", "aborted"):
        branch.abort()
