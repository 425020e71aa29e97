"""Preview: what was chosen, with its diff and its tests, before it is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer

from forkwise.app.cli.output import printable
from forkwise.app.tui.diff import DiffView
from forkwise.app.tui.line import Line
from forkwise.app.tui.question import Question
from forkwise.errors import BranchingError
from forkwise.fork.choosing import Prepared

__all__ = ["PreviewScreen"]


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
