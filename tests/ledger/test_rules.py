"""Which event may follow which, and the state afterwards."""

from __future__ import annotations

from typing import Literal

import pytest

from forkwise import LedgerError
from forkwise.ledger.ledger import Ledger
from forkwise.linux.process_id import ProcessId
from tests.ledger.ledger_scenes import attempt_in, fork_in, picture

DEAD = ProcessId(1, 0, "another boot", "pid:[1]")


def test_a_fork_from_its_beginning_to_its_undo(ledger: Ledger) -> None:
    fork = ledger.begin_fork("speculate", workspace="/project", spec={"commands": [["make"]], "when": None})
    assert (fork.kind, fork.workspace, fork.spec, fork.state) == (
        "speculate",
        "/project",
        {"commands": [["make"]], "when": None},
        "running",
    )
    assert fork.owner == ProcessId.current()
    attempt = ledger.add_attempt(
        fork.id, "0", index=3, label="make it", branch="/main/a", command=("make", "all"), round=2
    )
    assert (attempt.id, attempt.state, attempt.command) == (f"{fork.id}.1", "pending", ["make", "all"])
    assert (attempt.key, attempt.round, attempt.index, attempt.branch) == ("0", 2, 3, "/main/a")

    ledger.start_attempt(attempt.id)
    started = ledger.attempt(attempt.id)
    assert started.state == "running"
    assert started.started is not None

    error = {"type": "ValueError", "message": "no", "traceback": "…"}
    ledger.end_attempt(
        attempt.id, "failed", reason="exit code 2", ending="exit", exit_code=2, wall=1.5, cpu=0.5, memory=4096,
        value=[1, {"a": None}], error=error, files=7, last_line="make: ***", output_bytes=99, tail="a\nb\n",
    )  # fmt: skip
    ledger.record_tests(attempt.id, {"passed": 3})
    ledger.record_score(attempt.id, 0.5, [0.5, -1.0])
    ledger.record_cost(attempt.id, {"usd": 0.25})
    ended = ledger.attempt(attempt.id)
    assert (ended.state, ended.reason, ended.ending, ended.exit_code) == ("failed", "exit code 2", "exit", 2)
    assert (ended.wall, ended.cpu, ended.memory, ended.files) == (1.5, 0.5, 4096, 7)
    assert (ended.value, ended.error, ended.tail) == ([1, {"a": None}], error, "a\nb\n")
    assert (ended.last_line, ended.output_bytes) == ("make: ***", 99)
    assert (ended.tests, ended.score, ended.scores, ended.cost) == ({"passed": 3}, 0.5, [0.5, -1.0], {"usd": 0.25})
    assert ended.started == started.started
    assert ended.ended is not None
    assert ended.ended >= started.started

    ledger.record_verdict(fork.id, {"winner": attempt.id, "confidence": 0.9})
    assert ledger.resolve(fork.id, how="best score", winner=attempt.id, detail={"of": 1})
    ledger.record_commit(fork.id, 4, ["a.txt"])
    assert ledger.record_undo(4, 5, "/project")
    over = ledger.fork(fork.id)
    assert (over.state, over.winner) == ("resolved", attempt.id)
    assert over.resolution == {"how": "best score", "of": 1}
    assert over.verdict == {"winner": attempt.id, "confidence": 0.9}
    assert (over.commit, over.undone) == (4, 5)
    assert over.ended is not None
    kinds = "begun added started ended tested scored charged judged resolved committed undone"
    assert [e.kind for e in ledger.events()] == kinds.split()
    assert next(e.data["paths"] for e in ledger.events() if e.kind == "committed") == ["a.txt"]


def test_ids_are_short_typable_and_never_numbers(ledger: Ledger) -> None:
    ids = {fork_in(ledger).id for _ in range(200)}
    assert len(ids) == 200
    assert {len(i) for i in ids} == {6}
    assert not set("".join(ids)) - set("abcdefghjkmnopqrstuvwxyz23456789")
    assert all(i[0].isalpha() for i in ids)


def test_an_id_in_use_is_not_given_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([b"\0" * 6, b"\0" * 6, b"\1" * 6])
    monkeypatch.setattr("forkwise.ledger.ledger.os.urandom", lambda _: next(drawn))
    assert [fork_in(ledger).id, fork_in(ledger).id] == ["aaaaaa", "bbbbbb"]


def test_attempts_are_numbered_in_their_fork(ledger: Ledger) -> None:
    one, two = fork_in(ledger), fork_in(ledger)
    names = [attempt_in(ledger, fork.id, key).id for key in "abc" for fork in (one, two)]
    assert names == [f"{fork.id}.{n}" for n in (1, 2, 3) for fork in (one, two)]


def test_a_place_is_taken_once_a_round(ledger: Ledger) -> None:
    fork = fork_in(ledger)
    attempt_in(ledger, fork.id, "a", round=0)
    attempt_in(ledger, fork.id, "a", round=1)
    with pytest.raises(LedgerError, match="'a' of round 1 already"):
        attempt_in(ledger, fork.id, "a", round=1)
    assert len(ledger.attempts(fork.id)) == 2


