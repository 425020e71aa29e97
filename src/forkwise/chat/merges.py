"""Choices: the open fork looked at file by file: in a diff tool, or lined up and decided hunk by hunk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from forkwise.chat.events import Judged, MergeUndone, Moved, Notice, error_text
from forkwise.chat.forks import Forks, resolved
from forkwise.chat.services import ChatServices, is_own
from forkwise.chat.storage import FORK, MERGED, OVER, UNDOING
from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.conversation.node import Node
from forkwise.errors import BranchingError, CommitError
from forkwise.files.selection import AlignedPath, Choice
from forkwise.files.store.changes import Commit
from forkwise.fork.combine import Prepared, commit_choice, line_up_attempts, prepare_choice
from forkwise.fork.evaluation import Tests
from forkwise.ledger.sqlite import open_ledger
from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.live.diff.mirror import EditorDetector
from forkwise.live.judging.verdict import ResolveOutcome
from forkwise.live.resume import load_merge_result
from forkwise.live.values import MergeResult, MergeStrategy

__all__ = [
    "Choices",
    "Merges",
]


_Kind = Literal["auto", "auto_with_fallback", "vote"]


class Merges:
    """How the forks of a chat end."""

    def __init__(self, desk: ChatServices, forks: Forks) -> None:
        self._desk = desk
        self._forks = forks

    # Deciding

    async def judge(self, kind: _Kind = "auto_with_fallback") -> ResolveOutcome:
        """Ask judges which branch is the best, and tell what they say. ``auto`` and ``vote`` merge it as well, ``auto``
        only where it is sure enough. To ask again costs nothing."""
        coordinator, desk = self._forks.current, self._desk
        name = desk.settings.judge or desk.model_name
        by_panel = kind == "vote" and desk.settings.judge is None and not is_own(name)
        coordinator.judge = None if by_panel else desk.models.open(name)
        outcome = await coordinator.resolve(MergeStrategy(kind=kind, judge_model=name))
        verdict = outcome.verdict
        label = None if verdict is None else coordinator.branches[verdict.winner_branch_id].spec.label
        desk.feed.publish(
            Judged(
                fork=coordinator.fork_id or "",
                winner=label,
                confidence=outcome.merge_confidence or 0.0,
                reasoning="no branch can be merged" if verdict is None else verdict.reasoning,
                is_sure=outcome.committed or outcome.auto_eligible,
                caveats=() if verdict is None else tuple(verdict.caveats),
            )
        )
        if outcome.merge_result is not None:
            await self.settle(outcome.merge_result, kind)
        return outcome

    async def merge(self, choice: str, prefer: Mapping[str, str] | None = None) -> MergeResult | None:
        """Decide the fork for a branch by its label, for several (``combine:a,b``), or as judges say (``auto``,
        ``vote``); None where those are not sure enough. Branches that are chosen are waited for. In a combination
        ``prefer`` says by path whose version it is where branches clash."""
        coordinator = self._forks.current
        if choice in ("auto", "vote"):
            outcome = await self.judge("vote" if choice == "vote" else "auto")
            return outcome.merge_result
        kind, _, names = choice.partition(":") if choice.startswith("combine:") else ("pick", "", choice)
        chosen = [self._forks.find(name.strip()) for name in (names.split(",") if kind == "combine" else [names])]
        ids = ",".join(runtime.id for runtime in chosen)
        by_id = {path: self._forks.find(name).id for path, name in (prefer or {}).items()}
        result = await coordinator.merge_or_select(f"{kind}:{ids}", prefer=by_id)
        await self.settle(result, kind)
        return result

    async def settle(self, result: MergeResult, how: str) -> None:
        """Go on as what was merged, and tell of it."""
        labels = self._forks.labels_by_id
        await self._forks.followed()
        self._forks.graft_all()
        self.go_on_as(result)
        self._forks.forget()
        self._desk.feed.publish(resolved(result, labels, how))

    async def override(self, label: str) -> MergeResult:
        """Take another branch than the one that judges chose: what that put into the files is undone, and the
        conversation goes on as this. Raises as `ForkCoordinator.override` does."""
        decided, kept = self._forks.decided, self._desk.kept
        if decided is None or decided.fork_id is None:
            raise RuntimeError("nothing was decided by judges here that could be decided otherwise")
        fork, labels = decided.fork_id, {name: one.spec.label for name, one in decided.branches.items()}
        before = kept.marked(MERGED, fork)
        kept.unmark(MERGED, fork)
        kept.save()
        try:
            result = await decided.override(label)
        except BaseException:
            if before is not None:
                kept.mark(MERGED, fork, before)
                kept.save()
            raise
        self.go_on_as(result)
        self._desk.feed.publish(resolved(result, labels, "override"))
        return result

    def go_on_as(self, result: MergeResult) -> Node:
        """Put what was merged into the conversation, and be there; all of it is written down at once."""
        kept = self._desk.kept
        at = kept.marked(FORK, result.fork_id) or kept.conversation.root
        node = kept.graft(result.history_after_merge[at.depth :], at)
        here = kept.settle(node)
        kept.mark(MERGED, result.fork_id, here)
        kept.save()
        return here

    def find_lost(self, fork: str) -> bool:
        """Whether a fork was merged and the conversation did not hear of it, such as because of a kill; it does now."""
        result = load_merge_result(self._desk.kept.ledger, self._desk.workspace, fork)
        if result is not None:
            self._desk.feed.publish(Moved(self.go_on_as(result).id, "merged"))
        return result is not None

    def forget_undone(self) -> None:
        """Note which merges do not stand any more, because files were gone back with."""
        kept = self._desk.kept
        undone = {one.id for one in self._desk.workspace.history() if one.undone_by is not None}
        for label in [name for name in kept.conversation.labels if name.startswith(MERGED)]:
            fork = label.removeprefix(MERGED)
            if kept.ledger.fork(fork).commit in undone:
                kept.unmark(MERGED, fork)
                kept.mark(OVER, fork, kept.here)
        kept.save()

    # Taking back

    @property
    def last(self) -> str | None:
        """The fork that was merged last and is not taken back."""
        labels = [name for name in self._desk.kept.conversation.labels if name.startswith(MERGED)]
        return labels[-1].removeprefix(MERGED) if labels else None

    async def undo(self) -> str:
        """Take the last merge back: its files are as before it, and the conversation is where it was forked; gives the
        fork. CommitError where somebody changed those files since: nothing is changed then."""
        fork = self.last
        if fork is None:
            raise CommitError("nothing was merged in this chat that could be taken back")
        commit = self._commit(fork)
        self._check_later(fork, commit)
        await self._forks.let_go()
        kept = self._desk.kept
        kept.mark(UNDOING, fork, self._before(fork))
        kept.save()
        await finish(asyncio.ensure_future(self._carry_out_undo(fork, commit)))
        return fork

    async def _carry_out_undo(self, fork: str, commit: Commit | None) -> None:
        try:
            await run_in_thread(self._take_back, commit)
        except BranchingError:
            self._desk.kept.unmark(UNDOING, fork)
            self._desk.kept.save()
            raise
        self._taken_back(fork, commit)

    def _check_later(self, fork: str, commit: Commit | None) -> None:
        """Refuse where more was said and done since: files and words would no longer go together."""
        kept = self._desk.kept
        merged = kept.marked(MERGED, fork)
        if commit is None or merged is None or kept.here is merged or not kept.here.is_below(merged):
            return
        later = [one for one in self._desk.workspace.history() if one.id > commit.id and one.undone_by is None]
        if any(one.kind == "commit" for one in later):
            raise CommitError(
                f"files were changed since that merge: /load fork:{fork} goes back to before it, with all files"
            )

    def _take_back(self, commit: Commit | None) -> None:
        """Undo the files of a merge, if they are not undone yet."""
        if commit is not None and commit.undone_by is None and commit.paths:
            workspace = self._desk.workspace
            done = workspace.undo(commit)
            with open_ledger(workspace) as ledger:
                ledger.record_undo(commit.id, done.id, str(workspace.path))

    def _taken_back(self, fork: str, commit: Commit | None) -> None:
        kept = self._desk.kept
        node = kept.marked(UNDOING, fork) or self._before(fork)
        here = kept.settle(node)
        for mark in (UNDOING, MERGED):
            kept.unmark(mark, fork)
        kept.mark(OVER, fork, here)
        kept.save()
        undone = str(commit.id) if commit is not None and commit.paths else None
        self._desk.feed.publish(MergeUndone(fork, undone, here.id))

    async def finish_undo(self, fork: str) -> None:
        """Bring an undo to its end that a kill cut short."""
        commit = self._commit(fork)
        try:
            await self._carry_out_undo(fork, commit)
        except BranchingError as error:
            self._desk.feed.publish(
                Notice(f"the undo of fork {fork} was interrupted and is not done: {error_text(error)}")
            )
            return
        self._desk.feed.publish(Notice(f"the undo of fork {fork}, which was interrupted, is done now"))

    def _commit(self, fork: str) -> Commit | None:
        number = self._desk.kept.ledger.fork(fork).commit
        return next((one for one in self._desk.workspace.history() if one.id == number), None)

    def _before(self, fork: str) -> Node:
        """Where the conversation was before a fork: at an answer with which the agent was done."""
        kept = self._desk.kept
        node = kept.marked(FORK, fork) or kept.conversation.root
        while node.parent is not None and (not node.is_response or node.calls):
            node = node.parent
        return node


class Choices:
    """What can be chosen from the branches of the open fork."""

    def __init__(self, desk: ChatServices, forks: Forks, merges: Merges) -> None:
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
        for process in await run_in_thread(EditorDetector.invoke, kind, parent if parent.exists() else None, shown):
            self._tools.append(run_in_thread(process.wait))
        return True

    async def line_up(self) -> list[AlignedPath]:
        """What the branches that are over changed, lined up; versions are called by the ids of branches."""
        return await run_in_thread(line_up_attempts, self._desk.workspace, self._fork)

    async def prepare(self, choice: Mapping[str, Choice]) -> Prepared:
        """Make a branch of what was chosen, and test it; nothing is decided by that."""
        command = self._desk.settings.test
        tests = None if command is None else Tests(None if command == "auto" else command)
        return await prepare_choice(self._desk.workspace, self._fork, choice, tests=tests)

    async def drop(self, prepared: Prepared) -> None:
        """Give up what was prepared."""
        await finish_then_cancel(run_in_thread(prepared.branch.abort))

    async def commit(self, prepared: Prepared) -> None:
        """Decide the fork for what was prepared, and go on with what those branches said whose work is in it. What
        somebody changed meanwhile is decided as in every merge of a chat."""
        coordinator = self._forks.current
        for runtime in coordinator.branches.values():
            if runtime.is_running:
                await coordinator.terminate_branch(runtime.id)
        await finish_then_cancel(
            run_in_thread(partial(commit_choice, prepared, policy=MergeStrategy().conflict_policy))
        )
        await coordinator.aclose()
        result = load_merge_result(self._desk.kept.ledger, self._desk.workspace, prepared.fork)
        if result is None:
            raise CommitError(f"fork {prepared.fork} was decided, but not committed")
        await self._merges.settle(result, "choice")

    @property
    def _fork(self) -> str:
        return self._forks.current.fork_id or ""
