"""How the open fork of a chat is resolved: by the user or by judges, as branches (`Merges`) or by hunks (`Choices`).

Undo and override of a merge are here too. `forkwise.chat.forks` has the fork itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Literal

from forkwise.chat.events import Judged, MergeUndone, Moved, Notice, error_text
from forkwise.chat.forks import build_resolved_event
from forkwise.chat.services import is_chat_model
from forkwise.chat.storage import FORK, MERGED, OVER, UNDOING
from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.errors import BranchingError, CommitError
from forkwise.fork.combine import commit_choice, line_up_attempts, prepare_choice
from forkwise.fork.evaluators.tests import Tests
from forkwise.fork.land import check_executables
from forkwise.fork.stored_fork import warn_if_unrecorded
from forkwise.ledger.sqlite import open_ledger
from forkwise.live.diff.mirror import EditorDetector
from forkwise.live.resume import load_merge_result
from forkwise.live.values import MergeStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forkwise.chat.forks import Forks
    from forkwise.chat.services import ChatServices
    from forkwise.conversation.node import Node
    from forkwise.files.selection import AlignedPath, Choice
    from forkwise.files.store.changes import Commit
    from forkwise.fork.combine import Prepared
    from forkwise.live.diff.diff_report import BranchDiffReport
    from forkwise.live.judging.verdict import ResolveOutcome
    from forkwise.live.values import MergeResult

__all__ = [
    "Choices",
    "Merges",
]


_Kind = Literal["auto", "auto_with_fallback", "vote"]


class Merges:
    """Merges of the forks of a chat."""

    def __init__(self, services: ChatServices, forks: Forks) -> None:
        self._services = services
        self._forks = forks

    # Resolve

    async def judge(self, kind: _Kind = "auto_with_fallback", *, allow: bool | None = None) -> ResolveOutcome:
        """Ask judges for the best branch and publish their verdict.

        ``auto`` and ``vote`` also merge it, for ``allow`` see `merge`. Asking again reuses the verdict, at no cost.
        """
        coordinator, services = self._forks.current, self._services
        name = services.settings.judge or services.model_name
        by_panel = kind == "vote" and services.settings.judge is None and not is_chat_model(name)
        coordinator.judge = None if by_panel else services.models.open(name)
        strategy = MergeStrategy(kind=kind, judge_model=name)
        outcome = await coordinator.resolve(strategy, allow_executable_config=allow)
        verdict = outcome.verdict
        label = None if verdict is None else coordinator.branches[verdict.winner_branch_id].spec.label
        services.feed.publish(
            Judged(
                fork=coordinator.fork_id or "",
                winner=label,
                confidence=outcome.merge_confidence or 0.0,
                reasoning="; ".join(outcome.judge_failures) or "no branch can be merged"
                if verdict is None
                else verdict.reasoning,
                is_sure=outcome.committed or outcome.auto_eligible,
                caveats=() if verdict is None else tuple(verdict.caveats),
            )
        )
        if outcome.merge_result is not None:
            await self.finish_merge(outcome.merge_result, kind)
        return outcome

    async def merge(
        self, choice: str, prefer: Mapping[str, str] | None = None, *, allow: bool | None = None
    ) -> MergeResult | None:
        """Merge a branch by its label, several (``combine:a,b``), or the judges' choice (``auto``, ``vote``).

        Waits until the chosen branches are done. ``prefer`` names, by path, the branch whose version a combination
        takes on a conflict. Without ``allow``, a merge that changes what the user's machine will run raises
        ExecutableConfigError. Returns None if no judge gave a verdict.
        """
        coordinator = self._forks.current
        if choice in ("auto", "vote"):
            outcome = await self.judge("vote" if choice == "vote" else "auto", allow=allow)
            return outcome.merge_result
        kind, _, names = choice.partition(":") if choice.startswith("combine:") else ("pick", "", choice)
        runtimes = [self._forks.find(name.strip()) for name in (names.split(",") if kind == "combine" else [names])]
        ids = ",".join(runtime.id for runtime in runtimes)
        by_id = {path: self._forks.find(name).id for path, name in (prefer or {}).items()}
        result = await coordinator.merge_or_select(f"{kind}:{ids}", prefer=by_id, allow_executable_config=allow)
        await self.finish_merge(result, kind)
        return result

    async def finish_merge(self, result: MergeResult, how: str) -> None:
        """Continue the conversation as the merged branch, and publish the merge."""
        labels = self._forks.labels_by_id
        await self._forks.wait_for_watchers()
        self._forks.graft_all()
        self.continue_as(result)
        self._forks.release_resolved()
        self._services.feed.publish(build_resolved_event(result, labels, how))

    async def override(self, label: str, *, allow: bool | None = None) -> MergeResult:
        """Merge another branch than the judges' choice, whose files are undone first.

        Raises as `ForkCoordinator.override` does.
        """
        coordinator, chat = self._forks.last_resolved, self._services.chat
        if coordinator is None or coordinator.fork_id is None:
            raise RuntimeError("there is no verdict to override: /override follows /merge auto or /merge vote")
        fork = coordinator.fork_id
        labels = {name: runtime.spec.label for name, runtime in coordinator.branches.items()}
        merged = chat.find_mark(MERGED, fork)
        chat.unmark(MERGED, fork)
        chat.save()
        try:
            result = await coordinator.override(label, allow_executable_config=allow)
        except BaseException:
            if merged is not None:
                chat.mark(MERGED, fork, merged)
                chat.save()
            raise
        self.continue_as(result)
        self._services.feed.publish(build_resolved_event(result, labels, "override"))
        return result

    def continue_as(self, result: MergeResult) -> Node:
        """Add the merged messages to the conversation and move there, saved in one transaction."""
        chat = self._services.chat
        parent = chat.find_mark(FORK, result.fork_id) or chat.conversation.root
        node = chat.graft(result.history_after_merge[parent.depth :], parent)
        here = chat.move_to(node)
        chat.mark(MERGED, result.fork_id, here)
        chat.save()
        return here

    def recover_merge(self, fork: str) -> bool:
        """Add a merge to the conversation that a crash left out of it. Return whether there was one."""
        result = load_merge_result(self._services.chat.ledger, self._services.workspace, fork)
        if result is not None:
            self._services.feed.publish(Moved(self.continue_as(result).id, "merged"))
        return result is not None

    def unmark_undone(self) -> None:
        """Unmark the merges whose commits were undone by loading a checkpoint."""
        chat = self._services.chat
        undone = {commit.id for commit in self._services.workspace.history() if commit.undone_by is not None}
        for label in [name for name in chat.conversation.labels if name.startswith(MERGED)]:
            fork = label.removeprefix(MERGED)
            if chat.ledger.fork(fork).commit in undone:
                chat.unmark(MERGED, fork)
                chat.mark(OVER, fork, chat.here)
        chat.save()

    # Undo

    @property
    def last_fork(self) -> str | None:
        """The fork that was merged last and is not undone."""
        labels = [name for name in self._services.chat.conversation.labels if name.startswith(MERGED)]
        return labels[-1].removeprefix(MERGED) if labels else None

    async def undo(self) -> str:
        """Undo the last merge, its files and its messages. Return the fork.

        Raises CommitError, with nothing changed, if the user or another process changed those files since.
        """
        fork = self.last_fork
        if fork is None:
            raise CommitError("there is no merge to undo in this chat")
        commit = self._find_commit(fork)
        self._check_no_later_commit(fork, commit)
        await self._forks.close_resolved()
        chat = self._services.chat
        chat.mark(UNDOING, fork, self._find_node_before(fork))
        chat.save()
        await finish(asyncio.ensure_future(self._run_undo(fork, commit)))
        return fork

    async def _run_undo(self, fork: str, commit: Commit | None) -> None:
        try:
            await run_in_thread(self._undo_files, commit)
        except BranchingError:
            self._services.chat.unmark(UNDOING, fork)
            self._services.chat.save()
            raise
        self._record_undo(fork, commit)

    def _check_no_later_commit(self, fork: str, commit: Commit | None) -> None:
        """Raise if the conversation continued with further commits: its files and messages would no longer match."""
        chat = self._services.chat
        merged = chat.find_mark(MERGED, fork)
        if commit is None or merged is None or chat.here is merged or not chat.here.is_below(merged):
            return
        history = self._services.workspace.history()
        if any(one.kind == "commit" and one.id > commit.id and one.undone_by is None for one in history):
            raise CommitError(
                f"files were changed since that merge: /load fork:{fork} goes back to before it, with all files"
            )

    def _undo_files(self, commit: Commit | None) -> None:
        """Undo the commit of a merge, if it is not undone yet."""
        if commit is not None and commit.undone_by is None and commit.paths:
            workspace = self._services.workspace
            undo = workspace.undo(commit)
            done = f"commit {commit.id} was undone as {undo.id}"
            with warn_if_unrecorded(done), open_ledger(workspace) as ledger:
                ledger.record_undo(commit.id, undo.id, str(workspace.path))

    def _record_undo(self, fork: str, commit: Commit | None) -> None:
        chat = self._services.chat
        node = chat.find_mark(UNDOING, fork) or self._find_node_before(fork)
        here = chat.move_to(node)
        for mark in (UNDOING, MERGED):
            chat.unmark(mark, fork)
        chat.mark(OVER, fork, here)
        chat.save()
        undone_commit = str(commit.id) if commit is not None and commit.paths else None
        self._services.feed.publish(MergeUndone(fork, undone_commit, here.id))

    async def finish_undo(self, fork: str) -> None:
        """Finish an undo after a crash interrupted it."""
        commit = self._find_commit(fork)
        try:
            await self._run_undo(fork, commit)
        except BranchingError as error:
            self._services.feed.publish(
                Notice(f"the undo of fork {fork} was interrupted and cannot be finished: {error_text(error)}")
            )
            return
        self._services.feed.publish(Notice(f"finished the undo of fork {fork}, which was interrupted"))

    def _find_commit(self, fork: str) -> Commit | None:
        number = self._services.chat.ledger.fork(fork).commit
        return next((one for one in self._services.workspace.history() if one.id == number), None)

    def _find_node_before(self, fork: str) -> Node:
        """Find the last answer before a fork that ended a turn of the agent."""
        chat = self._services.chat
        node = chat.find_mark(FORK, fork) or chat.conversation.root
        while node.parent is not None and (not node.is_response or node.calls):
            node = node.parent
        return node


class Choices:
    """The changes of the open fork's branches: in a diff tool, or aligned and chosen hunk by hunk."""

    def __init__(self, services: ChatServices, forks: Forks, merges: Merges) -> None:
        self._services = services
        self._forks = forks
        self._merges = merges
        self._tools: list[asyncio.Future[int]] = []  # references, so that the running waits are not garbage-collected

    def diff(self, paths: Sequence[str] | None = None) -> BranchDiffReport:
        """Compare the changes of the branches, in all files or in ``paths``."""
        return self._forks.current.diff_report(paths)

    async def open_diff(self, path: str, branches: Sequence[str] = ()) -> bool:
        """Open the parent's and the branches' versions of a file in a diff tool. Return False if there is no tool.

        ``branches`` defaults to all. Raises ValueError if no branch changed the file.
        """
        kind = EditorDetector.detect()
        mirror = self._forks.current.materializer
        if kind == "tui" or mirror is None:
            return False
        labels = [self._forks.find(name).spec.label for name in branches] or list(self._forks.labels)
        versions = [version for label in labels if (version := mirror.branch_path(label, path)).exists()]
        if not versions:
            raise ValueError(f"no branch changed {path}")
        parent = mirror.parent_path(path)
        for process in await run_in_thread(EditorDetector.invoke, kind, parent if parent.exists() else None, versions):
            self._tools.append(run_in_thread(process.wait))
        return True

    async def line_up(self) -> list[AlignedPath]:
        """Align the changes of the ended branches; versions are named by branch id."""
        return await run_in_thread(line_up_attempts, self._services.workspace, self._fork)

    async def prepare(self, choice: Mapping[str, Choice]) -> Prepared:
        """Build a branch from the chosen changes and test it. The fork stays open."""
        command = self._services.settings.test
        tests = None if command is None else Tests(None if command == "auto" else command)
        return await prepare_choice(self._services.workspace, self._fork, choice, tests=tests)

    async def drop(self, prepared: Prepared) -> None:
        """Drop a prepared branch."""
        await finish_then_cancel(run_in_thread(prepared.branch.abort))

    async def commit(self, prepared: Prepared, *, allow: bool | None = None) -> None:
        """Resolve the fork with a prepared branch, and continue as the branches whose changes are in it.

        Conflicts with changes by other processes are handled by the default policy, as in every merge of a chat. For
        ``allow`` see `Merges.merge`.
        """
        coordinator = self._forks.current
        await finish_then_cancel(run_in_thread(check_executables, prepared.branch, allow))
        for runtime in coordinator.branches.values():
            if runtime.is_running:
                await coordinator.terminate_branch(runtime.id)
        await finish_then_cancel(
            run_in_thread(
                partial(
                    commit_choice,
                    prepared,
                    policy=MergeStrategy().conflict_policy,
                    allow_executable_config=allow,
                )
            )
        )
        await coordinator.aclose()
        result = load_merge_result(self._services.chat.ledger, self._services.workspace, prepared.fork)
        if result is None:
            raise CommitError(f"fork {prepared.fork} was resolved, but not committed")
        await self._merges.finish_merge(result, "choice")

    @property
    def _fork(self) -> str:
        return self._forks.current.fork_id or ""
