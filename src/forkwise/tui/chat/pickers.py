"""Screens on which the user chooses: the branches of a new fork, the branch to keep, the files to compare."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Click
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Label, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import WorkType

from forkwise.chat.settings import MOST_BRANCHES, BranchRow, ForkForm, Settings, build_form
from forkwise.display.output import printable
from forkwise.text.clean import truncate_line
from forkwise.tui.chat.panels import branch_chip
from forkwise.tui.diff_view import DiffView
from forkwise.tui.widgets import TextLine

__all__ = [
    "NWAY",
    "DiffPicker",
    "ForkPicker",
    "MergePicker",
    "MergeRow",
]


_FIELDS = ("label", "steer", "instructions", "model", "budget_usd")
_HEADS = {"label": "label", "steer": "task", "instructions": "instructions", "model": "model", "budget_usd": "$"}


class ForkPicker(ModalScreen[ForkForm | None]):
    """A form with a row for each branch of a new fork. Returns the form, or None if the user leaves it.

    Up and down move between rows, tab between fields, ctrl+up and ctrl+down add and remove a row.
    """

    DEFAULT_CSS = """
    ForkPicker { align: center middle; }
    ForkPicker > Vertical { width: 98%; max-width: 120; height: auto; max-height: 95%; border: round $primary;
        background: $surface; padding: 0 1; }
    ForkPicker VerticalScroll { height: auto; max-height: 14; }
    ForkPicker Horizontal { height: 1; }
    ForkPicker Input { margin-right: 1; }
    ForkPicker .number { width: 3; }
    ForkPicker .label { width: 11; margin-right: 1; }
    ForkPicker .steer { width: 2fr; margin-right: 1; }
    ForkPicker .instructions, ForkPicker .model { width: 1fr; margin-right: 1; }
    ForkPicker .budget_usd { width: 7; }
    ForkPicker #total { width: 10; }
    ForkPicker .hint { color: $text-muted; width: 100%; }
    ForkPicker #problem { color: $text-error; height: auto; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next field", priority=True),
        Binding("shift+tab", "app.focus_previous", "previous field", priority=True),
        Binding("escape", "back", "back"),
        Binding("up", "row(-1)", "row above", priority=True),
        Binding("down", "row(1)", "row below", priority=True),
        Binding("ctrl+up", "count(1)", "add a branch", priority=True),
        Binding("ctrl+down", "count(-1)", "remove a branch", priority=True),
    ]

    def __init__(self, form: ForkForm, settings: Settings, model: str) -> None:
        super().__init__()
        self.form = form
        self.settings = settings
        self.model = model

    def compose(self) -> ComposeResult:
        """Yield the column heads, the rows and the budget of the fork."""
        with Vertical() as box:
            box.border_title = "fork"
            with Horizontal():
                yield Label("", classes="number")
                for name in _FIELDS:
                    yield Label(_HEADS[name], classes=name)
            with VerticalScroll(can_focus=False):
                for number, row in enumerate(self.form.rows):
                    yield self._row(number, row)
            with Horizontal():
                yield Label("budget of all branches, in dollars: ")
                yield Input(_format_dollars(self.form.budget_usd), placeholder="no limit", compact=True, id="total")
            yield Label("", id="problem", markup=False)
            yield Label(
                "enter fork · esc back · ctrl+↑ ctrl+↓ more or fewer branches · tab next field",
                classes="hint",
                markup=False,
            )

    def on_mount(self) -> None:
        """Focus the task of the first branch."""
        self.query(Input).filter(".steer").first().focus()

    # Rows

    def _row(self, number: int, row: BranchRow) -> Horizontal:
        hints = {"model": f"({self.model})", "budget_usd": "none", "steer": "what this branch should try"}
        texts = {
            "label": row.label,
            "steer": row.steer,
            "instructions": row.instructions or "",
            "model": row.model or "",
            "budget_usd": _format_dollars(row.budget_usd),
        }
        fields = [
            Input(texts[name], placeholder=hints.get(name, ""), compact=True, classes=name, name=name)
            for name in _FIELDS
        ]
        return Horizontal(Label(f"{number + 1}", classes="number"), *fields, classes="row")

    def action_row(self, step: int) -> None:
        """Move to the same field of another row, or to the budget of the fork."""
        here = self.focused
        if not isinstance(here, Input):
            return
        name = here.name or "steer"
        column = [field for field in self.query(Input) if field.name == name or field.id == "total"]
        column[(column.index(here) + step) % len(column)].focus()

    async def action_count(self, step: int) -> None:
        """Add or remove a branch."""
        rows = self.query(".row")
        wanted = len(rows) + step
        if not 1 <= wanted <= MOST_BRANCHES:
            return
        if step > 0:
            added = build_form(self.settings, branches=wanted).rows[-1]
            await self.query_one(VerticalScroll).mount(self._row(wanted - 1, added))
        else:
            had_focus = self.focused is not None and rows.last() in self.focused.ancestors
            await rows.last().remove()
            if had_focus:
                self.query(Input).filter(".steer").last().focus()

    # Answering

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Fork when enter is pressed."""
        self.action_fork()

    def action_fork(self) -> None:
        """Return the form, or show why it is invalid."""
        try:
            self.dismiss(self._read_form())
        except ValueError as error:
            self.query_one("#problem", Label).update(str(error))

    def action_back(self) -> None:
        """Close without forking."""
        self.dismiss(None)

    def _read_form(self) -> ForkForm:
        rows: list[BranchRow] = []
        for row in self.query(".row"):
            text = {field.name: field.value.strip() for field in row.query(Input)}
            if not text["label"]:
                raise ValueError("a branch needs a label")
            if text["label"] in {other.label for other in rows}:
                raise ValueError(f"two branches are called {text['label']}")
            filled = BranchRow(text["label"], text["steer"], text["model"] or None, _parse_dollars(text["budget_usd"]))
            rows.append(replace(filled, instructions=text["instructions"] or None))
        if all(not row.steer for row in rows):
            raise ValueError("describe what at least one branch should try")
        return ForkForm(tuple(rows), _parse_dollars(self.query_one("#total", Input).value.strip()))


def _format_dollars(amount: float | None) -> str:
    return "" if amount is None else f"{amount:g}"


def _parse_dollars(text: str) -> float | None:
    """Parse an amount of dollars; None for an empty text, ValueError for anything but a positive number."""
    if not text:
        return None
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise ValueError(f"{text} is not an amount of dollars above 0")
    return amount


NWAY = "/nway"
"""The answer that opens the n-way view instead of resolving the fork."""

_DIGITS = "1234567890"


@dataclass(frozen=True)
class MergeRow:
    """A branch that can be picked, with its last message."""

    label: str
    state: str
    last: str


class _Rows(OptionList):
    """The list of branches. It owns enter and space, so that they act after the cursor keys pressed before them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.pick", "pick"),
        Binding("space", "screen.mark", "mark", key_display="␣"),
        Binding("pagedown", "screen.scroll(1)", "down", show=False),
        Binding("pageup", "screen.scroll(-1)", "up", show=False),
    ]

    async def _on_click(self, event: Click) -> None:
        """Show the diff of the branch that was clicked, without picking it."""
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if clicked is not None:
            self.highlighted = clicked


