"""ForkPicker: the branches of the next fork, a row each: what it is called, what it is told, what runs it, what it may
cost."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from forkwise.app.chat.form import BranchRow, ForkForm, blank_form
from forkwise.app.chat.settings import MOST_BRANCHES, Settings

__all__ = ["ForkPicker"]

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
