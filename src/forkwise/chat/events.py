"""The events of a chat as values, and the feed that delivers them to listeners.

An event's class name and fields are its JSON form (`as_json`). This module stays light: the first frame of a chat loads
it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "ApprovalAnswered",
    "ApprovalAsked",
    "BranchChanged",
    "BranchText",
    "ChatEvent",
    "Copied",
    "CostChanged",
    "Ended",
    "Failed",
    "Feed",
    "ForkAdopted",
    "ForkLeft",
    "ForkOpened",
    "ForkResolved",
    "Judged",
    "Listener",
    "MergeRefused",
    "MergeUndone",
    "Moved",
    "Notice",
    "Ready",
    "SettingsChanged",
    "Shown",
    "TextDelta",
    "ThoughtDelta",
    "ToolCalled",
    "ToolReturned",
    "TurnBegan",
    "TurnEnded",
    "as_json",
    "error_text",
]


_MAX_ERROR_CHARS = 2000


def error_text(error: BaseException) -> str:
    """Format an error as one line, with its remedy if it has one.

    >>> error_text(ValueError("no such thing"))
    'no such thing'
    >>> error_text(KeyError("x"))
    "KeyError: 'x'"
    """
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError | AssertionError | AttributeError | TypeError | NameError):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    remedy = getattr(error, "remedy", "")
    if remedy and remedy not in text:
        text = f"{text.rstrip('.')}; {remedy}"
    return text[:_MAX_ERROR_CHARS]


@dataclass(frozen=True, slots=True)
class ChatEvent:
    """The base of all events of a chat."""


@dataclass(frozen=True, slots=True)
class Ready(ChatEvent):
    """The chat takes input. ``messages`` is the number of messages up to the current node."""

    conversation: str
    workspace: str
    model: str
    is_new: bool
    messages: int


@dataclass(frozen=True, slots=True)
class Ended(ChatEvent):
    """The chat ended; no event follows."""


# Turns


@dataclass(frozen=True, slots=True)
class TurnBegan(ChatEvent):
    """A turn of the agent began, or a further turn of a branch."""

    prompt: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta(ChatEvent):
    """The next piece of the agent's answer."""

    text: str


@dataclass(frozen=True, slots=True)
class BranchText(ChatEvent):
    """The next piece of a branch's answer."""

    branch: str
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta(ChatEvent):
    """The next piece of the reasoning of the agent, or of a branch."""

    text: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCalled(ChatEvent):
    """The model called a tool; ``arguments`` is JSON."""

    call: str
    tool: str
    arguments: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ToolReturned(ChatEvent):
    """A tool returned its result, or failed."""

    call: str
    tool: str
    result: str
    is_error: bool = False
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded(ChatEvent):
    """The agent answered, was interrupted, or failed. ``node`` is the conversation's current node."""

    state: Literal["done", "interrupted", "failed"]
    text: str
    node: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CostChanged(ChatEvent):
    """The cost of the whole conversation so far; ``usd`` is None if no price is known.

    Requests to local models cost nothing. ``unpriced`` is the number of requests whose price is not known.
    """

    requests: int
    input_tokens: int
    output_tokens: int
    usd: float | None = None
    unpriced: int = 0


# Forks


@dataclass(frozen=True, slots=True)
class ForkOpened(ChatEvent):
    """A fork was opened, and its branches run."""

    fork: str
    branches: tuple[str, ...]
    by: Literal["user", "agent"]


@dataclass(frozen=True, slots=True)
class ForkAdopted(ChatEvent):
    """The user has to resolve a fork that the agent's turn, or an earlier chat, left open."""

    fork: str
    branches: tuple[str, ...]
    why: Literal["agent", "resumed"]


