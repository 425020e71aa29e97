"""Reflexion: one attempt after the other, each with a critique of the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from forkwise.concurrency import run_in_thread, try_call
from forkwise.explore.evidence.summary import Summaries, format_feedback
from forkwise.explore.pattern import Options, Pattern, Search
from forkwise.fork.candidate import Candidate, Subject, describe_error

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate

__all__ = ["Reflexion"]


class Reflexion(Pattern):
    """Run a task until it succeeds, at most ``max_retries`` times, each time with a critique of the last attempt.

    A task is called with its directory, its number and the critique (None at first). ``critique`` is called with the
    directory of an attempt that failed; by default the critique is the reason of the failure and the output of the
    failing tests. With ``summaries``, and always for a command, it is a summary: also what the attempt changed. Each
    attempt starts from the unchanged workspace. A command reads the critique in the file ``$FORKWISE_FEEDBACK``.
    """

    kind: ClassVar[str] = "reflexion"

    def __init__(
        self,
        task: Subject,
        max_retries: int = 3,
        *,
        critique: Callable[[Path], Any] | None = None,
        summaries: Summaries | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if max_retries < 1:
            raise ValueError(f"max_retries must be at least 1, not {max_retries}")
        Candidate.of(task)
        self._task = task
        self._tries = max_retries
        self._critique = critique
        self._summaries = summaries if callable(task) else summaries or Summaries()

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "first success"
        feedback: str | None = None
        for index in range(self._tries):
            candidate = Candidate.of(self._task, index, feedback) if callable(self._task) else Candidate.of(self._task)
            attempt = search.fork.add(candidate, index, feedback=feedback)
            await search.run([attempt])
            if attempt.success and await search.accept(attempt):
                return attempt
            if search.stopped is not None:
                break
            if index + 1 < self._tries and attempt.fault is None:
                feedback = await self._criticise(attempt)
        return None

    async def _criticise(self, attempt: Attempt) -> str:
        if self._critique is None or attempt.branch is None:
            return await format_feedback(attempt, self._summaries)
        try:
            path = await run_in_thread(lambda: attempt.own_branch.path)
            return str((await try_call(self._critique, path)).get())
        except Exception as error:  # noqa: BLE001 - a failing critique does not end the search
            feedback = await format_feedback(attempt, self._summaries)
            return f"{feedback}\n\n(the critique failed: {describe_error(error)})"
