"""MergePicker: how a fork is decided: one branch, several together, or whom a judge or a vote chooses, with the diff of
each branch to go by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import WorkType

from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.signs import branch_chip, short
from forkwise.app.tui.diff import DiffView
from forkwise.app.tui.line import Line

__all__ = ["NWAY", "MergePicker", "MergeRow"]

NWAY = "/nway"
"""The answer that decides nothing yet: file by file, hunk by hunk."""

_DIGITS = "1234567890"


@dataclass(frozen=True)
class MergeRow:
    """A branch that may be picked: how it stands, and the last that it said."""

    label: str
    state: str
    last: str


class _Rows(OptionList):
    """The branches. What picks and marks one waits for the keys that went to it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.pick", "pick"),
        Binding("space", "screen.mark", "mark", key_display="␣"),
        Binding("pagedown", "screen.scroll(1)", "down", show=False),
        Binding("pageup", "screen.scroll(-1)", "up", show=False),
    ]

    async def _on_click(self, event: Click) -> None:
        """A click shows a diff, and decides nothing."""
        event.prevent_default()
        chosen = event.style.meta.get("option")
        if chosen is not None:
            self.highlighted = chosen


class MergePicker(Screen[str | None]):
    """Gives what ``/merge`` is to be told: a label, ``combine:`` some, ``auto`` or ``vote``; ``NWAY`` where
    it is to be decided hunk by hunk; None is nothing.

    ``read`` gives the diff of a branch, ``open_outside`` shows one in a diff tool. ``preferred`` is the branch that is
    under the cursor at first, ``why`` what speaks for it.
    """

    DEFAULT_CSS = """
    MergePicker > OptionList { height: auto; max-height: 10; text-wrap: nowrap; text-overflow: ellipsis; }
    MergePicker > #why { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    MergePicker > DiffView { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "combine", "combine"),
        Binding("j", "answer('auto')", "judge"),
        Binding("v", "answer('vote')", "vote"),
        Binding("w", f"answer({NWAY!r})", "n-way"),
        Binding("o", "open", "open in editor"),
        Binding("n", "file(1)", "next file", show=False),
        Binding("p", "file(-1)", "file before", show=False),
        Binding("escape,q", "answer('')", "back", key_display="esc"),
        *(Binding(digit, f"number({n})", "pick", show=False) for n, digit in enumerate(_DIGITS)),
    ]

    def __init__(
        self,
        rows: Sequence[MergeRow],
        read: Callable[[str], Awaitable[str]],
        open_outside: Callable[[str], Awaitable[None]],
        *,
        preferred: str | None = None,
        why: str = "",
    ) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.why = why
        self.preferred = preferred
        self.marked: list[str] = []
        self._read = read
        self._open_outside = open_outside
        self._diffs: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """The branches over the diff of one of them."""
        yield Line("Which branch is kept? A number picks one, enter the one under the cursor.")
        if self.why:
            yield Static(printable(self.why, keep="\n"), id="why", markup=False)
        options = [Option(self._line(number), id=f"row-{number}") for number in range(len(self.rows))]
        yield _Rows(*options, compact=True)
        yield DiffView("", id="diff")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin at the branch that is preferred."""
        listed = self.query_one(OptionList)
        labels = [row.label for row in self.rows]
        listed.highlighted = labels.index(self.preferred) if self.preferred in labels else 0
        listed.focus()

    @property
    def current(self) -> MergeRow:
        """The branch under the cursor."""
        return self.rows[self.query_one(OptionList).highlighted or 0]

    def _line(self, number: int) -> Text:
        row = self.rows[number]
        mark = "▪" if row.label in self.marked else " "
        star = " ← the judge's" if row.label == self.preferred and self.why else ""
        line = Text.assemble(f"{mark}{number + 1} ", (printable(row.label), "bold"), "  ", branch_chip(row.state))
        line.append(f"{star}  {short(printable(row.last), 200)}")
        line.no_wrap, line.overflow = True, "ellipsis"
        return line

    # What they changed

    def on_option_list_option_highlighted(self, _: OptionList.OptionHighlighted) -> None:
        """Show what another branch changed."""
        show: WorkType[None] = partial(self._show, self.current.label)
        self.run_worker(show, group="diff", exclusive=True, exit_on_error=False)

    async def _show(self, label: str) -> None:
        if label not in self._diffs:
            self._diffs[label] = await self._read(label) or f"{label} changed nothing"
        view = self.query_one(DiffView)
        view.text = self._diffs[label]
        view.scroll_home(animate=False, immediate=True)

    def action_scroll(self, step: int) -> None:
        """Go through the diff a page at a time."""
        view = self.query_one(DiffView)
        view.scroll_relative(y=step * max(view.size.height - 1, 1), animate=False, force=True)

    def action_file(self, step: int) -> None:
        """Go through the diff a file at a time."""
        self.query_one(DiffView).action_file(step)

    def action_open(self) -> None:
        """Show the branch in a diff tool."""
        self.run_worker(self._open_outside(self.current.label), group="open", exit_on_error=False)

    # Deciding

    def action_pick(self) -> None:
        """Keep the one under the cursor."""
        self.dismiss(self.current.label)

    def action_number(self, number: int) -> None:
        """Keep the one with that number."""
        if number < len(self.rows):
            self.dismiss(self.rows[number].label)

    def action_mark(self) -> None:
        """Mark the one under the cursor, to combine it with others."""
        listed, label = self.query_one(OptionList), self.current.label
        self.marked = [m for m in self.marked if m != label] if label in self.marked else [*self.marked, label]
        number = listed.highlighted or 0
        listed.replace_option_prompt_at_index(number, self._line(number))
        listed.highlighted = min(number + 1, len(self.rows) - 1)

    def action_combine(self) -> None:
        """Keep what the marked ones changed, together."""
        if len(self.marked) < 2:
            self.notify("Mark at least two branches with space.", severity="warning")
        else:
            self.dismiss(f"combine:{','.join(self.marked)}")

    def action_answer(self, answer: str) -> None:
        """Leave it to a judge or to a vote, or decide nothing."""
        self.dismiss(answer or None)
