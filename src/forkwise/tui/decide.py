"""Decisions: how the user resolves a fork from a screen.

Each decision is confirmed first, runs in a thread, and is reported; after an error the fork is as it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer

from forkwise.concurrency import run_in_thread
from forkwise.display.output import printable, totals
from forkwise.errors import BranchingError, BranchStaleError, ConflictError, ExecutableConfigError
from forkwise.files.store.changes import Commit, OnConflict
from forkwise.fork.combine import Prepared
from forkwise.git.repository_change import format_left_repositories
from forkwise.ledger.records import AttemptRecord
from forkwise.tui.diff_view import DiffView
from forkwise.tui.fork_model import ForkModel, ForkSnapshot
from forkwise.tui.widgets import QuestionScreen, TextLine

__all__ = [
    "DecisionScreen",
    "PreviewScreen",
    "ask_about_executables",
]


class PreviewScreen(Screen[Prepared | None]):
    """Shows a choice while it is prepared and tested. Returns it if the user commits it, else None.

    After None the caller drops ``prepared``, unless that is None as well. ``names`` are the names of attempts for
    people.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "commit", "commit", priority=True),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(self, preparation: Awaitable[Prepared], names: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.names = dict(names or {})
        self.prepared: Prepared | None = None
        self._preparation = preparation

    def compose(self) -> ComposeResult:
        """Yield the outcome of the tests and, below it, the diff."""
        yield TextLine("Merging and testing the choice …")
        yield DiffView("", id="preview")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start the preparation."""
        self.query_one(DiffView).focus()
        self.run_worker(self._prepare(), group="prepare", exit_on_error=False)

    async def _prepare(self) -> None:
        try:
            self.prepared = prepared = await self._preparation
        except (BranchingError, OSError) as error:
            self.notify(printable(str(error)), severity="error", timeout=15, markup=False)
            self.dismiss(None)
            return
        tests = prepared.tests
        result = "not tested: this fork has no tests" if tests is None else f"tests: {tests.doubt or tests.summary}"
        line = self.query_one(TextLine)
        names = ", ".join(printable(self.names.get(name, name)) for name in prepared.attempts)
        line.show(f"{'✓' if prepared.is_good else '✗'} {result} · from {names}")
        line.set_class(prepared.is_good and tests is not None, "good")
        line.set_class(not prepared.is_good, "bad")
        failures = "" if tests is None or prepared.is_good else f"{tests.feedback().rstrip()}\n\n"
        left = "".join(f"{printable(one)}\n" for one in format_left_repositories(prepared.left_repositories))
        self.query_one(DiffView).text = failures + left + (prepared.diff or "the choice changes no file")

    async def action_commit(self) -> None:
        """Return the choice; ask first if its tests fail."""
        if self.prepared is None:
            self.notify("The choice is still being tested.", severity="warning")
        elif self.prepared.is_good:
            self.dismiss(self.prepared)
        else:
            self.app.push_screen(QuestionScreen("Its tests fail. Commit anyway?"), self._on_answer)

    def _on_answer(self, answer: str | None) -> None:
        if answer:
            self.dismiss(self.prepared)

    def action_back(self) -> None:
        """Close without a commit, and stop the tests."""
        self.workers.cancel_group(self, "prepare")
        self.dismiss(None)


_LISTED = 8
_ANSWERS: dict[str, OnConflict] = {"m": "merge", "o": "ours", "t": "theirs"}
_IN_CONFLICT = {"m": "merge", "o": "take the attempt's", "t": "keep the workspace's"}

T = TypeVar("T")


def ask_about_executables(executable_config: Iterable[tuple[str, str]]) -> QuestionScreen:
    """Return the question whether to commit changes to what the user's machine runs by itself."""
    found = [f"  {path}: {executor}" for path, executor in executable_config]
    more = f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return QuestionScreen(f"This changes what your machine will run:\n{_list(found)}{more}\nCommit it anyway?")


class DecisionScreen(Screen[None]):
    """A screen that resolves a fork. ``snapshot`` is the last reading of it, ``activity`` the operation under way."""

    def __init__(self, model: ForkModel) -> None:
        super().__init__()
        self.model = model
        self.snapshot: ForkSnapshot | None = None
        self.activity = ""

    def decide(self, decision: Coroutine[object, object, None]) -> None:
        """Run a decision, unless another one is running or the fork is already resolved."""
        obstacle = self._find_obstacle()
        if obstacle is None:
            self.run_reported(decision)
        else:
            decision.close()
            self.notify(obstacle, severity="warning")

    def run_reported(self, work: Coroutine[object, object, None]) -> None:
        """Run ``work`` in the background and show its error, if it raises one."""
        self.run_worker(self._run_reported(work), group="work")

    # Decisions

    async def pick(self, attempt: AttemptRecord) -> None:
        """Resolve the fork with one attempt."""
        force = attempt.is_over and attempt.state != "succeeded"
        but = f"\nIt {attempt.state}: {printable(attempt.reason or '')}" if force else ""
        question = f"Commit {attempt.id} and drop the others?{but}{self._running_note()}"
        if not await self._ask(QuestionScreen(question)):
            return
        await self._commit(partial(self.model.pick, attempt.id, force=force))

    async def combine(self, names: Sequence[str]) -> None:
        """Resolve the fork with several attempts."""
        question = f"Merge {', '.join(names)}, test the result, and commit it?{self._running_note()}"
        if not await self._ask(QuestionScreen(question)):
            return
        force, allow = False, None
        while True:
            work = run_in_thread(self.model.combine, names, force=force, allow_executable_config=allow)
            try:
                done = await self._run_shown("combining", work)
            except ExecutableConfigError as error:
                if not await self._ask(ask_about_executables(error.executors.items())):
                    return
                allow = True
                continue
            if done.commit is not None:
                self._notify_committed(done.commit)
                for sentence in format_left_repositories(done.left_repositories):
                    self.notify(printable(sentence), severity="warning", timeout=10, markup=False)
                return
            if done.conflicts:
                conflict = QuestionScreen(f"Their changes conflict:\n{_list(done.conflicts)}", {"n": "choose, n-way"})
                if await self._ask(conflict):
                    await self.choose(names)
                return
            assert done.tests is not None
            failure = f"The tests of the combination fail: {printable(done.tests.doubt or done.tests.summary)}"
            if not await self._ask(QuestionScreen(f"{failure}\nCommit anyway?")):
                return
            force = True

    async def choose(self, names: Sequence[str]) -> None:
        """Resolve the fork hunk by hunk, from some attempts or from all that have ended."""
        from forkwise.tui.diff_view import NwayScreen  # imported late, because it would delay the first frame

        lineups = await self._run_shown("aligning files", run_in_thread(self.model.line_up, names))
        if not lineups:
            self.notify("The attempts changed no file.")
            return
        nway = NwayScreen(lineups)
        while await self.app.push_screen_wait(nway):
            preview = PreviewScreen(self.model.prepare(dict(nway.choice)))
            accepted = await self.app.push_screen_wait(preview)
            if accepted is not None:
                if not await self._commit(partial(self.model.commit, accepted)):
                    await run_in_thread(self.model.drop, accepted)
                return
            if preview.prepared is not None:
                await run_in_thread(self.model.drop, preview.prepared)
            nway = NwayScreen(lineups, nway.choice)

    async def abort(self) -> None:
        """Abort the fork."""
        if await self._ask(QuestionScreen(f"Abort the fork and drop all of its branches?{self._running_note()}")):
            await self._run_shown("aborting", run_in_thread(self.model.abort))
            self.notify("Aborted the fork; its branches were dropped.")

    async def abort_attempt(self, attempt: AttemptRecord) -> None:
        """Abort one attempt."""
        if await self._ask(QuestionScreen(f"Abort {attempt.id} and everything it started? The others continue.")):
            await self._run_shown(f"aborting {attempt.id}", run_in_thread(self.model.abort_attempt, attempt.id))
            self.notify(f"Aborted {attempt.id}; the others continue.")

    async def undo(self, commit: int) -> None:
        """Undo the commit of the fork."""
        if await self._ask(QuestionScreen(f"Undo commit {commit}?")):
            done = await self._run_shown("undoing", run_in_thread(self.model.undo, commit))
            self.notify(f"Undid {commit} as {done.id}: {totals(done)}.", markup=False)

    async def _commit(self, commit: Callable[..., Commit]) -> bool:
        """Commit; ask the user what to do if the workspace was changed meanwhile, or if files that it runs change.

        Returns False if the fork is undecided.
        """
        on_conflict: OnConflict | None = "refuse"
        allow: bool | None = None
        while on_conflict is not None:
            work = run_in_thread(commit, on_conflict=on_conflict, allow_executable_config=allow)
            try:
                done = await self._run_shown("committing", work)
                self._notify_committed(done)
                return True
            except ExecutableConfigError as error:
                if not await self._ask(ask_about_executables(error.executors.items())):
                    return False
                allow = True
            except BranchStaleError:
                raise  # no answer to the question below would help
            except ConflictError as error:
                question = f"The workspace was changed meanwhile:\n{_list(error.conflicts)}"
                on_conflict = _ANSWERS.get(await self._ask(QuestionScreen(question, _IN_CONFLICT)) or "")
        return True

    # Reports

    def show_status(self) -> None:
        """Show ``activity``; screens with a status line override it."""

    def _find_obstacle(self) -> str | None:
        """Return why the fork cannot be resolved now, or None."""
        if self.activity:
            return f"Still {self.activity}; wait for it."
        if self.snapshot is None:
            return "There is no fork yet."
        fork = self.snapshot.fork
        is_done = fork.stored == "aborted" or fork.commit is not None
        return f"The fork is already {self.snapshot.state}." if is_done else None

    async def _run_reported(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (BranchingError, OSError) as error:
            self.notify(printable(str(error)), severity="error", timeout=15, markup=False)

    async def _run_shown(self, activity: str, work: Awaitable[T]) -> T:
        self.activity = activity
        self.show_status()
        try:
            return await work
        finally:
            self.activity = ""
            self.show_status()

    async def _ask(self, question: QuestionScreen) -> str | None:
        return await self.app.push_screen_wait(question)

    def _notify_committed(self, commit: Commit) -> None:
        self.notify(f"Committed as {commit.id}: {totals(commit)}. Press u to undo it.", timeout=10, markup=False)

    def _running_note(self) -> str:
        count = 0 if self.snapshot is None else sum(not attempt.is_over for attempt in self.snapshot.own)
        if not count:
            return ""
        return f"\n{count} of its attempts {'has' if count == 1 else 'have'} not ended and will be stopped."


def _list(things: Sequence[object]) -> str:
    return "\n".join(printable(str(thing)) for thing in things[:_LISTED])
