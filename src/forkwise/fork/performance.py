"""Performance: an attempt carried out, from its branch being made to its end being written down."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forkwise.errors import BranchNotFoundError
from forkwise.files.branch import Branch
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Judgement, judge, read_score
from forkwise.fork.exchange import exchange, read_left
from forkwise.ledger.output import Output
from forkwise.runners.protocol import Ended, Job
from forkwise.sandbox.threads import in_thread

__all__ = ["perform"]

_PACE = 0.2  # seconds between two notes of how far an attempt has come
_MOST_COUNTED = 5000
_LONGEST_SCORE = 200


async def perform(attempt: Attempt, name: str) -> None:
    """Run an attempt to its end in a new branch of that name. It fails, whatever its candidate does, and does not
    raise; cancelled, it is written down as that."""
    ledger = attempt.fork.ledger
    ledger.start_attempt(attempt.id)
    with Output(ledger.directory, attempt.id) as output:
        try:
            attempt.branch = await in_thread(_fresh_branch, attempt, name)
            ended, judgement = await _run(attempt, output)
            await _evaluate(attempt, judgement)
            files = await in_thread(_files, attempt.place)
        except asyncio.CancelledError as error:
            attempt.state, attempt.reason = "cancelled", str(error) or "cancelled"
            ledger.end_attempt(attempt.id, "cancelled", reason=attempt.reason, **_printed(output))
            raise
        except Exception as error:  # noqa: BLE001 - such as a full disk: this attempt failed, and the others go on
            _fail(attempt, f"{type(error).__name__}: {error}", error)
            ledger.end_attempt(attempt.id, "failed", reason=attempt.reason, error=_told(error), **_printed(output))
            return
    assert attempt.state in ("succeeded", "failed")
    ledger.end_attempt(
        attempt.id,
        attempt.state,
        reason=attempt.reason,
        ending=ended.ending,
        exit_code=ended.exit_code,
        wall=ended.wall,
        cpu=ended.cpu,
        memory=ended.memory,
        value=_as_data(ended.value),
        error=None if attempt.error is None else _told(attempt.error),
        files=files,
        **_printed(output),
    )


def _fresh_branch(attempt: Attempt, name: str) -> Branch:
    """A new branch; one that a killed process left under the name goes first."""
    parent = attempt.fork.parent
    with suppress(BranchNotFoundError):
        Branch.open(parent, name).abort()
    return parent.branch(name, None, None)


async def _run(attempt: Attempt, output: Output) -> tuple[Ended, Judgement]:
    settings = attempt.fork.settings
    candidate, branch = attempt.candidate, attempt.place
    job = Job(branch, candidate.function, candidate.argv, settings.timeout, on_output=output.write)
    if candidate.argv is not None:
        job = await in_thread(_command, job, attempt)
    with _watched(attempt, output):
        ended = await settings.runner.run(job)
    judgement = judge(ended, settings.timeout)
    attempt.value, attempt.error, attempt.wall = ended.value, judgement.error, ended.wall
    attempt.said = judgement.said
    seen = branch.view_kind.seen(branch.home)
    attempt.seen_at = None if seen is None else Path(seen)
    if candidate.argv is not None and judgement.success:
        try:
            score = read_score(read_left(f"{branch.home}/exchange/score", _LONGEST_SCORE))
        except ValueError as error:
            return ended, Judgement(False, reason=str(error), error=error)
        judgement = Judgement(True, score)
    return ended, judgement


def _command(job: Job, attempt: Attempt) -> Job:
    """A command's job, with what it is told by its environment."""
    place = exchange(job.branch)
    feedback = f"{place}/feedback"
    Path(feedback).write_text(attempt.feedback or "", errors="surrogateescape")
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
        said = await evaluator.evaluate(attempt)
        attempt.scores = said.scores + own or (attempt.candidate.prior,)
        attempt.tests = said.tests
        if said.tests is not None:
            ledger.record_tests(attempt.id, said.tests.as_json())
        if not said.success:
            _fail(attempt, said.reason, None)
            ledger.record_score(attempt.id, attempt.score, attempt.scores)
            return
    attempt.state = "succeeded"
    ledger.record_score(attempt.id, attempt.score, attempt.scores)


def _fail(attempt: Attempt, reason: str | None, error: BaseException | None) -> None:
    attempt.state, attempt.reason, attempt.error = "failed", reason, error


@contextmanager
def _watched(attempt: Attempt, output: Output) -> Iterator[None]:
    """Note how far it has come, from time to time, for whoever looks on."""
    loop = asyncio.get_running_loop()
    noted: dict[str, Any] = {}
    handle: asyncio.TimerHandle | None = None

    def note() -> None:
        nonlocal handle, noted
        now: dict[str, Any] = {
            "files": _glance(attempt.place),
            "last_line": output.last_line,
            "output_bytes": output.total,
        }
        if now != noted:
            attempt.fork.ledger.note_progress(attempt.id, **now)
            noted = now
        handle = loop.call_later(_PACE, note)

    handle = loop.call_later(_PACE, note)
    try:
        yield
    finally:
        handle.cancel()


def _glance(branch: Branch) -> int | None:
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


def _files(branch: Branch) -> int:
    return len([change for change in branch.delta() if change.type != "directory"])


def _printed(output: Output) -> dict[str, Any]:
    return {"last_line": output.last_line or None, "output_bytes": output.total, "tail": output.tail() or None}


def _told(error: BaseException) -> dict[str, str]:
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _as_data(value: Any) -> Any:
    """What of a return value the ledger can hold; the rest as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_as_data(item) for item in value[:100]]
    if isinstance(value, dict):
        return {str(key): _as_data(item) for key, item in list(value.items())[:100]}
    with suppress(Exception):
        return repr(value)[:1000]
    return None
