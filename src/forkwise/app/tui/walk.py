"""Walk: a person in a conversation, with the tree of it beside what was said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, Tree
from textual.worker import Worker

from forkwise.app.cli.output import printable
from forkwise.app.tui.diff import DiffScreen
from forkwise.app.tui.line import Line
from forkwise.app.tui.question import LineQuestion, Question
from forkwise.app.tui.tree import TreePanel
from forkwise.conversation.node import Node
from forkwise.conversation.recombination import Answer, Recombination, recombine
from forkwise.conversation.talk import Talk, text_of
from forkwise.conversation.walking import Walker, combined, difference, transcript
from forkwise.errors import BranchingError
from forkwise.sandbox.threads import in_thread

__all__ = ["WalkApp", "WalkScreen"]

_WAYS: dict[str, Recombination] = {"c": "concatenate", "m": "llm_merge", "v": "llm_vote", "j": "llm_judge"}
_NOBODY = "Nobody is there to answer: forkwise walk --model says who."
_NEAR, _LONGEST = 60, 20_000  # messages, and characters of them, that are shown of what was said
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
            await in_thread(self._save)
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
    text = Text("⋯\n" if since is not None or len(said) > _LONGEST else "")
    for line in said[-_LONGEST:].splitlines() or ["(the beginning)"]:
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
