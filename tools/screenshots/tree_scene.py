"""The scene of ``forkwise walk --tui``: an agent with a scripted model answers prompts on branches of a conversation.

The conversation is stored in a ledger and loaded from it, as the command does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from textual.pilot import Pilot

from forkwise.conversation.conversation import Conversation
from forkwise.conversation.store import StoredConversation
from forkwise.conversation.talk import Talk
from forkwise.conversation.walker import Walker
from forkwise.files.workspace import Workspace
from forkwise.ledger.sqlite import open_ledger
from forkwise.tui.transcript import Transcript
from forkwise.tui.walk import WalkApp, WalkScreen
from tools.screenshots.picture import SIZE, ignore_terminal_colours, temporary_state, wait_for, wait_until_settled

__all__ = ["TREE_SCENES", "draw_tree"]

TREE_SCENES = ("tree",)

_WRITE = "Write it."
_STORE = """\
class Store:
    def __init__(self):
        self.rows = {}

    def add(self, key, value):
        self.rows[key] = value

    def get(self, key):
        return self.rows.get(key)
"""
_ANSWERS = {
    "How should the store keep its rows?": "There are two ways:\n\n1. **A hash table**: fast lookups\n"
    "2. **Something sorted**: cheap ranges",
    "Try a hash table.": "Constant time for each lookup.",
    "Try something sorted.": "Ranges become cheap.",
    "Which tree?": "A B-tree: wide nodes, few of them.",
    "Without a tree?": "A skip list: readers need no lock.",
    _WRITE: "`Store` uses a dictionary now.",
}


def _answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    part = messages[-1].parts[-1]
    if isinstance(part, ToolReturnPart):
        return ModelResponse([TextPart(_ANSWERS[_WRITE])])
    assert isinstance(part, UserPromptPart)
    if part.content == _WRITE:
        return ModelResponse([ToolCallPart("write", {"path": "store.py", "content": _STORE})])
    return ModelResponse([TextPart(_ANSWERS[str(part.content)])])


async def draw_tree(themes: Mapping[str, str]) -> dict[str, str]:
    """Draw the picture in each theme. Return them by scene and theme, such as ``tree-dark``."""
    with temporary_state() as scratch:
        project = scratch / "project"
        project.mkdir()
        with open_ledger(Workspace(project)) as ledger:
            stored = StoredConversation(Conversation(), ledger.conversations)
            await _talk(stored, project)
            conversation = StoredConversation.load(ledger.conversations, stored.id).conversation
        with ignore_terminal_colours():
            app = WalkApp(WalkScreen(Walker(conversation)))
        app.animation_level = "none"
        drawn = {}
        async with app.run_test(size=SIZE) as pilot:
            await _wait_for_tree(pilot)
            for name, theme in themes.items():
                app.theme = theme
                drawn[f"tree-{name}"] = await wait_until_settled(pilot)
        return drawn


async def _talk(stored: StoredConversation, project: Path) -> None:
    """Have a conversation that forks twice, and stop on its first branch."""
    agent = Agent(FunctionModel(_answer))

    @agent.tool_plain
    def write(path: str, content: str) -> str:
        (project / path).write_text(content)
        return f"wrote {path}"

    talk = Talk(agent, saved=stored)
    question, hashed, ordered, tree, no_tree, _ = _ANSWERS
    fork = await talk.prompt(question)
    talk.conversation.label("two ways", fork)
    await talk.prompt(hashed)
    await talk.prompt(_WRITE)
    inner_fork = await talk.prompt(ordered, at=fork)
    await talk.prompt(tree, at=inner_fork)
    await talk.prompt(no_tree, at=inner_fork)


async def _wait_for_tree(pilot: Pilot[None]) -> None:
    def is_shown() -> bool:
        screen = pilot.app.screen
        if not isinstance(screen, WalkScreen) or not screen.query(Transcript):
            return False
        return (
            screen.tree_panel.current is screen.walker.here
            and "uses a dictionary now" in screen.messages.text
            and not screen.messages.is_behind
        )

    await wait_for(pilot, is_shown)
