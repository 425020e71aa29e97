"""A follow-up builds on the changes of an attempt, gets the comments on it, and waits for a pick."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.errors import LedgerError
from forkwise.explore.follow_up import find_follow_ups, follow_up, prepare_follow_up
from forkwise.explore.recipe import Recipe
from forkwise.fork.control import abort_fork
from forkwise.fork.resolve import pick
from forkwise.ledger.sqlite import open_ledger

AGENT = ("sh", "-c", 'cat "$FORKWISE_FEEDBACK" > heard.txt; echo again >> log.txt')


def explore(workspace: Workspace, *, keep: bool = True) -> str:
    """Run two attempts, which wait for a pick."""
    recipe = Recipe(kind="best-of", commands=(AGENT,), n=2, commit=False, keep=keep, goal="Write a log")
    outcome = asyncio.run(recipe.pattern(workspace).run(workspace))
    assert outcome.fork is not None
    return outcome.fork


def say(workspace: Workspace, attempt: str, text: str) -> None:
    with open_ledger(workspace) as ledger:
        place = {"path": "log.txt", "line": 1, "side": "new", "quote": "again"}
        ledger.record_comment(attempt.partition(".")[0], {"text": text, "attempt": attempt, **place})


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/log.txt").write_text("first\n")
    found = Workspace(tmp_path / "project", durable=False)
    yield found
    for branch in reversed(found.branches()):
        branch.abort()


def run(workspace: Workspace, attempt: str, text: str = "") -> str:
    outcome = asyncio.run(follow_up(workspace, attempt, text))
    assert outcome.fork is not None
    return outcome.fork


def test_comments_reach_the_next_attempt_which_is_picked(workspace: Workspace) -> None:
    fork = explore(workspace)
    say(workspace, f"{fork}.1", "Say it twice \udcff\0")
    say(workspace, f"{fork}.2", "not for the first")
    following = run(workspace, f"{fork}.1")
    with open_ledger(workspace) as ledger:
        assert [note["fork"] for note in find_follow_ups(ledger, fork)] == [following]
        assert ledger.fork(following).state == "open"
        assert ledger.fork(fork).state == "open"
    with pytest.raises(LedgerError, match="no comment"):
        run(workspace, f"{fork}.1")
    pick(workspace, f"{following}.1")
    assert (workspace.path / "log.txt").read_text() == "first\nagain\nagain\n"
    heard = (workspace.path / "heard.txt").read_text()
    assert "log.txt, line 1:\n> again\nSay it twice" in heard
    assert "not for the first" not in heard
    third = run(workspace, f"{following}.1", "and once more")  # on top of what was committed
    pick(workspace, f"{third}.1")
    assert (workspace.path / "log.txt").read_text() == "first\nagain\nagain\nagain\n"
    assert "and once more" in (workspace.path / "heard.txt").read_text()


def test_without_its_branch_the_changes_come_from_the_ledger(workspace: Workspace) -> None:
    fork = explore(workspace)
    abort_fork(workspace, fork)
    assert workspace.branches() == []
    following = run(workspace, f"{fork}.2", "again, please")
    pick(workspace, f"{following}.1")
    assert (workspace.path / "log.txt").read_text() == "first\nagain\nagain\n"


def test_a_file_that_was_changed_since_is_not_overwritten(workspace: Workspace) -> None:
    fork = explore(workspace)
    abort_fork(workspace, fork)
    (workspace.path / "log.txt").write_text("other\n")
    outcome = asyncio.run(follow_up(workspace, f"{fork}.2", "again, please"))
    assert not outcome.all_results[0].success
    assert "log.txt was changed since" in (outcome.all_results[0].reason or "")
    assert (workspace.path / "log.txt").read_text() == "other\n"
    assert workspace.branches() == []


def test_what_cannot_be_followed_up_is_refused(workspace: Workspace) -> None:
    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("live", workspace=str(workspace.path), spec={})
        attempt = ledger.add_attempt(fork.id, "0", index=0, label="model").id
        with pytest.raises(LedgerError, match="still runs"):
            prepare_follow_up(ledger, attempt, "x")
        ledger.start_attempt(attempt)
        ledger.end_attempt(attempt, "succeeded")
        with pytest.raises(LedgerError, match="only that program"):
            prepare_follow_up(ledger, attempt, "x")
