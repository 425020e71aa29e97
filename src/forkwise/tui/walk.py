"""Walk: the panels of ``forkwise walk --tui``, a conversation as a tree next to its messages.

The tree screen of a chat is a subclass of the screen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, ClassVar

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelMessage, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Tree
from textual.widgets.tree import TreeNode
from textual.worker import Worker

from forkwise.concurrency import run_in_thread
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.talk import Answer, Recombination, Talk, recombine, text_of
from forkwise.conversation.walker import (
    Walker,
    add_combination,
    diff_branches,
    find_next_stops,
    find_previous_stop,
    format_transcript,
)
from forkwise.display.output import printable
from forkwise.errors import BranchingError, ConversationError
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.tool_call import format_call
from forkwise.tui.transcript import Transcript
from forkwise.tui.transcript_entry import TranscriptEntry, build_entry, strip_markdown
from forkwise.tui.widgets import InputScreen, QuestionScreen, TextLine, ThemedApp

__all__ = [
    "TreePanel",
    "WalkApp",
    "WalkScreen",
]


_NARROWEST = 20
_LONGEST = 200
_REFRESH_S = 0.05


class TreePanel(Tree[Node]):
    """A conversation as a tree of its nodes.

    Consecutive nodes have the same indentation and only branches are indented, so that a long conversation stays
    narrow. Up and down move through the rows, left to the fork above, right into the branches. Enter chooses a node
    (``NodeChosen``), space marks it. ``format_label`` returns the text of a label, empty to hide it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "parent_fork", "fork above", show=False),
        Binding("right", "first_branch", "into branches", show=False),
        Binding("space", "mark", "mark", key_display="␣"),
        Binding("enter", "select_cursor", "go there"),
    ]

    class NodeChosen(Message):
        """The user chose a node as the new position."""

        def __init__(self, node: Node) -> None:
            super().__init__()
            self.node = node

    def __init__(
        self, conversation: Conversation, format_label: Callable[[str], str] = lambda name: name, **options: Any
    ) -> None:
        super().__init__("the start", data=conversation.root, **options)
        self.conversation = conversation
        self._format_label = format_label
        self.marked: list[Node] = []
        self.auto_expand = False
        self.guide_depth = 2
        self._rows: dict[int, TreeNode[Node]] = {}
        self._add_rows()

    @property
    def current(self) -> Node:
        """The node under the cursor."""
        node = self.cursor_node
        return self.conversation.root if node is None or node.data is None else node.data

    def on_mount(self) -> None:
        """Put the cursor on the current position."""
        self.move_to(self.conversation.here)

    def reload(self, node: Node | None = None) -> None:
        """Rebuild the tree, with the cursor on ``node`` or on the current position."""
        self.clear()
        self._add_rows()
        self.move_to(self.conversation.here if node is None else node)

    def move_to(self, node: Node) -> None:
        """Put the cursor on a node, or on the row above it if it has none of its own."""
        while node.id not in self._rows:
            node = find_previous_stop(node)
        row = self._rows[node.id]
        parent = row.parent
        while parent is not None:
            parent.expand()
            parent = parent.parent
        # Tree numbers its lines with the next frame, after the rows above were expanded.
        self.call_after_refresh(self.move_cursor, row)
        self.refresh()

    def clear_marks(self) -> None:
        """Unmark all nodes."""
        self.marked = []
        self.redraw()

    def action_mark(self) -> None:
        """Mark or unmark the node under the cursor, and move to the next row."""
        node = self.current
        self.marked = [n for n in self.marked if n is not node] if node in self.marked else [*self.marked, node]
        self.redraw()
        self.action_cursor_down()

    def action_parent_fork(self) -> None:
        """Move to the fork above."""
        if self.cursor_node is not None and self.cursor_node.parent is not None:
            self.move_cursor(self.cursor_node.parent)

    def action_first_branch(self) -> None:
        """Move to the first branch of the fork under the cursor."""
        node = self.cursor_node
        if node is not None and node.children:
            node.expand()
            self.call_after_refresh(self.move_cursor, node.children[0])

    def on_tree_node_selected(self, event: Tree.NodeSelected[Node]) -> None:
        """Choose the node under the cursor."""
        event.stop()
        if event.node.data is not None:
            self.post_message(self.NodeChosen(event.node.data))

    def render_label(self, node: TreeNode[Node], base_style: Style, style: Style) -> Text:
        """Draw a row: mark, current position, number, labels and the beginning of the message."""
        shown = node.data
        if shown is None:
            return super().render_label(node, base_style, style)
        text = Text(no_wrap=True)
        text.append("▪ " if shown in self.marked else "", "bold yellow")
        text.append("● " if shown is self.conversation.here else "", "bold green")
        text.append(f"{shown.id} " if shown.message is not None else "", "dim")
        labels = [self._format_label(name) for name, labelled in self.conversation.labels.items() if labelled is shown]
        text.append("".join(f"‹{printable(name)}› " for name in dict.fromkeys(labels) if name), "bold magenta")
        text.append(_summarize(shown))
        text.truncate(max(self.size.width - self._indentation(node), _NARROWEST), overflow="ellipsis")
        text.stylize(style)
        sign = (self.ICON_NODE_EXPANDED if node.is_expanded else self.ICON_NODE) if node.allow_expand else "  "
        return Text.assemble((sign, base_style), text)

    def _indentation(self, node: TreeNode[Node]) -> int:
        """Return the cells before the text of a row: guides, the arrow of a fork, and the scrollbar behind it."""
        depth = 0
        while node.parent is not None:
            node, depth = node.parent, depth + 1
        return depth * self.guide_depth + 4

    def on_resize(self) -> None:
        """Truncate the rows to the new width."""
        self.redraw()

    def _add_rows(self) -> None:
        """Add a row for each node; consecutive nodes become children of the row that begins their branch."""
        self.root.data = self.conversation.root
        self.root.expand()
        self._rows = {self.conversation.root.id: self.root}
        pending = [(self.root, self.root)]
        while pending:
            container, row = pending.pop()
            assert row.data is not None
            below = find_next_stops(row.data)
            while len(below) == 1:
                row = self._add_row(container, below[0])
                below = find_next_stops(below[0])
            for node in below:
                head = self._add_row(row, node)
                pending.append((head, head))
            if below:
                row.allow_expand = True
                row.expand()

    def _add_row(self, container: TreeNode[Node], node: Node) -> TreeNode[Node]:
        container.allow_expand = True
        container.expand()
        row = container.add("", node, allow_expand=False)
        self._rows[node.id] = row
        return row

    def redraw(self) -> None:
        """Redraw marks, labels and the current position."""
        self._invalidate()
        self.refresh()


