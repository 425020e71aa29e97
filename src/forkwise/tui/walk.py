"""Walk: a person in a conversation, with the tree of it beside what was said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, Tree
from textual.widgets.tree import TreeNode
from textual.worker import Worker

from forkwise.concurrency import run_in_thread
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.talk import Answer, Recombination, Talk, recombine, text_of
from forkwise.conversation.walker import Walker, above, combined, difference, transcript, ways
from forkwise.display.output import printable
from forkwise.errors import BranchingError
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.widgets import Line, LineQuestion, Question

__all__ = [
    "TreePanel",
    "WalkApp",
    "WalkScreen",
]


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


_WAYS: dict[str, Recombination] = {"c": "concatenate", "m": "llm_merge", "v": "llm_vote", "j": "llm_judge"}
_NOBODY = "Nobody is there to answer: forkwise walk --model says who."
_NEAR, _MOST_CHARACTERS = 60, 20_000  # messages, and characters of them, that are shown of what was said
_ASKED = {"c": "one after the other", "m": "merged", "v": "by vote", "j": "by a judge"}


class PromptLine(Input):
    """A line to say something in, at the place under the cursor. Escape goes back to the tree."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back to the tree")]

    def action_leave(self) -> None:
        """Go back to the tree; what was written stays."""
        self.screen.query_one(TreePanel).focus()


