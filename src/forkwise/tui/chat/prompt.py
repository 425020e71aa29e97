"""Prompt: where a person writes: a line that grows, with what was written before, and commands that complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

__all__ = ["Prompt"]


class Prompt(TextArea):
    """Enter sends, ctrl+j begins another line, up and down go through what was sent, tab completes a command.

    ``words`` gives what can be completed at the moment: commands and names of branches, as they are written.
    """

    DEFAULT_CSS = """
    Prompt, Prompt:focus { height: auto; min-height: 1; max-height: 6; border: none; padding: 0 1;
        background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", show=False),
        Binding("ctrl+j,shift+enter", "newline", "another line", show=False),
        Binding("up", "older", "older", show=False),
        Binding("down", "newer", "newer", show=False),
        Binding("tab", "complete(1)", "complete", show=False),
        Binding("shift+tab", "complete(-1)", "back", show=False),
    ]

    class Sent(Message):
        """Something was written."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Kept(Message):
        """Enter was pressed and nothing was written."""

    class Walked(Message):
        """Tab was pressed where there was nothing to complete: another tab is wanted, so many steps on."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, words: Callable[[], Iterable[str]], **options: Any) -> None:
        super().__init__(compact=True, soft_wrap=True, highlight_cursor_line=False, **options)
        self._words = words
        self.sent: list[str] = []
        self._at = 0  # which of those sent is shown; after the last is what was not sent yet
        self._draft = ""

    async def _on_key(self, event: Key) -> None:
        """Do what keys are bound to as they come. By the way that bindings take otherwise, some overtake letters that
        were typed before, and some come after letters that were typed later."""
        bound = self._bindings.key_to_bindings.get(event.key)
        if bound:
            event.stop()
            event.prevent_default()
            await self.run_action(bound[0].action)

    # Sending, and what was sent

    def action_send(self) -> None:
        """Send what is written."""
        text = self.text.strip()
        if not text:
            self.post_message(self.Kept())
        else:
            if self.sent[-1:] != [text]:
                self.sent.append(text)
            self._at, self._draft = len(self.sent), ""
            self.text = ""
            self.post_message(self.Sent(text))

    def action_newline(self) -> None:
        """Begin another line."""
        self.insert("\n")

    def action_older(self) -> None:
        """What was sent before, or the line above."""
        if self.cursor_location[0] > 0:
            self.action_cursor_up()
        elif self._at > 0:
            if self._at == len(self.sent):
                self._draft = self.text
            self._show(self._at - 1)

    def action_newer(self) -> None:
        """What was sent after, or the line below."""
        if self.cursor_location[0] < self.document.line_count - 1:
            self.action_cursor_down()
        elif self._at < len(self.sent):
            self._show(self._at + 1)

    def _show(self, number: int) -> None:
        self._at = number
        self.text = self._draft if number == len(self.sent) else self.sent[number]
        self.move_cursor(self.document.end)

    # Completing

    def completions(self) -> list[str]:
        """What the line may become."""
        text = self.text
        if not text.startswith(("/", ">>")):
            return []
        return [word for word in self._words() if word.startswith(text) and word != text]

    def update_suggestion(self) -> None:
        """Show how the line may go on."""
        found = self.completions()
        self.suggestion = found[0][len(self.text) :] if found else ""

    def action_complete(self, step: int) -> None:
        """Complete what is written, as far as it is clear; go to another tab where there is nothing to complete."""
        found = self.completions()
        if not found:
            self.post_message(self.Walked(step))
            return
        common = _common(found)
        self.text = common if len(common) > len(self.text) else found[0]
        self.move_cursor(self.document.end)


def _common(words: list[str]) -> str:
    """What all of some words begin with.

    >>> _common(["/fork-branches", "/fork-budget"])
    '/fork-b'
    """
    first, last = min(words), max(words)
    count = next((n for n, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[:count]
