"""MessageQueue: what somebody says to an agent while it runs."""

from __future__ import annotations

from collections import deque
from typing import Literal

__all__ = ["MessageQueue", "Urgency"]

#: With the next request, or when the agent would otherwise be done.
Urgency = Literal["asap", "when_idle"]


class MessageQueue:
    """Messages that wait for an agent. Any thread may put one; what is not taken by the end of a run is there for the
    next.

    >>> queue = MessageQueue()
    >>> queue.put("make them shorter"); len(queue)
    1
    >>> queue.drain(), len(queue)
    ([('make them shorter', 'asap')], 0)
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Urgency]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def put(self, message: str, urgency: Urgency = "asap") -> None:
        """Say something to the agent."""
        self._waiting.append((message, urgency))

    def drain(self) -> list[tuple[str, Urgency]]:
        """Take all that waits, oldest first."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken
