"""Execute one attempt: create its branch, run its candidate, evaluate the result, and record its end."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import finish, run_in_thread, try_call
from forkwise.errors import BranchError, BranchingError, BranchNotFoundError, LedgerError
from forkwise.files.branch import Branch, Parent
from forkwise.files.edits.edit_comparison import find_edits
from forkwise.files.store.state import is_ordinary
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_paths.logins import take_logins
from forkwise.fork.attempt import Attempt, make_exchange_directory, read_regular_file
from forkwise.fork.candidate import Judgement, OutputReader, describe_error, judge, read_score, to_json_data
from forkwise.fork.evaluation import keep_ignored, list_ignored
from forkwise.fork.fault import Fault, find_fault, is_disk_full
from forkwise.fork.runner import Job
from forkwise.git.ignore_rules import remember_answers
from forkwise.git.repository_change import summarize_repositories
from forkwise.ledger.connections import open_connections
from forkwise.ledger.logs import AttemptLog, ServerLogs, compress_log
from forkwise.sandbox.jail_plan import explain_private_temporary
from forkwise.servers.data_branch import hold_data, record_data
from forkwise.telemetry import trace_tools
from forkwise.text.phrases import join_first
from forkwise.text.redaction import redact

if TYPE_CHECKING:
    from forkwise.fork.evaluation import Evaluation, Evaluator
    from forkwise.git.ignore_rules import Ignore
    from forkwise.testing.baseline import Baseline

__all__ = ["NO_CHANGE", "execute"]

NO_CHANGE = "no change"

_UUID = "FORKWISE_UUID"  # the variable of a command that names its session after its attempt
_PROGRESS_INTERVAL = 0.2  # seconds
_MAX_COUNTED = 5000
_MAX_SCORE = 200
_SHOWN = 3
_MAX_LISTED = 100


async def execute(attempt: Attempt, name: str) -> None:
    """Run an attempt to its end in a branch called ``name``.

    An error of any kind makes the attempt fail; only cancellation is raised, after it was recorded. A fault of the
    machine does not make it fail: the failed step is tried once more, unless the candidate ran; then the attempt ends
    as ``faulted``.
    """
    ledger, facts = attempt.fork.ledger, attempt.facts
    await attempt.fork.preparation.enter(attempt.id)
    try:
        ledger.start_attempt(attempt.id)
        attempt.state = "running"
        with AttemptLog(ledger.directory, attempt.id) as output, ExitStack() as answers:
            try:
                judgement = await _open_and_run(attempt, name, output)
                answers.enter_context(remember_answers())
                await run_in_thread(_note_no_change, attempt)
                await _evaluate(attempt, judgement)
                await run_in_thread(_note_edits, attempt)
            finally:
                output.finish()
                facts |= {"last_line": output.last_line, "output_bytes": output.total, "tail": output.tail() or None}
                await finish(run_in_thread(_finish_reader, attempt))
                await attempt.nested_runs.end()
                # Done even if it was cancelled, and before another attempt's commit changes what it is compared with.
                facts["files"] = await finish(run_in_thread(_save_changes, attempt))
    except Exception as error:  # noqa: BLE001 - of forkwise itself, such as a full disk: only this attempt ends
        is_of_branch = isinstance(error, BranchError)  # such as one that the candidate dropped
        _fail(attempt, describe_error(error), error, find_fault(error) or (None if is_of_branch else "system"))
    except BaseException as error:
        attempt.state, attempt.reason = "cancelled", str(error) or "cancelled"
        raise
    finally:
        attempt.fork.preparation.leave(attempt.id)
        if ledger.stored_files is not None:  # before other machines see that it has ended
            await finish(run_in_thread(ledger.store_files, attempt.id))
        with suppress(LedgerError):  # a full disk: resolving the fork writes it again, or raises
            attempt.record_end()
        await finish(run_in_thread(compress_log, ledger.directory, attempt.id))


def _note_edits(attempt: Attempt) -> None:
    """Record what other programs changed in the workspace since the attempt's branch was forked.

    The kernel has reported that already if this user may watch, except for changes by a function, which runs in this
    process.
    """
    branch, fork = attempt.own_branch, attempt.fork
    if fork.reports_edits and attempt.candidate.argv is not None:
        return
    with suppress(OSError, BranchingError):  # such as a branch that the candidate dropped: it is only a notice
        is_watched = fork.inside is None and isinstance(branch.parent, Workspace) and is_ordinary(branch.workspace.path)
        if is_watched and (edits := find_edits(branch, fork.record.generation)):
            fork.record_edits(edits)


async def _open_and_run(attempt: Attempt, name: str, output: AttemptLog) -> Judgement:
    """Run the candidate in its branch; if its provider refuses it for now, run it again in a new branch."""
    fork, limit = attempt.fork, attempt.fork.find_limit(attempt)
    count = 0
    while True:
        judgement = await _open_and_try(attempt, name, output, is_again=count > 0)
        asked_s = judgement.retry_after
        limit.leave(attempt.id, is_refused=asked_s is not None)
        delay_s = None if asked_s is None else fork.provider_rules.find_delay(count, asked_s)
        if delay_s is None:
            return judgement
        await _wait_for_provider(attempt, judgement, delay_s)
        await limit.enter(attempt.id)
        if fork.time_budget.reason is not None or fork.spend_budget.reason is not None:
            return judgement
        count += 1


async def _wait_for_provider(attempt: Attempt, judgement: Judgement, delay_s: float) -> None:
    """Wait before an attempt starts again, and show that."""
    assert attempt.reader is not None
    note = f"waits {delay_s:.3g} s for its provider, then starts again: {judgement.reason}"
    await run_in_thread(attempt.reader.restart, note)
    with suppress(LedgerError):  # such as a full disk
        attempt.fork.ledger.record_steps(attempt.id, attempt.reader.take_steps())
        attempt.fork.ledger.note_progress(attempt.id, last_line=redact(note))
    await asyncio.sleep(delay_s)


async def _open_and_try(attempt: Attempt, name: str, output: AttemptLog, *, is_again: bool) -> Judgement:
    """Run the candidate in its branch; if a fault kept it from starting, try once more in a new branch."""
    try:
        await _open_branch(attempt, name)
        judgement = await _run(attempt, output, is_again=is_again)
        if judgement.fault is None or judgement.has_started:
            return judgement
    except Exception as error:
        if find_fault(error) is None:
            raise
    await _open_branch(attempt, name)
    return await _run(attempt, output, is_again=is_again)


async def _open_branch(attempt: Attempt, name: str) -> None:
    settings = attempt.fork.settings
    make = _reopen_branch if settings.reopens else partial(_create_branch, settings.make_branch)
    work = run_in_thread(_open_ignoring, make, attempt.fork.parent, name, settings.ignore)
    try:
        attempt.branch = await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(Exception):
            attempt.branch = await finish(work)  # otherwise the branch would leak
        raise


def _open_ignoring(make: Callable[[Parent, str], Branch], parent: Parent, name: str, ignore: Ignore | None) -> Branch:
    with hold_data(parent) as data:
        branch = make(parent, name)
    if branch.view_kind.native:
        return branch
    if ignore is not None:
        branch.set_ignore(ignore)
    record_data(branch, data)
    return branch


def _reopen_branch(parent: Parent, name: str) -> Branch:
    """Open the branch that a killed process left, or create it."""
    with suppress(BranchNotFoundError):
        return Branch.open(parent, name)
    return parent.branch(name, None, None)


def _create_branch(make: Callable[[Parent, str], Branch] | None, parent: Parent, name: str) -> Branch:
    """Create a branch, with ``make`` if given; drop one of the same name that a killed process left."""
    with suppress(BranchNotFoundError):
        found = Branch.open(parent, name)
        take_logins(found)
        found.abort()
    return parent.branch(name, None, None) if make is None else make(parent, name)


async def _run(attempt: Attempt, output: AttemptLog, *, is_again: bool) -> Judgement:
    settings, facts = attempt.fork.settings, attempt.facts
    candidate, branch = attempt.candidate, attempt.own_branch
    if not is_again:
        attempt.reader = None if candidate.read_output is None else candidate.read_output(branch.workspace.path)
    logs = ServerLogs(attempt.fork.ledger.directory, attempt.id)
    job = Job(
        branch,
        candidate.function,
        candidate.argv,
        settings.timeout,
        on_output=output.write,
        on_server_output=logs.write,
        network_log=lambda: open_connections(attempt.fork.ledger.directory, attempt.id),
        tests=_find_portable(attempt),
        must_change=settings.has_prompt and not settings.allow_empty,
        has_feedback=candidate.has_feedback,
    )
    if candidate.argv is not None:
        job = await run_in_thread(_add_environment, job, attempt)
    try:
        with logs, ExitStack() as watchers:
            check = watchers.enter_context(attempt.fork.spend_budget.spend(attempt.id))
            report = watchers.enter_context(_report_progress(attempt, output))
            watchers.enter_context(attempt.fork.time_budget.spend())
            if attempt.reader is not None:
                if (tools := watchers.enter_context(trace_tools())) is not None:
                    attempt.reader.trace_tools(tools)
                is_checked = attempt.fork.spend_budget.is_limited
                job = replace(job, on_output=_share(output, attempt.reader, check if is_checked else None))
            if settings.runner.is_remote:
                job = replace(job, on_output=_follow(job.on_output, report))
            attempt.fork.preparation.leave(attempt.id)
            end = await settings.runner.run(job)
    finally:
        with suppress(FileNotFoundError):
            seen = branch.view_kind.visible_path(branch.home)
            attempt.directory = None if seen is None else Path(seen)
    attempt.value, attempt.wall = end.value, end.wall
    pairs = zip(job.tests, end.reports, strict=False)
    attempt.reports = {tests: report for (tests, _), report in pairs if report is not None}
    facts |= {"ending": end.ending, "exit_code": end.exit_code, "value": to_json_data(end.value)}
    facts |= {"wall": end.wall, "cpu": end.cpu, "memory": end.memory}
    judgement = judge(end, settings.timeout, has_feedback=candidate.has_feedback)
    if attempt.reader is not None:
        attempt.reader.finish()
        judgement = attempt.reader.explain(judgement)
        if end.ending != "exit":  # such as a timeout, which may follow hours of work
            judgement = replace(judgement, retry_after=None)
        attempt.fork.find_gate(attempt).open(attempt.id, judgement)
    attempt.message = judgement.message
    if not judgement.success:
        is_full = judgement.fault is None and await run_in_thread(is_disk_full, branch.home)
        if is_full:  # the candidate could not work, even if it filled the disk itself
            return replace(judgement, fault="disk", reason=f"{judgement.reason}; the disk is full")
        if candidate.argv is not None and judgement.fault is None:
            judgement = _explain(judgement, " ".join(candidate.argv), output.tail() or "")
        return judgement
    if not os.path.isdir(branch.home):
        return Judgement(False, reason="its branch was committed or aborted while it ran")
    if candidate.argv is None:
        return judgement
    try:
        return Judgement(True, _read_score_file(f"{branch.home}/exchange/score"))
    except ValueError as error:
        return Judgement(False, reason=str(error), error=error)


def _find_portable(attempt: Attempt) -> tuple[tuple[Evaluator, Baseline | None], ...]:
    """Return the tests that the runner may run where the attempt runs, with their baselines."""
    fork = attempt.fork
    evaluator = fork.settings.evaluator
    while fork.is_inner and fork.inside is not None:
        fork = fork.inside.fork
    return () if evaluator is None else tuple((one, fork.baselines.get(one)) for one in evaluator.portable)


def _share(
    output: AttemptLog, reader: OutputReader, check: Callable[[OutputReader], None] | None
) -> Callable[[str, bytes], None]:
    """Return the function that gets the output: it goes to the log and to the reader, then a budget is checked."""

    def write(stream: str, piece: bytes) -> None:
        output.write(stream, piece)
        reader.feed(stream, piece)
        if check is not None:
            check(reader)

    return write


def _follow(write: Callable[[str, bytes], None] | None, report: Callable[[], None]) -> Callable[[str, bytes], None]:
    """Return a function that passes output on, and has progress reported afterwards."""

    def pass_on(stream: str, piece: bytes) -> None:
        if write is not None:
            write(stream, piece)
        report()

    return pass_on


def _finish_reader(attempt: Attempt) -> None:
    """Record the last steps and the cost, and take the facts that the output has about the attempt's end."""
    reader, ledger = attempt.reader, attempt.fork.ledger
    if reader is None:
        return
    reader.finish()
    attempt.facts |= {name: value for name, value in reader.facts.items() if value is not None}
    with suppress(LedgerError):  # such as a full disk: the end is still recorded
        if steps := reader.take_steps():
            ledger.record_steps(attempt.id, steps)
        if cost := reader.find_cost():
            ledger.record_cost(attempt.id, cost)


