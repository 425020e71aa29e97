"""Prompt: the input of a chat, with history, completion of commands and several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

__all__ = ["Prompt"]


class Prompt(TextArea):
    """Enter sends, ctrl+j inserts a line break, up and down walk the history, tab completes a command.

    ``completions`` returns everything that can be completed at the moment, such as ``/merge`` and ``>>LABEL``.
    """

    DEFAULT_CSS = """
    Prompt, Prompt:focus { height: auto; min-height: 1; max-height: 6; border: none; padding: 0 1;
        background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", show=False),
        Binding("ctrl+j,shift+enter", "newline", "new line", show=False),
        Binding("up", "older", "older", show=False),
        Binding("down", "newer", "newer", show=False),
        Binding("tab", "complete(1)", "complete", show=False),
        Binding("shift+tab", "complete(-1)", "back", show=False),
    ]

    class Sent(Message):
        """The user sent a text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class EmptySent(Message):
        """The user pressed enter on an empty prompt."""

    class TabRequested(Message):
        """The user pressed tab with nothing to complete: select the tab ``step`` tabs to the right."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, completions: Callable[[], Iterable[str]], **options: Any) -> None:
        super().__init__(compact=True, soft_wrap=True, highlight_cursor_line=False, **options)
        self._completions = completions
        self.sent_texts: list[str] = []
        self._position = 0  # in the history; its length stands for the draft
        self._draft = ""

    async def _on_key(self, event: Key) -> None:
        """Run the action of a bound key at once.

        Textual dispatches bindings apart from letters, so that a bound key could overtake letters typed before it.
        """
        bound = self._bindings.key_to_bindings.get(event.key)
        if bound:
            event.stop()
            event.prevent_default()
            await self.run_action(bound[0].action)

    # Sending and history

    def action_send(self) -> None:
        """Send the text."""
        text = self.text.strip()
        if not text:
            self.post_message(self.EmptySent())
        else:
            if self.sent_texts[-1:] != [text]:
                self.sent_texts.append(text)
            self._position, self._draft = len(self.sent_texts), ""
            self.text = ""
            self.post_message(self.Sent(text))

    def restore(self, text: str) -> None:
        """Put back a text that was sent and refused, unless something else was typed since."""
        if not self.text:
            self.text = text
            self.move_cursor(self.document.end)

    def action_newline(self) -> None:
        """Insert a line break."""
        self.insert("\n")

    def action_older(self) -> None:
        """Move to the line above, or to the previous text of the history."""
        if self.cursor_location[0] > 0:
            self.action_cursor_up()
        elif self._position > 0:
            if self._position == len(self.sent_texts):
                self._draft = self.text
            self._show(self._position - 1)

    def action_newer(self) -> None:
        """Move to the line below, or to the next text of the history."""
        if self.cursor_location[0] < self.document.line_count - 1:
            self.action_cursor_down()
        elif self._position < len(self.sent_texts):
            self._show(self._position + 1)

    def _show(self, position: int) -> None:
        self._position = position
        self.text = self._draft if position == len(self.sent_texts) else self.sent_texts[position]
        self.move_cursor(self.document.end)

    # Completion

    def find_completions(self) -> list[str]:
        """Return the completions of the text."""
        text = self.text
        if not text.startswith(("/", ">>")):
            return []
        return [word for word in self._completions() if word.startswith(text) and word != text]

    def update_suggestion(self) -> None:
        """Show the first completion behind the cursor."""
        found = self.find_completions()
        self.suggestion = found[0][len(self.text) :] if found else ""

    def action_complete(self, step: int) -> None:
        """Complete the text up to the first difference; request another tab if nothing completes it."""
        found = self.find_completions()
        if not found:
            self.post_message(self.TabRequested(step))
            return
        prefix = _common_prefix(found)
        self.text = prefix if len(prefix) > len(self.text) else found[0]
        self.move_cursor(self.document.end)


def _common_prefix(words: list[str]) -> str:
    """Return the longest common prefix.

    >>> _common_prefix(["/fork-branches", "/fork-budget"])
    '/fork-b'
    """
    first, last = min(words), max(words)
    count = next((n for n, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[:count]
