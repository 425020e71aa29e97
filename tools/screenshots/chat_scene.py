"""The scenes of a chat: a real session with a scripted model, from the first prompt to the merge.

All pictures are taken in one run, because a session, its branches and its judge are slow to start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from forkwise.chat import open_session
from forkwise.chat.settings import Settings, save_settings
from forkwise.tui.chat.app import ChatApp
from forkwise.tui.chat.approval import AcceptanceScreen
from forkwise.tui.chat.pickers import MergePicker
from forkwise.tui.chat.screen import ChatScreen
from forkwise.tui.diff_view import DiffView, NwayScreen
from tools.screenshots.picture import SIZE, ignore_terminal_colours, temporary_state, wait_for, wait_until_settled
from tools.screenshots.store_versions import HASHED, PARENT, SORTED

__all__ = ["CHAT_SCENES", "draw_chat"]

#: The scenes, in the order in which they are played.
CHAT_SCENES = ("chat-start", "chat", "chat-fork", "chat-branch", "chat-accept", "chat-merge", "chat-nway", "chat-tree")

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
                "say": "I will look at how the store keeps its rows.",
                "calls": [_call("grep", pattern="self.rows", path="store.py")],
            },
            {
                "say": "## The cause\n\n`Store.get` scans **all rows**, so a lookup takes time proportional to their "
                "number:\n\n```python\nfor k, v in self.rows:\n    if k == key:\n        return v\n```\n\n"
                "There are two ways to make it faster:\n\n"
                "1. **A hash table**: constant time, but no order\n"
                "2. **Sorted keys**: logarithmic time, and ranges become cheap"
            },
        ],
    },
    _branch("hash", "I will use a dictionary.", HASHED, "Done: `add` and `get` take **constant time** now."),
    _branch(
        "sorted",
        "I will use `SortedDict`, which keeps keys in order.",
        SORTED,
        "Done: ranges are cheap, lookups logarithmic.",
    ),
    {
        "judge": True,
        "verdict": {
            "winner_branch_id": "hash",
            "confidence": 0.95,
            "reasoning": "Both are correct. hash is shorter and needs no new package.",
            "caveats": ["a missing key now raises KeyError"],
        },
    },
]


async def draw_chat(themes: Mapping[str, str]) -> dict[str, str]:
    """Draw all pictures. Return them by scene and theme, such as ``chat-tree-dark``."""
    with temporary_state() as scratch:
        script_directory, project = scratch / "script", scratch / "project"
        script_directory.mkdir()
        project.mkdir()
        save_settings(project, Settings(test="grep -q rows store.py"), ["test"])
        (project / "store.py").write_text(PARENT)
        (script_directory / "script.json").write_text(json.dumps({"reply": _SCRIPT}))
        with ignore_terminal_colours():
            app = ChatApp(partial(open_session, project, model=f"script:{script_directory / 'script.json'}"))
        app.animation_level = "none"
        async with app.run_test(size=SIZE) as pilot:
            drawn = await _Scenes(app, pilot, script_directory, themes).play()
            app.action_leave()
            await app.wait_closed()
        return drawn


class _Scenes:
    """Presses the keys of a user, and takes a picture of each scene."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], script_directory: Path, themes: Mapping[str, str]) -> None:
        self.app = app
        self.pilot = pilot
        self.script_directory = script_directory
        self.themes = themes
        self.drawn: dict[str, str] = {}

    def _have_written(self) -> bool:
        panels = self.app.chat.stage.panels.values()
        return len(panels) == 2 and all("wrote" in panel.transcript.text for panel in panels)

    async def play(self) -> dict[str, str]:
        """Play all scenes."""
        chat = self.app.chat
        await wait_for(self.pilot, lambda: chat.session is not None)
        chat.prompt.cursor_blink = False
        chat.status.model = _MODEL  # the real name contains a temporary directory
        chat.show_status()
        chat.stage.welcome.show(
            {**chat.stage.welcome.facts, "workspace": "/home/me/store", "model": f"{_MODEL} (free)"}
        )
        await self._take("chat-start")
        await self._write("Lookups in the store are slow. What can be done?")
        await self._wait_for_answer("ranges become cheap")
        await self._take("chat")

        await self._write("/fork hash: Use a hash table. | sorted: Keep the keys sorted.")
        await wait_for(self.pilot, self._have_written)
        await self._end("hash")
        await self._take("chat-fork")
        await self.pilot.press("tab")
        await wait_for(self.pilot, lambda: "def get" in chat.stage.panels["hash"].transcript.text)
        await self._take("chat-branch")
        await self.pilot.press("shift+tab")

        await self._end("sorted")
        await self._write("/merge")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, AcceptanceScreen))
        await self._take("chat-accept")

        await self.pilot.press("o")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, MergePicker) and bool(self._diff))
        await self._take("chat-merge")

        await self.pilot.press("w")
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, NwayScreen) and bool(self._diff))
        await self.pilot.press("space", "down", "space", "down", "right", "space")
        await self._take("chat-nway")

        await self.pilot.press("escape")
        await self._write("/merge hash")
        await wait_for(self.pilot, lambda: "Merged: kept branch hash" in chat.stage.talk.text)
        await self._write("/tree")
        from forkwise.tui.chat.tree_screen import TreeScreen

        def is_shown() -> bool:
            screen = self.app.screen
            if not isinstance(screen, TreeScreen) or not screen.is_mounted or screen.messages.is_behind:
                return False
            return screen.tree_panel.current is screen.walker.here and "Done" in screen.messages.text

        await wait_for(self.pilot, is_shown)
        await self._take("chat-tree")
        return self.drawn

    @property
    def _diff(self) -> str:
        return "".join(view.text for view in self.app.screen.query(DiffView))

    async def _write(self, text: str) -> None:
        await wait_for(self.pilot, lambda: isinstance(self.app.screen, ChatScreen))
        self.app.chat.prompt.text = text
        await self.pilot.press("enter")

    async def _wait_for_answer(self, text: str) -> None:
        """Wait until the agent has answered."""
        chat = self.app.chat
        await wait_for(
            self.pilot,
            lambda: text in chat.stage.talk.text and not chat.status.activity and chat.status.checkpoints == 1,
        )

    async def _end(self, label: str) -> None:
        """Let a branch finish before the next: the tree shows them in the order in which they finish."""
        (self.script_directory / f"{label}.go").touch()
        panel = self.app.chat.stage.panels[label]
        await wait_for(self.pilot, lambda: panel.state == "done" and "Done" in panel.transcript.text)

    async def _take(self, scene: str) -> None:
        chat = self.app.chat
        assert chat.session is not None
        session = chat.session
        await wait_for(self.pilot, lambda: not chat.stage.is_due and not chat.stage.current_transcript.is_behind)
        await wait_for(self.pilot, lambda: chat.status.cost == session.cost)
        self.app.clear_notifications()
        for name, theme in self.themes.items():
            self.app.theme = theme
            self.drawn[f"{scene}-{name}"] = await wait_until_settled(self.pilot)