class MergePicker(Screen[str | None]):
    """Asks which branch to keep, and shows the diff of the one under the cursor.

    Returns the argument of ``/merge``: a label, ``combine:A,B``, ``auto`` or ``vote``; ``NWAY`` to choose hunk by hunk;
    None to leave the fork open. ``read_diff`` returns the diff of a branch, ``open_difftool`` opens it in a diff tool.
    ``preferred`` is the branch under the cursor at first, ``why`` the reason for it.
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
        Binding("o", "open", "diff tool"),
        Binding("n", "file(1)", "next file", show=False),
        Binding("p", "file(-1)", "previous file", show=False),
        Binding("escape,q", "answer('')", "back", key_display="esc"),
        *(Binding(digit, f"number({n})", "pick", show=False) for n, digit in enumerate(_DIGITS)),
    ]

    def __init__(
        self,
        rows: Sequence[MergeRow],
        read_diff: Callable[[str], Awaitable[str]],
        open_difftool: Callable[[str], Awaitable[None]],
        *,
        preferred: str | None = None,
        why: str = "",
    ) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.why = why
        self.preferred = preferred
        self.marked: list[str] = []
        self._read_diff = read_diff
        self._open_difftool = open_difftool
        self._diffs: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """Yield the branches and, below them, the diff of one of them."""
        yield TextLine("Which branch to keep? Press its number, or enter for the one under the cursor.")
        if self.why:
            yield Static(printable(self.why, keep="\n"), id="why", markup=False)
        options = [Option(self._line(number), id=f"row-{number}") for number in range(len(self.rows))]
        yield _Rows(*options, compact=True)
        yield DiffView("", id="diff")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Put the cursor on the preferred branch."""
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
        star = " ← judge's choice" if row.label == self.preferred and self.why else ""
        line = Text.assemble(f"{mark}{number + 1} ", (printable(row.label), "bold"), "  ", branch_chip(row.state))
        line.append(f"{star}  {truncate_line(printable(row.last), 200)}")
        line.no_wrap, line.overflow = True, "ellipsis"
        return line

    # Diffs

    def on_option_list_option_highlighted(self, _: OptionList.OptionHighlighted) -> None:
        """Show the diff of the branch under the cursor."""
        show: WorkType[None] = partial(self._show, self.current.label)
        self.run_worker(show, group="diff", exclusive=True, exit_on_error=False)

    async def _show(self, label: str) -> None:
        if label not in self._diffs:
            self._diffs[label] = await self._read_diff(label) or f"{label} changed no file"
        view = self.query_one(DiffView)
        view.text = self._diffs[label]
        view.scroll_home(animate=False, immediate=True)

    def action_scroll(self, step: int) -> None:
        """Scroll the diff by a page."""
        view = self.query_one(DiffView)
        view.scroll_relative(y=step * max(view.size.height - 1, 1), animate=False, force=True)

    def action_file(self, step: int) -> None:
        """Scroll the diff to the next or the previous file."""
        self.query_one(DiffView).action_file(step)

    def action_open(self) -> None:
        """Open the branch in a diff tool."""
        self.run_worker(self._open_difftool(self.current.label), group="open", exit_on_error=False)

    # Answers

    def action_pick(self) -> None:
        """Keep the branch under the cursor."""
        self.dismiss(self.current.label)

    def action_number(self, number: int) -> None:
        """Keep the branch with this number."""
        if number < len(self.rows):
            self.dismiss(self.rows[number].label)

    def action_mark(self) -> None:
        """Mark or unmark the branch under the cursor, for ``combine``."""
        listed, label = self.query_one(OptionList), self.current.label
        self.marked = [m for m in self.marked if m != label] if label in self.marked else [*self.marked, label]
        number = listed.highlighted or 0
        listed.replace_option_prompt_at_index(number, self._line(number))
        listed.highlighted = min(number + 1, len(self.rows) - 1)

    def action_combine(self) -> None:
        """Keep the changes of all marked branches."""
        if len(self.marked) < 2:
            self.notify("Mark at least two branches with space.", severity="warning")
        else:
            self.dismiss(f"combine:{','.join(self.marked)}")

    def action_answer(self, answer: str) -> None:
        """Leave the decision to a judge or a vote, or close without one."""
        self.dismiss(answer or None)