def _summarize(node: Node) -> str:
    """Format the messages between the row above and this one as one line."""
    if node.message is None:
        return "the start"
    text = format_transcript(node, find_previous_stop(node)).replace("user: ", "› ", 1)
    text = text.removeprefix("model: ").replace("\nmodel: ", " →\n", 1)
    for call in node.calls:
        title = format_call(call.tool_name, call.args_as_json_str()).title
        text = text.replace(f"model calls {call.tool_name}({call.args})", f"→ {title}")
    return printable(" ".join(strip_markdown(text[:_LONGEST]).split()))


_METHODS: dict[str, Recombination] = {"c": "concatenate", "m": "llm_merge", "v": "llm_vote", "j": "llm_judge"}
_NO_MODEL = "No model can answer: start forkwise walk with --model."
_MOST_MESSAGES = 60  # messages shown next to the tree: at least this many, and fewer than twice as many
_METHOD_NAMES = {"c": "concatenated", "m": "merged", "v": "by vote", "j": "by a judge"}


class PromptLine(Input):
    """The prompt for the node under the cursor. Escape returns to the tree."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back to the tree")]

    def action_leave(self) -> None:
        """Focus the tree, and keep the text."""
        self.screen.query_one(TreePanel).focus()


class WalkScreen(Screen[None]):
    """A conversation: its tree, the messages up to the node under the cursor, and a prompt to continue from there.

    ``save`` is called after each change. ``model`` answers prompts and combines leaves; without one both are off.
    ``open_talk`` returns the agent in the conversation that answers, by default one with the model alone.
    """

    DEFAULT_CSS = """
    WalkScreen TreePanel { width: 3fr; }
    WalkScreen Transcript { width: 2fr; border-left: solid $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "prompt", "prompt"),
        Binding("d", "diff", "diff"),
        Binding("c", "combine", "combine"),
        Binding("l", "label", "label"),
        Binding("n", "fork('next_fork')", "next fork"),
        Binding("p", "fork('last_fork')", "previous fork", show=False),
        Binding("h", "here", "here"),
        Binding("tab", "app.focus_next", "text", show=False),
        Binding("q,escape", "leave", "quit", key_display="q"),
    ]

    def __init__(
        self,
        walker: Walker,
        *,
        save: Callable[[], None] = lambda: None,
        model: Any = None,
        open_talk: Callable[[], Talk] | None = None,
    ) -> None:
        super().__init__()
        self._open_talk = open_talk or (lambda: Talk(Agent(self._model), self.walker.conversation))
        self.walker = walker
        self._save = save
        self._model = model
        self._answering: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """Yield the tree, the messages, the prompt and the keys."""
        yield TextLine(id="status")
        with Horizontal():
            yield TreePanel(self.walker.conversation, self.format_label, id="tree")
            yield Transcript(id="messages")
        yield PromptLine(placeholder="i: continue from the node under the cursor", compact=True, id="prompt")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Focus the tree, and draw new messages now and then."""
        self.tree_panel.focus()
        self.set_interval(_REFRESH_S, self.messages.flush)
        self.show_status()

    def format_label(self, label: str) -> str:
        """Return the text of a label; a subclass hides some."""
        return label

    @property
    def tree_panel(self) -> TreePanel:
        """The tree."""
        return self.query_one("#tree", TreePanel)

    @property
    def messages(self) -> Transcript:
        """The messages up to the node under the cursor."""
        return self.query_one("#messages", Transcript)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Node]) -> None:
        """Show the messages up to the node under the cursor."""
        if event.node.data is not None:
            self.messages.load(_build_entries(event.node.data))

    def on_tree_panel_node_chosen(self, event: TreePanel.NodeChosen) -> None:
        """Make the chosen node the current position."""
        self.go(event.node)

    def action_prompt(self) -> None:
        """Focus the prompt."""
        if self._model is None:
            self.notify(_NO_MODEL)
        else:
            self.query_one(PromptLine).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send the prompt, and continue from the answer."""
        text = event.value.strip()
        if self._model is None:
            self.notify(_NO_MODEL)
        elif self._answering is not None:
            self.notify("Wait for the answer, or stop it with escape.", severity="warning")
        elif text:
            event.input.clear()
            self.tree_panel.focus()
            self._answering = self.run_worker(self.say(text, self.tree_panel.current), group="prompt")

    async def say(self, text: str, node: Node) -> None:
        """Send a prompt at a node, and continue from the answer."""
        self.show_status(f"asked at {node.id}, waiting for the answer … escape stops it")
        try:
            self.walker.go(await self._open_talk().prompt(text, node))
        except (BranchingError, AgentRunError, UserError, OSError) as error:
            self.notify(printable(str(error)), severity="error", timeout=15, markup=False)
        finally:
            self._answering = None
            if self.is_attached:  # else the app is closing
                self.tree_panel.reload()
                self._save_change()

    def action_leave(self) -> None:
        """Stop the answer, or quit if there is none."""
        if self._answering is None:
            self.app.exit()
        else:
            self._answering.cancel()

    def action_here(self) -> None:
        """Put the cursor on the current position."""
        self.tree_panel.move_to(self.walker.here)

    def action_fork(self, method: str) -> None:
        """Put the cursor on the next or the previous fork, which ``method`` of the walker finds."""
        here, self.walker.conversation.here = self.walker.here, self.tree_panel.current
        try:
            found: Node = getattr(self.walker, method)()
        except BranchingError as error:
            self.notify(str(error))
            return
        finally:
            self.walker.conversation.here = here
        self.tree_panel.move_to(found)

    def action_diff(self) -> None:
        """Show the difference of two marked nodes, or of the marked one and the one under the cursor."""
        two = [*self.tree_panel.marked, self.tree_panel.current][:2]
        if len(two) < 2 or two[0] is two[1]:
            self.notify("Mark a node with space, and move to another.")
            return
        text = diff_branches(*two) or "the two are the same"
        self.app.push_screen(DiffScreen(f"message {two[0].id} and message {two[1].id}", text))

    def action_label(self) -> None:
        """Label the node under the cursor."""
        node = self.tree_panel.current

        def label(text: str | None) -> None:
            if text is not None:
                self.label_node(text, node)

        self.app.push_screen(InputScreen("Label of this node:"), label)

    def action_combine(self) -> None:
        """Combine the marked leaves into one answer."""
        if len(self.tree_panel.marked) < 2:
            self.notify("Mark at least two leaves with space.")
        else:
            self.run_worker(self._combine(list(self.tree_panel.marked)), group="combine", exclusive=True)

    async def _combine(self, nodes: list[Node]) -> None:
        offered = _METHOD_NAMES if self._model is not None else {"c": _METHOD_NAMES["c"]}
        numbers = ", ".join(str(node.id) for node in nodes)
        answer = await self.app.push_screen_wait(QuestionScreen(f"How to combine the answers {numbers}?", offered))
        if answer is None:
            return
        try:
            await self.combine_nodes(nodes, _METHODS[answer])
        except BranchingError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.tree_panel.marked = []
        self.tree_panel.reload()

    # Changes

    def go(self, node: Node) -> None:
        """Make a node the current position."""
        self.walker.go(node)
        self._save_change()

    def label_node(self, text: str, node: Node) -> None:
        """Label a node."""
        self.walker.conversation.label(text, node)
        self._save_change()

    async def combine_nodes(self, nodes: Sequence[Node], method: Recombination) -> None:
        """Combine several answers into one, and continue from it."""
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        made = await recombine(method, answers, self._model)
        if made.error is not None:
            raise ConversationError(f"{method} gave no verdict: {made.error}")
        self.go(add_combination(self.walker.conversation, nodes, made.text))

    def _save_change(self) -> None:
        self.show_status()
        self.tree_panel.redraw()
        self.run_worker(self._write(), group="save")

    async def _write(self) -> None:
        try:
            await run_in_thread(self._save)
        except (BranchingError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)

    def show_status(self, activity: str = "") -> None:
        """Show the number of messages, and the current position or the operation under way."""
        talk = self.walker.conversation
        self.query_one("#status", TextLine).show(f"{len(talk)} messages · {activity or f'you are at {talk.here.id}'}")


