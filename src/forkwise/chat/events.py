"""Feed: who listens to a chat, and how they are told what happens."""

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
    "Copied",
    "CostChanged",
    "Ended",
    "Event",
    "Failed",
    "Feed",
    "ForkAdopted",
    "ForkLeft",
    "ForkOpened",
    "ForkResolved",
    "Judged",
    "Listener",
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


_LONGEST = 2000


def error_text(error: BaseException) -> str:
    """What went wrong.

    >>> told(ValueError("no such thing"))
    'no such thing'
    >>> told(KeyError("x"))
    "KeyError: 'x'"
    """
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError | AssertionError | AttributeError | TypeError | NameError):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    remedy = getattr(error, "remedy", "")
    if remedy and remedy not in text:
        text = f"{text.rstrip('.')}; {remedy}"
    return text[:_LONGEST]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened."""


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """The chat can be talked to. ``messages`` is how many there are on the way to where one is."""

    conversation: str
    workspace: str
    model: str
    is_new: bool
    messages: int


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The chat is over; no event follows."""


# Talking


@dataclass(frozen=True, slots=True)
class TurnBegan(Event):
    """Something was said to the agent, or to a branch that was done."""

    prompt: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta(Event):
    """The next piece of what the agent says."""

    text: str


@dataclass(frozen=True, slots=True)
class BranchText(Event):
    """The next piece of what a branch says."""

    branch: str
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta(Event):
    """The next piece of what the agent, or a branch, thinks aloud."""

    text: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCalled(Event):
    """A tool is called; ``arguments`` is JSON."""

    call: str
    tool: str
    arguments: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ToolReturned(Event):
    """A tool gave its result, or failed."""

    call: str
    tool: str
    result: str
    is_error: bool = False
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded(Event):
    """The agent has answered, was interrupted, or failed. ``node`` is where the conversation is now."""

    state: Literal["done", "interrupted", "failed"]
    text: str
    node: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CostChanged(Event):
    """What all of the conversation has taken so far; ``usd`` is None where no price is known."""

    requests: int
    input_tokens: int
    output_tokens: int
    usd: float | None = None


# Forks


@dataclass(frozen=True, slots=True)
class ForkOpened(Event):
    """Branches began to run."""

    fork: str
    branches: tuple[str, ...]
    by: Literal["user", "agent"]


@dataclass(frozen=True, slots=True)
class ForkAdopted(Event):
    """A fork is to be decided here: the agent left it open when its turn ended, or another process did."""

    fork: str
    branches: tuple[str, ...]
    why: Literal["agent", "resumed"]


@dataclass(frozen=True, slots=True)
class BranchChanged(Event):
    """Where a branch stands now."""

    fork: str
    branch: str
    id: str
    state: str
    turn: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Judged(Event):
    """What judges said. Nothing is merged by that; ``is_sure`` says that it may be without asking anybody."""

    fork: str
    winner: str | None
    confidence: float
    reasoning: str
    is_sure: bool
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForkResolved(Event):
    """A fork is decided. ``how`` is ``pick``, ``combine``, ``auto``, ``vote``, ``choice``, ``override`` or
    ``abort``."""

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
class ForkLeft(Event):
    """The chat ends with a fork undecided: it is kept, and the next chat goes on with it."""

    fork: str
    branches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeUndone(Event):
    """A merge was taken back, its files and what was said; ``node`` is where the conversation is now."""

    fork: str
    commit: str | None
    node: int


# Asking and telling


@dataclass(frozen=True, slots=True)
class ApprovalAsked(Event):
    """A tool is not called until somebody approves or denies it by this id."""

    id: str
    tool: str
    arguments: str
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalAnswered(Event):
    """A question is answered, or nobody wants to know any more (``is_approved`` None)."""

    id: str
    is_approved: bool | None


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """The conversation goes on from another place."""

    node: int
    why: str


@dataclass(frozen=True, slots=True)
class SettingsChanged(Event):
    """A setting was changed, and written down."""

    text: str


@dataclass(frozen=True, slots=True)
class Shown(Event):
    """What a command found, as text."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Copied(Event):
    """A text is to be put where it can be pasted from."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something the reader should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """What was asked for did not happen, and why."""

    text: str


def as_json(event: Event) -> dict[str, Any]:
    """An event as JSON holds it.

    >>> as_json(BranchText("a", "hello"))
    {'event': 'branch_text', 'branch': 'a', 'text': 'hello'}
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": name, **asdict(event)}


#: Is told of each event, on the event loop, one after the other. It must not block.
Listener = Callable[[Event], None]


class Feed:
    """Any number of listeners. One that fails does not keep the others, or the chat, from going on.

    >>> from forkwise.chat.events import Notice
    >>> feed, heard = Feed(), []
    >>> stop = feed.listen(heard.append)
    >>> feed.tell(Notice("hello")); stop(); feed.tell(Notice("nobody hears this"))
    >>> heard
    [Notice(text='hello')]
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._held: list[Event] | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have somebody told of all that happens from now on; gives what ends that."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._listeners.clear()

    @contextmanager
    def buffered(self) -> Iterator[None]:
        """Keep what is told until the block is over, or has told what comes first."""
        self._held = []
        try:
            yield
        finally:
            self._let_out()

    def tell_first(self, event: Event) -> None:
        """Tell everybody, and then what was held until now."""
        self._let_out(event)

    def _let_out(self, *first: Event) -> None:
        held, self._held = self._held or [], None
        for event in (*first, *held):
            self.publish(event)

    def publish(self, event: Event) -> None:
        """Tell everybody."""
        if self._held is not None:
            self._held.append(event)
            return
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a face that fails to show something is no reason to stop
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a listener failed on {event!r}", "exception": error}
                )
