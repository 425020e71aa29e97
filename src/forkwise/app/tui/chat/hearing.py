"""Hearing: what is said in a session is put where it is seen: in the conversation, or in the panel of a branch."""

from __future__ import annotations

import json
from collections.abc import Iterable

from forkwise.app.chat.events import (
    BranchChanged,
    BranchText,
    Event,
    ForkResolved,
    MergeUndone,
    TextDelta,
    ThoughtDelta,
    ToolCalled,
    ToolReturned,
    TurnBegan,
    TurnEnded,
)
from forkwise.app.tui.chat.signs import short
from forkwise.app.tui.chat.stage import Stage
from forkwise.app.tui.chat.transcript import Transcript

__all__ = ["call_text", "hear", "merge_text", "retell"]

_WIDE = 160


def hear(stage: Stage, event: Event) -> None:
    """Put an event on the stage, if it is one that is seen there."""
    match event:
        case TextDelta(text):
            stage.talk.feed("text", text)
        case BranchText(branch, text):
            stage.place(branch).feed("text", text)
        case ThoughtDelta(text, branch):
            stage.place(branch).feed("thought", text)
        case ToolCalled(_, tool, arguments, branch):
            stage.place(branch).say("tool", call_text(tool, arguments))
        case ToolReturned(_, _, result, is_error, branch):
            stage.place(branch).say("error" if is_error else "result", short(result, _WIDE))
        case TurnBegan(prompt, branch):
            stage.place(branch).say("user", prompt)
        case TurnEnded(state, _, _, error):
            stage.talk.end()
            if state != "done":
                stage.talk.say("error" if error else "note", error or state)
        case BranchChanged(branch=name, state=state, turn=turn, error=error):
            panel = stage.panels.get(name)
            if panel is not None:
                panel.state, panel.turn, panel.error = state, turn, error or ""
                if state != "running":
                    panel.transcript.end()
        case ForkResolved():
            stage.talk.say("note", merge_text(event))
        case MergeUndone(fork):
            stage.talk.say("note", f"Undone: the merge of fork {fork}, its files and what was said")
    stage.changed()


def call_text(tool: str, arguments: str) -> str:
    """A tool call on one line.

    >>> call_text("write_file", '{"path": "src/store.py", "content": "..."}')
    'write_file src/store.py ...'
    """
    try:
        told = json.loads(arguments)
    except ValueError:
        told = arguments
    values = told.values() if isinstance(told, dict) else [told]
    return short(" ".join([tool, *(value if isinstance(value, str) else json.dumps(value) for value in values)]), _WIDE)


def merge_text(event: ForkResolved) -> str:
    """What became of a fork.

    >>> merge_text(ForkResolved("f1", "pick", ("whimsical",), ("cat.md",)))
    'Merged: kept branch whimsical · 1 file'
    """
    if event.how == "abort":
        return "The fork was aborted: nothing of it is kept"
    count = len(event.paths) + len(event.deleted)
    kept = f"branch{'' if len(event.winners) == 1 else 'es'} {', '.join(event.winners)}"
    lines = [f"Merged: kept {kept} · {count} file{'' if count == 1 else 's'}"]
    lines += [f"changed meanwhile, and written over: {path}" for path in event.conflicts]
    lines += [f"not written: {error}" for error in event.errors]
    return "\n".join(lines)


def retell(transcript: Transcript, told: Iterable[tuple[str, str, str]]) -> None:
    """Write what was said before, by who said it, what, and the tool that was used."""
    for who, text, name in told:
        if who == "call":
            transcript.say("tool", call_text(name, text))
        elif who == "result":
            transcript.say("result", short(text, _WIDE))
        else:
            transcript.say("user" if who == "user" else "text", text)