def _explain(judgement: Judgement, command: str, printed: str) -> Judgement:
    """Add to the reason of a failure how the sandbox contributed to it, if it did."""
    cause = explain_private_temporary(command, f"{judgement.reason}\n{printed}")
    return replace(judgement, reason=f"{judgement.reason}; {cause}") if cause else judgement


def _read_score_file(path: str) -> float | None:
    """Read the score that a command wrote; None without a file. Raises ValueError if it is not a score."""
    if not os.path.lexists(path):
        return None
    content = read_regular_file(path, _MAX_SCORE)
    if content is None:
        raise ValueError(f"its score is not a regular file of at most {_MAX_SCORE} bytes")
    return read_score(content)


def _add_environment(job: Job, attempt: Attempt) -> Job:
    """Return ``job`` with the environment variables and exchange files of a command."""
    exchange_directory = make_exchange_directory(job.branch)
    feedback = f"{exchange_directory}/feedback"
    text = attempt.feedback or ""
    end = "\n" if text and not text.endswith("\n") else ""
    Path(feedback).write_text(f"{text}{end}", errors="backslashreplace")
    environment = dict(attempt.candidate.environment)
    if attempt.candidate.prompt is not None:
        environment["FORKWISE_PROMPT"] = f"{exchange_directory}/prompt"
        Path(environment["FORKWISE_PROMPT"]).write_text(attempt.candidate.prompt, newline="")
    if any(_UUID in word for word in job.argv or ()):
        environment[_UUID] = attempt.facts["session"] = str(uuid.uuid4())
    environment |= {
        "FORKWISE_ATTEMPT": str(attempt.number),
        "FORKWISE_FORK": attempt.fork.id,
        "FORKWISE_FEEDBACK": feedback,
        "FORKWISE_SCORE": f"{exchange_directory}/score",
    }
    return replace(job, environment=environment, writable=(exchange_directory,))


