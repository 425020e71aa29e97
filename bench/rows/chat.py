"""A chat in a real pseudo-terminal: the time to the first frame, and from a key to its effect while branches stream."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.figure import Figure
from bench.line import Goal, Line
from bench.scratch import Scratch
from bench.terminal_program import TerminalProgram

__all__ = ["measure_chat"]

_BRANCHES = 10
_WORDS = 20_000
_PACE = 0.02  # seconds for each word of each branch: fifty tokens a second, each
_LETTERS = [chr(number) for number in range(0x410, 0x450)]  # nothing else on the screen contains them
_LEAVE = b"\x11"  # ctrl+q
_TAB, _BACK = b"\t", b"\x1b[Z"


def measure_chat(scratch: Scratch) -> list[Line]:
    """Measure the first frame of several chats, then keys in one of them."""
    directory = scratch.make_directory("chat")
    script = Path(scratch.make_directory("script"), "script.json")
    words = " ".join(f"word{number}" for number in range(_WORDS))
    script.write_text(json.dumps({"pace": _PACE, "reply": [{"say": words}]}))
    chat = (["chat", "--new", "--model", f"script:{script}"], _LEAVE)

    scratch.report("the first frame of a chat")
    frames = []
    for _ in range(scratch.rounds(9, 3)):
        panels = TerminalProgram(directory, *chat)
        # The first letter is under the cursor, and is drawn separately.
        frames.append(panels.wait_for("ay something") - panels.started)
        panels.wait_for("tokens")  # the session is open
        panels.close()

    scratch.report("keys while ten branches stream")
    panels = TerminalProgram(directory, *chat)
    panels.wait_for("tokens")
    labels = [f"b{number:02}" for number in range(1, _BRANCHES + 1)]
    panels.press(f"/fork {' | '.join(f'{label}: go' for label in labels)}\r".encode())
    panels.wait_for(f"FORK: {_BRANCHES}")
    for label in labels:
        panels.press(_TAB)
        panels.wait_for(f"branch {label}")
    letters, tabs = [], []
    for turn in range(scratch.rounds(60, 20)):
        pressed = panels.press(_LETTERS[turn].encode())
        letters.append(panels.wait_for(_LETTERS[turn]) - pressed)
        time.sleep(0.05)  # a user presses keys no faster
        backwards, position = turn // (_BRANCHES - 1) % 2 == 0, turn % (_BRANCHES - 1)
        pressed = panels.press(_BACK if backwards else _TAB)
        tabs.append(panels.wait_for(f"branch {labels[-2 - position if backwards else position + 1]}") - pressed)
        time.sleep(0.05)
    panels.press(b"\x15/abort\r")  # ctrl+u clears the line
    panels.wait_for("aborted")
    panels.close()
    first = Line("forkwise chat: the first frame, from the start of the process", Figure(tuple(frames)))
    first.goals.append(Goal("< 1 s", first.ours.median, 1.0))
    lines = [first]
    for name, taken in (("a letter typed", letters), ("another branch's tab shown", tabs)):
        line = Line(f"forkwise chat: {name} while ten branches stream", Figure(tuple(taken)))
        line.goals.append(Goal("< 50 ms", line.ours.median * 1000, 50))
        lines.append(line)
    return lines
