"""Scenes: a real chat on a script, played from its first words to its merge, and a picture of each main screen, in each
theme. All in one play, in a directory of its own: what is slow is done once."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from forkwise.chat import open_session
from forkwise.tui.chat.app import ChatApp
from forkwise.tui.chat.approval import AcceptanceScreen
from forkwise.tui.chat.pickers import MergePicker
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.diff_view import DiffView, NwayScreen
from tools.screenshots.fork_scene import HASHED, PARENT, SORTED
from tools.screenshots.picture import SIZE, comes, no_colours_of_the_terminal, settled

__all__ = ["CHAT_SCENES", "draw_chat"]

#: The screens, in the order in which one comes to them.
CHAT_SCENES = ("chat", "chat-fork", "chat-accept", "chat-merge", "chat-nway", "chat-tree")

_MODEL = "script:demo.toml"


def _call(tool: str, **args: str) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def _branch(label: str, plan: str, content: str, done: str) -> dict[str, Any]:
    first = {"say": plan, "calls": [_call("write", path="store.py", content=content)]}
    return {"branch": label, "steps": [first, {"say": done, "until": f"{label}.go"}]}


_SCRIPT: list[dict[str, Any]] = [
    {
        "when": "^Lookups",
        "steps": [
            {
                "say": "I will look at how rows are kept.",
                "calls": [_call("grep", pattern="self.rows", path="store.py")],
            },
            {
                "say": "`Store.get` walks through **all rows**. Two ways come to mind:\n\n"
                "- a hash table: constant time, no order\n- something sorted: ranges become cheap"
            },
        ],
    },
    _branch(
        "hash", "A dictionary, with the keys as they are.", HASHED, "Done: `add` and `get` take constant time now."
    ),
    _branch("sorted", "SortedDict keeps the order of keys.", SORTED, "Done: ranges are cheap, lookups logarithmic."),
    {
        "judge": True,
        "verdict": {
            "winner_branch_id": "hash",
            "confidence": 0.95,
            "reasoning": "Both are right. hash is shorter, and needs no package that is not there yet.",
            "caveats": ["a missing key raises KeyError now"],
        },
    },
]


async def draw_chat(themes: Mapping[str, str]) -> dict[str, str]:
    """All pictures, each by the name of its scene and of its theme, such as ``chat-tree-dark``."""
    with tempfile.TemporaryDirectory(prefix="forkwise-scenes-") as place, _states_in(Path(place) / "state"):
        room, project = Path(place) / "script", Path(place) / "project"
        room.mkdir()
        (project / ".forkwise").mkdir(parents=True)
        (project / ".forkwise/config.toml").write_text('[chat]\ntest = "grep -q rows store.py"\n')
        (project / "store.py").write_text(PARENT)
        (room / "script.json").write_text(json.dumps({"reply": _SCRIPT}))
        with no_colours_of_the_terminal():
            app = ChatApp(partial(open_session, project, model=f"script:{room / 'script.json'}"))
        app.animation_level = "none"
        async with app.run_test(size=SIZE) as pilot:
            drawn = await _Play(app, pilot, room, themes).all()
            app.action_leave()
            await app.ended()
        return drawn


class _Play:
    """What a person does, one screen after the other."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], room: Path, themes: Mapping[str, str]) -> None:
        self.app = app
        self.pilot = pilot
        self.room = room
        self.themes = themes
        self.drawn: dict[str, str] = {}

    async def all(self) -> dict[str, str]:
        """Come to each screen, and take its pictures."""
        chat = self.app.chat
        await comes(self.pilot, lambda: chat.session is not None)
        chat.prompt.cursor_blink = False
        chat.status.model = _MODEL  # it is where the play is, which is elsewhere each time
        await self._write("Lookups in the store are slow. What can be done?")
        await self._over("ranges become cheap")
        await self._take("chat")

        await self._write("/fork hash: Use a hash table. | sorted: Keep the keys sorted.")
        await comes(self.pilot, lambda: all("wrote" in p.transcript.text for p in chat.stage.panels.values()))
        await self._end("hash")
        await self._take("chat-fork")

        await self._end("sorted")
        await self._write("/merge")
        await comes(self.pilot, lambda: isinstance(self.app.screen, AcceptanceScreen))
        await self._take("chat-accept")

        await self.pilot.press("o")
        await comes(self.pilot, lambda: isinstance(self.app.screen, MergePicker) and bool(self._diff))
        await self._take("chat-merge")

        await self.pilot.press("w")
        await comes(self.pilot, lambda: isinstance(self.app.screen, NwayScreen) and bool(self._diff))
        await self.pilot.press("space", "down", "space", "down", "right", "space")
        await self._take("chat-nway")

        await self.pilot.press("escape")
        await self._write("/merge hash")
        await comes(self.pilot, lambda: "Merged: kept branch hash" in chat.stage.talk.text)
        await self._write("/tree")
        from forkwise.tui.chat.tree_screen import TreeScreen  # noqa: PLC0415 (loads an agent)

        def is_there() -> bool:
            screen = self.app.screen
            return (
                isinstance(screen, TreeScreen) and screen.is_mounted and screen.tree_panel.current is screen.walker.here
            )

        await comes(self.pilot, is_there)
        await self._take("chat-tree")
        return self.drawn

    @property
    def _diff(self) -> str:
        return "".join(view.text for view in self.app.screen.query(DiffView))

    async def _write(self, text: str) -> None:
        await comes(self.pilot, lambda: isinstance(self.app.screen, ChatScreen))
        self.app.chat.prompt.text = text
        await self.pilot.press("enter")

    async def _over(self, text: str) -> None:
        """Wait until the agent has said something, and is done."""
        chat = self.app.chat
        await comes(
            self.pilot,
            lambda: text in chat.stage.talk.text and not chat.status.doing and chat.status.checkpoints == 1,
        )

    async def _end(self, label: str) -> None:
        """Let a branch come to its end, before another does: they are in the tree in that order."""
        (self.room / f"{label}.go").touch()
        panel = self.app.chat.stage.panels[label]
        await comes(self.pilot, lambda: panel.state == "done" and "Done" in panel.transcript.text)

    async def _take(self, scene: str) -> None:
        chat = self.app.chat
        assert chat.session is not None
        session = chat.session
        await comes(self.pilot, lambda: not chat.stage.is_due and not chat.stage.talk.is_behind)
        await comes(self.pilot, lambda: chat.status.cost == session.cost)
        self.app.clear_notifications()
        for name, theme in self.themes.items():
            self.app.theme = theme
            self.drawn[f"{scene}-{name}"] = await settled(self.pilot)


@contextmanager
def _states_in(place: Path) -> Iterator[None]:
    """Have forkwise keep what it knows in a place."""
    held = os.environ.get("FORKWISE_STATE")
    os.environ["FORKWISE_STATE"] = str(place)
    try:
        yield
    finally:
        if held is None:
            del os.environ["FORKWISE_STATE"]
        else:
            os.environ["FORKWISE_STATE"] = held