class DiffPicker(ModalScreen[tuple[str, Sequence[str]] | None]):
    """Asks for a file to compare, and in which branches. Returns the path and the labels, or None."""

    DEFAULT_CSS = """
    DiffPicker { align: center middle; }
    DiffPicker > Vertical { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $primary;
        background: $surface; padding: 0 1; }
    DiffPicker OptionList { height: auto; max-height: 16; text-wrap: nowrap; text-overflow: ellipsis; }
    DiffPicker Label { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back"),
        *(Binding(digit, f"toggle_branch({n})", "include or exclude") for n, digit in enumerate(_DIGITS)),
    ]

    def __init__(self, touched: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.touched = touched
        self.branches = list(dict.fromkeys(label for labels in touched.values() for label in labels))
        self.excluded: set[str] = set()

    def compose(self) -> ComposeResult:
        """Yield the files and, below them, the branches."""
        with Vertical() as box:
            box.border_title = "which file to compare?"
            options = [Option(self._line(path), id=f"path-{n}") for n, path in enumerate(self.touched)]
            yield OptionList(*options, compact=True)
            yield Label("", id="branches", markup=False)

    def on_mount(self) -> None:
        """Show the branches and their numbers."""
        self._show_branches()

    def _line(self, path: str) -> Text:
        text = f"{printable(path)}  {', '.join(map(printable, self.touched[path]))}"
        return Text(text, no_wrap=True, overflow="ellipsis")

    def _show_branches(self) -> None:
        marks = [
            f"{number} {'☐' if label in self.excluded else '☑'} {printable(label)}"
            for number, label in enumerate(self.branches, 1)
        ]
        self.query_one("#branches", Label).update(
            f"{'  '.join(marks)}\nenter compare · 1-9 include or exclude a branch · esc back"
        )

    def action_toggle_branch(self, number: int) -> None:
        """Include or exclude a branch."""
        if number < len(self.branches):
            self.excluded ^= {self.branches[number]}
            self._show_branches()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the file and the branches."""
        path = list(self.touched)[event.option_index]
        labels = [label for label in self.touched[path] if label not in self.excluded]
        if labels:
            self.dismiss((path, labels))
        else:
            self.notify("All branches that changed this file are excluded.", severity="warning")

    def action_back(self) -> None:
        """Close without comparing."""
        self.dismiss(None)
