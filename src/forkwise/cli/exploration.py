"""One exploration, from the recipe to what came of it: run, shown while it runs, and ended in order when a signal asks
for that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from forkwise.cli.app import Exit, Stopped
from forkwise.cli.options import ExploreOptions
from forkwise.cli.private_mounts import enter_to_create
from forkwise.display.board import PACE, Board, attempt_record
from forkwise.display.output import command_line, commit_record, totals
from forkwise.errors import BranchingError
from forkwise.explore.pattern import Observer, SpeculationOutcome
from forkwise.explore.recipe import Recipe
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.fork import open_ledger
from forkwise.ledger.ledger import LedgerReader
from forkwise.testing.report import TestReport

__all__ = [
    "Exploring",
    "GitCommit",
    "Repository",
    "explore",
    "run_and_report",
]


_OBEYED = (".git", ".git/config", ".git/config.worktree", ".git/commondir")
_UPDATE = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A git commit, and the branch it is on; None where no branch is checked out."""

    id: str
    branch: str | None


class Repository:
    """The git repository that a workspace is in, found before anything is run, so that nothing is run for nothing.

    With a ``branch`` the commit starts that branch, and what is checked out and staged stays untouched.
    """

    def __init__(self, directory: Path, branch: str | None = None) -> None:
        self._directory = directory
        self._branch = branch
        if self._ask("rev-parse", "--is-inside-work-tree") != "true":
            raise click.ClickException(f"{directory} is in no git repository; git init makes one")
        if self._ask("var", "GIT_COMMITTER_IDENT") is None:
            raise click.ClickException("git does not know who commits; git config user.name and user.email say it")
        if branch is not None:
            if self._ask("check-ref-format", "--branch", branch) is None:
                raise click.ClickException(f"{branch!r} is no name for a git branch")
            if self._ask("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}") is not None:
                raise click.ClickException(f"there is a git branch {branch!r} already; give another name")

    def commit(self, paths: Sequence[str], message: str) -> GitCommit | None:
        """Commit what is in the workspace at these paths, and nothing else; None where git sees no change there."""
        self._refuse_what_git_obeys(paths)
        head = self._ask("rev-parse", "--verify", "--quiet", "HEAD")
        with tempfile.TemporaryDirectory(prefix="forkwise-git-") as room:
            tree = self._tree(head, [p for p in paths if not _is_in_git(p)], f"{room}/index")
        if head is not None and tree == self._ask("rev-parse", f"{head}^{{tree}}"):
            return None
        made = self._do("commit-tree", tree, *(("-p", head) if head else ()), input=message)
        if self._branch is not None:
            self._do("update-ref", f"refs/heads/{self._branch}", made, "0" * len(made))
            return GitCommit(made, self._branch)
        subject = message.partition("\n")[0]
        self._do("update-ref", "-m", f"commit: {subject}", "HEAD", made, head or "0" * len(made))
        changed = self._do("diff-tree", "-r", "-z", "--root", "--no-commit-id", "--name-only", "--relative", made)
        self._do(
            "--literal-pathspecs", "reset", "--quiet", "--pathspec-from-file=-", "--pathspec-file-nul", input=changed
        )
        return GitCommit(made, self._ask("symbolic-ref", "--quiet", "--short", "HEAD"))

    def _tree(self, head: str | None, paths: list[str], index: str) -> str:
        """The tree of a commit with these paths as they are in the workspace, made in an index of its own."""
        self._do("read-tree", *((head,) if head else ("--empty",)), index=index)
        gone = [p for p in paths if not os.path.lexists(self._directory / p)]
        known = _split(self._do("ls-files", "-z", index=index)) if gone else []
        wanted = {p for p in paths if not _is_directory(self._directory / p)}
        wanted |= {name for name in known for p in gone if name.startswith(f"{p}/")}
        wanted -= self._ignored(wanted, index)
        self._do(*_UPDATE, index=index, input=_join(wanted))
        return self._do("write-tree", index=index)

    def _ignored(self, paths: Iterable[str], index: str) -> set[str]:
        """Which of the paths git is told to ignore, and does not know already."""
        # By ./name, because a name that begins with a colon would be more than a name.
        done = self._run(("check-ignore", "-z", "--stdin"), index, _join(f"./{path}" for path in paths))
        if done.returncode not in (0, 1):  # 1: none of them
            raise _failed("check-ignore", done)
        return {name.removeprefix("./") for name in _split(_text(done.stdout))}

    def _refuse_what_git_obeys(self, paths: Sequence[str]) -> None:
        """A configuration that an attempt wrote could have git run anything, and forkwise runs git."""
        configuration = self._configured_by()
        for path in paths:
            if path in _OBEYED or (self._directory / path) in configuration:
                raise click.ClickException(f"the winner changed {path}, which git obeys: look at it and commit by hand")

    def _configured_by(self) -> set[Path]:
        """The files that git is configured by; some may lie in the workspace. To ask is safe: it only reads."""
        told = _split(self._ask("config", "--list", "--show-origin", "--name-only", "-z") or "")
        names = [name.removeprefix("file:") for name in told if name.startswith("file:")]
        return {Path(os.path.normpath(self._directory / name)) for name in names}

    def _ask(self, *words: str, index: str | None = None, input: str = "") -> str | None:  # noqa: A002
        """What git says; None where it fails."""
        done = self._run(words, index, input)
        return _text(done.stdout) if done.returncode == 0 else None

    def _do(self, *words: str, index: str | None = None, input: str = "") -> str:  # noqa: A002
        """What git says; ClickException where it fails."""
        done = self._run(words, index, input)
        if done.returncode != 0:
            raise _failed(words[0], done)
        return _text(done.stdout)

    def _run(self, words: Sequence[str], index: str | None, given: str) -> subprocess.CompletedProcess[bytes]:
        environment = dict(os.environ) if index is None else {**os.environ, "GIT_INDEX_FILE": index}
        try:
            return subprocess.run(
                ["git", "-C", str(self._directory), *_SAFE, *words],
                env=environment,
                input=os.fsencode(given),
                capture_output=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise click.ClickException("git is not installed") from error


def _failed(what: str, done: subprocess.CompletedProcess[bytes]) -> click.ClickException:
    said = " ".join(_text(done.stderr).split()) or f"exit code {done.returncode}"
    return click.ClickException(f"git {what} failed: {said}")


def _is_in_git(path: str) -> bool:
    return path == ".git" or path.startswith(".git/")


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _join(names: Iterable[str]) -> str:
    return "".join(f"{name}\0" for name in sorted(names))


def _split(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _text(said: bytes) -> str:
    return os.fsdecode(said).removesuffix("\n")


#: What explores, once it has somebody to tell of it.
Exploring = Callable[[Observer], Coroutine[Any, Any, SpeculationOutcome]]

_LINES = 20  # of what an attempt printed last
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def explore(recipe: Recipe, asked: ExploreOptions) -> int:
    """Carry a recipe out in the workspace that was asked for, and show what comes of it; gives the exit code."""
    enter_to_create(asked.directory, None)
    workspace = Workspace(asked.directory)
    repository = None if asked.git is None else Repository(workspace.path, asked.git or None)
    _check(recipe, asked, workspace)
    pattern = recipe.pattern(workspace)
    return run_and_report(lambda witness: pattern.run(workspace, witness=witness), workspace, asked, repository)


def run_and_report(
    exploring: Exploring, workspace: Workspace, asked: ExploreOptions, repository: Repository | None = None
) -> int:
    """Show an exploration while it runs, and what comes of it; gives the exit code."""
    with open_ledger(workspace) as ledger, _Progress(ledger, asked) as onlooker:
        outcome = _run(exploring, onlooker)
        failure: click.ClickException | OSError | None = None
        git: GitCommit | None = None
        try:
            _write_patch(outcome, asked, onlooker)
            git = _commit_to_git(outcome, asked, onlooker, repository)
        except (click.ClickException, OSError) as error:
            failure = error
        _tell(outcome, asked, onlooker, git)
    if failure is not None:  # told last, because what was committed stands
        raise failure
    return Exit.NOBODY_WON if outcome.winner is None and outcome.commit is None else Exit.OK


def _check(recipe: Recipe, asked: ExploreOptions, workspace: Workspace) -> None:
    """Find out before anything is run what would make it be run for nothing."""
    tests = recipe.test()
    if tests is not None and tests.find(workspace.path) is None:
        raise click.UsageError("it is not plain from the project how its tests are run: --test 'COMMAND' says it")
    if asked.patch is not None and not asked.patch.absolute().parent.is_dir():
        raise click.UsageError(f"--output-patch {asked.patch}: there is no directory {asked.patch.parent}")


class _Progress:
    """Shows an exploration while it runs, and holds on to what only the winner's branch knows: its diff."""

    def __init__(self, ledger: LedgerReader, asked: ExploreOptions) -> None:
        self.ledger = ledger
        self.board: Board | None = None
        self.fork: str | None = None
        self.diff = ""
        self.output = asked.output
        self._quiet = asked.quiet
        self._shown = ExitStack()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def fork_started(self, fork: str) -> None:
        """Begin to show a fork."""
        self.fork = fork
        self.board = Board(self.ledger, fork, self.output, quiet=self._quiet)
        self._shown.enter_context(self.board)

    def winner_found(self, branch: Branch) -> None:
        """Hold on to what won."""
        self.diff = branch.diff()

    async def look(self) -> None:
        """Show what is new, again and again."""
        while True:
            if self.board is not None:
                self.board.refresh()
            await asyncio.sleep(PACE)

    def finish(self, *, summary: bool) -> None:
        """Show what is left to be shown, and make room for what is printed next."""
        if self.board is None:
            return
        self.board.refresh()
        self._shown.close()
        if summary and not self._quiet and not self.output.as_json:
            self.board.summary()


def _run(exploring: Exploring, onlooker: _Progress) -> SpeculationOutcome:
    """Explore until there is an outcome, or until a signal comes: then all that runs is ended, and all branches go."""
    stopped: list[signal.Signals] = []
    try:
        outcome = asyncio.run(_attend(exploring, onlooker, stopped))
    except asyncio.CancelledError:
        onlooker.finish(summary=False)
        name = "" if onlooker.fork is None else f"fork {onlooker.fork} was given up, and "
        raise Stopped(stopped[0], f"{name}nothing was changed") from None
    except BranchingError:
        onlooker.finish(summary=True)
        raise
    onlooker.finish(summary=True)
    return outcome


async def _attend(explore: Exploring, onlooker: _Progress, stopped: list[signal.Signals]) -> SpeculationOutcome:
    loop = asyncio.get_running_loop()
    exploring = asyncio.ensure_future(explore(onlooker))
    looking = asyncio.ensure_future(onlooker.look())

    def stop(number: signal.Signals) -> None:
        if not stopped:  # clearing up is not to be cut short by somebody's second Ctrl-C
            stopped.append(number)
            exploring.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await asyncio.wait([exploring, looking], return_when=asyncio.FIRST_COMPLETED)
        if looking.done():  # there is nobody left to show it to
            exploring.cancel()
            await asyncio.wait([exploring])
            looking.result()
        return exploring.result()
    finally:
        looking.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _write_patch(outcome: SpeculationOutcome, asked: ExploreOptions, onlooker: _Progress) -> None:
    if asked.patch is not None and outcome.winner is not None:
        asked.patch.write_bytes(onlooker.diff.encode("utf-8", "surrogateescape"))


def _commit_to_git(
    outcome: SpeculationOutcome, asked: ExploreOptions, onlooker: _Progress, repository: Repository | None
) -> GitCommit | None:
    if repository is None or outcome.commit is None:
        return None
    assert outcome.fork is not None
    assert outcome.winner is not None
    assert outcome.winner.attempt is not None
    if asked.message is not None:
        return repository.commit(outcome.commit.paths, f"{asked.message}\n")
    winner = onlooker.ledger.attempt(outcome.winner.attempt)
    subject = " ".join(" ".join(asked.words).split()) or winner.label
    facts = [
        f"By forkwise {onlooker.ledger.fork(outcome.fork).kind}: attempt {winner.id} of {len(outcome.all_results)}",
        *([] if outcome.winner.tests is None else [f"tests: {outcome.winner.tests.summary}"]),
    ]
    return repository.commit(outcome.commit.paths, f"{_cut(subject, 72)}\n\n{'; '.join(facts)}.\n")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _tell(outcome: SpeculationOutcome, asked: ExploreOptions, onlooker: _Progress, git: GitCommit | None) -> None:
    """Say what came of it: to a program on one line, to a person with the diff and what to do next."""
    if asked.output.as_json:
        asked.output.stream({"outcome": _record(outcome, asked, onlooker, git)})
        return
    if onlooker.diff and not asked.quiet:
        asked.output.line()
        asked.output.paged_diff(onlooker.diff)
        asked.output.line()
    if outcome.winner is None and len(outcome.all_results) == 1 and not asked.quiet:
        _tell_why(onlooker)
    _tell_commit(outcome, asked)
    if git is not None:
        asked.output.line(f"In git: {git.id[:10]} on {git.branch or 'a detached HEAD'}.")
    if asked.patch is not None and outcome.winner is not None:
        asked.output.line(f"The diff is in {asked.patch}.")


def _tell_why(onlooker: _Progress) -> None:
    """Show what the only attempt had to say: its failing tests, or the end of what it printed."""
    assert onlooker.board is not None
    attempt = onlooker.board.rows()[0].attempt
    said = attempt.tail if attempt.tests is None else TestReport.from_json(attempt.tests).feedback()
    lines = [] if said is None else said.strip().splitlines()[-_LINES:]
    for line in ["", *lines, ""] if lines else [""]:
        onlooker.output.line(line)


def _tell_commit(outcome: SpeculationOutcome, asked: ExploreOptions) -> None:
    output, commit, winner = asked.output, outcome.commit, outcome.winner
    if commit is None:
        if winner is None:
            output.line("No attempt succeeded; nothing was changed.", "bold red")
        else:
            output.line(f"{winner.attempt} is the best; nothing was committed.", "bold")
    else:
        output.line(
            f"Committed {winner.attempt if winner else 'the combination'} as {commit.id}: {totals(commit)}.",
            "bold green",
        )
        output.conflicts(commit.conflicts)
        for skipped in commit.skipped:
            output.line(f"  skipped {skipped}", "yellow")
        output.line(f"To take it back: {command_line(asked.directory, 'undo', str(commit.undo_id))}")
    if asked.no_commit and outcome.fork is not None:
        output.line(f"To choose: {command_line(asked.directory, 'pick', outcome.fork)}")
    elif asked.keep and len(outcome.all_results) > (commit is not None):
        output.line(f"The others are kept: {command_line(asked.directory, 'branch', 'ls')}")


def _record(
    outcome: SpeculationOutcome, asked: ExploreOptions, onlooker: _Progress, git: GitCommit | None
) -> dict[str, Any]:
    """An outcome as JSON holds it."""
    board = onlooker.board
    assert board is not None
    return {
        "fork": outcome.fork,
        "state": onlooker.ledger.fork(outcome.fork or "").state,
        "winner": outcome.winner and outcome.winner.attempt,
        "commit": outcome.commit and commit_record(outcome.commit),
        "git": git and asdict(git),
        "patch": None if asked.patch is None or outcome.winner is None else str(asked.patch),
        "attempts": [attempt_record(row) for row in board.rows()],
    }