@pytest.mark.parametrize("over", ["open", "resolved", "aborted"])
def test_a_fork_that_no_longer_runs_takes_no_attempt(ledger: Ledger, over: str) -> None:
    fork = fork_in(ledger)
    if over == "open":
        ledger.await_pick(fork.id)
    elif over == "resolved":
        ledger.resolve(fork.id, how="pick")
    else:
        ledger.abort_fork(fork.id, "no longer wanted")
    with pytest.raises(LedgerError, match=f"it is {over} already"):
        attempt_in(ledger, fork.id)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_an_attempt_that_ended_is_over(ledger: Ledger, state: Literal["succeeded", "failed", "cancelled"]) -> None:
    attempt = attempt_in(ledger, fork_in(ledger).id)
    with pytest.raises(LedgerError, match="cannot start: it is running"):
        ledger.start_attempt(attempt.id)
    ledger.end_attempt(attempt.id, state)
    before = picture(ledger), ledger.events()
    with pytest.raises(LedgerError, match=f"cannot be failed: it is {state}"):
        ledger.end_attempt(attempt.id, "failed")
    with pytest.raises(LedgerError, match=f"cannot start: it is {state}"):
        ledger.start_attempt(attempt.id)
    assert (picture(ledger), ledger.events()) == before


def test_an_attempt_can_fail_before_it_starts_but_not_succeed(ledger: Ledger) -> None:
    attempt = attempt_in(ledger, fork_in(ledger).id, started=False)
    with pytest.raises(LedgerError, match="cannot be succeeded: it is pending"):
        ledger.end_attempt(attempt.id, "succeeded")
    ledger.end_attempt(attempt.id, "failed", reason="no such command")
    assert ledger.attempt(attempt.id).reason == "no such command"


def test_progress_is_seen_while_it_runs_and_kept_at_the_end(ledger: Ledger) -> None:
    attempt = attempt_in(ledger, fork_in(ledger).id, started=False)
    ledger.note_progress(attempt.id, files=1)
    ledger.start_attempt(attempt.id)
    assert ledger.attempt(attempt.id).files is None
    happened = ledger.events()
    ledger.note_progress(attempt.id, files=2, last_line="two")
    ledger.note_progress(attempt.id, files=3, output_bytes=30)
    seen = ledger.attempt(attempt.id)
    assert (seen.files, seen.last_line, seen.output_bytes) == (3, "two", 30)
    assert ledger.attempts(seen.fork) == [seen]
    assert ledger.events() == happened
    ledger.end_attempt(attempt.id, "succeeded", output_bytes=31)
    ledger.note_progress(attempt.id, files=4)
    ended = ledger.attempt(attempt.id)
    assert (ended.files, ended.last_line, ended.output_bytes) == (3, "two", 31)


def test_a_fork_is_decided_once(ledger: Ledger) -> None:
    fork = fork_in(ledger)
    attempt = attempt_in(ledger, fork.id)
    assert ledger.resolve(fork.id, how="first success", winner=attempt.id) is True
    before = ledger.fork(fork.id)
    assert ledger.resolve(fork.id, how="pick") is False
    assert ledger.abort_fork(fork.id, "too late") is False
    assert ledger.fork(fork.id) == before

    other = fork_in(ledger)
    assert ledger.abort_fork(other.id, "out of money", {"spent": 3}) is True
    assert ledger.abort_fork(other.id, "again") is False
    assert ledger.resolve(other.id, how="pick") is False
    aborted = ledger.fork(other.id)
    assert (aborted.state, aborted.resolution) == ("aborted", {"how": "abort", "reason": "out of money", "spent": 3})


def test_a_winner_is_one_of_the_forks_own(ledger: Ledger) -> None:
    fork, other = fork_in(ledger), fork_in(ledger)
    stranger = attempt_in(ledger, other.id)
    with pytest.raises(LedgerError, match="not one of its attempts"):
        ledger.resolve(fork.id, how="pick", winner=stranger.id)
    assert ledger.fork(fork.id).state == "running"


def test_an_open_fork_waits_for_a_pick(ledger: Ledger) -> None:
    fork = fork_in(ledger, owner=ProcessId.current())
    attempt = attempt_in(ledger, fork.id)
    with pytest.raises(LedgerError, match=f"not over: {attempt.id}"):
        ledger.await_pick(fork.id)
    ledger.end_attempt(attempt.id, "succeeded")
    ledger.await_pick(fork.id)
    assert ledger.fork(fork.id).state == "open"
    with pytest.raises(LedgerError, match="it is open already"):
        ledger.await_pick(fork.id)
    assert ledger.resolve(fork.id, how="pick", winner=attempt.id)


def test_a_commit_follows_a_resolution_once(ledger: Ledger) -> None:
    fork = fork_in(ledger)
    with pytest.raises(LedgerError, match="cannot get commit 1: it is running"):
        ledger.record_commit(fork.id, 1)
    ledger.resolve(fork.id, how="pick")
    ledger.record_commit(fork.id, 1)
    with pytest.raises(LedgerError, match="it has commit 1 already"):
        ledger.record_commit(fork.id, 2)


