"""A conversation as a tree on the screen: moves, labels, comparisons and combinations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from forkwise import ConversationError
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.talk import text_of
from forkwise.conversation.walker import Walker
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.walk import TreePanel, WalkApp, WalkScreen
from forkwise.tui.widgets import InputScreen, QuestionScreen
from tests.tui.pilot import Scene, play, until
from tests.tui.scripted_fork import scripted_talk

pytestmark = pytest.mark.integration


@pytest.fixture
def talk() -> Conversation:
    """Build a conversation that forks at 2 into 4 and 8, at 8 into 10 and 12; the current node is 6, below 4."""
    return scripted_talk()


class Walk:
    """A walk that counts how often it was saved."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.saved = 0
        self.error: Exception | None = None

    def save(self) -> None:
        self.saved += 1
        if self.error is not None:
            raise self.error

    def play(self, script: Callable[[Scene, TreePanel], Awaitable[None]], model: object = None) -> None:
        async def begin(scene: Scene) -> None:
            await scene.comes_to(WalkScreen)
            tree = scene.screen.query_one(TreePanel)
            await until(lambda: tree.current is self.talk.here, lambda: f"{tree.current}")
            await script(scene, tree)

        play(WalkApp(WalkScreen(Walker(self.talk), save=self.save, model=model)), begin)


async def walked(scene: Scene, tree: TreePanel, *keys: str) -> int:
    """Press keys, and return the id of the node under the cursor."""
    for key in keys:
        await scene.press(key)
        await scene.pilot.pause()
    return tree.current.id


def test_the_tree_shows_forks_labels_and_the_position(talk: Conversation) -> None:
    async def script(scene: Scene, _: TreePanel) -> None:
        await scene.shows("2 ‹two ways› › How should")
        await scene.shows("● 6 › Write it. → All 24 tests pass.")
        starts = {2: "2 ‹two", 4: "4 › Try", 8: "8 › Try", 10: "10 › Which", 12: "12 › Without"}
        depth = {n: next(t.index(said) for t in scene.text.splitlines() if said in t) for n, said in starts.items()}
        assert depth[2] < depth[4] == depth[8] < depth[10] == depth[12]
        await scene.shows("All 24 tests pass.")

    Walk(talk).play(script)


def test_a_long_conversation_stays_narrow() -> None:
    talk = Conversation()
    for number in range(40):
        talk.reply(f"answer {number}", talk.say(f"question {number}"))
        talk.here = talk.node(len(talk))

    async def script(scene: Scene, tree: TreePanel) -> None:
        await scene.shows("answer 39")
        shown = [line for line in scene.text.splitlines() if "›" in line]
        assert len(shown) > 15
        assert all(line.lstrip("│├└ ●")[0].isdigit() and line.index("›") < 10 for line in shown)
        assert await walked(scene, tree, "left") == 0

    Walk(talk).play(script)


def test_the_arrow_keys_walk(talk: Conversation) -> None:
    async def script(scene: Scene, tree: TreePanel) -> None:
        assert await walked(scene, tree, "up") == 4
        assert await walked(scene, tree, "left") == 2
        assert await walked(scene, tree, "left") == 0
        assert await walked(scene, tree, "left") == 0
        assert await walked(scene, tree, "right", "right") == 4
        assert await walked(scene, tree, "right") == 6
        assert await walked(scene, tree, "right") == 6
        assert await walked(scene, tree, "down", "right", "down") == 12
        assert await walked(scene, tree, "h") == 6
        assert await walked(scene, tree, "p") == 2
        assert await walked(scene, tree, "n") == 8
        assert await walked(scene, tree, "n") == 8
        await scene.notifies("nothing forks below")
        assert talk.here.id == 6

    Walk(talk).play(script)


def test_moving_to_a_node(talk: Conversation) -> None:
    walk = Walk(talk)

    async def script(scene: Scene, tree: TreePanel) -> None:
        await walked(scene, tree, "down", "enter")
        await scene.shows("you are at 8")
        await scene.shows("● 8 ")
        await until(lambda: walk.saved == 1)
        assert talk.here.id == 8

    walk.play(script)


def test_an_error_of_a_save_is_reported(talk: Conversation) -> None:
    walk = Walk(talk)
    walk.error = ConversationError("the disk is full")

    async def script(scene: Scene, tree: TreePanel) -> None:
        await walked(scene, tree, "down", "enter")
        await scene.notifies("the disk is full")

    walk.play(script)


def test_a_label(talk: Conversation) -> None:
    walk = Walk(talk)

    async def script(scene: Scene, _: TreePanel) -> None:
        await scene.press("l")
        await scene.comes_to(InputScreen)
        await scene.press("escape")
        await scene.comes_to(WalkScreen)
        await scene.press("l")
        await scene.comes_to(InputScreen)
        await scene.press("b", "e", "s", "t", "enter")
        await scene.shows("6 ‹best› ")
        assert talk.labels["best"].id == 6
        await until(lambda: walk.saved == 1)

    walk.play(script)


