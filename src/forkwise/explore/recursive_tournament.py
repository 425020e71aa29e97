"""RecursiveTournament: groups of attempts are judged, and summaries of the winners seed further attempts."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from forkwise.errors import ForkwiseWarning
from forkwise.explore.evidence.summary import Summaries, format_summaries
from forkwise.explore.judges.contest import JudgeLike, build_judge, count_test_scores
from forkwise.explore.pattern import Options, Pattern, Search, Subjects, is_single
from forkwise.fork.candidate import Candidate, describe_error

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate

__all__ = ["RecursiveTournament"]

_MAX_SUMMARIES = 4  # of the winner that an attempt follows, and of others


class RecursiveTournament(Pattern):
    """Run a task ``n`` times, or a list of candidates once each, and judge the successes in groups, round by round.

    Each group has one winner. As long as there are several winners, each one is followed by a refined attempt with the
    same candidate: it starts from the workspace, gets the winners' summaries as feedback, and replaces the winner if it
    is better. Then the winners are grouped again, until one is left. So ``n`` attempts in groups of 4 are followed by
    at most a third as many refined ones. ``budget`` limits the number of all attempts.

    A task or candidate is called with its directory, its number and the feedback (None at first); a command reads it in
    the file ``$FORKWISE_FEEDBACK``. ``judge`` is called with two directories and returns 0 or 1 for the better one, or
    is a ``ModelJudge``; without it, the higher scores win. It is asked about attempts with equal test results, in both
    orders; if it contradicts itself, the scores decide. They also decide, with a warning, if it raises or returns
    anything else; an attempt that neither the judge nor its scores preferred is then not committed.
    """

    kind: ClassVar[str] = "playoff"

    def __init__(
        self,
        task: Subjects,
        n: int = 8,
        *,
        group: int = 4,
        judge: JudgeLike | None = None,
        budget: int | None = None,
        summaries: Summaries | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if n < 1 or group < 2:
            raise ValueError(f"n must be at least 1 and group at least 2, not {n} and {group}")
        self._subjects: list[Any] = [task] * n if is_single(task) else list(task)  # type: ignore[arg-type]
        if not self._subjects:
            raise ValueError("there are no candidates: give at least one")
        for subject in self._subjects:
            Candidate.of(subject)
        if budget is not None and budget < len(self._subjects):
            raise ValueError(f"budget must be at least the number of first attempts, {len(self._subjects)}")
        self._group = group
        self._judge = judge
        self._budget = budget
        self._summaries = summaries or Summaries()

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "recursive tournament"
        attempts = await search.run(self._add(search, i, subject) for i, subject in enumerate(self._subjects))
        subjects = dict(zip(attempts, self._subjects, strict=True))
        table = _Table(self._judge, count_test_scores(search))
        seats = [attempt for attempt in attempts if attempt.success]
        while len(seats) > 1:
            groups = [seats[i : i + self._group] for i in range(0, len(seats), self._group)]
            seats = list(await asyncio.gather(*(table.judge_group(group) for group in groups)))
            if len(seats) > 1:
                seats = await self._refine(search, seats, subjects, table)
        if not seats:
            return None
        if table.matches:
            search.fork.ledger.record_verdict(search.fork.id, table.build_verdict(seats[0]))
        if seats[0] in table.undecided:
            search.undecided = True
            warnings.warn(
                f"{seats[0].id} is not committed: the judge failed, and its scores are no higher than those of others. "
                f"The first failure: {table.find_doubt()}",
                ForkwiseWarning,
                stacklevel=2,
            )
            return None
        return seats[0]

    async def _refine(
        self, search: Search, seats: list[Attempt], subjects: dict[Attempt, Any], table: _Table
    ) -> list[Attempt]:
        """Follow each winner with a refined attempt, as far as the budget allows; return the better of each two."""
        made = len(subjects)
        room = len(seats) if self._budget is None else min(len(seats), self._budget - made)
        if search.stopped is not None or room < 1:
            return seats
        known = [(seat, await self._summaries.summarise(seat)) for seat in seats]
        refined = []
        for number, seat in enumerate(seats[:room]):
            others = [(f"Attempt {other.number}", summary) for other, summary in known if other is not seat]
            described = [("The best attempt of your group", known[number][1]), *others[: _MAX_SUMMARIES - 1]]
            refined.append(self._add(search, made + number, subjects[seat], format_summaries(described)))
            subjects[refined[-1]] = subjects[seat]
        await search.run(refined)
        pairs = [[seat, *(new for new in refined[i : i + 1] if new.success)] for i, seat in enumerate(seats)]
        return list(await asyncio.gather(*(table.judge_group(pair) for pair in pairs)))

    def _add(self, search: Search, index: int, subject: Any, feedback: str | None = None) -> Attempt:
        arguments = (index, feedback) if callable(subject) else ()
        return search.fork.add(Candidate.of(subject, *arguments), index, feedback=feedback)


class _Table:
    """The matches of one tournament. ``undecided`` are attempts that won a match only by being the first of equals."""

    def __init__(self, judge: JudgeLike | None, test_scores: int) -> None:
        self._judge = None if judge is None else build_judge(judge)
        self._test_scores = test_scores
        self.matches: list[dict[str, Any]] = []
        self.undecided: set[Attempt] = set()

    async def judge_group(self, group: Sequence[Attempt]) -> Attempt:
        """Return the best of a group: each attempt plays against the best before it."""
        best = group[0]
        for other in group[1:]:
            best = await self._run_match(best, other)
        return best

    def find_doubt(self) -> str:
        """Return the first reason why the judge did not decide a match."""
        return next((str(match["doubt"]) for match in self.matches if match["doubt"]), "")

    def build_verdict(self, winner: Attempt) -> dict[str, Any]:
        """Return the matches and, with a judge, its vote and what it cost."""
        verdict: dict[str, Any] = {"matches": self.matches, "winner": winner.id}
        if self._judge is not None:
            own = [match for match in self.matches if winner.id in match["between"]]
            confidence = sum(match["confidence"] for match in own) / max(len(own), 1)
            vote = {"judge": self._judge.name, "winner": winner.id, "confidence": confidence}
            verdict |= {"votes": [vote] if confidence else [], "usage": asdict(self._judge.usage)}
        return verdict

    async def _run_match(self, first: Attempt, second: Attempt) -> Attempt:
        doubt, confidence = None, 0.0
        winner = second if second.scores > first.scores else first
        is_level = first.scores[: self._test_scores] == second.scores[: self._test_scores]
        if self._judge is not None and is_level:
            try:
                answer = await self._judge.compare(first, second)
                if answer.choice is not None:
                    winner, confidence = (first, second)[answer.choice], answer.confidence
            except Exception as error:  # noqa: BLE001 - a failing judge does not end the tournament
                doubt = describe_error(error)
        if doubt is not None:
            warnings.warn(
                f"the judge did not decide between {first.id} and {second.id}: {doubt}. Their scores decide",
                ForkwiseWarning,
                stacklevel=2,
            )
            if first.scores == second.scores:
                self.undecided.add(winner)
        between = [first.id, second.id]
        self.matches.append({"between": between, "winner": winner.id, "confidence": confidence, "doubt": doubt})
        return winner
