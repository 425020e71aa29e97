"""Reflexion: one attempt after the other, each told what was wrong with the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Unpack

from forkwise.concurrency import run_in_thread, try_call
from forkwise.explore.pattern import Options, Pattern, Search
from forkwise.fork.attempt import Attempt, feedback_of
from forkwise.fork.candidate import Candidate, Command, Task, describe_error
from forkwise.fork.evaluation import Evaluate

__all__ = ["Reflexion"]


class Reflexion(Pattern):
    """Run a task until it succeeds, ``max_retries`` times at most, and give each next attempt a critique of the last.

    A task is called with its directory, its number and the critique (None at first). ``critique`` is called with the
    directory of an attempt that failed; without it the critique is the failing tests' output, or why the attempt
    failed. Each attempt starts from the workspace as it is. A command finds the critique in ``$FORKWISE_FEEDBACK``.
    """

    kind: ClassVar[str] = "reflexion"

    def __init__(
        self,
        task: Task | Command,
        max_retries: int = 3,
        *,
        critique: Callable[[Path], Any] | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if max_retries < 1:
            raise ValueError(f"something is tried at least once, not {max_retries} times")
        Candidate.of(task)
        self._task = task
        self._tries = max_retries
        self._critique = critique

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "first success"
        feedback: str | None = None
        for index in range(self._tries):
            candidate = Candidate.of(self._task, index, feedback) if callable(self._task) else Candidate.of(self._task)
            attempt = search.fork.add(candidate, index, feedback=feedback)
            await search.fork.run([attempt])
            if attempt.success:
                return attempt
            if index + 1 < self._tries:
                feedback = await self._criticise(attempt)
        return None

    async def _criticise(self, attempt: Attempt) -> str:
        if self._critique is None or attempt.branch is None:
            return feedback_of(attempt)
        try:
            path = await run_in_thread(lambda: attempt.place.path)
            return str((await try_call(self._critique, path)).get())
        except Exception as error:  # noqa: BLE001 - a critic that fails does not end the search
            return f"{feedback_of(attempt)}\n\n(there is no critique: {describe_error(error)})"