def _build_entries(node: Node) -> list[TranscriptEntry]:
    """Build the entries of the last messages up to a node.

    The first message changes only once in a while, because the transcript redraws everything behind a change.
    """
    start = max(node.depth - _MOST_MESSAGES, 0) // _MOST_MESSAGES * _MOST_MESSAGES
    nodes = list(takewhile(lambda one: one.depth > start, node.upwards()))
    entries = [entry for one in reversed(nodes) if one.message is not None for entry in _build_parts(one.message)]
    return entries or [TranscriptEntry("note", "the start of the conversation")]


def _build_parts(message: ModelMessage) -> Iterator[TranscriptEntry]:
    for part in message.parts:
        match part:
            case UserPromptPart(content=str(text)):
                yield build_entry("user", text)
            case UserPromptPart(content=parts):
                yield build_entry("user", " ".join(one for one in parts if isinstance(one, str)))
            case TextPart(content=text):
                yield build_entry("agent", text)
            case ToolCallPart():
                yield build_entry("call", part.args_as_json_str(), part.tool_name)
            case ToolReturnPart():
                yield build_entry("result", part.model_response_str())


class WalkApp(ThemedApp):
    """The application of ``forkwise walk --tui``."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "theme", "light/dark", show=False)]

    def __init__(self, screen: WalkScreen) -> None:
        super().__init__()
        self._start_screen = screen

    def on_mount(self) -> None:
        """Show the conversation."""
        self.push_screen(self._start_screen)
