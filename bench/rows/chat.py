"""A chat in a real pseudo-terminal: how soon it is there, and how soon a key is answered while ten branches stream."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.panels import Panels

__all__ = ["measure_chat"]

_BRANCHES = 10
_WORDS = 20_000
_PACE = 0.02  # seconds for each word of each branch: fifty tokens a second, each
_LETTERS = [chr(number) for number in range(0x410, 0x450)]  # which nothing else on the screen is written with
_LEAVE = b"\x11"  # ctrl+q
_TAB, _BACK = b"\t", b"\x1b[Z"


def measure_chat(ground: Ground) -> list[Line]:
    """Started several times over; then one of them is written in and walked through."""
    directory = ground.directory("chat")
    script = Path(ground.directory("script"), "script.json")
    words = " ".join(f"word{number}" for number in range(_WORDS))
    script.write_text(json.dumps({"pace": _PACE, "reply": [{"say": words}]}))
    chat = (["chat", "--new", "--model", f"script:{script}"], _LEAVE)

    ground.say("a chat's first frame")
    frames = []
    for _ in range(ground.rounds(9, 3)):
        panels = Panels(directory, *chat)
        # Its first letter is under the cursor, and is drawn apart.
        frames.append(panels.drawn("ay something") - panels.begun)
        panels.drawn("tokens")  # it has started
        panels.close()

    ground.say("keys while ten branches stream")
    panels = Panels(directory, *chat)
    panels.drawn("tokens")
    labels = [f"b{number:02}" for number in range(1, _BRANCHES + 1)]
    panels.press(f"/fork {' | '.join(f'{label}: go' for label in labels)}\r".encode())
    panels.drawn(f"FORK: {_BRANCHES}")
    for label in labels:
        panels.press(_TAB)
        panels.drawn(f"branch {label}")
    letters, tabs = [], []
    for turn in range(ground.rounds(60, 20)):
        pressed = panels.press(_LETTERS[turn].encode())
        letters.append(panels.drawn(_LETTERS[turn]) - pressed)
        time.sleep(0.05)  # as fast as a person presses them
        backwards, at = turn // (_BRANCHES - 1) % 2 == 0, turn % (_BRANCHES - 1)
        pressed = panels.press(_BACK if backwards else _TAB)
        tabs.append(panels.drawn(f"branch {labels[-2 - at if backwards else at + 1]}") - pressed)
        time.sleep(0.05)
    panels.press(b"\x15/abort\r")  # in an empty line
    panels.drawn("aborted")
    panels.close()
    first = Line("forkwise chat: the first frame, from the start of the process", Figure(tuple(frames)))
    first.goals.append(Goal("< 1 s", first.ours.median, 1.0))
    lines = [first]
    for name, taken in (("a letter typed", letters), ("another branch's tab shown", tabs)):
        line = Line(f"forkwise chat: {name} while ten branches stream", Figure(tuple(taken)))
        line.goals.append(Goal("< 50 ms", line.ours.median * 1000, 50))
        lines.append(line)
    return lines
