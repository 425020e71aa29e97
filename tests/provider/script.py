"""Scripts: they decide the provider's answers.

Any callable from a request to an answer will do. ``Script`` answers in order of arrival, ``Turns`` by how far the
conversation is (so that branches of it may run at once), ``Cases`` by the first predicate that holds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.provider.reply import Answer, answer, call
from tests.provider.request import Request

__all__ = ["Cases", "Responder", "Script", "ScriptEnded", "Step", "Turns", "says", "structured"]

Responder = Callable[[Request], Answer]
#: An answer, or a function that returns one.
Step = Answer | Responder


class ScriptEnded(AssertionError):  # noqa: N818 - named after the event
    """A request came for which the script has no answer."""

    def __init__(self, request: Request, steps: int) -> None:
        self.request = request
        said = f"no answer for turn {request.turn} of {request.first_user_text!r} ({request.provider})"
        super().__init__(f"{said}: the script has {steps} steps; add one, or a step for all that follow (then=…)")


class Script:
    """Answers in order of arrival; ``then`` is the answer to all later requests."""

    def __init__(self, steps: Sequence[Step], *, then: Step | None = None) -> None:
        self._steps = list(steps)
        self._then = then
        self._next = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Answer:
        with self._lock:
            number, self._next = self._next, self._next + 1
        return _taken(self._steps, self._then, number, request)

    @property
    def left(self) -> int:
        """The number of unused answers."""
        return max(0, len(self._steps) - self._next)


class Turns:
    """Answers by the number of assistant messages: the first step starts every conversation, the second follows it."""

    def __init__(self, steps: Sequence[Step], *, then: Step | None = None) -> None:
        self._steps = list(steps)
        self._then = then

    def __call__(self, request: Request) -> Answer:
        return _taken(self._steps, self._then, request.turn, request)


class Cases:
    """Answers by the first predicate that holds: ``Cases((says("tests"), call("run")), otherwise="Done.")``."""

    def __init__(self, *cases: tuple[Callable[[Request], bool], Step], otherwise: Step | None = None) -> None:
        self._cases = cases
        self._otherwise = otherwise

    def __call__(self, request: Request) -> Answer:
        step = next((step for holds, step in self._cases if holds(request)), self._otherwise)
        return _taken([], step, 0, request)


def says(text: str) -> Callable[[Request], bool]:
    """Return a predicate: the user's last text contains ``text``."""
    return lambda request: text in request.last_user_text


def structured(**fields: Any) -> Responder:
    """Return an output with these fields, through the tool ``final_result`` if there is one, else as JSON."""

    def respond(request: Request) -> Answer:
        tool = next((name for name in request.tool_names if name.startswith("final_result")), None)
        return answer(json.dumps(fields)) if tool is None else call(tool, **fields)

    return respond


def _taken(steps: Sequence[Step], then: Step | None, number: int, request: Request) -> Answer:
    step = steps[number] if number < len(steps) else then
    if step is None:
        raise ScriptEnded(request, len(steps))
    return step(request) if callable(step) else step
