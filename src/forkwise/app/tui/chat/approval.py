"""Approval: what a tool call asks for, in a line that is seen in every tab, and in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label

from forkwise.app.chat.events import ApprovalAsked
from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.signs import short
from forkwise.app.tui.line import Line

__all__ = ["ApprovalLine", "ApprovalScreen", "asked"]

_KEYS = "ctrl+y yes · ctrl+n no · ctrl+o all of it"


def asked(event: ApprovalAsked) -> str:
    """Who asks for what, on one line.

    >>> asked(ApprovalAsked("a1", "write_file", '{"path": "a.py"}', "b"))
    'b asks: write_file(path=a.py)'
    """
    return printable(f"{event.branch or 'the agent'} asks: {event.tool}({_arguments(event.arguments)})")


def _arguments(text: str) -> str:
    try:
        told = json.loads(text)
    except ValueError:
        return text
    if not isinstance(told, dict):
        return text
    return ", ".join(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in told.items())


class ApprovalLine(Line):
    """The question that the keys answer, ``event``; it is there only while there is one."""

    DEFAULT_CSS = """
    ApprovalLine { display: none; height: 2; background: $warning; color: $text; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.event: ApprovalAsked | None = None

    def show(self, pending: Sequence[ApprovalAsked], branch: str) -> None:
        """Show what is asked: by the branch that one looks at, or by whoever has waited longest."""
        own = [event for event in pending if event.branch == branch]
        self.event = next(iter([*own, *pending]), None)
        self.display = self.event is not None
        if self.event is not None:
            more = f" · {len(pending) - 1} more" if len(pending) > 1 else ""
            width = max(self.app.size.width - 4, 20)
            line = Text(short(asked(self.event), width))
            line.append(f"\n{_KEYS}{more}", style="bold")
            self.say(line)


class ApprovalScreen(ModalScreen[bool | None]):
    """A question in full; gives the answer, or None where there was none."""

    DEFAULT_CSS = """
    ApprovalScreen { align: center middle; }
    ApprovalScreen > VerticalScroll { width: 90%; height: auto; max-height: 90%; padding: 0 1;
        border: round $warning; background: $surface; }
    ApprovalScreen Label { width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+y", "answer(True)", "yes", priority=True),
        Binding("ctrl+n", "answer(False)", "no", priority=True),
        Binding("escape,q,ctrl+o", "answer(None)", "later"),
    ]

    def __init__(self, event: ApprovalAsked) -> None:
        super().__init__()
        self.event = event

    def compose(self) -> ComposeResult:
        """All that the tool would be given."""
        event = self.event
        with VerticalScroll() as box:
            box.border_title = Content(f"{printable(event.branch or 'the agent')} asks: {printable(event.tool)}")
            box.border_subtitle = "ctrl+y yes · ctrl+n no · esc later"
            yield Label(printable(_lines(event.arguments), keep="\n"), markup=False)

    def action_answer(self, answer: bool | None) -> None:
        """Give an answer."""
        self.dismiss(answer)


def _lines(arguments: str) -> str:
    try:
        told = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(told, dict):
        return arguments
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}
    return "\n".join(f"{name}: {text.expandtabs(4)}" for name, text in texts.items())
