"""Contest: attempts with equal test results, compared in pairs by a judge.

Test results come first: a judge is asked only about the successes with the best test scores. Of attempts with the same
changes only the first is compared. The ledger records every match, the judge's vote and what it cost.
"""

from __future__ import annotations

import asyncio
import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import run_in_thread, try_call
from forkwise.errors import ForkwiseWarning
from forkwise.fork.candidate import describe_error, describe_value
from forkwise.ledger.stored_changes import load_changes
from forkwise.telemetry import record_evaluation, span
from forkwise.text.clean import truncate_line
from forkwise.text.diff import unified

if TYPE_CHECKING:
    from forkwise.explore.pattern import Search
    from forkwise.fork.attempt import Attempt

__all__ = [
    "BY_ORDER",
    "Contest",
    "FunctionJudge",
    "JudgeLike",
    "JudgeUsage",
    "PairAnswer",
    "PairJudge",
    "build_judge",
    "count_test_scores",
    "find_name",
    "read_diff",
]

_PARALLEL = 4  # matches at a time: more would exceed providers' rate limits
_MAX_REASON = 500  # characters
BY_ORDER = "it chose by the order of the two"  # why a judge did not decide between two attempts


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """A judge's answer on two attempts: 0 or 1 for the better one, None for a tie or a contradiction."""

    choice: int | None
    confidence: float = 1.0
    reason: str = ""


@dataclass(slots=True)
class JudgeUsage:
    """What a judge has used so far. ``usd`` is None if no price is known."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None


class PairJudge(ABC):
    """Compares two attempts. ``name`` is recorded with its picks, ``usage`` with what they cost."""

    name: str

    def __init__(self) -> None:
        self.usage = JudgeUsage()

    @abstractmethod
    async def compare(self, first: Attempt, second: Attempt) -> PairAnswer:
        """Compare two attempts. Whatever it raises is reported, and the match stays undecided."""


#: The ``judge`` argument of patterns: one of the above, or a function of two directories.
JudgeLike = PairJudge | Callable[[Path, Path], Any]


def find_name(judge: JudgeLike) -> str:
    """Return the name under which a judge's picks are recorded: its ``name``, or that of the function or the class."""
    name = getattr(judge, "name", None) or getattr(judge, "__name__", None)
    return name if isinstance(name, str) else type(judge).__name__


class FunctionJudge(PairJudge):
    """A function that gets two directories and returns 0 or 1 for the better one.

    It is asked about each pair twice, in both orders. If the answers contradict each other, the result is a tie.
    """

    def __init__(self, function: Callable[[Path, Path], Any]) -> None:
        super().__init__()
        self._function = function
        self.name = find_name(function)

    async def compare(self, first: Attempt, second: Attempt) -> PairAnswer:
        paths = await run_in_thread(lambda: (first.own_branch.path, second.own_branch.path))
        choice, turned = await self._ask(*paths), await self._ask(*reversed(paths))
        if choice == turned:  # the same position both times, so a different attempt each time
            return PairAnswer(None, 0.0, BY_ORDER)
        return PairAnswer(choice)

    async def _ask(self, first: Path, second: Path) -> int:
        choice = (await try_call(self._function, first, second)).get()
        if choice not in (0, 1):
            raise ValueError(f"the judge returned {describe_value(choice)}")
        return int(choice)


def build_judge(judge: JudgeLike) -> PairJudge:
    """Build a judge from the ``judge`` argument of a pattern."""
    return judge if isinstance(judge, PairJudge) else FunctionJudge(judge)


def read_diff(attempt: Attempt) -> str:
    """Return the diff of an attempt that is over, from the ledger if it is there."""
    stored = load_changes(attempt.fork.ledger.fetch_files(attempt.id), attempt.id)
    return attempt.own_branch.diff() if stored is None else unified(stored.files)


@dataclass(slots=True)
class _Match:
    pair: tuple[Attempt, Attempt]
    winner: Attempt | None = None
    confidence: float = 0.0
    reason: str = ""
    doubt: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "between": [attempt.id for attempt in self.pair],
            "winner": None if self.winner is None else self.winner.id,
            "confidence": self.confidence,
            "reason": truncate_line(self.reason, _MAX_REASON),
            "doubt": self.doubt,
        }