def test_the_same_commit_may_be_recorded_twice(ledger: Ledger) -> None:
    fork = fork_in(ledger)
    ledger.resolve(fork.id, how="pick")
    ledger.record_commit(fork.id, 1)
    before = picture(ledger), ledger.events()
    ledger.record_commit(fork.id, 1)
    assert (picture(ledger), ledger.events()) == before


def test_a_resolution_without_a_commit_can_be_abandoned(ledger: Ledger) -> None:
    abandoned, committed, running = fork_in(ledger), fork_in(ledger), fork_in(ledger)
    for fork in (abandoned, committed):
        ledger.resolve(fork.id, how="pick")
    ledger.record_commit(committed.id, 1)
    ledger.abandon_fork(abandoned.id, "its branch is gone")
    record = ledger.fork(abandoned.id)
    assert (record.state, record.resolution) == ("aborted", {"how": "pick", "abandoned": "its branch is gone"})
    for fork, why in ((abandoned, "it is aborted"), (committed, "it was committed as 1"), (running, "it is running")):
        with pytest.raises(LedgerError, match=f"cannot be abandoned: {why}"):
            ledger.abandon_fork(fork.id, "why")


def test_an_undo_of_an_undo_brings_a_commit_back(ledger: Ledger) -> None:
    fork = fork_in(ledger)
    ledger.resolve(fork.id, how="pick")
    ledger.record_commit(fork.id, 1)
    stands = []
    for commit, by in [(1, 2), (2, 3), (3, 4)]:
        assert ledger.record_undo(commit, by, "/project")
        record = ledger.fork(fork.id)
        stands.append((record.commit, record.undone))
    assert stands == [(1, 2), (3, None), (3, 4)]


def test_an_undo_is_of_the_workspaces_own_commit(ledger: Ledger) -> None:
    """Commit numbers belong to a workspace; a commit inside an attempt goes into a branch."""
    outer = fork_in(ledger)
    inner = fork_in(ledger, parent=attempt_in(ledger, outer.id).id)
    elsewhere = fork_in(ledger, workspace="/elsewhere")
    of_branch = fork_in(ledger, origin="/main/a")
    for fork in (outer, inner, elsewhere, of_branch):
        ledger.resolve(fork.id, how="pick")
        ledger.record_commit(fork.id, 1)
    assert ledger.record_undo(9, 10, "/project") is False
    assert ledger.record_undo(1, 2, "/project") is True
    assert ledger.record_undo(1, 3, "/project") is False
    assert [ledger.fork(f.id).undone for f in (outer, inner, elsewhere, of_branch)] == [2, None, None, None]


def test_an_interrupted_fork_is_adopted_by_one(ledger: Ledger) -> None:
    fork = fork_in(ledger, owner=DEAD)
    ended, running, pending = (attempt_in(ledger, fork.id, key, started=key != "c") for key in "abc")
    ledger.end_attempt(ended.id, "failed")
    ledger.note_progress(running.id, files=5)
    assert ledger.fork(fork.id).state == "interrupted"
    assert ledger.adopt_fork(fork.id) is True
    assert ledger.adopt_fork(fork.id) is False
    adopted = ledger.fork(fork.id)
    assert (adopted.state, adopted.owner) == ("running", ProcessId.current())
    assert [a.state for a in ledger.attempts(fork.id)] == ["failed", "pending", "pending"]
    again = ledger.attempt(running.id)
    assert (again.started, again.files) == (None, None)
    ledger.start_attempt(running.id)
    ledger.start_attempt(pending.id)


def test_only_an_interrupted_fork_is_adopted(ledger: Ledger) -> None:
    alive, waiting, aborted = fork_in(ledger), fork_in(ledger, owner=DEAD), fork_in(ledger, owner=DEAD)
    ledger.await_pick(waiting.id)
    ledger.abort_fork(aborted.id, "why not")
    for fork, state in ((alive, "running"), (waiting, "open"), (aborted, "aborted")):
        assert ledger.fork(fork.id).state == state
        assert ledger.adopt_fork(fork.id) is False


def test_values_that_are_not_json_are_refused_and_nothing_is_written(ledger: Ledger) -> None:
    attempt = attempt_in(ledger, fork_in(ledger).id)
    before = picture(ledger), ledger.events()
    with pytest.raises(LedgerError, match=attempt.id):
        ledger.end_attempt(attempt.id, "succeeded", value=object())
    with pytest.raises(LedgerError, match="NaN"):
        ledger.record_score(attempt.id, 1.0, [float("nan")])
    assert (picture(ledger), ledger.events()) == before


def test_text_of_any_bytes_survives(ledger: Ledger) -> None:
    workspace = b"/na\xefve/\xff".decode(errors="surrogateescape")
    fork = fork_in(ledger, workspace=workspace)
    attempt = attempt_in(ledger, fork.id, branch=workspace, command=["cat", workspace])
    assert ledger.fork(fork.id).workspace == workspace
    assert attempt.command == ["cat", attempt.branch]
    ledger.resolve(fork.id, how="pick")
    ledger.record_commit(fork.id, 1)
    assert ledger.record_undo(1, 2, workspace)
