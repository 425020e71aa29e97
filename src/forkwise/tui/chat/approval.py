"""Acceptance: what the judge would keep, before it is kept: accepted, looked at, overridden or left for later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Label

from forkwise.chat.events import ApprovalAsked, Judged
from forkwise.display.output import printable
from forkwise.tui.chat.panels import short
from forkwise.tui.widgets import Line

__all__ = [
    "AcceptanceScreen",
    "ApprovalLine",
    "ApprovalScreen",
    "asked",
]


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


class AcceptanceScreen(ModalScreen[str | None]):
    """A verdict; gives ``accept``, ``diff``, ``override``, or None where nothing is to be decided now."""

    DEFAULT_CSS = """
    AcceptanceScreen { align: center middle; }
    AcceptanceScreen > Vertical { width: 76; max-width: 98%; height: auto; max-height: 90%; padding: 0 1;
        border: round $success; background: $surface; }
    AcceptanceScreen Label { width: 100%; margin-bottom: 1; }
    AcceptanceScreen Horizontal { width: auto; height: 1; }
    AcceptanceScreen Button { margin-right: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "answer('diff')", "diff"),
        Binding("o", "answer('override')", "override"),
        Binding("escape", "answer('')", "cancel"),
    ]

    def __init__(self, verdict: Judged) -> None:
        super().__init__()
        self.verdict = verdict

    def compose(self) -> ComposeResult:
        """What it would keep, and why."""
        verdict = self.verdict
        with Vertical() as box:
            box.border_title = "the judge has decided"
            yield Label(f"keep {printable(verdict.winner or '')} · confidence {verdict.confidence:.2f}", markup=False)
            yield Label(printable(verdict.reasoning, keep="\n"), markup=False)
            for caveat in verdict.caveats:
                yield Label(f"but: {printable(caveat)}", markup=False)
            with Horizontal():
                yield Button("\\[enter] accept", id="accept", compact=True, variant="success")
                yield Button("\\[d] diff", id="diff", compact=True)
                yield Button("\\[o] override", id="override", compact=True)
                yield Button("\\[esc] cancel", id="cancel", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take an answer by a click."""
        self.action_answer("" if event.button.id == "cancel" else event.button.id or "")

    def action_answer(self, answer: str) -> None:
        """Give an answer."""
        self.dismiss(answer or None)
