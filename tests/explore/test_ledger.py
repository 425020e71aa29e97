"""The ledger agrees with the outcome, whatever the candidates did and however the fork was decided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkwise import (
    Attempt,
    BeamSearch,
    BestOfN,
    Cascaded,
    Evaluation,
    Evaluator,
    Pattern,
    Reflexion,
    SmallerDiff,
    Speculate,
    SpeculationOutcome,
    Tournament,
    TreeOfThoughts,
    TreeSearch,
    Workspace,
)
from forkwise.fork.evaluation import OwnScore
from forkwise.fork.fork import open_ledger
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.logs import read_log
from tests.counts import examples
from tests.leftovers import check_ledger, check_nothing_left


def agree(outcome: SpeculationOutcome, ledger: Ledger) -> None:
    """Check that the ledger agrees with an outcome."""
    assert outcome.fork is not None
    fork = ledger.fork(outcome.fork)
    assert fork.state == ("resolved" if outcome.committed else "aborted")
    assert fork.commit == (outcome.commit.id if outcome.commit else None)
    records = {}
    pending = [fork]
    while pending:
        one = pending.pop()
        for record in ledger.attempts(one.id):
            records[record.id] = record
            pending += ledger.children(record.id)
    assert {r.attempt for r in outcome.all_results} == set(records)
    for result in outcome.all_results:
        assert result.attempt is not None
        record = records[result.attempt]
        assert result.success == (record.state == "succeeded")
        assert result.branch_index == record.index
        assert result.reason == record.reason
        assert result.score == (record.score or 0.0)
        assert result.wall == record.wall
        if result.exception is not None:
            assert record.error is not None
            assert record.error["type"] == type(result.exception).__name__
    if outcome.committed and outcome.winner is not None:
        chain = [outcome.winner.attempt]
        while (above := ledger.fork(str(chain[-1]).partition(".")[0])).parent is not None:
            assert (above.state, above.winner) == ("resolved", chain[-1])
            chain.append(above.parent)
        assert fork.winner == chain[-1]
    else:
        assert fork.winner is None


def test_all_that_is_known_of_an_attempt(workspace: Workspace) -> None:
    script = 'echo out; echo err >&2; echo one > made; echo two > a.txt; echo 0.5 > "$FORKWISE_SCORE"'
    outcome = Speculate([["sh", "-c", f"{script}; exit 4"], ["sh", "-c", script]], first_wins=False)(workspace)
    with open_ledger(workspace) as ledger:
        agree(outcome, ledger)
        assert outcome.fork is not None
        failed, passed = ledger.attempts(outcome.fork)
        assert (failed.state, failed.ending, failed.exit_code, failed.reason) == ("failed", "exit", 4, "exit code 4")
        assert (passed.state, passed.ending, passed.exit_code, passed.reason) == ("succeeded", "exit", 0, None)
        assert (passed.score, passed.scores, passed.files) == (0.5, [0.5], 2)
        for record in (failed, passed):
            assert record.output_bytes == len("out\nerr\n")
            assert sorted(str(record.tail).split()) == ["err", "out"]
            assert read_log(ledger.directory, record.id, stream="stderr") == b"err\n"
            assert record.cpu is not None
            assert record.memory
            assert record.started is not None
            assert record.ended is not None
            assert record.wall is not None
            assert 0 <= record.wall <= record.ended - record.started
            assert record.command is not None
            assert record.command[0] == "sh"
        fork = ledger.fork(outcome.fork)
        assert fork.resolution == {"how": "only success"}
        assert fork.kind == "speculate"
        kinds = [event.kind for event in ledger.events(fork=outcome.fork)]
        assert kinds[0] == "begun"
        assert kinds[-2:] == ["resolved", "committed"]


def add_lines(count: int, score: float | None = None) -> Callable[[Path], Any]:
    """Build a candidate that adds lines to a file."""

    def work(path: Path) -> Any:
        (path / "made").write_text("line\n" * count)
        return True if score is None else (True, score)

    return work


class TwoScores(Evaluator):
    """An evaluator that does not name its second score."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        return Evaluation((1.0, float(attempt.index)))


