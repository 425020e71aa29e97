"""``forkwise pick``, ``combine``, ``resume``, ``abort`` and ``follow-up``: decide a fork by hand, or try once more.

``wait`` waits for a fork's end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import (
    Exit,
    StoppedBySignalError,
    Verb,
    json_option,
    print_note,
    stream_option,
    workspace_option,
)
from forkwise.cli.explore_options import ExploreOptions, find_notice_delay
from forkwise.cli.options import (
    allow_option,
    conflict_option,
    detach_option,
    ignored_option,
    notify_option,
    retest_option,
)
from forkwise.cli.quantity import Duration
from forkwise.cli.stop_signal import find_stop_signal, run_until_stopped
from forkwise.display.output import Output, command_line, commit_record, printable, repository_records, totals

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.files.workspace import Workspace
    from forkwise.fork.combine import Combined
    from forkwise.ledger.detached_run import DetachedRun
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import ForkRecord

__all__ = ["abort", "combine", "follow_up", "pick", "resume", "wait"]

_ON_CONFLICT = conflict_option(
    "Action if the workspace changed meanwhile: refuse to commit, take ours (the attempt's), keep theirs, or merge."
)
_KEEP = click.option("--keep", is_flag=True, help="Keep the branches of the other attempts.")


@click.command("pick", cls=Verb, example=("forkwise pick k3f9ab.2", "forkwise pick k3f9ab --on-conflict merge"))
@click.argument("name", metavar="ATTEMPT|FORK")
@_ON_CONFLICT
@_KEEP
@click.option("--force", is_flag=True, help="Commit even an attempt that did not succeed.")
@click.option("--trust", is_flag=True, help="Commit a branch that a power failure may have damaged.")
@retest_option
@allow_option
@ignored_option
@workspace_option
@json_option
def pick(
    name: str,
    on_conflict: OnConflict,
    keep: bool,
    force: bool,
    trust: bool,
    no_retest: bool,
    allow_executable_config: bool,
    include_ignored: bool,
    directory: Path,
    output: Output,
) -> None:
    """Commit one attempt of a fork, and drop the others.

    The fork may be open (made with --no-commit), interrupted, or still running; its other attempts are then stopped. If
    this attempt had won but was not committed because of a conflict, it is committed now. FORK alone picks the attempt
    that was judged best.

    If the attempt passed tests and the workspace was changed since, it is tested again on top of the changes. If it
    fails, nothing is committed, the fork stays undecided, and the exit code is 7.
    """
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.explore.resume import find_retest
    from forkwise.files.workspace import Workspace
    from forkwise.fork.resolve import pick as decide

    enter_to_create(directory, None)
    workspace = Workspace(directory, allow_executable_config=allow_executable_config)
    tests = None if no_retest else find_retest(workspace, name)
    commit = decide(
        workspace,
        name,
        on_conflict=on_conflict,
        keep=keep,
        force=force,
        trust=trust,
        tests=tests,
        include_ignored=include_ignored,
    )
    continuation = _find_continuation(workspace, name)
    if output.as_json:
        output.document({"commit": commit_record(commit), "continue": continuation or None})
    else:
        title = f"Committed {name}" if "." in name else f"Committed the winner of {name}"
        _print_commit(commit, title, directory, output)
        if continuation:
            output.line(f"Continue with: {continuation}")


def _find_continuation(workspace: Workspace, name: str) -> str:
    """Return the command line that continues the session of the agent that was picked; empty if there is none."""
    import shlex

    from forkwise.agents.preset import find_resume_argv
    from forkwise.ledger.sqlite import open_ledger

    with open_ledger(workspace) as ledger:
        picked = name if "." in name else ledger.fork(name).winner
        if picked is None:
            return ""
        attempt = ledger.attempt(picked)
    return shlex.join(find_resume_argv(attempt.agent, attempt.session, workspace.path))


def _print_commit(commit: Commit, title: str, directory: Path, output: Output) -> None:
    output.line(f"{title} as {commit.id}: {totals(commit)}.", "bold green")
    output.changes({"added": commit.added, "changed": commit.changed, "deleted": commit.deleted})
    output.repository(commit.repository)
    output.conflicts(commit.conflicts)
    for path in commit.skipped:
        output.line(f"  skipped {path}", "yellow")
    output.executable_config(commit.executable_config)
    if commit.note:
        output.line(f"{commit.note}.")
    elif commit.branch.count("/") == 2:
        output.line(f"Undo with: {command_line(directory, 'undo', str(commit.undo_id))}")


@click.command(
    "combine",
    cls=Verb,
    example=("forkwise combine k3f9ab.1 k3f9ab.3", "forkwise combine k3f9ab.1 k3f9ab.3 --prefer setup.py=k3f9ab.3"),
)
@click.argument("names", metavar="ATTEMPT ATTEMPT...", nargs=-1, required=True)
@click.option(
    "--prefer",
    multiple=True,
    metavar="[PATH=]ATTEMPT",
    help="Attempt whose version wins a conflict: at PATH, or wherever the attempt is involved. Repeatable.",
)
@click.option(
    "--test", "command", metavar="CMD", show_default="the tests of the fork", help="Test command for the combination."
)
@click.option("--no-test", is_flag=True, help="Skip the tests of the combination.")
@retest_option
@_ON_CONFLICT
@_KEEP
@click.option("--force", is_flag=True, help="Commit even if tests fail; on a conflict, the attempt named first wins.")
@allow_option
@workspace_option
@json_option
def combine(
    names: tuple[str, ...],
    prefer: tuple[str, ...],
    command: str | None,
    no_test: bool,
    no_retest: bool,
    on_conflict: OnConflict,
    keep: bool,
    force: bool,
    allow_executable_config: bool,
    directory: Path,
    output: Output,
) -> int:
    """Merge several attempts of a fork, test and commit the result.

    Changes to different files or different lines are merged. If attempts conflict, nothing is committed and the exit
    code is 3: choose a side with --prefer. If the tests fail, the exit code is 7. In both cases the fork stays
    undecided. Git operations of the attempts, such as commits, are not merged unless all files come from one attempt.
    """
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.explore.resume import find_tests
    from forkwise.files.workspace import Workspace
    from forkwise.fork.combine import combine_attempts
    from forkwise.ledger.sqlite import open_ledger

    if no_test and command is not None:
        raise click.UsageError("--test and --no-test contradict each other")
    enter_to_create(directory, None)
    workspace = Workspace(directory, allow_executable_config=allow_executable_config)
    with open_ledger(workspace) as ledger:
        fork = ledger.fork(ledger.attempt(names[0]).fork)
    by_path = {path: name for path, is_path, name in (word.rpartition("=") for word in prefer) if is_path}
    result = run_until_stopped(
        combine_attempts(
            workspace,
            names,
            tests=None if no_test else find_tests(workspace, fork, command),
            prefer=by_path,
            favour=[word for word in prefer if "=" not in word],
            on_conflict=on_conflict,
            keep=keep,
            force=force,
            retest=not no_retest,
        )
    )
    if output.as_json:
        output.document({"combination": _combination_record(result)})
    else:
        _print_combination(result, directory, output)
    if result.commit is not None:
        return Exit.OK
    return Exit.CONFLICT if result.conflicts else Exit.NO_WINNER


def _combination_record(result: Combined) -> dict[str, object]:
    return {
        "fork": result.fork,
        "attempts": list(result.attempts),
        "merged": list(result.merged),
        "taken": dict(result.taken),
        "conflicts": [
            {"path": c.path, "kind": c.kind, "attempts": list(c.branches), "detail": c.detail} for c in result.conflicts
        ],
        "tests": None if result.tests is None else result.tests.as_json(),
        "commit": None if result.commit is None else commit_record(result.commit),
        "left_repositories": {name: repository_records(found) for name, found in result.left_repositories.items()},
    }


def _print_combination(result: Combined, directory: Path, output: Output) -> None:
    from forkwise.git.repository_change import format_left_repositories

    for path in result.merged:
        output.line(f"  {path}: merged")
    for path, name in result.taken.items():
        output.line(f"  {path}: from {name}")
    for conflict in result.conflicts:
        output.line(f"  ! {conflict}", "red")
    if result.tests is not None:
        output.line(f"tests: {result.tests.doubt or result.tests.summary}", "green" if result.tests.is_pass else "red")
    if result.commit is not None:
        _print_commit(result.commit, f"Committed {' and '.join(result.attempts)} together", directory, output)
        for sentence in format_left_repositories(result.left_repositories):
            output.line(f"  git: {sentence}", "yellow")
    elif result.conflicts:
        output.line("The attempts conflict; nothing was committed.", "bold red")
        words = ("combine", *result.attempts, "--prefer", f"{result.conflicts[0].path}={result.attempts[-1]}")
        output.line(f"Choose a version, for example: {command_line(directory, *words)}")
    else:
        output.text("" if result.tests is None else result.tests.feedback())
        output.line("The tests do not pass; nothing was committed. Commit anyway with --force.", "bold red")


@click.command("resume", cls=Verb, streams=True, example=("forkwise resume k3f9ab", "forkwise resume k3f9ab --json"))
@click.argument("name", metavar="FORK")
@click.option(
    "--on-conflict",
    type=click.Choice(("refuse", "ours", "theirs", "merge")),
    show_default="as the fork was started",
    help="Action if the workspace changed meanwhile.",
)
@detach_option
@notify_option
@click.option("-q", "--quiet", is_flag=True, help="Print only the result.")
@allow_option
@workspace_option
@stream_option
def resume(
    name: str,
    on_conflict: OnConflict | None,
    detach: bool,
    notify: float | None,
    quiet: bool,
    allow_executable_config: bool,
    directory: Path,
    output: Output,
) -> int:
    """Resume a fork that was interrupted, or commit its winner.

    A fork is interrupted if the process that ran it was killed. Finished attempts are not run again; the others start
    over in new branches. If the fork was decided but not committed, its winner is committed.
    """
    from forkwise.cli.exploration import run_and_report
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.explore.resume import resume as resume_fork
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import open_ledger

    enter_to_create(directory, None)
    workspace = Workspace(directory, allow_executable_config=allow_executable_config)
    with open_ledger(workspace) as ledger:
        spec = ledger.fork(name).spec
    options = ExploreOptions(
        directory=directory,
        output=output,
        detach=detach,
        notify=notify,
        quiet=quiet,
        no_commit=not spec.get("commit", True),
        keep=bool(spec.get("keep", False)),
    )
    return run_and_report(
        lambda observer: resume_fork(workspace, name, on_conflict=on_conflict, observer=observer), workspace, options
    )


@click.command(
    "follow-up",
    cls=Verb,
    streams=True,
    example=("forkwise follow-up k3f9ab.2 'keep the old name as an alias'", "forkwise follow-up k3f9ab.2 --detach"),
)
@click.argument("name", metavar="ATTEMPT")
@click.argument("words", metavar="[TEXT]...", nargs=-1)
@detach_option
@notify_option
@click.option("-q", "--quiet", is_flag=True, help="Print only the result.")
@workspace_option
@stream_option
def follow_up(
    name: str,
    words: tuple[str, ...],
    detach: bool,
    notify: float | None,
    quiet: bool,
    directory: Path,
    output: Output,
) -> int:
    """Run an attempt's command once more, on top of its changes.

    The command, such as an agent, starts from the files of ATTEMPT. The file $FORKWISE_FEEDBACK holds the comments on
    them: TEXT, and those made on the page of forkwise serve that were not sent yet. The new attempt is in a fork of its
    own, which waits for forkwise pick.
    """
    from forkwise.cli.exploration import run_and_report
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.cli.variation import check_prompt
    from forkwise.explore.follow_up import follow_up as run_follow_up
    from forkwise.explore.follow_up import prepare_follow_up
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import open_ledger

    text = check_prompt(" ".join(words))
    enter_to_create(directory, None)
    workspace = Workspace(directory)
    with open_ledger(workspace) as ledger:
        prepare_follow_up(ledger, name, text)  # raises before anything is detached
    options = ExploreOptions(
        directory=directory, output=output, detach=detach, notify=notify, quiet=quiet, no_commit=True, keep=True
    )
    return run_and_report(lambda observer: run_follow_up(workspace, name, text, observer=observer), workspace, options)


@click.command("abort", cls=Verb, example=("forkwise abort k3f9ab", "forkwise abort k3f9ab.2"))
@click.argument("name", metavar="FORK|ATTEMPT")
@click.option(
    "--lost",
    is_flag=True,
    help="Abort without waiting for the machine that runs the fork, because it is gone for good.",
)
@workspace_option
@json_option
def abort(name: str, lost: bool, directory: Path, output: Output) -> None:
    """Abort a fork and drop its branches, or stop one attempt.

    A fork may be aborted while another process runs it: that process then kills the attempts and their children. When
    one attempt is stopped, the others keep running. To revert a committed fork, use forkwise undo.
    """
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.files.workspace import Workspace
    from forkwise.fork.control import abort_attempt, abort_fork
    from forkwise.ledger.sqlite import open_ledger

    if "." in name and lost:
        raise click.UsageError("--lost aborts a whole fork: name the fork, not an attempt")
    enter_to_create(directory, None)
    workspace = Workspace(directory)
    dropped = abort_attempt(workspace, name) if "." in name else abort_fork(workspace, name, lost=lost)
    with open_ledger(workspace) as ledger:
        found = ledger.attempt(name).id if "." in name else ledger.fork(name).id
    if output.as_json:
        output.document({"aborted": found, "dropped": list(dropped)})
    elif "." in name:
        output.line(f"Stopped {found}; the other attempts keep running.", "bold")
    else:
        output.line(f"Aborted {found}; its branches were dropped.", "bold")


@click.command("wait", cls=Verb, example=("forkwise wait k3f9ab", "forkwise wait k3f9ab --timeout 30m --json"))
@click.argument("name", metavar="FORK")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(allows_zero=True),
    metavar="DURATION",
    show_default="no limit",
    help="Maximum time to wait, such as 30m; 0 only checks.",
)
@notify_option
@workspace_option
@json_option
def wait(name: str, timeout_s: float | None, notify: float | None, directory: Path, output: Output) -> int:
    """Wait for a background fork to end, and print its result.

    The exit code is the one that the command would have had without --detach: 0 if there is a winner, 7 if no attempt
    succeeded. The same holds if someone else decided the fork. The exit code is 124 if the fork still runs after
    --timeout. You can also wait for a fork that runs in another terminal. Interrupting the wait does not affect the
    fork.
    """
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.cli.detachment import wait_for_end
    from forkwise.display.notice import TerminalNotice

    notice = TerminalNotice(find_notice_delay(directory, notify))
    _, ledger = open_workspace(directory)
    with ledger:
        fork = ledger.fork(name).id
        try:
            found = wait_for_end(ledger, fork, timeout_s)
        except KeyboardInterrupt:
            raise StoppedBySignalError(find_stop_signal(), f"fork {fork} is not affected") from None
        if found is None:
            return _print_unfinished(ledger.fork(fork), directory, output)
        code = _print_end(ledger, *found, directory, output)
        notice.send(f"fork {fork} {'has a winner' if code == Exit.OK else 'has no winner'}")
        return code


def _print_unfinished(fork: ForkRecord, directory: Path, output: Output) -> int:
    from forkwise.cli.commands.forks import fork_record

    if output.as_json:
        output.document({"fork": fork_record(fork), "exit_code": int(Exit.TIMEOUT)})
    else:
        output.line(f"Fork {fork.id} still runs. Keep waiting: {command_line(directory, 'wait', fork.id)}", "yellow")
    return Exit.TIMEOUT


def _print_end(ledger: Ledger, fork: ForkRecord, run: DetachedRun | None, directory: Path, output: Output) -> int:
    """Print how a fork ended: what its background process would have printed, or what the ledger says about it."""
    from forkwise.cli.commands.forks import fork_record, print_output, show_fork
    from forkwise.cli.detachment import find_exit_code

    if run is None or run.exit_code is None or not run.is_current(fork):
        code = int(find_exit_code(fork))
        if not output.as_json:
            show_fork(ledger, fork, directory, output)
            return code
        output.document({"fork": fork_record(fork), "exit_code": code, "outcome": None, "error": None})
        return code
    if output.as_json:
        document = {"exit_code": run.exit_code, "outcome": run.outcome, "error": run.failure}
        output.document({"fork": fork_record(fork), **document})
        return run.exit_code
    print_output(run.read_report(), output)
    if run.message:
        print_note("error", printable(run.message))
    if run.hint:
        print_note("hint", printable(run.hint))
    return run.exit_code
