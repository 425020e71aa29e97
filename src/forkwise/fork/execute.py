"""Performance: an attempt carried out, from its branch being made to its end being written down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forkwise.concurrency import finish, run_in_thread, try_call
from forkwise.errors import BranchingError, BranchNotFoundError, LedgerError
from forkwise.files.branch import Branch, Parent
from forkwise.fork.attempt import Attempt, exchange, read_left
from forkwise.fork.candidate import Judgement, describe_error, judge, read_score, to_json_data
from forkwise.fork.evaluation import Evaluation
from forkwise.fork.runner import Job
from forkwise.ledger.logs import AttemptLog

__all__ = ["execute"]

_PACE = 0.2  # seconds between two notes of how far an attempt has come
_MOST_COUNTED = 5000
_LONGEST_SCORE = 200


async def execute(attempt: Attempt, name: str) -> None:
    """Run an attempt to its end in a new branch of that name. It fails, whatever its candidate does, and does not
    raise; cancelled, it is written down as that."""
    ledger, told = attempt.fork.ledger, attempt.facts
    try:
        ledger.start_attempt(attempt.id)
        attempt.state = "running"
        with AttemptLog(ledger.directory, attempt.id) as output:
            try:
                await _make_branch(attempt, name)
                await _evaluate(attempt, await _run(attempt, output))
                told["files"] = await run_in_thread(_files, attempt.place)
            finally:
                told |= {"last_line": output.last_line, "output_bytes": output.total, "tail": output.tail() or None}
                await attempt.within.end()
    except Exception as error:  # noqa: BLE001 - such as a full disk: this attempt failed, and the others go on
        _fail(attempt, describe_error(error), error)
    except BaseException as error:
        attempt.state, attempt.reason = "cancelled", str(error) or "cancelled"
        raise
    finally:
        with suppress(LedgerError):  # of a full disk: it is written when the fork is resolved, or raised then
            attempt.record_end()


async def _make_branch(attempt: Attempt, name: str) -> None:
    make = _left_branch if attempt.fork.settings.reopens else _fresh_branch
    work = run_in_thread(make, attempt.fork.parent, name)
    try:
        attempt.branch = await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(Exception):
            attempt.branch = await finish(work)  # else it would be nobody's, and stay
        raise


def _left_branch(parent: Parent, name: str) -> Branch:
    """The branch that a killed process left under the name, or a new one."""
    with suppress(BranchNotFoundError):
        return Branch.open(parent, name)
    return parent.branch(name, None, None)


def _fresh_branch(parent: Parent, name: str) -> Branch:
    """A new branch; one that a killed process left under the name goes first."""
    with suppress(BranchNotFoundError):
        Branch.open(parent, name).abort()
    return parent.branch(name, None, None)


async def _run(attempt: Attempt, output: AttemptLog) -> Judgement:
    settings, told = attempt.fork.settings, attempt.facts
    candidate, branch = attempt.candidate, attempt.place
    job = Job(branch, candidate.function, candidate.argv, settings.timeout, on_output=output.write)
    if candidate.argv is not None:
        job = await run_in_thread(_command, job, attempt)
    try:
        with _watched(attempt, output):
            ended = await settings.runner.run(job)
    finally:
        with suppress(FileNotFoundError):
            seen = branch.view_kind.seen(branch.home)
            attempt.seen_at = None if seen is None else Path(seen)
    attempt.value, attempt.wall = ended.value, ended.wall
    told |= {"ending": ended.ending, "exit_code": ended.exit_code, "value": to_json_data(ended.value)}
    told |= {"wall": ended.wall, "cpu": ended.cpu, "memory": ended.memory}
    judgement = judge(ended, settings.timeout)
    attempt.said = judgement.said
    if not judgement.success:
        return judgement
    if not os.path.isdir(branch.home):
        return Judgement(False, reason="its branch was committed or aborted while it ran")
    if candidate.argv is None:
        return judgement
    try:
        return Judgement(True, _score(f"{branch.home}/exchange/score"))
    except ValueError as error:
        return Judgement(False, reason=str(error), error=error)


def _score(path: str) -> float | None:
    """The score that a command left, if it did."""
    if not os.path.lexists(path):
        return None
    left = read_left(path, _LONGEST_SCORE)
    if left is None:
        raise ValueError(f"its score is no plain file of at most {_LONGEST_SCORE} bytes")
    return read_score(left)


def _command(job: Job, attempt: Attempt) -> Job:
    """A command's job, with what it is told by its environment."""
    place = exchange(job.branch)
    feedback = f"{place}/feedback"
    Path(feedback).write_text(attempt.feedback or "", errors="backslashreplace")
    environment = {
        "FORKWISE_ATTEMPT": str(attempt.index),
        "FORKWISE_FORK": attempt.fork.id,
        "FORKWISE_FEEDBACK": feedback,
        "FORKWISE_SCORE": f"{place}/score",
    }
    return Job(job.branch, None, job.argv, job.timeout, environment, (place,), job.on_output)


async def _evaluate(attempt: Attempt, judgement: Judgement) -> None:
    """Set what came of it, by its own word and, where that was good, by the evaluator's."""
    ledger, evaluator = attempt.fork.ledger, attempt.fork.settings.evaluator
    if not judgement.success:
        _fail(attempt, judgement.reason, judgement.error)
        return
    own = () if judgement.score is None else (judgement.score,)
    attempt.scores = own or (attempt.candidate.prior,)
    if evaluator is not None:
        answer = await try_call(evaluator.evaluate, attempt)
        if answer.error is not None:
            _fail(attempt, f"it could not be evaluated: {describe_error(answer.error)}", answer.error)
            return
        found: Evaluation = answer.value
        attempt.scores = found.scores + own or (attempt.candidate.prior,)
        attempt.tests = found.tests
        if found.tests is not None:
            ledger.record_tests(attempt.id, found.tests.as_json())
        if not found.success:
            _fail(attempt, found.reason, None)
            ledger.record_score(attempt.id, attempt.score, attempt.scores)
            return
    attempt.state = "succeeded"
    ledger.record_score(attempt.id, attempt.score, attempt.scores)


def _fail(attempt: Attempt, reason: str | None, error: BaseException | None) -> None:
    attempt.state, attempt.reason, attempt.error = "failed", reason, error


@contextmanager
def _watched(attempt: Attempt, output: AttemptLog) -> Iterator[None]:
    """Note how far it has come, from time to time, for whoever looks on."""
    loop = asyncio.get_running_loop()
    noted: dict[str, Any] = {}
    handle: asyncio.TimerHandle | None = None

    def note() -> None:
        nonlocal handle, noted
        now: dict[str, Any] = {
            "files": _estimate_changed_files(attempt.place),
            "last_line": output.last_line,
            "output_bytes": output.total,
        }
        if now != noted:
            with suppress(LedgerError):  # such as on a full disk: what is told in the end counts
                attempt.fork.ledger.note_progress(attempt.id, **now)
            noted = now
        handle = loop.call_later(_PACE, note)

    handle = loop.call_later(_PACE, note)
    try:
        yield
    finally:
        handle.cancel()


def _estimate_changed_files(branch: Branch) -> int | None:
    """Roughly how many files a branch changed so far, without keeping anybody waiting; None where that is not plain."""
    if branch.view_kind.whole:
        return None
    found = 0
    pending = [branch.target]
    while pending and found < _MOST_COUNTED:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    found += 1
    return found


def _files(branch: Branch) -> int | None:
    """How many files a branch changed; None where that cannot be told now, which is no reason to drop it."""
    with suppress(BranchingError, OSError):
        return sum(1 for change in branch.delta() if change.type != "directory")
    return None
