"""Choices: the open fork looked at file by file: in a diff tool, or lined up and decided hunk by hunk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.agents.live.editors import EditorDetector
from forkwise.agents.live.recalling import recall_merge
from forkwise.agents.live.specs import MergeStrategy
from forkwise.app.chat.desk import Desk
from forkwise.app.chat.forks import Forks
from forkwise.app.chat.merges import Merges
from forkwise.errors import CommitError
from forkwise.files.choosing import Choice, Lineup
from forkwise.fork.choosing import Prepared, commit_choice, line_up_attempts, prepare_choice
from forkwise.fork.tests import Tests
from forkwise.sandbox.threads import before_leaving, in_thread

__all__ = ["Choices"]


class Choices:
    """What can be chosen from the branches of the open fork."""

    def __init__(self, desk: Desk, forks: Forks, merges: Merges) -> None:
        self._desk = desk
        self._forks = forks
        self._merges = merges
        self._tools: list[asyncio.Future[int]] = []  # which are waited for by nobody, but have to be taken note of

    def diff(self, paths: Sequence[str] | None = None) -> BranchDiffReport:
        """What the branches changed."""
        return self._forks.current.diff_report(paths)

    async def open_diff(self, path: str, branches: Sequence[str] = ()) -> bool:
        """Show a file of the parent and of branches, of all that have it by default, in the diff tool that there is;
        False where there is none. ValueError where no branch changed the file."""
        kind = EditorDetector.detect()
        mirror = self._forks.current.materializer
        if kind == "tui" or mirror is None:
            return False
        labels = [self._forks.find(name).spec.label for name in branches] or list(self._forks.labels)
        shown = [there for label in labels if (there := mirror.branch_path(label, path)).exists()]
        if not shown:
            raise ValueError(f"no branch changed {path}")
        parent = mirror.parent_path(path)
        for process in await in_thread(EditorDetector.invoke, kind, parent if parent.exists() else None, shown):
            self._tools.append(in_thread(process.wait))
        return True

    async def line_up(self) -> list[Lineup]:
        """What the branches that are over changed, lined up; versions are called by the ids of branches."""
        return await in_thread(line_up_attempts, self._desk.workspace, self._fork)

    async def prepare(self, choice: Mapping[str, Choice]) -> Prepared:
        """Make a branch of what was chosen, and test it; nothing is decided by that."""
        command = self._desk.settings.test
        tests = None if command is None else Tests(None if command == "auto" else command)
        return await prepare_choice(self._desk.workspace, self._fork, choice, tests=tests)

    async def drop(self, prepared: Prepared) -> None:
        """Give up what was prepared."""
        await before_leaving(in_thread(prepared.branch.abort))

    async def commit(self, prepared: Prepared) -> None:
        """Decide the fork for what was prepared, and go on with what those branches said whose work is in it. What
        somebody changed meanwhile is decided as in every merge of a chat."""
        coordinator = self._forks.current
        for runtime in coordinator.branches.values():
            if runtime.is_running:
                await coordinator.terminate_branch(runtime.id)
        await before_leaving(in_thread(partial(commit_choice, prepared, policy=MergeStrategy().conflict_policy)))
        await coordinator.aclose()
        result = recall_merge(self._desk.kept.ledger, self._desk.workspace, prepared.fork)
        if result is None:
            raise CommitError(f"fork {prepared.fork} was decided, but not committed")
        await self._merges.settle(result, "choice")

    @property
    def _fork(self) -> str:
        return self._forks.current.fork_id or ""