@dataclass(frozen=True, slots=True)
class BranchChanged(ChatEvent):
    """The state of a branch changed."""

    fork: str
    branch: str
    id: str
    state: str
    turn: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Judged(ChatEvent):
    """The verdict of the judges. Nothing is merged yet.

    ``is_sure``: the judges are confident enough to merge without asking the user.
    """

    fork: str
    winner: str | None
    confidence: float
    reasoning: str
    is_sure: bool
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForkResolved(ChatEvent):
    """A fork was resolved.

    ``how`` is ``pick``, ``combine``, ``auto``, ``vote``, ``choice``, ``override`` or ``abort``.
    """

    fork: str
    how: str
    winners: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    commit: str | None = None
    by: Literal["user", "agent"] = "user"


@dataclass(frozen=True, slots=True)
class MergeRefused(ChatEvent):
    """A merge would change what the user's machine will run. Nothing was changed, and the fork is as it was.

    ``executable_config`` has the paths, each with what will run or read it; the line ``retry`` merges anyway.
    """

    executable_config: tuple[tuple[str, str], ...]
    retry: str


@dataclass(frozen=True, slots=True)
class ForkLeft(ChatEvent):
    """The chat ended with an open fork, which the next chat resumes."""

    fork: str
    branches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeUndone(ChatEvent):
    """A merge was undone, its files and its messages; ``node`` is the conversation's current node."""

    fork: str
    commit: str | None
    node: int


# Approvals, settings, output


@dataclass(frozen=True, slots=True)
class ApprovalAsked(ChatEvent):
    """A tool call waits until the user approves or denies it by this id."""

    id: str
    tool: str
    arguments: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalAnswered(ChatEvent):
    """An approval was answered, or is no longer needed (``is_approved`` None)."""

    id: str
    is_approved: bool | None


@dataclass(frozen=True, slots=True)
class Moved(ChatEvent):
    """The conversation continues from another node."""

    node: int
    why: str


@dataclass(frozen=True, slots=True)
class SettingsChanged(ChatEvent):
    """A setting was changed and saved, or shown."""

    text: str


@dataclass(frozen=True, slots=True)
class Shown(ChatEvent):
    """The output of a command, as text."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Copied(ChatEvent):
    """A text that the user interface should copy to the clipboard."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice(ChatEvent):
    """A message for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed(ChatEvent):
    """A command or prompt failed; ``text`` says why."""

    text: str


def as_json(event: ChatEvent) -> dict[str, Any]:
    """Convert an event to a JSON object.

    >>> as_json(BranchText("a", "hello"))
    {'event': 'branch_text', 'branch': 'a', 'text': 'hello'}
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": name, **asdict(event)}


#: A function called with each event, on the event loop, in order. It must not block.
Listener = Callable[[ChatEvent], None]


class Feed:
    """Delivers events to any number of listeners. A listener that fails stops neither the others nor the chat.

    >>> feed, events = Feed(), []
    >>> unsubscribe = feed.subscribe(events.append)
    >>> feed.publish(Notice("hello")); unsubscribe(); feed.publish(Notice("not delivered"))
    >>> events
    [Notice(text='hello')]
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._buffer: list[ChatEvent] | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Subscribe to events. Return a function that unsubscribes."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def close(self) -> None:
        """Unsubscribe all listeners."""
        self._listeners.clear()

    @contextmanager
    def buffered(self) -> Iterator[None]:
        """Hold events back until the block ends or calls `publish_first`."""
        self._buffer = []
        try:
            yield
        finally:
            self._flush()

    def publish_first(self, event: ChatEvent) -> None:
        """Publish an event, then all events that were held back."""
        self._flush(event)

    def _flush(self, *first: ChatEvent) -> None:
        buffer, self._buffer = self._buffer or [], None
        for event in (*first, *buffer):
            self.publish(event)

    def publish(self, event: ChatEvent) -> None:
        """Call every listener with an event."""
        if self._buffer is not None:
            self._buffer.append(event)
            return
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a user interface that fails to draw must not stop the chat
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a listener failed on {event!r}", "exception": error}
                )