class Contest:
    """The matches between attempts of one run; a pair is judged once.

    With ``knockout``, the loser of a match is out, so that n attempts need only n − 1 matches. Otherwise every pair is
    compared, and the attempt with the most wins is the winner.
    """

    def __init__(self, judge: JudgeLike, *, knockout: bool = False) -> None:
        self.judge = build_judge(judge)
        self._knockout = knockout
        self._matches: dict[frozenset[str], _Match] = {}

    async def choose_accepted(self, search: Search, attempts: Sequence[Attempt]) -> Attempt | None:
        """Return the winner that still passes its tests on top of the workspace's current files; see ``choose``."""
        while (winner := await self.choose(search, attempts)) is not None:
            if await search.accept(winner):
                return winner
        return None

    async def choose(self, search: Search, attempts: Sequence[Attempt]) -> Attempt | None:
        """Return the winner among attempts that are over; None if none succeeded, or if a failed judge leaves it open.

        Of attempts between which the judge does not decide, the one with the higher scores wins. If these are equal
        and the judge failed, there is no winner, and a warning says so.
        """
        best = search.select_best(attempts)
        level = [] if best is None else _find_level(search, best, [a for a in attempts if a.success])
        remaining = await run_in_thread(_drop_copies, level)
        if len(remaining) < 2:
            return best if best in remaining or not remaining else remaining[0]
        played, first = await (self._play_knockout(remaining) if self._knockout else self._play_all(remaining))
        winner = self._decide(played, first)
        search.how = "judge"
        search.undecided = winner is None
        search.fork.ledger.record_verdict(search.fork.id, self._build_verdict(played, winner))
        return winner

    async def _play_all(self, attempts: Sequence[Attempt]) -> tuple[list[_Match], list[Attempt]]:
        """Compare every pair; return the matches, and the attempts with the most points and then the highest scores."""
        played = await self._play(list(combinations(attempts, 2)))
        points = dict.fromkeys(attempts, 0.0)
        for match in played:
            for attempt in match.pair:
                points[attempt] += 0.5 if match.winner is None else float(match.winner is attempt)
        most = max((points[attempt], attempt.scores) for attempt in attempts)
        return played, [attempt for attempt in attempts if (points[attempt], attempt.scores) == most]

    async def _play_knockout(self, attempts: Sequence[Attempt]) -> tuple[list[_Match], list[Attempt]]:
        """Compare pairs until one is left; return the matches, and that one together with its equals."""
        played: list[_Match] = []
        remaining = list(attempts)
        while len(remaining) > 1:
            pairs = list(zip(remaining[::2], remaining[1::2], strict=False))
            matches = await self._play(pairs)
            played += matches
            going = [m.winner or max(m.pair, key=lambda attempt: attempt.scores) for m in matches]
            remaining = going + remaining[len(pairs) * 2 :]
        last = remaining[0]
        equals = [
            next(other for other in match.pair if other is not last)
            for match in played
            if last in match.pair and match.winner is None and match.pair[0].scores == match.pair[1].scores
        ]
        return played, [last, *equals]

    async def _play(self, pairs: Sequence[tuple[Attempt, Attempt]]) -> list[_Match]:
        places = asyncio.Semaphore(_PARALLEL)

        async def play(pair: tuple[Attempt, Attempt]) -> _Match:
            key = frozenset(attempt.id for attempt in pair)
            if key not in self._matches:
                async with places:
                    self._matches[key] = await self._run_match(pair)
            return self._matches[key]

        return list(await asyncio.gather(*map(play, pairs)))

    async def _run_match(self, pair: tuple[Attempt, Attempt]) -> _Match:
        try:
            with span("judge", judge=self.judge.name) as judge_span:
                answer = await self.judge.compare(*pair)
                self._trace(judge_span, pair, answer)
        except Exception as error:  # noqa: BLE001 - a judge that fails does not end the exploration
            doubt = truncate_line(describe_error(error), _MAX_REASON)
            warnings.warn(
                f"the judge {self.judge.name} did not decide between {pair[0].id} and {pair[1].id}: {doubt}",
                ForkwiseWarning,
                stacklevel=2,
            )
            return _Match(pair, doubt=doubt)
        winner = None if answer.choice is None else pair[answer.choice]
        return _Match(pair, winner, answer.confidence, answer.reason)

    def _trace(self, judge_span: Any, pair: tuple[Attempt, Attempt], answer: PairAnswer) -> None:
        for index, attempt in enumerate(pair):
            label = "tie" if answer.choice is None else "better" if answer.choice == index else "worse"
            score = {"tie": 0.5, "better": 1.0, "worse": 0.0}[label]
            reason = truncate_line(answer.reason, _MAX_REASON)
            record_evaluation(
                judge_span, self.judge.name, score=score, label=label, explanation=reason, attempt=attempt.id
            )

    def _decide(self, played: Sequence[_Match], first: Sequence[Attempt]) -> Attempt | None:
        """Return the first of equals, or None if they are equal only because the judge failed."""
        failed = [m for m in played if m.doubt is not None and len({*m.pair} & {*first}) == 2]
        if len(first) > 1 and failed:
            names = ", ".join(attempt.id for attempt in first)
            warnings.warn(
                f"nothing is committed: the judge {self.judge.name} failed, and neither tests nor scores decide "
                f"between {names}",
                ForkwiseWarning,
                stacklevel=2,
            )
            return None
        return first[0]

    def _build_verdict(self, played: Sequence[_Match], winner: Attempt | None) -> dict[str, Any]:
        own = [match for match in played if winner in match.pair]
        won = [match for match in own if match.winner is winner]
        answered = [match for match in played if match.doubt is None]
        confidence = sum(match.confidence for match in won) / len(own) if own else 0.0
        votes = (
            [{"judge": self.judge.name, "winner": winner.id, "confidence": confidence}] if winner and answered else []
        )
        return {
            "how": "judge",
            "winner": None if winner is None else winner.id,
            "matches": [match.as_json() for match in played],
            "votes": votes,
            "usage": asdict(self.judge.usage),
            "failures": list(dict.fromkeys(match.doubt for match in played if match.doubt is not None)),
        }


def _find_level(search: Search, best: Attempt, successes: Sequence[Attempt]) -> list[Attempt]:
    """Return the successes whose test results equal those of the best."""
    count = count_test_scores(search)
    found = [attempt for attempt in successes if attempt.scores[:count] == best.scores[:count]]
    return [attempt for attempt in found if attempt.rank[0] == best.rank[0]]  # changed something, as the best did


def count_test_scores(search: Search) -> int:
    """Return how many of the first scores come from tests, which no judge overrules."""
    evaluator = search.fork.settings.evaluator
    return 0 if evaluator is None else evaluator.test_scores


def _drop_copies(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Leave out attempts with the same diff as an earlier one, or one with higher scores."""
    found: dict[bytes, Attempt] = {}
    for attempt in attempts:
        key = hashlib.sha256(read_diff(attempt).encode(errors="surrogateescape")).digest()
        if key not in found or attempt.scores > found[key].scores:
            found[key] = attempt
    return [attempt for attempt in attempts if attempt in found.values()]
