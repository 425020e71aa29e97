"""Tournament: run several candidates; a judge compares them in pairs until one is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from forkwise.explore.judges.contest import Contest, FunctionJudge, PairAnswer, PairJudge
from forkwise.explore.pattern import Options, Pattern, Search, Subjects, build_copies
from forkwise.fork.candidate import describe_error
from forkwise.text.phrases import format_number

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate

__all__ = ["Judge", "Tournament"]

#: Compares two directories; returns 0 if the first is better, 1 if the second is.
Judge = Callable[[Path, Path], Any]


class Tournament(Pattern):
    """Run a task ``n`` times, or a list of candidates once each; a knockout between the successes finds the winner.

    A task is called with its directory and its number. ``judge`` is called with two directories and returns 0 or 1 for
    the better one. It is asked about each pair in both orders: if it contradicts itself, the higher score wins the
    match, or else the first. If it raises or returns anything else, that is a warning, and the higher score wins. If
    the scores are equal, nothing is committed, and the fork waits for a pick. An attempt without any change takes part
    only if there are no others. The judge may also be a ``ModelJudge``, which reads the diffs of attempts with equal
    test results. The ledger records every match.
    """

    kind: ClassVar[str] = "tournament"

    def __init__(
        self,
        task: Subjects,
        n: int = 4,
        *,
        judge: Judge | PairJudge,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        self._candidates = build_copies(task, n)
        self._judge = judge

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "tournament"
        attempts = await search.run(search.fork.add(c, i) for i, c in enumerate(self._candidates))
        if isinstance(self._judge, PairJudge):
            return await Contest(self._judge, knockout=True).choose_accepted(search, attempts)
        judge = FunctionJudge(self._judge)
        while (winner := await self._run_knockout(search, attempts, judge)) is not None:
            if search.undecided or await search.accept(winner):
                return winner
        return None

    async def _run_knockout(self, search: Search, attempts: list[Attempt], judge: FunctionJudge) -> Attempt | None:
        successes = [a for a in attempts if a.success]
        remaining = [a for a in successes if a.rank[0]] or successes
        matches: list[dict[str, Any]] = []
        while len(remaining) > 1:
            pairs = list(zip(remaining[::2], remaining[1::2], strict=False))
            bye = remaining[len(pairs) * 2 :]
            results = await asyncio.gather(*(_run_match(judge, *pair) for pair in pairs))
            matches += [match for _, match in results]
            remaining = [winner for winner, _ in results] + bye
        if matches:
            self._record_verdict(search, matches, remaining[0], judge)
        return remaining[0] if remaining else None

    def _record_verdict(
        self, search: Search, matches: list[dict[str, Any]], winner: Attempt, judge: FunctionJudge
    ) -> None:
        """Record the matches. Warn if a judge failed; if a match between equals depended on it, nothing is decided."""
        verdict: dict[str, Any] = {"matches": matches}
        failed = [match for match in matches if match["doubt"] is not None]
        search.undecided = any(match["winner"] is None for match in failed)
        if failed:
            pairs = f"{len(failed)} of {format_number(len(matches), 'match')}"
            reasons = "; ".join(dict.fromkeys(str(match["doubt"]) for match in failed))
            decided = (
                "equal attempts were left, so nothing is decided" if search.undecided else "scores decided instead"
            )
            verdict["warnings"] = [f"the judge failed in {pairs}: {reasons}; {decided}"]
            search.warn(verdict["warnings"][0])
        if not search.undecided:
            own = [match for match in matches if winner.id in match["between"]]
            confidence = sum(match["confidence"] for match in own) / max(len(own), 1)
            vote = {"judge": judge.name, "winner": winner.id, "confidence": confidence}
            verdict["winner"] = winner.id
            verdict["votes"] = [vote] if confidence else []  # otherwise it failed or contradicted itself
        search.fork.ledger.record_verdict(search.fork.id, verdict)


async def _run_match(judge: FunctionJudge, first: Attempt, second: Attempt) -> tuple[Attempt, dict[str, Any]]:
    doubt, choice, answer = None, None, PairAnswer(None, 0.0)
    try:
        answer = await judge.compare(first, second)
        choice = answer.choice
    except Exception as error:  # noqa: BLE001 - a failing judge does not end the tournament
        doubt = describe_error(error)
    winner = (first, second)[int(second.rank > first.rank) if choice is None else choice]
    is_open = doubt is not None and first.rank == second.rank
    return winner, {
        "between": [first.id, second.id],
        "winner": None if is_open else winner.id,
        "confidence": answer.confidence,
        "reason": answer.reason,
        "doubt": doubt,
    }
