"""Deciding: how a person decides a fork from a screen. Each decision is asked for first, carried out in a thread by the
floors below, and told; what goes wrong is told as well, and nothing is decided then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer

from forkwise.concurrency import run_in_thread
from forkwise.display.output import printable, totals
from forkwise.errors import BranchingError, ConflictError
from forkwise.files.store.changes import Commit, OnConflict
from forkwise.fork.combine import Prepared
from forkwise.ledger.records import AttemptRecord
from forkwise.tui.diff_view import DiffView
from forkwise.tui.fork_model import Look, Watched
from forkwise.tui.widgets import Line, Question

__all__ = [
    "DecidingScreen",
    "PreviewScreen",
]


class PreviewScreen(Screen[Prepared | None]):
    """Waits for something to be prepared, shows it, and gives it where it is to be committed. None is where it could
    not be had, or is not wanted: what was ``prepared`` until then is the caller's to drop. ``names`` is what attempts
    are called for people."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "commit", "commit", priority=True),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(self, preparing: Awaitable[Prepared], names: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.names = dict(names or {})
        self.prepared: Prepared | None = None
        self._preparing = preparing

    def compose(self) -> ComposeResult:
        """What the tests say, over the diff."""
        yield Line("The choice is put together and tested …")
        yield DiffView("", id="preview")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to wait."""
        self.query_one(DiffView).focus()
        self.run_worker(self._prepare(), group="prepare", exit_on_error=False)

    async def _prepare(self) -> None:
        try:
            self.prepared = prepared = await self._preparing
        except (BranchingError, OSError) as error:
            self.notify(printable(str(error)), severity="error", timeout=15, markup=False)
            self.dismiss(None)
            return
        tests = prepared.tests
        told = "not tested: this fork has no tests" if tests is None else f"tests: {tests.doubt or tests.summary}"
        line = self.query_one(Line)
        who = ", ".join(printable(self.names.get(name, name)) for name in prepared.attempts)
        line.say(f"{'✓' if prepared.is_good else '✗'} {told} · from {who}")
        line.set_class(prepared.is_good and tests is not None, "good")
        line.set_class(not prepared.is_good, "bad")
        failures = "" if tests is None or prepared.is_good else f"{tests.feedback().rstrip()}\n\n"
        self.query_one(DiffView).text = failures + (prepared.diff or "nothing is changed by it")

    async def action_commit(self) -> None:
        """Have it committed; asked once more where its tests fail."""
        if self.prepared is None:
            self.notify("It is still being tested.", severity="warning")
        elif self.prepared.is_good:
            self.dismiss(self.prepared)
        else:
            self.app.push_screen(Question("Its tests do not pass. Commit it all the same?"), self._answered)

    def _answered(self, answer: str | None) -> None:
        if answer:
            self.dismiss(self.prepared)

    def action_back(self) -> None:
        """Give it up; tests that run are ended."""
        self.workers.cancel_group(self, "prepare")
        self.dismiss(None)


_LISTED = 8
_ANSWERS: dict[str, OnConflict] = {"m": "merge", "o": "ours", "t": "theirs"}
_IN_CONFLICT = {"m": "merge", "o": "take the attempt's", "t": "keep the workspace's"}

T = TypeVar("T")


class DecidingScreen(Screen[None]):
    """A screen from which a fork is decided. ``look`` is the fork as it was seen last, ``doing`` what is under way."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched
        self.look: Look | None = None
        self.doing = ""

    def decide(self, deciding: Coroutine[object, object, None]) -> None:
        """Go through with a decision, unless another is under way or there is none to take."""
        if self._why_not() is None:
            self.attempt_to(deciding)
        else:
            deciding.close()
            self.notify(f"{self._why_not()}", severity="warning")

    def attempt_to(self, work: Coroutine[object, object, None]) -> None:
        """Do something beside the screen; what goes wrong is told."""
        self.run_worker(self._told(work), group="work")

    # The decisions

    async def pick(self, attempt: AttemptRecord) -> None:
        """Decide the fork for one attempt."""
        force = attempt.is_over and attempt.state != "succeeded"
        but = f"\nIt {attempt.state}: {printable(attempt.reason or '')}" if force else ""
        asked = f"Commit {attempt.id} and drop the others?{but}{self._going()}"
        if not await self._ask(Question(asked)):
            return
        await self._land(partial(self.watched.pick, attempt.id, force=force))

    async def combine(self, names: Sequence[str]) -> None:
        """Decide the fork for several attempts together."""
        asked = f"Merge what {', '.join(names)} changed, test that, and commit it?{self._going()}"
        if not await self._ask(Question(asked)):
            return
        force = False
        while True:
            done = await self._while("combining", run_in_thread(self.watched.combine, names, force=force))
            if done.commit is not None:
                self._say_committed(done.commit)
                return
            if done.conflicts:
                question = Question(f"They do not go together:\n{_list(done.conflicts)}", {"n": "choose, n-way"})
                if await self._ask(question):
                    await self.choose(names)
                return
            assert done.tests is not None
            told = f"The tests of the combination do not pass: {printable(done.tests.doubt or done.tests.summary)}"
            if not await self._ask(Question(f"{told}\nCommit it all the same?")):
                return
            force = True

    async def choose(self, names: Sequence[str]) -> None:
        """Decide the fork for what is chosen, hunk by hunk, of some attempts, or of all that are over."""
        from forkwise.tui.diff_view import NwayScreen  # late: a first frame has no time for them

        lineups = await self._while("lining up", run_in_thread(self.watched.line_up, names))
        if not lineups:
            self.notify("They changed nothing.")
            return
        nway = NwayScreen(lineups)
        while await self.app.push_screen_wait(nway):
            preview = PreviewScreen(self.watched.prepare(dict(nway.choice)))
            wanted = await self.app.push_screen_wait(preview)
            if wanted is not None:
                await self._land(partial(self.watched.commit, wanted))
                return
            if preview.prepared is not None:
                await run_in_thread(self.watched.drop, preview.prepared)
            nway = NwayScreen(lineups, nway.choice)

    async def abort(self) -> None:
        """Give the fork up."""
        if await self._ask(Question(f"Abort the whole fork, and drop all of its branches?{self._going()}")):
            await self._while("aborting", run_in_thread(self.watched.abort))
            self.notify("Aborted; nothing of it is left.")

    async def end(self, attempt: AttemptRecord) -> None:
        """End one attempt."""
        if await self._ask(Question(f"End {attempt.id}, with all that it started? The others go on.")):
            await self._while(f"ending {attempt.id}", run_in_thread(self.watched.end, attempt.id))
            self.notify(f"Ended {attempt.id}; the others go on.")

    async def undo(self, commit: int) -> None:
        """Take back what the fork committed."""
        if await self._ask(Question(f"Take back commit {commit}?")):
            done = await self._while("undoing", run_in_thread(self.watched.undo, commit))
            self.notify(f"Undid {commit} as {done.id}: {totals(done)}.", markup=False)

    async def _land(self, commit: Callable[..., Commit]) -> None:
        """Commit what was decided for; where the workspace was changed meanwhile, the person says what is to be."""
        how: OnConflict | None = "refuse"
        while how is not None:
            try:
                done = await self._while("committing", run_in_thread(commit, on_conflict=how))
                self._say_committed(done)
                return
            except ConflictError as error:
                told = f"The workspace was changed meanwhile:\n{_list(error.conflicts)}"
                how = _ANSWERS.get(await self._ask(Question(told, _IN_CONFLICT)) or "")

    # How they are told

    def tell(self) -> None:
        """Show what is under way. For who has a place for that."""

    def _why_not(self) -> str | None:
        """Why nothing can be decided now."""
        if self.doing:
            return f"It is {self.doing}; wait for that."
        if self.look is None:
            return "There is no fork yet."
        fork = self.look.fork
        is_done = fork.stored == "aborted" or fork.commit is not None
        return f"The fork is {self.look.state}; it is decided only once." if is_done else None

    async def _told(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (BranchingError, OSError) as error:
            self.notify(printable(str(error)), severity="error", timeout=15, markup=False)

    async def _while(self, what: str, work: Awaitable[T]) -> T:
        self.doing = what
        self.tell()
        try:
            return await work
        finally:
            self.doing = ""
            self.tell()

    async def _ask(self, question: Question) -> str | None:
        return await self.app.push_screen_wait(question)

    def _say_committed(self, commit: Commit) -> None:
        self.notify(f"Committed as {commit.id}: {totals(commit)}. u takes it back.", timeout=10, markup=False)

    def _going(self) -> str:
        going = 0 if self.look is None else sum(not attempt.is_over for attempt in self.look.own)
        return f"\n{going} of its attempts still run, and are ended." if going else ""


def _list(things: Sequence[object]) -> str:
    return "\n".join(printable(str(thing)) for thing in things[:_LISTED])
