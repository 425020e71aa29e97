"""The face without panels: reads lines until there are no more, and prints what happens."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from forkwise.chat import open_session
from forkwise.chat.events import (
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
    Listener,
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
from forkwise.chat.interpreter import When
from forkwise.chat.session import Session

__all__ = [
    "JsonLines",
    "PlainLines",
    "chat_in_lines",
]


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


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def chat_in_lines(
    directory: Path,
    show: Listener,
    *,
    model: str | None,
    conversation: str | None,
    is_new: bool,
    ask: Sequence[str],
    source: TextIO = sys.stdin,
) -> signal.Signals | None:
    """Chat until the lines end, or somebody does; gives the signal that ended it, if one did."""
    face = _Face(show, "soon" if source.isatty() else "in_order")
    session = await open_session(
        directory, model=model, conversation=conversation, is_new=is_new, ask=ask, listener=face.heard
    )
    with _handling(lambda number: face.signalled(session, number)):
        try:
            await face.read(session, source)
        finally:
            await session.close()
    if face.is_unheard:
        raise BrokenPipeError
    return face.ended_by


class _Face:
    def __init__(self, show: Listener, when: When) -> None:
        self._show = show
        self._over = asyncio.Event()
        self._is_warned = False
        self._when: When = when
        self.ended_by: signal.Signals | None = None
        self.is_unheard = False

    async def read(self, session: Session, source: TextIO) -> None:
        """Do what the lines ask for. Those that cannot be done now wait until they can."""
        lines = _lines_of(source)
        over = asyncio.create_task(self._over.wait())
        doing: set[asyncio.Task[None]] = set()
        try:
            while not over.done():
                following = asyncio.create_task(lines.get())
                await asyncio.wait({following, over}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                elif (line := following.result()) is not None:
                    self._is_warned = False
                    task = asyncio.create_task(session.submit(line, self._when))
                    doing.add(task)
                    task.add_done_callback(doing.discard)
                else:
                    session.nobody_answers()
                    await self._finished(doing)
                    return
        finally:
            over.cancel()
            session.interrupt()
            for task in list(doing):
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)

    async def _finished(self, doing: set[asyncio.Task[None]]) -> None:
        """Wait until all is done, or somebody ends the chat."""
        over = asyncio.ensure_future(self._over.wait())
        while doing and not over.done():
            await asyncio.wait({*doing, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()

    def heard(self, event: Event) -> None:
        """Show what happens. It may end the chat; and where nobody reads on, that ends it too."""
        try:
            if not self.is_unheard:
                self._show(event)
        except BrokenPipeError:
            self.is_unheard = True
        if isinstance(event, Ended) or self.is_unheard:
            self._over.set()

    def signalled(self, session: Session, number: signal.Signals) -> None:
        """The first Ctrl-C ends the turn under way, the second the chat; any other signal the chat at once."""
        if number is signal.SIGINT and not self._is_warned:
            self._is_warned = True
            if not session.interrupt():
                self.heard(Notice("Ctrl-C once more ends the chat"))
            return
        self.ended_by = number
        self._over.set()


def _lines_of(source: TextIO) -> asyncio.Queue[str | None]:
    """The lines of a file as they come, then None. Read in a thread that nobody waits for."""
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="replace")
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody wants more
            with suppress(OSError, ValueError):
                for line in source:
                    loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, name="forkwise chat input", daemon=True).start()
    return queue


class _handling:  # noqa: N801 - it is used as a function is
    """Have signals told to somebody within a block."""

    def __init__(self, told: Callable[[signal.Signals], None]) -> None:
        self._told = told

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._told, number)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