async def _evaluate(attempt: Attempt, judgement: Judgement) -> None:
    """Set the attempt's state and scores from ``judgement`` and, if that is a success, from the evaluator."""
    ledger, evaluator = attempt.fork.ledger, attempt.fork.settings.evaluator
    if not judgement.success:
        _fail(attempt, judgement.reason, judgement.error, judgement.fault)
        return
    own = () if judgement.score is None else (judgement.score,)
    attempt.scores = own or (attempt.candidate.prior,)
    is_idle = bool(attempt.no_change) and not attempt.fork.settings.allow_empty
    if is_idle and attempt.fork.settings.has_prompt:
        _fail(attempt, NO_CHANGE, None)
        return
    if evaluator is not None:
        result = await try_call(evaluator.evaluate, attempt)
        if find_fault(result.error) is not None:
            result = await try_call(evaluator.evaluate, attempt)
        if result.error is not None:
            reason = f"it could not be evaluated: {describe_error(result.error)}"
            _fail(attempt, reason, result.error, find_fault(result.error))
            return
        found: Evaluation = result.value
        attempt.scores = found.scores + own or (attempt.candidate.prior,)
        attempt.tests = found.tests
        if found.tests is not None:
            ledger.record_tests(attempt.id, found.tests.as_json())
            from forkwise.ledger.stored_outcomes import save_outcomes  # noqa: PLC0415 - only the end of an attempt needs it

            save_outcomes(ledger.directory, attempt.id, found.tests.outcomes)
        if not found.success:
            _fail(attempt, found.reason, None)
            if found.tests is not None:
                await _try_with_ignored(attempt)
            ledger.record_score(attempt.id, attempt.score, attempt.scores)
            return
    attempt.state = "succeeded"
    if is_idle and attempt.fork.has_work:
        _fail(attempt, NO_CHANGE, None)
    ledger.record_score(attempt.id, attempt.score, attempt.scores)


