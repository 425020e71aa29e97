"""The conversation of a chat as a tree: moves, prompts, comparisons, combinations, undo and override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkwise.chat.session import Session
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.chat.tree_screen import TreeScreen
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.widgets import ChoiceScreen, InputScreen, QuestionScreen
from tests.acceptance import write_accepted
from tests.chat.scripted_chat import SCRIPT
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration

MORE: list[dict[str, Any]] = [{"when": "^and then", "say": "Then it is done."}, *SCRIPT]


def session_of(scene: ChatScene) -> Session:
    session = scene.chat.session
    assert session is not None
    return session


async def tree_of(scene: ChatScene, command: str = "/tree") -> TreeScreen:
    """Return the tree, once the cursor is at the current node."""
    await scene.write(command)
    await scene.comes_to(TreeScreen)
    screen = scene.screen
    assert isinstance(screen, TreeScreen)
    await until(lambda: screen.tree_panel.current is screen.walker.here, lambda: scene.text)
    return screen


async def walk_to(scene: ChatScene, screen: TreeScreen, label: str) -> int:
    """Move to a label with the arrow keys."""
    talk = screen.walker.conversation
    node = next(at for name, at in talk.labels.items() if name.endswith(label))
    lines = screen.tree_panel.last_line + 1
    screen.tree_panel.move_cursor_to_line(0)
    for _ in range(lines):
        if screen.tree_panel.current is node:
            return node.id
        await scene.press("down")
    raise AssertionError(f"{label} is not in the tree\n{scene.text}")


def test_move_continue_compare_combine_and_undo(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        session = session_of(scene)
        await scene.write("hello")
        await scene.shows("how are you?")
        await scene.write("/fork a: task | b: task")
        await scene.branches()
        # While the fork is open, the tree is read-only.
        screen = await tree_of(scene)
        await scene.shows("‹fork› › hello → Hi there", "‹a› ", "‹b› ", "esc back", "u undo")
        await walk_to(scene, screen, "/b")
        await scene.shows("b wrote lib.txt.")
        await scene.press("enter")
        await scene.notifies("a fork is open")
        await scene.press("i", *"no", "enter")
        await until(lambda: scene.notifications.count("a fork is open") == 2)
        assert isinstance(scene.screen, TreeScreen)
        await scene.press("u")
        await scene.notifies("There is no merge to undo here")
        await scene.press("escape")
        await scene.write("/merge a")
        await scene.shows("· Merged: kept branch a")
        await scene.write("and then")
        await scene.shows("Then it is done.")

        # Compare, with keys and by numbers.
        screen = await tree_of(scene, "/compare")
        await scene.shows("‹★ merged", "● ")
        first = await walk_to(scene, screen, "/a")
        await scene.press("space")
        second = await walk_to(scene, screen, "/b")
        await scene.press("d")
        await scene.comes_to(DiffScreen)
        await scene.shows(
            f"message {first} and message {second}", "-model: a wrote lib.txt.", "+model: b wrote lib.txt."
        )
        await scene.press("escape")
        await scene.comes_to(TreeScreen)

        # Label; names with another meaning are refused.
        await walk_to(scene, screen, "/b")
        for name, why in (("merged:x", "cannot be a label"), ("other", "")):
            await scene.press("l")
            await scene.comes_to(InputScreen)
            await scene.press(*name, "enter")
            await scene.comes_to(TreeScreen)
            if why:
                await scene.notifies(why)
        await scene.shows("‹other›")
        assert session.conversation.labels["other"].id == second

        # Continue there: the files stay, the conversation is that of the other branch.
        await scene.press("enter")
        await scene.comes_to(ChatScreen)
        await scene.shows("b wrote lib.txt.")
        assert session.here.id == second
        assert (project / "lib.txt").read_text() == "from a\n"
        screen = await tree_of(scene)
        await walk_to(scene, screen, "/b")
        await scene.press("i", *"and then", "enter")
        await scene.comes_to(ChatScreen)
        await scene.shows("b wrote lib.txt.", "> and then", "Then it is done.")
        await scene.write(f"/compare {first} other")
        await scene.comes_to(DiffScreen)
        await scene.shows("+model: b wrote lib.txt.")
        await scene.press("escape")

        # Combine leaves.
        screen = await tree_of(scene, "/go")
        await scene.press("c")
        await scene.notifies("Mark at least two leaves")
        for label in ("/a", "/b"):
            await walk_to(scene, screen, label)
            await scene.press("space")
        await scene.press("c")
        await scene.comes_to(QuestionScreen)
        await scene.press("c")
        await scene.comes_to(TreeScreen)
        await scene.shows("Combine the branches")
        assert screen.tree_panel.marked == []
        assert "a wrote lib.txt." in session.last_answer
        assert "b wrote lib.txt." in session.last_answer

        # Undo the merge, as the tree shows.
        for key in ("escape", "y"):
            await scene.press("u")
            await scene.comes_to(QuestionScreen)
            await scene.shows("Undo the merge of fork")
            await scene.press(key)
            await scene.comes_to(TreeScreen)
            assert isinstance(scene.screen, TreeScreen)
        await until(lambda: session.last_merge is None)
        await scene.hides("★ merged")
        assert not (project / "lib.txt").exists()
        await scene.press("q")
        await scene.comes_to(ChatScreen)
        await scene.shows("· Undone: the merge of fork", "how are you?")
        await scene.hides("wrote lib.txt")

    chatting(project, script, MORE)


def test_the_tree_grows_while_it_is_shown(project: Path) -> None:
    go = project.parent / "script" / "a"

    async def script(scene: ChatScene) -> None:
        await scene.write("hello")
        await scene.shows("how are you?")
        await scene.write("/fork a: task until released | b: task")
        await scene.branch("b", "done")
        screen = await tree_of(scene)
        at = await walk_to(scene, screen, "/b")
        assert "‹a›" not in scene.text
        go.touch()
        await scene.shows("‹a›")
        await until(lambda: screen.tree_panel.current.id == at, lambda: scene.text)

    chatting(project, script)


def test_a_verdict_is_overridden(project: Path) -> None:
    write_accepted(project / ".forkwise/config.toml", '[chat]\ntest = "true"\n')

    async def script(scene: ChatScene) -> None:
        await scene.write("/override")
        await scene.notifies("name the branch to keep instead")
        await scene.write("/fork task")
        await scene.branches()
        await scene.write("/merge auto")
        await scene.shows("· Merged: kept branch b · 1 file")
        assert (project / "lib.txt").read_text() == "from b\n"
        await scene.write("/override")
        await scene.comes_to(ChoiceScreen)
        await scene.shows("keep instead", "a")
        await scene.press("enter")
        await scene.shows("· Merged: kept branch a", "a wrote lib.txt.")
        assert (project / "lib.txt").read_text() == "from a\n"
        await scene.write("/undo")
        await scene.shows("· Undone: the merge of fork")
        assert not (project / "lib.txt").exists()

    chatting(project, script)
