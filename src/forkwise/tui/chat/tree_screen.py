"""TreeScreen: the whole conversation of a chat as a tree, with its forks, branches and labels.

It imports the agent libraries, which are slow to load, so ``screen_commands`` imports it only when it is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from forkwise.chat.events import (
    BranchChanged,
    ChatEvent,
    ForkOpened,
    ForkResolved,
    MergeUndone,
    Moved,
    TurnBegan,
    TurnEnded,
    error_text,
)
from forkwise.chat.storage import FORK, LOADING, MERGED, OVER, UNDOING
from forkwise.conversation.node import Node
from forkwise.conversation.talk import Recombination
from forkwise.conversation.walker import Walker
from forkwise.errors import BranchingError
from forkwise.tui.walk import WalkScreen
from forkwise.tui.widgets import QuestionScreen

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = ["TreeScreen", "format_label"]

_SIGNS = {FORK: "fork", MERGED: "★ merged", OVER: "", UNDOING: "", LOADING: ""}
_GROWING = BranchChanged | ForkOpened | ForkResolved | MergeUndone | Moved | TurnBegan | TurnEnded


def format_label(label: str) -> str:
    """Format a label of a chat's conversation; empty for the labels that the chat keeps for itself.

    >>> format_label("fork:k3f9ab"), format_label("k3f9ab/whimsical"), format_label("mine"), format_label("over:k3f9ab")
    ('fork', 'whimsical', 'mine', '')
    """
    for kind, sign in _SIGNS.items():
        if label.startswith(kind):
            return sign
    return label.partition("/")[2] or label


class TreeScreen(WalkScreen):
    """The conversation of a session, which runs everything that is chosen here.

    ``prompt_text`` is the text to submit after the screen was closed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "here", "here", show=False),
        Binding("u", "undo", "undo"),
        Binding("q,escape", "leave", "back", key_display="esc"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(Walker(session.conversation), model=session.services.model)
        self.session = session
        self.prompt_text = ""

    def on_mount(self) -> None:
        """Show the current position, and subscribe to the session's events."""
        super().on_mount()
        self._unsubscribe = self.session.listen(self._on_event)

    def on_unmount(self) -> None:
        """Unsubscribe from the session's events."""
        self._unsubscribe()

    def format_label(self, label: str) -> str:
        """Format a label of the conversation."""
        return format_label(label)

    def action_leave(self) -> None:
        """Return to the chat."""
        self.dismiss()

    def action_undo(self) -> None:
        """Undo the last merge."""
        self.run_worker(self._undo(), group="undo", exclusive=True)

    async def _undo(self) -> None:
        fork = self.session.last_merge
        if fork is None:
            self.notify("There is no merge to undo here.")
            return
        question = QuestionScreen(f"Undo the merge of fork {fork}, its files and its messages?")
        if await self.app.push_screen_wait(question):
            await self.session.submit("/undo")

    # Run by the session

    def go(self, node: Node) -> None:
        """Continue the chat from a node."""
        self.run_worker(self._go(node), group="go", exclusive=True)

    async def say(self, text: str, node: Node) -> None:
        """Continue from a node with a prompt; the chat shows the answer."""
        self._answering = None
        self.prompt_text = text
        await self._go(node)
        if self.walker.here is not node:
            self.prompt_text = ""

    async def _go(self, node: Node) -> None:
        await self.session.submit(f"/go {node.id}")
        if self.walker.here is node and self.is_current:
            self.dismiss()

    def label_node(self, text: str, node: Node) -> None:
        """Label a node, for ``/go``."""
        try:
            self.session.label(text, node)
        except (BranchingError, ValueError, OSError) as error:
            self.notify(error_text(error), severity="error", markup=False)
        self.tree_panel.redraw()

    async def combine_nodes(self, nodes: Sequence[Node], method: Recombination) -> None:
        """Combine several answers into one, and continue from it."""
        await self.session.submit(" ".join(["/combine", method, *(str(node.id) for node in nodes)]))

    # Events

    def _on_event(self, event: ChatEvent) -> None:
        if isinstance(event, _GROWING):
            self.tree_panel.reload(self.tree_panel.current)
            self.show_status()
