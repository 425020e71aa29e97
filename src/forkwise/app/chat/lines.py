"""Lines: a chat as lines of text, or of JSON, and lines that are read: for a screen reader, a log, or a program.

No cursor is moved. A line is begun by whose it is: a branch's label, or nothing for the conversation itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from forkwise.app.chat.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BranchChanged,
    BranchText,
    Copied,
    CostChanged,
    Ended,
    Event,
    Failed,
    ForkAdopted,
    ForkLeft,
    ForkOpened,
    ForkResolved,
    Judged,
    MergeUndone,
    Moved,
    Notice,
    Ready,
    SettingsChanged,
    Shown,
    TextDelta,
    ThoughtDelta,
    ToolCalled,
    ToolReturned,
    TurnBegan,
    TurnEnded,
    as_json,
)

__all__ = ["JsonLines", "PlainLines"]

_CUT = 200

#: Prints one line.
Printer = Callable[[str], None]


class JsonLines:
    """Each event as a JSON object on a line."""

    def __init__(self, print_line: Printer) -> None:
        self._print = print_line

    def __call__(self, event: Event) -> None:
        self._print(json.dumps(as_json(event)))


class PlainLines:
    """Each event as lines for people. What is said piece by piece is printed line by line.

    >>> printed = []
    >>> show = PlainLines(printed.append)
    >>> for piece in ("one\\ntw", "o"): show(BranchText("a", piece))
    >>> show(BranchChanged("k3f9ab", "a", "k3f9ab.1", "done", 0))
    >>> printed
    ['a: one', 'a: two', '[a] done']
    """

    def __init__(self, print_line: Printer) -> None:
        self._print = print_line
        self._begun: dict[str | None, str] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._piece(None, text)
            case BranchText(branch, text):
                self._piece(branch, text)
            case ThoughtDelta() | CostChanged():
                pass
            case _:
                self._flush(getattr(event, "branch", None))
                for line in _told(event):
                    self._print(line)

    def _piece(self, whose: str | None, text: str) -> None:
        *whole, rest = (self._begun.get(whose, "") + text).split("\n")
        for line in whole:
            self._print(_prefixed(whose, line))
        self._begun[whose] = rest

    def _flush(self, whose: str | None) -> None:
        """Print what was begun; where it is about no branch, of everybody."""
        for name in list(self._begun) if whose is None else [whose]:
            if rest := self._begun.pop(name, ""):
                self._print(_prefixed(name, rest))


def _prefixed(whose: str | None, line: str) -> str:
    return line if whose is None else f"{whose}: {line}"


def _told(event: Event) -> list[str]:
    match event:
        case Ready():
            how = "new conversation" if event.is_new else f"conversation with {event.messages} messages"
            return [f"[{how} {event.conversation} in {event.workspace}, {event.model}; /help lists what can be typed]"]
        case TurnBegan(prompt, str(branch)):
            return [f"[{branch} is told: {_cut(prompt)}]"]
        case ToolCalled(_, tool, arguments, branch):
            return [_prefixed(branch, f"[calls {tool} {_cut(arguments)}]")]
        case ToolReturned(_, tool, result, is_error, branch):
            return [_prefixed(branch, f"[{tool} {'failed' if is_error else 'gave'}: {_cut(result)}]")]
        case TurnEnded(state, _, node, error):
            return [f"[done, at {node}]" if state == "done" else f"[{state}, at {node}{f': {error}' if error else ''}]"]
        case ForkOpened(fork, branches, by):
            return [f"[fork {fork} by {'you' if by == 'user' else 'the agent'}: {', '.join(branches)}]"]
        case ForkAdopted(fork, branches, why):
            left = "the agent left it" if why == "agent" else "left by an earlier chat"
            return [f"[fork {fork} is open, {left}: {', '.join(branches)}; /merge or /abort]"]
        case BranchChanged(_, branch, _, state, _, error):
            return [f"[{branch}] {state}{f': {error}' if error else ''}"]
        case Judged():
            sure = "sure enough" if event.is_sure else "not sure enough"
            return [f"[judged: {event.winner or 'nobody'}, {event.confidence:.2f}, {sure}: {_cut(event.reasoning)}]"]
        case ForkResolved():
            return _resolved(event)
        case ForkLeft(fork, branches):
            return [f"[fork {fork} is kept undecided ({', '.join(branches)}): the next chat goes on with it]"]
        case MergeUndone(fork, commit, node):
            files = "no files were changed by it" if commit is None else f"commit {commit} was undone"
            return [f"[the merge of fork {fork} is undone: {files}; at {node}]"]
        case ApprovalAsked(name, tool, arguments, branch):
            whose = "" if branch is None else f" in {branch}"
            return [f"[may {tool} be called{whose}? {_cut(arguments)}: /approve {name} or /deny {name}]"]
        case ApprovalAnswered(name, is_approved):
            answer = {True: "approved", False: "denied", None: "no longer asked"}[is_approved]
            return [f"[{name}: {answer}]"]
        case Moved(node, why):
            return [f"[{why}: at {node}]"]
        case SettingsChanged(text) | Notice(text):
            return [f"[{line}]" for line in text.splitlines()]
        case Failed(text):
            return [f"[error: {text}]"]
        case Shown(title, text):
            return [f"{title}:", *(f"  {line}" for line in text.splitlines())]
        case Copied(text):
            return text.splitlines()
        case Ended():
            return ["[ended]"]
    return []


def _resolved(event: ForkResolved) -> list[str]:
    if event.how == "abort":
        return [f"[fork {event.fork} is dropped, nothing was changed]"]
    files = len(event.paths) + len(event.deleted)
    lines = [f"[Merged: kept branch {' and '.join(event.winners)} ({event.how}), {files} files of fork {event.fork}]"]
    lines += [f"[kept as it is here, because somebody changed it meanwhile: {path}]" for path in event.conflicts]
    return [*lines, *(f"[error: {error}]" for error in event.errors)]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CUT else f"{line[: _CUT - 1]}…"