async def _try_with_ignored(attempt: Attempt) -> None:
    """Evaluate an attempt that failed its tests once more with its ignored files, and record if it passes with them."""
    ignored = await run_in_thread(list_ignored, attempt.own_branch)
    if not ignored:
        return
    with keep_ignored():
        again = await try_call(attempt.fork.settings.evaluator.evaluate, attempt)  # type: ignore[union-attr]
    if again.error is None and again.value.success:
        shown = join_first(ignored, _SHOWN)
        attempt.reason = (
            f"{attempt.reason}; it passes only with files that are ignored and not committed ({shown}): "
            "--include-ignored commits them"
        )
        attempt.facts["needs_ignored"] = ignored[:_MAX_LISTED]


def _fail(attempt: Attempt, reason: str | None, error: BaseException | None, fault: Fault | None = None) -> None:
    attempt.state, attempt.reason, attempt.error, attempt.fault = "faulted" if fault else "failed", reason, error, fault


@contextmanager
def _report_progress(attempt: Attempt, output: AttemptLog) -> Iterator[Callable[[], None]]:
    """Write the attempt's progress to the ledger at intervals while the block runs.

    For an attempt on another machine, it is written only after the yielded function was called, on the event loop. A
    thousand such attempts may wait for a node at once, and checking each of them five times a second would take most of
    this process's time.
    """
    loop = asyncio.get_running_loop()
    is_remote = attempt.fork.settings.runner.is_remote
    last_report: dict[str, Any] = {}
    last_cost: dict[str, Any] = {}
    handle: asyncio.TimerHandle | None = None

    def report() -> None:
        nonlocal handle, last_report, last_cost
        reader = attempt.reader
        activity = None if reader is None else reader.activity
        progress: dict[str, Any] = {
            "files": None if is_remote else _estimate_changed_files(attempt.own_branch),
            "last_line": output.last_line if activity is None else redact(activity),
            "output_bytes": output.total,
        }
        if progress != last_report:
            with suppress(LedgerError):  # such as a full disk: the final record counts
                if reader is not None and (steps := reader.take_steps()):
                    attempt.fork.ledger.record_steps(attempt.id, steps)
                if reader is not None and reader.has_answer:
                    attempt.fork.find_gate(attempt).open(attempt.id)
                cost = None if reader is None else reader.find_cost(by_list=False)
                if cost is not None and cost != last_cost:
                    attempt.fork.ledger.record_cost(attempt.id, cost)
                    last_cost = cost
                attempt.fork.ledger.note_progress(attempt.id, **progress)
            last_report = progress
        handle = None
        if not is_remote:
            plan_report()

    def plan_report() -> None:
        nonlocal handle
        if handle is None:
            handle = loop.call_later(_PROGRESS_INTERVAL, report)

    if not is_remote:
        plan_report()
    try:
        yield plan_report
    finally:
        if handle is not None:
            handle.cancel()


