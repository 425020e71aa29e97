"""The run of one exploration: progress while it runs, clean-up on a signal, the report, and the commit to git.

An agent should start as soon as possible, so modules needed only when attempts end are loaded while they run.

``explore`` runs a recipe; ``run_and_report`` runs anything that has an outcome, such as a fork that is resumed.
"""

from __future__ import annotations

import asyncio
import shlex
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Exit, StoppedBySignalError
from forkwise.cli.explore_options import ExploreOptions, find_notice_delay
from forkwise.cli.private_mounts import enter_to_create
from forkwise.cli.stop_signal import (
    find_stop_signal,
    run_until_stopped,
    stop_signals_deferred,
)
from forkwise.concurrency import run_in_thread
from forkwise.display.board import PACE, Board, attempt_record, usage_text
from forkwise.display.notice import TerminalNotice
from forkwise.display.output import Output, command_line, commit_record, size_text, totals
from forkwise.errors import BranchingError, ForkResolvedError, ForkwiseWarning, GitError
from forkwise.explore.pattern import Observer, SpeculationOutcome
from forkwise.explore.recipe import Recipe
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.fork import open_ledger
from forkwise.ledger.ledger import Ledger
from forkwise.sandbox.limits import choose_enforcement
from forkwise.text.phrases import format_number
from forkwise.text.redaction import redact

if TYPE_CHECKING:
    from forkwise.agents.estimate import Estimate
    from forkwise.cli.detachment import Detachment
    from forkwise.cli.git_result import GitCommit, GitRepository, GitResult

__all__ = [
    "Exploration",
    "explore",
    "run_and_report",
]

#: Starts an exploration that reports to an observer, and returns its outcome.
Exploration = Callable[[Observer], Coroutine[Any, Any, SpeculationOutcome]]

_TAIL_LINES = 20
_LOAD_DELAY_S = 0.25  # after the start of a fork, when its first attempts are running
_REST = ("forkwise.files.commit", "forkwise.fork.control", "forkwise.fork.resolve", "forkwise.config.gc_limits")
"""Modules needed at the end of an attempt and for the commit; they import most of what is not loaded yet."""


def explore(recipe: Recipe, options: ExploreOptions) -> int:
    """Run a recipe in the workspace of the options, print the result, and return the exit code."""
    if not recipe.frozen:
        enter_to_create(options.directory, None)
    workspace = Workspace(
        options.directory, frozen=recipe.frozen, allow_executable_config=options.allow_executable_config
    )
    repository = None
    if options.git is not None:
        from forkwise.cli.git_result import GitRepository

        repository = GitRepository(workspace.path, options.git or None)
    if options.is_exported:
        from forkwise.cli.git_result import GitExport

        GitExport(workspace).check(options.as_branch, options.branches_prefix, options.as_patch)
    _check(recipe, options, workspace)
    pattern = recipe.pattern(workspace)
    return run_and_report(
        lambda observer: pattern.run(workspace, observer=observer),
        workspace,
        options,
        repository,
        estimate=_print_estimate(recipe, options, workspace),
    )


def _print_estimate(recipe: Recipe, options: ExploreOptions, workspace: Workspace) -> Estimate | None:
    """Estimate what the agents' attempts will cost, and print the estimate on standard error."""
    planned = recipe.list_agents()
    if not planned:
        return None
    from forkwise.agents.estimate import estimate_cost

    with open_ledger(workspace) as ledger:
        estimate = estimate_cost(ledger, planned)
    if estimate is not None and not options.quiet and not options.output.as_json:
        text = str(estimate)
        click.echo(f"{text[:1].upper()}{text[1:]}.", err=True)
    return estimate


