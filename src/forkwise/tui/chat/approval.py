"""Screens on which the user approves: a tool call before it runs, and a judge's verdict before it is merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Button, Label

from forkwise.chat.events import ApprovalAsked, Judged
from forkwise.display.output import printable
from forkwise.text.clean import truncate_line
from forkwise.tui.widgets import TextLine

__all__ = [
    "TYPED",
    "AcceptanceScreen",
    "ApprovalLine",
    "ApprovalScreen",
    "format_request",
]


TYPED = "typed:"
_KEYS = "ctrl+y yes · ctrl+n no · ctrl+o details"


def format_request(event: ApprovalAsked) -> str:
    """Format a tool call that waits for approval as one line.

    >>> format_request(ApprovalAsked("a1", "write_file", '{"path": "a.py"}', "b"))
    'b asks: write_file(path=a.py)'
    """
    arguments = _parse(event.arguments)
    text = event.arguments if arguments is None else ", ".join(f"{name}={value}" for name, value in arguments.items())
    return printable(f"{event.branch or 'the agent'} asks: {event.tool}({text})")


def _parse(arguments: str) -> dict[str, str] | None:
    """Parse arguments into texts by name; None if they are not a JSON object."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


class ApprovalLine(TextLine):
    """The tool call that ctrl+y and ctrl+n answer, ``event``; hidden while there is none."""

    DEFAULT_CSS = """
    ApprovalLine { display: none; height: 2; background: $warning; color: $text; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.event: ApprovalAsked | None = None

    def show_pending(self, pending: Sequence[ApprovalAsked], branch: str) -> None:
        """Show a call of ``branch`` if one is pending, else the call that has waited longest."""
        own = [event for event in pending if event.branch == branch]
        self.event = next(iter([*own, *pending]), None)
        self.display = self.event is not None
        if self.event is not None:
            more = f" · {len(pending) - 1} more" if len(pending) > 1 else ""
            width = max(self.app.size.width - 4, 20)
            line = Text(truncate_line(format_request(self.event), width))
            line.append(f"\n{_KEYS}{more}", style="bold")
            self.show(line)


class ApprovalScreen(ModalScreen[bool | None]):
    """A tool call with all of its arguments. Returns the answer, or None if the user gave none."""

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
        """Yield all arguments in a box."""
        event = self.event
        with VerticalScroll() as box:
            box.border_title = Content(f"{printable(event.branch or 'the agent')} asks: {printable(event.tool)}")
            box.border_subtitle = "ctrl+y yes · ctrl+n no · esc later"
            arguments = _parse(event.arguments)
            lines = [] if arguments is None else [f"{name}: {text.expandtabs(4)}" for name, text in arguments.items()]
            yield Label(printable("\n".join(lines) or event.arguments, keep="\n"), markup=False)

    def action_answer(self, answer: bool | None) -> None:
        """Close with an answer."""
        self.dismiss(answer)


class AcceptanceScreen(ModalScreen[str | None]):
    """A judge's verdict. Returns ``accept``, ``diff``, ``override``, or None to decide later.

    It opens by itself, so a character that is not a key of this screen was meant for the prompt. It is returned after
    ``typed:``.
    """

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
        """Yield the winner, the judge's reasons and the buttons."""
        verdict = self.verdict
        with Vertical() as box:
            box.border_title = "the judge has decided"
            yield Label(f"keep {printable(verdict.winner or '')} · confidence {verdict.confidence:.2f}", markup=False)
            yield Label(printable(verdict.reasoning, keep="\n"), markup=False)
            for caveat in verdict.caveats:
                yield Label(f"caveat: {printable(caveat)}", markup=False)
            with Horizontal():
                yield Button("\\[enter] accept", id="accept", compact=True, variant="success")
                yield Button("\\[d] diff", id="diff", compact=True)
                yield Button("\\[o] override", id="override", compact=True)
                yield Button("\\[esc] cancel", id="cancel", compact=True)

    def on_key(self, event: Key) -> None:
        """Return a character that the user typed."""
        is_bound = event.key in self._bindings.key_to_bindings
        if event.is_printable and event.character is not None and not event.character.isspace() and not is_bound:
            event.stop()
            self.dismiss(f"{TYPED}{event.character}")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button that was pressed."""
        self.action_answer("" if event.button.id == "cancel" else event.button.id or "")

    def action_answer(self, answer: str) -> None:
        """Close with an answer."""
        self.dismiss(answer or None)
