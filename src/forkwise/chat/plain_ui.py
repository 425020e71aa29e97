"""The chat without panels: reads lines until the input ends, and prints events as plain text or JSON."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from forkwise.chat import open_session
from forkwise.chat.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BranchChanged,
    BranchText,
    ChatEvent,
    Copied,
    CostChanged,
    Ended,
    Failed,
    ForkAdopted,
    ForkLeft,
    ForkOpened,
    ForkResolved,
    Judged,
    Listener,
    MergeRefused,
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
from forkwise.chat.render import format_merge, format_refusal
from forkwise.concurrency import post
from forkwise.text.clean import truncate_line
from forkwise.text.phrases import format_number

if TYPE_CHECKING:
    from forkwise.chat.interpreter import When
    from forkwise.chat.session import Session

__all__ = [
    "JsonLines",
    "PlainLines",
    "chat_in_lines",
    "format_event",
]


_MAX_CHARS = 200  # of a prompt, argument or result, on one line

#: A function that prints one line.
Printer = Callable[[str], None]


class JsonLines:
    """A listener that prints each event as a JSON object on a line."""

    def __init__(self, print_line: Printer) -> None:
        self._print = print_line

    def __call__(self, event: ChatEvent) -> None:
        self._print(json.dumps(as_json(event)))


class PlainLines:
    """A listener that prints each event as text. Streamed text is printed line by line.

    >>> printed = []
    >>> show = PlainLines(printed.append)
    >>> for piece in ("one\\ntw", "o"): show(BranchText("a", piece))
    >>> show(BranchChanged("k3f9ab", "a", "k3f9ab.1", "done", 0))
    >>> printed
    ['a: one', 'a: two', '[a] done']
    """

    def __init__(self, print_line: Printer) -> None:
        self._print = print_line
        self._unfinished: dict[str | None, str] = {}

    def __call__(self, event: ChatEvent) -> None:
        match event:
            case TextDelta(text):
                self._add_text(None, text)
            case BranchText(branch, text):
                self._add_text(branch, text)
            case ThoughtDelta() | CostChanged():
                pass
            case _:
                self._flush(getattr(event, "branch", None))
                for line in format_event(event):
                    self._print(line)

    def _add_text(self, branch: str | None, text: str) -> None:
        *lines, rest = (self._unfinished.get(branch, "") + text).split("\n")
        for line in lines:
            self._print(_prefix(branch, line))
        self._unfinished[branch] = rest

    def _flush(self, branch: str | None) -> None:
        """Print the unfinished line of a branch; for None, those of the conversation and all branches."""
        for name in list(self._unfinished) if branch is None else [branch]:
            if rest := self._unfinished.pop(name, ""):
                self._print(_prefix(name, rest))


def _prefix(branch: str | None, line: str) -> str:
    return line if branch is None else f"{branch}: {line}"


def format_event(event: ChatEvent) -> list[str]:
    """Return the lines that tell an event to a person. Those about the chat, and not said in it, are in brackets."""
    match event:
        case Ready():
            kind = (
                "new conversation" if event.is_new else f"conversation with {format_number(event.messages, 'message')}"
            )
            return [f"[{kind} {event.conversation} in {event.workspace}, {event.model}; /help lists the commands]"]
        case TurnBegan(prompt, str(branch)):
            return [f"[prompt for {branch}: {truncate_line(prompt, _MAX_CHARS)}]"]
        case ToolCalled(_, tool, arguments, branch):
            return [_prefix(branch, f"[calls {tool} {truncate_line(arguments, _MAX_CHARS)}]")]
        case ToolReturned(_, tool, result, is_error, branch):
            return [
                _prefix(branch, f"[{tool} {'failed' if is_error else 'returned'}: {truncate_line(result, _MAX_CHARS)}]")
            ]
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
            reasoning = truncate_line(event.reasoning, _MAX_CHARS)
            return [f"[judged: {event.winner or 'no branch'}, {event.confidence:.2f}, {sure}: {reasoning}]"]
        case ForkResolved():
            return [f"[{line}]" for line in format_merge(event)]
        case MergeRefused():
            return [f"[{line}]" for line in format_refusal(event)]
        case ForkLeft(fork, branches):
            return [f"[fork {fork} is kept open ({', '.join(branches)}): the next chat resumes it]"]
        case MergeUndone(fork, commit, node):
            files = "it changed no files" if commit is None else f"commit {commit} was undone"
            return [f"[the merge of fork {fork} is undone: {files}; at {node}]"]
        case ApprovalAsked(name, tool, arguments, branch):
            scope = "" if branch is None else f" in {branch}"
            call = f"{tool}{scope}: {truncate_line(arguments, _MAX_CHARS)}"
            return [f"[approval needed for {call}; /approve {name} or /deny {name}]"]
        case ApprovalAnswered(name, is_approved):
            answer = {True: "approved", False: "denied", None: "no longer needed"}[is_approved]
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


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def chat_in_lines(
    directory: Path,
    show: Listener,
    *,
    model: str | None,
    conversation: str | None,
    is_new: bool,
    ask: Sequence[str],
    allow_executable_config: bool = False,
    source: TextIO = sys.stdin,
) -> signal.Signals | None:
    """Chat until the input, the user or a signal ends it. Return the signal, if it was one."""
    ui = _PlainUI(show, "soon" if source.isatty() else "in_order")
    session = await open_session(
        directory,
        model=model,
        conversation=conversation,
        is_new=is_new,
        ask=ask,
        allow_executable_config=allow_executable_config,
        listener=ui.on_event,
    )
    with _signal_handlers(lambda number: ui.on_signal(session, number)):
        try:
            await ui.read(session, source)
        finally:
            await session.close()
    if ui.is_output_closed:
        raise BrokenPipeError
    return ui.end_signal


class _PlainUI:
    def __init__(self, show: Listener, when: When) -> None:
        self._show = show
        self._end = asyncio.Event()
        self._is_warned = False
        self._when: When = when
        self.end_signal: signal.Signals | None = None
        self.is_output_closed = False

    async def read(self, session: Session, source: TextIO) -> None:
        """Run the lines of ``source`` until it, or the chat, ends."""
        lines = _read_lines(source)
        end = asyncio.create_task(self._end.wait())
        tasks: set[asyncio.Task[None]] = set()
        try:
            while not end.done():
                next_line = asyncio.create_task(lines.get())
                await asyncio.wait({next_line, end}, return_when=asyncio.FIRST_COMPLETED)
                if not next_line.done():
                    next_line.cancel()
                elif (line := next_line.result()) is not None:
                    self._is_warned = False
                    task = asyncio.create_task(session.submit(line, self._when))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    session.nobody_answers()
                    await self._wait_for(tasks)
                    return
        finally:
            end.cancel()
            session.interrupt()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait until all tasks are done, or the chat ends."""
        end = asyncio.ensure_future(self._end.wait())
        while tasks and not end.done():
            await asyncio.wait({*tasks, end}, return_when=asyncio.FIRST_COMPLETED)
        end.cancel()

    def on_event(self, event: ChatEvent) -> None:
        """Print an event. A closed output ends the chat."""
        try:
            if not self.is_output_closed:
                self._show(event)
        except BrokenPipeError:
            self.is_output_closed = True
        if isinstance(event, Ended) or self.is_output_closed:
            self._end.set()

    def on_signal(self, session: Session, number: signal.Signals) -> None:
        """Interrupt the turn on the first Ctrl-C; end the chat on the second, and on any other signal."""
        if number is signal.SIGINT and not self._is_warned:
            self._is_warned = True
            if not session.interrupt():
                self.on_event(Notice("press Ctrl-C once more to end the chat"))
            return
        self.end_signal = number
        self._end.set()


def _read_lines(source: TextIO) -> asyncio.Queue[str | None]:
    """Queue the lines of ``source``, then None. A daemon thread reads them: a blocked read cannot be cancelled."""
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="replace")
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with suppress(OSError, ValueError):
            for line in source:
                if not post(loop, queue.put_nowait, line):
                    return
        post(loop, queue.put_nowait, None)

    threading.Thread(target=read, name="forkwise chat input", daemon=True).start()
    return queue


@contextmanager
def _signal_handlers(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Handle signals within the block on the event loop."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