def run_and_report(
    exploration: Exploration,
    workspace: Workspace,
    options: ExploreOptions,
    repository: GitRepository | None = None,
    *,
    estimate: Estimate | None = None,
) -> int:
    """Run an exploration, show its progress, print the result, and return the exit code.

    With ``options.detach``, another process does that, and this one returns as soon as the fork has an id. ``estimate``
    is for the result as JSON.
    """
    if not options.detach:
        notice = TerminalNotice(find_notice_delay(options.directory, options.notify))
        try:
            code, record = _run_and_report(exploration, workspace, options, repository, estimate=estimate)
        except (BranchingError, click.ClickException):
            notice.send("the exploration failed")
            raise
        notice.send(f"fork {record['fork']} {'has a winner' if code == Exit.OK else 'has no winner'}")
        return code
    from forkwise.cli.detachment import detach

    own_options = replace(options, output=Output(as_json=False, is_plain=True), quiet=False)
    return detach(
        lambda detachment: _run_and_report(
            exploration, workspace, own_options, repository, detachment, estimate=estimate
        ),
        workspace,
        options,
    )


def _run_and_report(
    exploration: Exploration,
    workspace: Workspace,
    options: ExploreOptions,
    repository: GitRepository | None,
    detachment: Detachment | None = None,
    *,
    estimate: Estimate | None = None,
) -> tuple[int, dict[str, Any]]:
    """Run an exploration, show its progress, print the result, and return the exit code and the result."""
    failure: click.ClickException | GitError | OSError | None = None
    git: GitCommit | None = None
    exported: tuple[GitResult, ...] = ()
    unfinished = _list_further_steps(options)
    with (
        open_ledger(workspace) as ledger,
        _Progress(ledger, options, detachment) as progress,
        _Report(options, progress) as report,
    ):
        try:
            outcome = _run(exploration, progress)
            try:
                _write_patch(outcome, options, progress)
                unfinished.pop("--output-patch", None)
                git = _commit_to_git(outcome, options, progress, repository)
                if repository is not None and git is not None and outcome.commit is not None:
                    repository.record(workspace, outcome.commit.id)
                unfinished.pop("--commit-to-git", None)
                exported = _export(outcome, options, progress, workspace)
                for name in _EXPORTS:
                    unfinished.pop(name, None)
                _drop_exported(outcome, options, workspace)
                report.write()
                unfinished.pop("--report", None)
            except (click.ClickException, GitError, OSError) as error:
                failure = error
            record = _outcome_record(outcome, options, progress, git, exported, estimate)
            _print_outcome(outcome, options, progress, git, exported, record)
        except KeyboardInterrupt:
            state = _describe_decision(progress, options.directory)
            if report.is_pending:  # the report is written when the block ends
                unfinished.pop("--report", None)
            rest = f"; not finished: {', '.join(unfinished)}" if unfinished else ""
            raise StoppedBySignalError(find_stop_signal(), f"{state}{rest}") from None
    _collect_garbage(workspace, options)
    if failure is not None:  # raised after the report, because the commit to the workspace remains
        raise failure
    if outcome.undecided:
        return Exit.UNDECIDED, record
    return Exit.NO_WINNER if outcome.winner is None and outcome.commit is None else Exit.OK, record


def _check(recipe: Recipe, options: ExploreOptions, workspace: Workspace) -> None:
    """Raise UsageError, before anything runs, if the result could not be saved as requested."""
    choose_enforcement(recipe.build_confinement().limits)  # raises here, before anything runs
    tests = recipe.build_tests()
    if tests is not None and tests.find(workspace.path) is None:
        raise click.UsageError("--test auto found no tests in this project; name the command with --test 'COMMAND'")
    if options.patch is not None and not options.patch.absolute().parent.is_dir():
        raise click.UsageError(
            f"--output-patch {options.patch}: there is no directory {options.patch.parent}; create it first"
        )