@pytest.mark.parametrize(
    ("pattern", "winner", "reason"),
    [
        (BestOfN([add_lines(2, 0.1), add_lines(1, 0.7)]), 1, "best score"),
        (BestOfN([add_lines(2), add_lines(1)]), 0, "first of equals"),
        (BestOfN([lambda _: False, add_lines(1)]), 1, "only success"),
        (BestOfN([add_lines(2), add_lines(1)], evaluate=[OwnScore(), SmallerDiff()]), 1, "smallest diff"),
        (BestOfN([add_lines(2, 0.9), add_lines(1, 0.1)], evaluate=[OwnScore(), SmallerDiff()]), 0, "best score"),
        (BestOfN([add_lines(1, 0.1), add_lines(1, 0.2)], evaluate=SmallerDiff()), 1, "best score"),
        (BestOfN([add_lines(1), add_lines(2)], evaluate=[TwoScores(), SmallerDiff()]), 1, "best score"),
        (Speculate([add_lines(3), add_lines(1)], first_wins=False, evaluate=SmallerDiff()), 1, "smallest diff"),
        (TreeOfThoughts([add_lines(3), add_lines(1)], evaluate=SmallerDiff()), 1, "smallest diff"),
        (
            BeamSearch([add_lines(3), add_lines(1)], expand=lambda *_: [], evaluate=SmallerDiff(), beam_width=1),
            1,
            "smallest diff",
        ),
    ],
)
def test_the_reason_of_a_decision_is_what_decided(
    workspace: Workspace, pattern: Pattern, winner: int, reason: str
) -> None:
    outcome = pattern(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == winner
    with open_ledger(workspace) as ledger:
        assert ledger.fork(str(outcome.fork)).resolution == {"how": reason}


def test_what_a_tournament_said(workspace: Workspace) -> None:
    def number(path: Path, index: int) -> bool:
        return (path / "number").write_text(str(index)) > 0

    def judge(first: Path, second: Path) -> int:
        return int((second / "number").read_text() > (first / "number").read_text())

    outcome = Tournament(number, 4, judge=judge)(workspace)
    with open_ledger(workspace) as ledger:
        agree(outcome, ledger)
        fork = ledger.fork(str(outcome.fork))
        ids = [a.id for a in ledger.attempts(fork.id)]
        assert fork.resolution == {"how": "tournament"}
        assert fork.verdict is not None
        assert [m["between"] for m in fork.verdict["matches"]] == [ids[:2], ids[2:], [ids[1], ids[3]]]
        assert fork.verdict["winner"] == ids[3] == fork.winner


def test_kept_and_open_for_a_pick(workspace: Workspace) -> None:
    outcome = BestOfN([lambda _: (True, 0.1), lambda _: (True, 0.7), lambda _: False], commit=False, keep=True)(
        workspace
    )
    with open_ledger(workspace) as ledger:
        fork = ledger.fork(str(outcome.fork))
        assert fork.state == "open"
        assert fork.verdict is not None
        assert outcome.winner is not None
        assert fork.verdict["winner"] == outcome.winner.attempt
        ledger.abort_fork(fork.id, "nobody wanted it")
    assert len(workspace.branches()) == 3
    for branch in workspace.branches():
        assert branch.kept
        branch.abort()


# Random candidates


class Deed:
    """What a candidate does, as a value that hypothesis can generate."""

    def __init__(self, what: str, score: float) -> None:
        self.what = what
        self.score = score

    def __repr__(self) -> str:
        return f"<{self.what} {self.score}>"

    def __call__(self, path: Path, *_: Any) -> Any:
        with (path / "trail").open("a") as file:
            file.write(f"{self.what}\n")
        match self.what:
            case "scores":
                return True, self.score
            case "succeeds":
                return True
            case "fails":
                return False, "because"
            case "raises":
                raise ValueError("wrong")
            case "leaves":
                raise SystemExit
            case "lies":
                return "yes"
        raise AssertionError(self.what)


deeds = st.builds(
    Deed,
    st.sampled_from(["scores", "scores", "succeeds", "fails", "raises", "leaves", "lies"]),
    st.integers(-3, 3).map(float),
)
several = st.lists(deeds, min_size=1, max_size=4)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, Pattern]:
    """Generate any pattern over any candidates."""
    first, second = draw(several), draw(several)
    options = {"max_parallel": draw(st.sampled_from([1, 3])), "commit": draw(st.booleans())}
    kind = draw(st.sampled_from(["speculate", "best", "reflexion", "tree", "tournament", "beam", "cascade", "search"]))
    made: dict[str, Any] = {
        "speculate": lambda: Speculate(first, first_wins=draw(st.booleans()), **options),
        "best": lambda: BestOfN(first, **options),
        "reflexion": lambda: Reflexion(lambda path, number, _: first[number % len(first)](path), 3, **options),
        "tree": lambda: TreeOfThoughts(first, expand=lambda *_: second, max_depth=draw(st.integers(1, 3)), **options),
        "tournament": lambda: Tournament(first, judge=lambda *_: 1, **options),
        "beam": lambda: BeamSearch(first, expand=lambda *_: second, beam_width=2, max_depth=2, **options),
        "cascade": lambda: Cascaded(lambda path, past: first[len(past) % len(first)](path), fan_out=(1, 2), **options),
        "search": lambda: TreeSearch(first, budget=5, max_depth=2, **options),
    }
    return f"{kind} {first} {second} {options}", made[kind]()


@settings(max_examples=examples(20, times=15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=patterns())
def test_whatever_is_tried_the_ledger_agrees(made: tuple[str, Pattern], workspace: Workspace) -> None:
    _, pattern = made
    outcome = pattern(workspace)
    with open_ledger(workspace) as ledger:
        agree(outcome, ledger)
        before = [ledger.fork(f.id) for f in ledger.forks()]
        ledger.rebuild()
        assert [ledger.fork(f.id) for f in ledger.forks()] == before
    best = max((r.score for r in outcome.all_results if r.success), default=None)
    assert (outcome.winner is None) == (best is None)
    assert not outcome.committed or outcome.winner is not None
    assert (workspace.path / "trail").exists() == outcome.committed
    if outcome.committed:
        workspace.undo()
    check_ledger(workspace)
    check_nothing_left(workspace)
