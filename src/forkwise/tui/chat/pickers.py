"""DiffPicker: which file is compared in a diff tool, and the versions of which branches."""

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

from forkwise.chat.settings import MOST_BRANCHES, BranchRow, ForkForm, Settings, blank_form
from forkwise.display.output import printable
from forkwise.tui.chat.panels import branch_chip, short
from forkwise.tui.diff_view import DiffView
from forkwise.tui.widgets import Line

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
    """A form of as many rows as the settings say; gives it filled in, or None where it was escaped.

    Up and down go from row to row, tab from field to field, ctrl+up and ctrl+down change how many there are.
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
    ForkPicker #together { width: 10; }
    ForkPicker .hint { color: $text-muted; width: 100%; }
    ForkPicker #wrong { color: $text-error; height: auto; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next field", priority=True),
        Binding("shift+tab", "app.focus_previous", "field before", priority=True),
        Binding("escape", "back", "back"),
        Binding("up", "row(-1)", "row above", priority=True),
        Binding("down", "row(1)", "row below", priority=True),
        Binding("ctrl+up", "count(1)", "one more", priority=True),
        Binding("ctrl+down", "count(-1)", "one less", priority=True),
    ]

    def __init__(self, form: ForkForm, settings: Settings, model: str) -> None:
        super().__init__()
        self.form = form
        self.settings = settings
        self.model = model

    def compose(self) -> ComposeResult:
        """The heads, the rows, what they may cost together."""
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
                yield Label("together they may cost, in dollars: ")
                yield Input(_dollars(self.form.budget_usd), placeholder="no limit", compact=True, id="together")
            yield Label("", id="wrong", markup=False)
            yield Label(
                "enter forks · esc back · ctrl+↑ ctrl+↓ how many · tab next field", classes="hint", markup=False
            )

    def on_mount(self) -> None:
        """Begin where the first task is written."""
        self.query(Input).filter(".steer").first().focus()

    # Rows

    def _row(self, number: int, row: BranchRow) -> Horizontal:
        hints = {"model": f"({self.model})", "budget_usd": "none", "steer": "what it is to try"}
        texts = {
            "label": row.label,
            "steer": row.steer,
            "instructions": row.instructions or "",
            "model": row.model or "",
            "budget_usd": _dollars(row.budget_usd),
        }
        fields = [
            Input(texts[name], placeholder=hints.get(name, ""), compact=True, classes=name, name=name)
            for name in _FIELDS
        ]
        return Horizontal(Label(f"{number + 1}", classes="number"), *fields, classes="row")

    def action_row(self, step: int) -> None:
        """Go to the same field of another row, or to what they cost together."""
        here = self.focused
        if not isinstance(here, Input):
            return
        name = here.name or "steer"
        column = [field for field in self.query(Input) if field.name == name or field.id == "together"]
        column[(column.index(here) + step) % len(column)].focus()

    async def action_count(self, step: int) -> None:
        """Have one branch more, or one less."""
        rows = self.query(".row")
        wanted = len(rows) + step
        if not 1 <= wanted <= MOST_BRANCHES:
            return
        if step > 0:
            added = blank_form(self.settings, branches=wanted).rows[-1]
            await self.query_one(VerticalScroll).mount(self._row(wanted - 1, added))
        else:
            had_focus = self.focused is not None and rows.last() in self.focused.ancestors
            await rows.last().remove()
            if had_focus:
                self.query(Input).filter(".steer").last().focus()

    # Answering

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter forks, once all that was typed before it is there."""
        self.action_fork()

    def action_fork(self) -> None:
        """Give what was filled in, unless that cannot be."""
        try:
            self.dismiss(self._filled())
        except ValueError as error:
            self.query_one("#wrong", Label).update(str(error))

    def action_back(self) -> None:
        """Fork nothing."""
        self.dismiss(None)

    def _filled(self) -> ForkForm:
        rows: list[BranchRow] = []
        for row in self.query(".row"):
            text = {field.name: field.value.strip() for field in row.query(Input)}
            if not text["label"]:
                raise ValueError("a branch needs a label")
            if text["label"] in {other.label for other in rows}:
                raise ValueError(f"two branches are called {text['label']}")
            filled = BranchRow(text["label"], text["steer"], text["model"] or None, _amount(text["budget_usd"]))
            rows.append(replace(filled, instructions=text["instructions"] or None))
        if all(not row.steer for row in rows):
            raise ValueError("say what a branch is to try")
        return ForkForm(tuple(rows), _amount(self.query_one("#together", Input).value.strip()))


def _dollars(amount: float | None) -> str:
    return "" if amount is None else f"{amount:g}"


def _amount(text: str) -> float | None:
    """A number of dollars as it was written; ValueError where it is none."""
    if not text:
        return None
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise ValueError(f"{text} is no number of dollars above 0")
    return amount


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


class DiffPicker(ModalScreen[tuple[str, Sequence[str]] | None]):
    """Files, each with the branches that changed it; gives one with the branches that are not left out."""

    DEFAULT_CSS = """
    DiffPicker { align: center middle; }
    DiffPicker > Vertical { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $primary;
        background: $surface; padding: 0 1; }
    DiffPicker OptionList { height: auto; max-height: 16; text-wrap: nowrap; text-overflow: ellipsis; }
    DiffPicker Label { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back"),
        *(Binding(digit, f"leave_out({n})", "in or out") for n, digit in enumerate(_DIGITS)),
    ]

    def __init__(self, touched: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.touched = touched
        self.branches = list(dict.fromkeys(label for labels in touched.values() for label in labels))
        self.left_out: set[str] = set()

    def compose(self) -> ComposeResult:
        """The files over the branches."""
        with Vertical() as box:
            box.border_title = "compare which file?"
            options = [Option(self._line(path), id=f"path-{n}") for n, path in enumerate(self.touched)]
            yield OptionList(*options, compact=True)
            yield Label("", id="branches", markup=False)

    def on_mount(self) -> None:
        """Say what the numbers are for."""
        self._tell()

    def _line(self, path: str) -> Text:
        shown = f"{printable(path)}  {', '.join(map(printable, self.touched[path]))}"
        return Text(shown, no_wrap=True, overflow="ellipsis")

    def _tell(self) -> None:
        marks = [
            f"{number} {'☐' if label in self.left_out else '☑'} {printable(label)}"
            for number, label in enumerate(self.branches, 1)
        ]
        self.query_one("#branches", Label).update(f"{'  '.join(marks)}\nenter compares · a number leaves one out · esc")

    def action_leave_out(self, number: int) -> None:
        """Have a branch in it, or no longer."""
        if number < len(self.branches):
            self.left_out ^= {self.branches[number]}
            self._tell()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give the file, with the branches."""
        path = list(self.touched)[event.option_index]
        labels = [label for label in self.touched[path] if label not in self.left_out]
        if labels:
            self.dismiss((path, labels))
        else:
            self.notify("All that changed it are left out.", severity="warning")

    def action_back(self) -> None:
        """Compare nothing."""
        self.dismiss(None)