class _Progress:
    """Shows an exploration while it runs, and saves the winner's diff while its branch exists."""

    def __init__(self, ledger: Ledger, options: ExploreOptions, detachment: Detachment | None = None) -> None:
        self.ledger = ledger
        self._detachment = detachment
        self.board: Board | None = None
        self.fork: str | None = None
        self.diff = ""
        self.output = options.output
        self._quiet = options.quiet
        self._wants_changes = options.patch is not None or options.git is not None
        self.paths: tuple[str, ...] = ()
        self.own_messages: list[str] = []
        self._base = None if options.git is None else _find_git_commit(options.directory)
        self._stack = ExitStack()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fork_started(self, fork: str) -> None:
        """Start to show a fork."""
        self.fork = fork
        if self._detachment is not None:
            self._detachment.start(fork)
        self.board = Board(self.ledger, fork, self.output, quiet=self._quiet)
        self._stack.enter_context(self.board)

    def winner_found(self, branch: Branch) -> None:
        """Save the winner's diff; on BranchFS and DaxFS, where it takes comparing both trees, only if requested."""
        if self._base is not None:
            from forkwise.git.result import read_own_messages

            self.own_messages = read_own_messages(branch.path, self._base)
        if not branch.view_kind.native:
            self.diff = branch.diff()
        elif self._wants_changes:
            self.diff = branch.diff()
            self.paths = tuple(change.path for change in branch.delta())

    async def refresh_forever(self) -> None:
        """Refresh the board until cancelled."""
        with self.ledger.watch_changes() as watch:
            while True:
                if self.board is not None:
                    self.board.refresh()
                await watch.wait_async(PACE, 1.0)

    def finish(self, *, summary: bool) -> None:
        """Show the last events, and close the board before anything else is printed."""
        if self.board is None:
            return
        self.board.refresh()
        self._stack.close()
        if self._detachment is not None:
            self._detachment.begin_report()
        if summary and not self._quiet and not self.output.as_json and self.ledger.attempts(self.fork or ""):
            self.board.summary()


def _find_git_commit(directory: Path) -> str | None:
    from forkwise.git.repository import find_repository

    repository = find_repository(directory)
    return None if repository is None else repository.find_commit()


class _Report:
    """The report of ``--report``, if requested. It is written even if the exploration fails or is interrupted."""

    def __init__(self, options: ExploreOptions, progress: _Progress) -> None:
        from forkwise.cli.commands.fork_report import open_report

        self._directory = None if options.report is None else open_report(options.report)
        self._progress = progress

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is None or self._directory is None:
            self._close()
            return
        try:
            self.write()
        except (BranchingError, OSError) as problem:
            warnings.warn(f"the report was not written: {problem}", ForkwiseWarning, stacklevel=2)

    @property
    def is_pending(self) -> bool:
        """Whether the report was requested and is not written yet."""
        return self._directory is not None

    def write(self) -> None:
        """Write the report once, if there is a fork."""
        from forkwise.cli.commands.fork_report import write_report

        if self._directory is not None and self._progress.fork is not None:
            directory, self._directory = self._directory, None
            with directory:
                write_report(directory, self._progress.ledger, self._progress.fork)

    def _close(self) -> None:
        if self._directory is not None:
            self._directory.close()


_EXPORTS = ("--as-branch", "--as-patch", "--branches-prefix")


