"""Tree panel: a whole conversation, its forks, branches and labels, and where one is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from forkwise.app.cli.output import printable
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.walking import above, transcript, ways

__all__ = ["TreePanel"]

_LONGEST = 60


class TreePanel(Tree[Node]):
    """A conversation as a tree of the places at which one can stand.

    What follows one after the other stands one below the other; only where branches begin it goes a step to the right,
    so that a long talk stays narrow. Up and down walk through what is shown, left to the fork above, right into the
    branches. Enter goes to a place (``Going``), space marks it. ``shown`` gives what is shown for a label, nothing for
    one that is not for people.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "outwards", "fork above", show=False),
        Binding("right", "inwards", "into branches", show=False),
        Binding("space", "mark", "mark", key_display="␣"),
        Binding("enter", "select_cursor", "go there"),
    ]

    class Going(Message):
        """Somebody wants to be at a place."""

        def __init__(self, node: Node) -> None:
            super().__init__()
            self.node = node

    def __init__(
        self, conversation: Conversation, shown: Callable[[str], str] = lambda name: name, **options: Any
    ) -> None:
        super().__init__("the beginning", data=conversation.root, **options)
        self.conversation = conversation
        self._shown = shown
        self.marked: list[Node] = []
        self.auto_expand = False
        self.guide_depth = 2
        self._places: dict[int, TreeNode[Node]] = {}
        self._grow()

    @property
    def current(self) -> Node:
        """The place under the cursor."""
        node = self.cursor_node
        return self.conversation.root if node is None or node.data is None else node.data

    def on_mount(self) -> None:
        """Begin where one is."""
        self.walk_to(self.conversation.here)

    def reload(self, at: Node | None = None) -> None:
        """Show the conversation as it is now, with the cursor at a node, or where one is."""
        self.clear()
        self._grow()
        self.walk_to(self.conversation.here if at is None else at)

    def walk_to(self, node: Node) -> None:
        """Have the cursor at a place, or at the one that leads to a node between two places."""
        while node.id not in self._places:
            node = above(node)
        place = self._places[node.id]
        opened = place.parent
        while opened is not None:
            opened.expand()
            opened = opened.parent
        # The lines are counted once those above are open, which is when the next frame is drawn.
        self.call_after_refresh(self.move_cursor, place)
        self.refresh()

    def clear_marks(self) -> None:
        """Mark none."""
        self.marked = []
        self.redraw()

    def action_mark(self) -> None:
        """Mark the place under the cursor, or no longer, and go on to the next."""
        node = self.current
        self.marked = [n for n in self.marked if n is not node] if node in self.marked else [*self.marked, node]
        self.redraw()
        self.action_cursor_down()

    def action_outwards(self) -> None:
        """To the fork that the branch under the cursor begins at."""
        if self.cursor_node is not None and self.cursor_node.parent is not None:
            self.move_cursor(self.cursor_node.parent)

    def action_inwards(self) -> None:
        """Into the branches that begin under the cursor."""
        node = self.cursor_node
        if node is not None and node.children:
            node.expand()
            self.call_after_refresh(self.move_cursor, node.children[0])

    def on_tree_node_selected(self, event: Tree.NodeSelected[Node]) -> None:
        """Go to the place under the cursor."""
        event.stop()
        if event.node.data is not None:
            self.post_message(self.Going(event.node.data))

    def render_label(self, node: TreeNode[Node], base_style: Style, style: Style) -> Text:
        """A place on one line: whether it is marked, whether one is there, its labels, and what was said."""
        place = node.data
        if place is None:
            return super().render_label(node, base_style, style)
        text = Text(no_wrap=True)
        text.append("▪ " if place in self.marked else "", "bold yellow")
        text.append("● " if place is self.conversation.here else "", "bold green")
        text.append(f"{place.id} " if place.message is not None else "", "dim")
        labels = [self._shown(name) for name, at in self.conversation.labels.items() if at is place]
        text.append("".join(f"‹{printable(name)}› " for name in dict.fromkeys(labels) if name), "bold magenta")
        text.append(_said(place))
        text.stylize(style)
        sign = (self.ICON_NODE_EXPANDED if node.is_expanded else self.ICON_NODE) if node.allow_expand else "  "
        return Text.assemble((sign, base_style), text)

    def _grow(self) -> None:
        """Put all places in, a run of them behind each other below the branch they are of."""
        self.root.data = self.conversation.root
        self.root.expand()
        self._places = {self.conversation.root.id: self.root}
        pending = [(self.root, self.root)]
        while pending:
            container, at = pending.pop()
            assert at.data is not None
            below = ways(at.data)
            while len(below) == 1:
                at = self._put(container, below[0])
                below = ways(below[0])
            for way in below:
                head = self._put(at, way)
                pending.append((head, head))
            if below:
                at.allow_expand = True
                at.expand()

    def _put(self, container: TreeNode[Node], place: Node) -> TreeNode[Node]:
        container.allow_expand = True
        container.expand()
        made = container.add("", place, allow_expand=False)
        self._places[place.id] = made
        return made

    def redraw(self) -> None:
        """Draw marks, labels and the place anew."""
        self._invalidate()
        self.refresh()


def _said(place: Node) -> str:
    """What was said between the place above and this one, on one line."""
    if place.message is None:
        return "the beginning"
    text = printable(" ".join(transcript(place, above(place)).replace("\n", " ").split()))
    text = text.replace("user: ", "› ", 1).replace(" model: ", " → ", 1)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