def test_two_nodes_are_compared(talk: Conversation) -> None:
    async def script(scene: Scene, tree: TreePanel) -> None:
        await scene.press("d")
        await scene.notifies("Mark a node")
        await scene.press("space")
        await scene.shows("▪ ● 6 ")
        await walked(scene, tree, "down", "d")
        await scene.comes_to(DiffScreen)
        await scene.shows("message 6 and message 10")
        await scene.shows("+user: Which tree?")
        await scene.press("escape")

    Walk(talk).play(script)


def test_leaves_are_combined(talk: Conversation) -> None:
    walk = Walk(talk)

    async def script(scene: Scene, tree: TreePanel) -> None:
        await scene.press("c")
        await scene.notifies("Mark at least two")
        await walked(scene, tree, "space", "down", "space")
        assert [node.id for node in tree.marked] == [6, 10]
        await scene.press("c")
        await scene.comes_to(QuestionScreen)
        assert "by a judge" not in scene.text
        await scene.press("c")
        await scene.shows("you are at 14")
        assert text_of(talk.here) == (
            "Response 1:\nAll 24 tests pass.\n\nResponse 2:\nA B-tree: wide nodes, few of them."
        )
        assert tree.marked == []
        await until(lambda: tree.current.id == 14)

    walk.play(script)


def test_leaves_are_combined_by_a_model(talk: Conversation) -> None:
    async def script(scene: Scene, tree: TreePanel) -> None:
        await walked(scene, tree, "space", "down", "space")
        await scene.press("c")
        await scene.comes_to(QuestionScreen)
        await scene.press("escape")
        await scene.comes_to(WalkScreen)
        await scene.press("c")
        await scene.comes_to(QuestionScreen)
        await scene.press("m")
        await scene.shows("you are at 14")
        assert text_of(talk.here) == "both"

    Walk(talk).play(script, TestModel(custom_output_text="both"))


def test_a_prompt_at_any_node(talk: Conversation) -> None:
    walk = Walk(talk)
    heard: list[int] = []
    is_stuck = False

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        heard.append(len(messages))
        if is_stuck:
            await asyncio.Event().wait()
        if len(heard) == 2:
            raise UserError("no such model")
        return ModelResponse(parts=[TextPart("Then a trie.")])

    async def script(scene: Scene, tree: TreePanel) -> None:
        nonlocal is_stuck
        assert await walked(scene, tree, "down") == 8
        await scene.press("i", *"Why?", "escape")
        await until(lambda: tree.has_focus)
        await scene.press("i", "enter")
        await scene.shows("you are at 14")
        await until(lambda: tree.current.id == 14, lambda: f"{tree.current}")
        assert (text_of(talk.here), heard) == ("Then a trie.", [5])
        assert talk.here.parent is not None
        assert talk.here.parent.parent is talk.node(8)
        await until(lambda: walk.saved > 0)
        await scene.press("i", "A", "enter")
        await scene.notifies("no such model")
        is_stuck = True
        await until(lambda: tree.has_focus)
        await walked(scene, tree, "h")
        await scene.press("i", "B", "enter")
        await scene.shows("waiting for the answer")
        await until(lambda: len(heard) == 3)
        await scene.press("escape")
        await scene.shows("you are at 14")
        assert scene.app.is_running

    walk.play(script, FunctionModel(answer))


def test_a_prompt_without_a_model(talk: Conversation) -> None:
    async def script(scene: Scene, _: TreePanel) -> None:
        await scene.press("i")
        await scene.notifies("with --model")

    Walk(talk).play(script)


@pytest.mark.parametrize("key", ["q", "escape"])
def test_quit(talk: Conversation, key: str) -> None:
    async def script(scene: Scene, _: TreePanel) -> None:
        assert scene.app.current_theme.dark
        await scene.press("t")
        assert not scene.app.current_theme.dark
        await scene.press(key)
        await until(lambda: not scene.app.is_running)

    Walk(talk).play(script)


def test_of_a_long_path_the_end_is_shown() -> None:
    talk = Conversation()
    for number in range(100):
        talk.say(f"question {number}")
        talk.reply(f"answer {number}")

    async def script(scene: Scene, tree: TreePanel) -> None:
        assert isinstance(scene.screen, WalkScreen)
        messages = scene.screen.messages
        await until(lambda: "answer 99" in messages.text)
        assert messages.text.startswith("> question 60\n")
        await walked(scene, tree, *["up"] * 2)
        await until(lambda: messages.text.endswith("answer 97"))

    Walk(talk).play(script)