def _estimate_changed_files(branch: Branch) -> int | None:
    """Estimate how many files a branch changed, by counting its upper layer; None if its view has no layers.

    Runs on the event loop, so it must be fast.
    """
    if branch.view_kind.whole:
        return None
    found = 0
    pending = [branch.target]
    while pending and found < _MAX_COUNTED:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    found += 1
    return found


def _save_changes(attempt: Attempt) -> int | None:
    """Keep what an attempt changed in the ledger, and return the number of changed files.

    Returns None if its delta cannot be read, which does not fail the attempt. The parent's versions of these files are
    recorded as well, so that edits made before the decision can be merged. On a BranchFS or DaxFS mount all of that
    would read the whole tree.
    """
    from forkwise.ledger.stored_changes import save_changes  # noqa: PLC0415 - only the end of an attempt needs it

    branch = attempt.branch
    if branch is None or branch.view_kind.native:
        return None
    with suppress(BranchingError, OSError):
        return save_changes(attempt.fork.ledger.directory, attempt.id, branch)
    return None


def _note_no_change(attempt: Attempt) -> None:
    """Note whether an attempt, and those that it builds on, changed nothing, and what it did with git.

    If the delta cannot be read, nothing is noted.

    On a BranchFS or DaxFS mount this would read the whole tree.
    """
    branch, around = attempt.branch, attempt.fork.inside
    if branch is None or branch.view_kind.native:
        return
    with suppress(BranchingError, OSError):
        delta = branch.delta()
        has_changed = bool(len(delta) or delta.repository)
        attempt.no_change = not has_changed and (around is None or around.no_change is True)
        attempt.facts["no_change"] = attempt.no_change or None
        attempt.facts["git"] = summarize_repositories(delta.repository) or None