def _list_further_steps(options: ExploreOptions) -> dict[str, object]:
    """Return the options that ask for something after the commit to the workspace."""
    wanted = {
        "--output-patch": options.patch,
        "--commit-to-git": options.git,
        **dict(zip(_EXPORTS, (options.as_branch, options.as_patch, options.branches_prefix), strict=True)),
        "--report": options.report,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _describe_decision(progress: _Progress, directory: Path) -> str:
    """Describe what an exploration had decided before a signal ended it."""
    if progress.fork is None:
        return "nothing was changed"
    fork = progress.ledger.fork(progress.fork)
    if fork.commit is not None:
        undo = command_line(directory, "undo", str(fork.commit))
        return f"{fork.winner} was committed as {fork.commit} before that, and stays: {undo} takes it back"
    if fork.state == "resolved":
        return f"{fork.winner} was chosen, and is committed with: {command_line(directory, 'resume', fork.id)}"
    return _describe_rest(progress, directory)


def _describe_rest(progress: _Progress, directory: Path) -> str:
    """Describe what remains of an exploration that a signal ended."""
    if progress.fork is None:
        return "nothing was changed"
    if progress.ledger.fork(progress.fork).state != "open":
        return f"fork {progress.fork} was aborted, nothing was changed"
    kept = [attempt.id for attempt in progress.ledger.attempts(progress.fork) if attempt.state == "succeeded"]
    command = command_line(directory, "pick", progress.fork)
    return f"nothing was changed; {', '.join(kept)} had succeeded and can be committed with: {command}"


def _run(exploration: Exploration, progress: _Progress) -> SpeculationOutcome:
    """Run until there is an outcome. On a signal, stop all attempts, keep those that had succeeded, and raise."""
    try:
        outcome = run_until_stopped(_run_and_refresh(exploration, progress))
    except KeyboardInterrupt:
        progress.finish(summary=False)
        raise
    except BranchingError:
        progress.finish(summary=True)
        raise
    progress.finish(summary=True)
    return outcome


def _load_rest() -> None:
    """Load what the end of an exploration needs, in a thread, while the attempts run."""
    for name in _REST:
        import_module(name)


async def _run_and_refresh(exploration: Exploration, progress: _Progress) -> SpeculationOutcome:
    asyncio.get_running_loop().call_later(_LOAD_DELAY_S, run_in_thread, _load_rest)
    run_task = asyncio.ensure_future(exploration(progress))
    refresh_task = asyncio.ensure_future(progress.refresh_forever())
    try:
        try:
            await asyncio.wait([run_task, refresh_task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            run_task.cancel()
            await asyncio.wait([run_task])
            return run_task.result()
        if refresh_task.done():  # stdout was closed
            run_task.cancel()
            await asyncio.wait([run_task])
            refresh_task.result()
        return run_task.result()
    finally:
        refresh_task.cancel()


def _collect_garbage(workspace: Workspace, options: ExploreOptions) -> None:
    """Run gc if the user has set limits for it. Its failure is only a warning, because the exploration is over."""
    from forkwise.config.gc_limits import read_gc_limits
    from forkwise.fork.control import collect_by_limits

    try:
        report = collect_by_limits(workspace, read_gc_limits(workspace.path))
    except (BranchingError, OSError) as error:
        warnings.warn(f"old data was not removed automatically: {error}", ForkwiseWarning, stacklevel=1)
        return
    removed = () if report is None else (*report.collected.removed, *report.forgotten)
    if report is not None and removed and not options.quiet and not options.output.as_json:
        freed = size_text(report.collected.freed)
        options.output.line(
            f"Removed {format_number(len(removed), 'old item')}, as [gc] in your config.toml says; {freed} freed."
        )


def _write_patch(outcome: SpeculationOutcome, options: ExploreOptions, progress: _Progress) -> None:
    if options.patch is not None and outcome.winner is not None:
        options.patch.write_bytes(progress.diff.encode("utf-8", "surrogateescape"))


def _commit_to_git(
    outcome: SpeculationOutcome, options: ExploreOptions, progress: _Progress, repository: GitRepository | None
) -> GitCommit | None:
    if repository is None or outcome.commit is None:
        return None
    from forkwise.cli.git_result import trailers_of
    from forkwise.git.result import build_message

    assert outcome.fork is not None
    assert outcome.winner is not None
    assert outcome.winner.attempt is not None
    paths = outcome.commit.paths or progress.paths
    winner = progress.ledger.attempt(outcome.winner.attempt)
    if options.message is not None:
        return repository.commit(paths, build_message(options.message, (), trailers_of(winner)))
    subject = " ".join(" ".join(options.words).split()) or winner.label
    note = f"By forkwise {progress.ledger.fork(outcome.fork).kind}: attempt {winner.id} of {len(outcome.all_results)}."
    own = progress.own_messages
    return repository.commit(paths, build_message(f"{subject}\n\n{note}", own, trailers_of(winner)))


def _export(
    outcome: SpeculationOutcome, options: ExploreOptions, progress: _Progress, workspace: Workspace
) -> tuple[GitResult, ...]:
    """Make git branches and a patch of the results."""
    if not options.is_exported or outcome.fork is None:
        return ()
    from forkwise.cli.git_result import GitExport

    export, ledger = GitExport(workspace), progress.ledger
    found: list[GitResult] = []
    if options.branches_prefix is not None:
        for attempt in ledger.attempts(outcome.fork):
            if attempt.no_change or not attempt.is_over:
                continue
            name = f"{options.branches_prefix.rstrip('/')}/{attempt.id.rpartition('.')[2]}"
            try:
                found.append(export.export(ledger, attempt, branch=name, message=options.message)[0])
            except GitError as error:
                warnings.warn(f"{attempt.id} is not a git branch: {error}", ForkwiseWarning, stacklevel=2)
    if outcome.winner is not None and outcome.winner.attempt is not None:
        winner = ledger.attempt(outcome.winner.attempt)
        if options.as_branch is not None or options.as_patch is not None:
            result, content = export.export(
                ledger, winner, branch=options.as_branch, patch=options.as_patch, message=options.message
            )
            found.insert(0, result)
            if options.as_patch == "-" and not options.output.as_json:
                options.output.text(content.decode("utf-8", "replace"))
    return tuple(found)


def _drop_exported(outcome: SpeculationOutcome, options: ExploreOptions, workspace: Workspace) -> None:
    """Drop the branches of attempts that were made git branches or a patch, unless they are to be kept."""
    if not options.is_exported or outcome.fork is None or options.keep or options.no_commit or outcome.undecided:
        return
    from forkwise.fork.control import abort_fork

    with suppress(ForkResolvedError), stop_signals_deferred():
        abort_fork(workspace, outcome.fork)


def _print_exported(exported: Sequence[GitResult], output: Output) -> None:
    for one in exported:
        if one.branch is not None:
            output.line(f"{one.attempt} is the git branch {one.branch} ({(one.commit or '')[:10]}).", "bold green")
        if one.patch is not None:
            output.line(f"{one.attempt} is the patch {one.patch}: {one.command}", "bold green")


def _print_outcome(
    outcome: SpeculationOutcome,
    options: ExploreOptions,
    progress: _Progress,
    git: GitCommit | None,
    exported: Sequence[GitResult],
    record: dict[str, Any],
) -> None:
    """Print the outcome: as one JSON line, or as text with the diff and the next steps."""
    if options.output.as_json:
        options.output.stream({"outcome": record})
        return
    if progress.diff and not options.quiet:
        options.output.line()
        options.output.paged_diff(progress.diff)
        options.output.line()
    _print_answer(outcome, options, progress)
    if outcome.winner is None and len(outcome.all_results) == 1 and not options.quiet:
        _print_failure(progress)
    _print_verdict(outcome, options, progress)
    _print_commit(outcome, options)
    if line := _find_continuation(outcome, options, progress):
        options.output.line(f"Continue with: {line}")
    _print_exported(exported, options.output)
    if git is not None:
        options.output.line(f"In git: {git.id[:10]} on {git.branch or 'a detached HEAD'}.")
    if options.patch is not None and outcome.winner is not None:
        options.output.line(f"Diff written to {options.patch}.")
    if options.report is not None:
        options.output.line(f"Report: {options.report / 'index.html'}")


def _print_answer(outcome: SpeculationOutcome, options: ExploreOptions, progress: _Progress) -> None:
    """Print the closing message of the winner's agent."""
    if options.quiet or outcome.winner is None or outcome.winner.attempt is None:
        return
    winner = progress.ledger.attempt(outcome.winner.attempt)
    if winner.answer:
        options.output.line(f"{winner.agent or winner.id} says:", "bold")
        options.output.text(winner.answer)
        options.output.line()


def _find_continuation(outcome: SpeculationOutcome, options: ExploreOptions, progress: _Progress) -> str:
    """Return the command line that continues the session of the winner's agent; empty if there is none."""
    if outcome.winner is None or outcome.winner.attempt is None:
        return ""
    winner = progress.ledger.attempt(outcome.winner.attempt)
    if winner.agent is None:
        return ""
    from forkwise.agents.preset import find_resume_argv

    argv = find_resume_argv(winner.agent, winner.session, options.directory)
    if not argv or outcome.commit is not None:
        return shlex.join(argv)
    return command_line(options.directory, "continue", winner.id)


def _print_verdict(outcome: SpeculationOutcome, options: ExploreOptions, progress: _Progress) -> None:
    """Print the judge's choice and its cost."""
    verdict = progress.ledger.fork(outcome.fork or "").verdict or {}
    for vote in verdict.get("votes", ()):
        used = usage_text(verdict)
        sure = f"confidence {vote['confidence']:.2f}{f'; {used}' if used else ''}"
        options.output.line(f"Judge {redact(str(vote['judge']))}: {vote['winner']} ({sure}).")
    if not verdict.get("votes") and (used := usage_text(verdict)):
        options.output.line(f"The judge gave no verdict ({used}).", "yellow")


def _print_failure(progress: _Progress) -> None:
    """Print why the only attempt failed: its failing tests, or the end of its output."""
    from forkwise.testing.report import TestReport

    assert progress.board is not None
    attempt = progress.board.rows()[0].attempt
    text = attempt.tail if attempt.tests is None else TestReport.from_json(attempt.tests).feedback()
    lines = [] if text is None else text.strip().splitlines()[-_TAIL_LINES:]
    for line in ["", *lines, ""] if lines else [""]:
        progress.output.line(line)


def _print_commit(outcome: SpeculationOutcome, options: ExploreOptions) -> None:
    output, commit, winner = options.output, outcome.commit, outcome.winner
    if outcome.undecided:
        output.line("The judge failed, and the attempts are equal otherwise; nothing was committed.", "bold red")
    elif commit is None:
        if winner is None:
            is_undecided = any(result.success for result in outcome.all_results)
            is_idle = bool(outcome.all_results) and all(r.reason == "no change" for r in outcome.all_results)
            problem = "No attempt could be chosen as the best" if is_undecided else "No attempt succeeded"
            problem = "No attempt changed anything" if is_idle else problem
            output.line(f"{problem}; nothing was changed.", "bold red")
            faults = [result for result in outcome.all_results if result.fault is not None]
            if faults:
                kinds = ", ".join(dict.fromkeys(str(result.fault) for result in faults))
                some = f"{len(faults)} of {len(outcome.all_results)}"
                output.line(f"{some} could not be judged: a fault outside of the attempts ({kinds}).", "yellow")
        else:
            output.line(f"{winner.attempt} is the best; nothing was committed.", "bold")
    else:
        output.line(
            f"Committed {winner.attempt if winner else 'the combination'} as {commit.id}: {totals(commit)}.",
            "bold green",
        )
        output.repository(commit.repository)
        output.conflicts(commit.conflicts)
        for path in commit.skipped:
            output.line(f"  skipped {path}", "yellow")
        output.executable_config(commit.executable_config)
        if not outcome.note:
            output.line(f"Undo with: {command_line(options.directory, 'undo', str(commit.undo_id))}")
    if outcome.note:
        output.line(f"{outcome.note}.")
    _print_next_step(outcome, options, output)


def _print_next_step(outcome: SpeculationOutcome, options: ExploreOptions, output: Output) -> None:
    if outcome.undecided:
        successes = [str(result.attempt) for result in outcome.all_results if result.success]
        output.line(f"Commit one with: {command_line(options.directory, 'pick', successes[0])}")
    elif (options.no_commit or (options.is_exported and options.keep)) and outcome.fork is not None:
        output.line(f"Commit one with: {command_line(options.directory, 'pick', outcome.fork)}")
    elif options.keep and len(outcome.all_results) > (outcome.commit is not None):
        output.line(f"The other branches were kept: {command_line(options.directory, 'branch', 'ls')}")


def _outcome_record(
    outcome: SpeculationOutcome,
    options: ExploreOptions,
    progress: _Progress,
    git: GitCommit | None,
    exported: Sequence[GitResult],
    estimate: Estimate | None,
) -> dict[str, Any]:
    board = progress.board
    assert board is not None
    return {
        "fork": outcome.fork,
        "state": progress.ledger.fork(outcome.fork or "").state,
        "winner": outcome.winner and outcome.winner.attempt,
        "commit": outcome.commit and commit_record(outcome.commit),
        "git": git and asdict(git),
        "exported": [asdict(one) for one in exported],
        "patch": None if options.patch is None or outcome.winner is None else str(options.patch),
        "report": None if options.report is None else str(options.report),
        "note": outcome.note,
        "verdict": progress.ledger.fork(outcome.fork or "").verdict,
        "continue": _find_continuation(outcome, options, progress) or None,
        "estimate": None if estimate is None else asdict(estimate),
        "warnings": list(outcome.warnings),
        "attempts": [attempt_record(row) for row in board.rows()],
    }
