"""TreeScreen: the whole conversation of a chat as a tree: its forks and branches, where one is, and ways about in it.

It loads an agent's libraries, so it is loaded when somebody asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from forkwise.chat.events import (
    BranchChanged,
    Event,
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
from forkwise.tui.widgets import Question

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = ["TreeScreen", "shown_label"]

_SIGNS = {FORK: "⑂ fork", MERGED: "★ merged", OVER: "", UNDOING: "", LOADING: ""}
_GROWING = BranchChanged | ForkOpened | ForkResolved | MergeUndone | Moved | TurnBegan | TurnEnded


def shown_label(label: str) -> str:
    """What a label of a chat's conversation says to people; nothing where it is for the chat itself.

    >>> shown_label("fork:k3f9ab"), shown_label("k3f9ab/whimsical"), shown_label("mine"), shown_label("over:k3f9ab")
    ('⑂ fork', 'whimsical', 'mine', '')
    """
    for kind, sign in _SIGNS.items():
        if label.startswith(kind):
            return sign
    return label.partition("/")[2] or label


class TreeScreen(WalkScreen):
    """The conversation of a session. What is asked for here the session does, and what happens meanwhile is shown.
    ``written`` is what is to be said in the chat when one is back there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "here", "here", show=False),
        Binding("u", "undo", "undo"),
        Binding("q,escape", "leave", "back", key_display="esc"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(Walker(session.conversation), model=session.desk.model)
        self.session = session
        self.written = ""

    def on_mount(self) -> None:
        """Begin where one is, and listen."""
        super().on_mount()
        self._stop = self.session.listen(self._hear)

    def on_unmount(self) -> None:
        """Listen no more."""
        self._stop()

    def shown(self, label: str) -> str:
        """What is shown for a label."""
        return shown_label(label)

    def action_leave(self) -> None:
        """Back to the chat."""
        self.dismiss()

    def action_undo(self) -> None:
        """Take the last merge back."""
        self.run_worker(self._undo(), group="undo", exclusive=True)

    async def _undo(self) -> None:
        fork = self.session.last_merge
        if fork is None:
            self.notify("Nothing was merged here that could be taken back.")
            return
        asked = Question(f"Take back the merge of fork {fork}, its files and what was said?")
        if await self.app.push_screen_wait(asked):
            await self.session.submit("/undo")

    # What the session does

    def go(self, node: Node) -> None:
        """Go on from a place: the chat is there then."""
        self.run_worker(self._go(node), group="go", exclusive=True)

    async def say(self, text: str, at: Node) -> None:
        """Go on from a place with something to say; the chat shows the answer."""
        self._answering = None
        self.written = text
        await self._go(at)
        if self.walker.here is not at:
            self.written = ""

    async def _go(self, node: Node) -> None:
        await self.session.submit(f"/go {node.id}")
        if self.walker.here is node and self.is_current:
            self.dismiss()

    def give_name(self, text: str, node: Node) -> None:
        """Give a place a name, by which it can be gone to."""
        try:
            self.session.label(text, node)
        except (BranchingError, ValueError, OSError) as error:
            self.notify(error_text(error), severity="error", markup=False)
        self.tree_panel.redraw()

    async def make_one(self, nodes: Sequence[Node], how: Recombination) -> None:
        """Make one answer of several, and be there."""
        await self.session.submit(" ".join(["/combine", how, *(str(node.id) for node in nodes)]))

    # What happens

    def _hear(self, event: Event) -> None:
        if isinstance(event, _GROWING):
            self.tree_panel.reload(self.tree_panel.current)
            self.tell()