class WalkScreen(Screen[None]):
    """A conversation: its tree, what was said on the way to the place under the cursor, and a line to go on from there.
    ``save`` is called whenever something changed; ``model`` answers, and is asked where leaves are combined by one."""

    DEFAULT_CSS = """
    WalkScreen TreePanel { width: 3fr; }
    WalkScreen VerticalScroll { width: 2fr; border-left: solid $panel; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "prompt", "say"),
        Binding("d", "diff", "diff"),
        Binding("c", "combine", "combine"),
        Binding("l", "label", "label"),
        Binding("n", "fork('next_fork')", "next fork"),
        Binding("p", "fork('last_fork')", "fork before", show=False),
        Binding("h", "here", "here"),
        Binding("tab", "app.focus_next", "text", show=False),
        Binding("q,escape", "leave", "quit", key_display="q"),
    ]

    def __init__(self, walker: Walker, *, save: Callable[[], None] = lambda: None, model: Any = None) -> None:
        super().__init__()
        self.walker = walker
        self._save = save
        self._model = model
        self._answering: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """The tree beside the text."""
        yield Line(id="place")
        with Horizontal():
            yield TreePanel(self.walker.conversation, self.shown, id="tree")
            with VerticalScroll():
                yield Static(id="said", markup=False)
        yield PromptLine(placeholder="i: go on from the place under the cursor", compact=True, id="prompt")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin where one is."""
        self.tree_panel.focus()
        self.tell()

    def shown(self, label: str) -> str:
        """What is shown for a label."""
        return label

    @property
    def tree_panel(self) -> TreePanel:
        """The tree."""
        return self.query_one("#tree", TreePanel)

    @property
    def said(self) -> Static:
        """What was said on the way to the place under the cursor."""
        return self.query_one("#said", Static)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Node]) -> None:
        """Show what was said on the way to the place under the cursor."""
        if event.node.data is not None:
            self.said.update(_spoken(event.node.data))

    def on_tree_panel_going(self, event: TreePanel.Going) -> None:
        """Be at a place."""
        self.go(event.node)

    def action_prompt(self) -> None:
        """Write what is to be said at the place under the cursor."""
        if self._model is None:
            self.notify(_NOBODY)
        else:
            self.query_one(PromptLine).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Say it, and be where the answer is."""
        text = event.value.strip()
        if self._model is None:
            self.notify(_NOBODY)
        elif self._answering is not None:
            self.notify("Wait for the answer, or stop it with escape.", severity="warning")
        elif text:
            event.input.clear()
            self.tree_panel.focus()
            self._answering = self.run_worker(self.say(text, self.tree_panel.current), group="prompt")

    async def say(self, text: str, at: Node) -> None:
        """Say something at a place, and be where the answer is."""
        talk = self.walker.conversation
        self.tell(f"asked at {at.id}, the answer is on its way … escape stops it")
        try:
            self.walker.go(await Talk(Agent(self._model), talk).prompt(text, at))
        except (BranchingError, AgentRunError, UserError, OSError) as error:
            self.notify(printable(str(error)), severity="error", timeout=15, markup=False)
        finally:
            self._answering = None
            if self.is_attached:  # else the app is being left
                self.tree_panel.reload()
                self._changed()

    def action_leave(self) -> None:
        """Stop the answer that is on its way, or else quit."""
        if self._answering is None:
            self.app.exit()
        else:
            self._answering.cancel()

    def action_here(self) -> None:
        """Have the cursor where one is."""
        self.tree_panel.walk_to(self.walker.here)

    def action_fork(self, where: str) -> None:
        """Have the cursor at the next place below, or above, where branches begin."""
        here, self.walker.conversation.here = self.walker.here, self.tree_panel.current
        try:
            found: Node = getattr(self.walker, where)()
        except BranchingError as error:
            self.notify(str(error))
            return
        finally:
            self.walker.conversation.here = here
        self.tree_panel.walk_to(found)

    def action_diff(self) -> None:
        """Show how two marked places differ, or the marked one and the one under the cursor."""
        two = [*self.tree_panel.marked, self.tree_panel.current][:2]
        if len(two) < 2 or two[0] is two[1]:
            self.notify("Mark a place with space, and go to another.")
            return
        text = difference(*two) or "nothing differs"
        self.app.push_screen(DiffScreen(f"message {two[0].id} and message {two[1].id}", text))

    def action_label(self) -> None:
        """Name the place under the cursor."""
        node = self.tree_panel.current

        def name(text: str | None) -> None:
            if text is not None:
                self.give_name(text, node)

        self.app.push_screen(LineQuestion("A name for this place:"), name)

    def action_combine(self) -> None:
        """Make one of the marked leaves."""
        if len(self.tree_panel.marked) < 2:
            self.notify("Mark at least two leaves with space.")
        else:
            self.run_worker(self._combine(list(self.tree_panel.marked)), group="combine", exclusive=True)

    async def _combine(self, nodes: list[Node]) -> None:
        offered = _ASKED if self._model is not None else {"c": _ASKED["c"]}
        numbers = ", ".join(str(node.id) for node in nodes)
        answer = await self.app.push_screen_wait(Question(f"Combine what {numbers} came to, how?", offered))
        if answer is None:
            return
        try:
            await self.make_one(nodes, _WAYS[answer])
        except BranchingError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.tree_panel.marked = []
        self.tree_panel.reload()

    # What comes of it

    def go(self, node: Node) -> None:
        """Be at a place."""
        self.walker.go(node)
        self._changed()

    def give_name(self, text: str, node: Node) -> None:
        """Give a place a name."""
        self.walker.conversation.label(text, node)
        self._changed()

    async def make_one(self, nodes: Sequence[Node], how: Recombination) -> None:
        """Make one answer of several, and be there."""
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        made = await recombine(how, answers, self._model)
        self.go(combined(self.walker.conversation, nodes, made.text))

    def _changed(self) -> None:
        self.tell()
        self.tree_panel.redraw()
        self.run_worker(self._write(), group="save")

    async def _write(self) -> None:
        try:
            await run_in_thread(self._save)
        except (BranchingError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)

    def tell(self, doing: str = "") -> None:
        """Say where one is, or what is under way."""
        talk = self.walker.conversation
        self.query_one("#place", Line).say(f"{len(talk)} messages · {doing or f'you are at {talk.here.id}'}")


def _spoken(node: Node) -> Text:
    """What was said on the way to a node; of a long way the end, since all of it is laid out anew for each place."""
    since = node.ancestor_at(node.depth - _NEAR) if node.depth > _NEAR else None
    said = transcript(node, since)
    text = Text("⋯\n" if since is not None or len(said) > _MOST_CHARACTERS else "")
    for line in said[-_MOST_CHARACTERS:].splitlines() or ["(the beginning)"]:
        text.append(f"{printable(line)}\n", "bold" if line.startswith("user: ") else "")
    return text


class WalkApp(App[None]):
    """The terminal, with nothing but a conversation in it."""

    TITLE = "forkwise"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "theme", "light/dark", show=False)]

    def __init__(self, screen: WalkScreen) -> None:
        super().__init__()
        self._first = screen

    def on_mount(self) -> None:
        """Begin with the conversation."""
        self.push_screen(self._first)

    def action_theme(self) -> None:
        """Light, or dark."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
