"""Tournament: many candidates, narrowed to one by comparing them two by two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Unpack

from forkwise.concurrency import run_in_thread, try_call
from forkwise.explore.pattern import Options, Pattern, Search, Subjects, copies
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import describe_error, describe_value
from forkwise.fork.evaluation import Evaluate

__all__ = ["Judge", "Tournament"]

#: Compares two directories: 0 where the first is better, 1 where the second is.
Judge = Callable[[Path, Path], Any]


class Tournament(Pattern):
    """Run a task ``n`` times, or a list of candidates once each; the judge compares those that succeeded in pairs, the
    better of each pair goes on, and the last is committed.

    A task is called with its directory and its number. ``judge`` is called with two directories and gives 0 or 1 for
    the better one. A judge that fails, or says something else, has said nothing: the higher score goes on then, or the
    first. What it said of whom is in the ledger.
    """

    kind: ClassVar[str] = "tournament"

    def __init__(
        self,
        task: Subjects,
        n: int = 4,
        *,
        judge: Judge,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        self._candidates = copies(task, n)
        self._judge = judge

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "tournament"
        attempts = await search.fork.run(search.fork.add(c, i) for i, c in enumerate(self._candidates))
        going = [a for a in attempts if a.success]
        matches: list[dict[str, Any]] = []
        while len(going) > 1:
            pairs = list(zip(going[::2], going[1::2], strict=False))
            bye = going[len(pairs) * 2 :]
            played = await asyncio.gather(*(self._play(*pair) for pair in pairs))
            matches += [match for _, match in played]
            going = [winner for winner, _ in played] + bye
        if matches:
            search.fork.ledger.record_verdict(search.fork.id, {"matches": matches, "winner": going[0].id})
        return going[0] if going else None

    async def _play(self, first: Attempt, second: Attempt) -> tuple[Attempt, dict[str, Any]]:
        doubt = None
        try:
            paths = await run_in_thread(lambda: (first.place.path, second.place.path))
            choice = (await try_call(self._judge, *paths)).get()
            if choice not in (0, 1):
                doubt = f"the judge said {describe_value(choice)}"
        except Exception as error:  # noqa: BLE001 - one match without a judge does not end the tournament
            doubt = describe_error(error)
        if doubt is not None:
            choice = int(second.scores > first.scores)
        winner = second if choice else first
        return winner, {"between": [first.id, second.id], "winner": winner.id, "doubt": doubt}
