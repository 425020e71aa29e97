"""``forkwise diff``: what turns one attempt into another, as text or in a diff tool."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Verb, json_option, stream_option, workspace_option
from forkwise.display.output import Output, change_record, command_line, size_text

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import Delta
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord, Summary

__all__ = [
    "diff",
    "fork_record",
    "has_panels",
    "ls",
    "opened",
    "remedy",
    "show",
    "show_fork",
    "watch",
]


_LISTED = 20
_LINES = 20  # of what an attempt printed last
_WIDEST = 40  # characters of what is tried, in a list


@click.command("ls", cls=Verb, example=("forkwise ls", "forkwise ls --all --json"))
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=_LISTED, show_default=True, metavar="N", help="The newest N."
)
@click.option("--all", "everything", is_flag=True, help="All of them, also those made inside attempts of others.")
@workspace_option
@json_option
def ls(limit: int, everything: bool, directory: Path, output: Output) -> None:
    """List the forks of a workspace, newest first.

    A fork is what an exploring verb makes: the attempts at one thing, and how it was decided between them. It is
    running, interrupted (its process was killed), open (it waits for a pick), resolved, or aborted.
    """
    workspace, ledger = opened(directory)
    with ledger:
        found = ledger.summaries(None if everything else limit, outermost=not everything)
    if output.as_json:
        forks = [{**fork_record(s.fork), "label": s.label, "attempts": s.attempts, "best": s.best} for s in found]
        output.document({"workspace": str(workspace.path), "forks": forks})
    elif not found:
        output.line("Nothing was explored here yet: forkwise run, best-of, speculate and others do that.")
    else:
        output.table(("fork", "kind", "state", "attempts", "best", "began", "commit", "what"), map(_row, found))
        for summary in found:
            if advice := remedy(summary.fork, directory):
                output.line(f"{summary.fork.id} {advice}", "yellow")


def _row(summary: Summary) -> tuple[str, ...]:
    fork = summary.fork
    cut = {"running": "cut short"} if fork.state == "interrupted" else {}
    counts = ", ".join(f"{count} {cut.get(state, state)}" for state, count in summary.attempts.items())
    best = "" if summary.best is None else f"{summary.best:g}"
    label = " ".join((summary.label or "").split())
    what = label if len(label) <= _WIDEST else f"{label[: _WIDEST - 1]}…"
    return fork.id, fork.kind, fork.state, counts, best, _moment(fork.started), _commit_text(fork), what


def remedy(fork: ForkRecord, directory: Path) -> str:
    """What somebody has to do about a fork, if anything."""
    if fork.parent is not None:
        return ""
    match fork.state:
        case "interrupted":
            told, verb, does = "was interrupted", "resume", "goes on with it"
        case "open":
            told, verb, does = "waits for a pick", "pick", "takes the best"
        case "resolved" if fork.commit is None and not fork.owner.alive:
            told, verb, does = "was decided, and not committed", "resume", "commits it"
        case _:
            return ""
    forth, back = (command_line(directory, word, fork.id) for word in (verb, "abort"))
    return f"{told}: {forth} {does}, {back} gives it up"


@click.command("show", cls=Verb, example=("forkwise show k3f9ab", "forkwise show k3f9ab.2 --output | less"))
@click.argument("name", metavar="FORK|ATTEMPT")
@click.option("--output", "printed", is_flag=True, help="All that the attempt printed, and nothing else.")
@click.option("--stderr", is_flag=True, help="All that the attempt printed on stderr, and nothing else.")
@workspace_option
@json_option
def show(name: str, printed: bool, stderr: bool, directory: Path, output: Output) -> None:
    """Show all that is known of a fork, or of one of its attempts (k3f9ab.2).

    An id may be cut short as long as it is clear which is meant. Of an attempt its failing tests are shown, what it
    changed (while its branch is there), and the end of what it printed.
    """
    workspace, ledger = opened(directory)
    with ledger:
        if "." in name:
            attempt = ledger.attempt(name)
            if (printed or stderr) and not output.as_json:
                _print(_output_of(ledger, attempt, stderr), output)
            else:
                _show_attempt(ledger, workspace, attempt, output, whole=printed or stderr, stderr=stderr)
        elif printed or stderr:
            raise click.UsageError(f"what was printed is an attempt's: name one, such as {ledger.fork(name).id}.1")
        else:
            show_fork(ledger, ledger.fork(name), directory, output)


def show_fork(ledger: Ledger, fork: ForkRecord, directory: Path, output: Output, *, table: bool = True) -> None:
    """Print all that is known of a fork; ``table`` is its attempts'."""
    from forkwise.display.board import Board, attempt_record

    board = Board(ledger, fork.id, output)
    if output.as_json:
        told = {**fork_record(fork), "spec": fork.spec, "attempts": [attempt_record(row) for row in board.rows()]}
        output.document({"fork": told})
        return
    output.line(f"{fork.id}: {fork.kind}, {fork.state}", "bold")
    _facts(
        output,
        {
            "began": f"{_moment(fork.started)}{_took(fork.started, fork.ended)}",
            "process": fork.owner.label if fork.state == "running" else "",
            "inside": fork.parent or "",
            "of": "" if fork.origin == "/main" else fork.origin,
            "tests": str(fork.spec.get("tests") or ""),
            "judged": _verdict_text(fork.verdict or {}),
            "decided": _resolution_text(fork),
            "commit": _commit_text(fork),
        },
    )
    if table:
        board.summary()
    if advice := remedy(fork, directory):
        output.line(f"It {advice}.", "yellow")
    elif fork.commit is not None and fork.undone is None and fork.origin == "/main":
        output.line(f"To take it back: {command_line(directory, 'undo', str(fork.commit))}")


def _verdict_text(verdict: dict[str, Any]) -> str:
    told = {name: value for name, value in verdict.items() if name not in ("matches", "votes")}
    if votes := verdict.get("votes"):
        told["by"] = " and ".join(f"{vote['judge']} ({vote['confidence']:.2f} sure)" for vote in votes)
    return ", ".join(f"{name} {value}" for name, value in told.items())


def _resolution_text(fork: ForkRecord) -> str:
    told = fork.resolution or {}
    who = fork.winner or ", ".join(told.get("attempts", ()))
    parts = [str(told.get("how", "")), f"for {who}" if who else "", str(told.get("reason", ""))]
    abandoned = f"given up: {told['abandoned']}" if "abandoned" in told else ""
    return ", ".join(part for part in [*parts, abandoned] if part)


def _show_attempt(
    ledger: Ledger, workspace: Workspace, attempt: AttemptRecord, output: Output, *, whole: bool, stderr: bool
) -> None:
    from forkwise.display.board import Row, attempt_record
    from forkwise.fork.stored_fork import StoredFork

    fork = ledger.fork(attempt.fork)
    branch = StoredFork(ledger, workspace, fork.id).branch(attempt.branch)
    delta = None if branch is None else branch.delta()
    said = _output_of(ledger, attempt, stderr).decode(errors="replace")
    tail = said if whole else "\n".join(said.splitlines()[-_LINES:])
    if output.as_json:
        told = {
            **attempt_record(Row(attempt, 0, attempt.id == fork.winner)),
            "fork": fork.id,
            "command": attempt.command,
            "branch": None if branch is None else branch.branch_path,
            "changes": None if delta is None else [change_record(change) for change in delta],
            "started": _iso(attempt.started),
            "ended": _iso(attempt.ended),
            "ending": attempt.ending,
            "cpu": attempt.cpu,
            "memory": attempt.memory,
            "value": attempt.value,
            "error": attempt.error,
            "tests": attempt.tests,
            "output": tail,
        }
        output.document({"attempt": told})
        return
    output.line(f"{attempt.id}: {attempt.state}{f' ({attempt.reason})' if attempt.reason else ''}", "bold")
    _facts(output, _attempt_facts(attempt, fork, branch))
    _tell_changes(delta, output)
    _tell_tests(attempt, output)
    if tail.strip():
        output.line()
        output.line("Its output ends with:" if len(tail) < len(said.rstrip("\n")) else "Its output:", "bold")
        output.text(tail)


def _attempt_facts(attempt: AttemptRecord, fork: ForkRecord, branch: Branch | None) -> dict[str, str]:
    used = [
        "" if attempt.cpu is None else f"{attempt.cpu:.1f} s of CPU",
        "" if attempt.memory is None else f"{size_text(attempt.memory)} of memory",
    ]
    scores = attempt.scores or ([] if attempt.score is None else [attempt.score])
    return {
        "what": attempt.label,
        "fork": f"{fork.id} ({fork.kind}, {fork.state}{', which it won' if fork.winner == attempt.id else ''})",
        "branch": f"{attempt.branch} (gone)" if branch is None else branch.branch_path,
        "began": ""
        if attempt.started is None
        else f"{_moment(attempt.started)}{_took(attempt.started, attempt.ended)}",
        "used": ", ".join(text for text in used if text),
        "exit code": "" if attempt.exit_code is None else str(attempt.exit_code),
        "score": ", ".join(f"{score:g}" for score in scores),
        "cost": ", ".join(f"{name} {value}" for name, value in (attempt.cost or {}).items()),
        "printed": size_text(attempt.output_bytes) if attempt.output_bytes else "",
    }


def _tell_changes(delta: Delta | None, output: Output) -> None:
    if delta is not None:
        output.line("changed:" if delta else "changed:    nothing")
        output.changes({"added": delta.added, "changed": delta.changed, "deleted": delta.deleted})


def _tell_tests(attempt: AttemptRecord, output: Output) -> None:
    if attempt.tests is None:
        return
    from forkwise.testing.report import TestReport

    report = TestReport.from_json(attempt.tests)
    if report.is_pass:
        output.line(f"{'tests:':12}{report.summary}")
        return
    output.line()
    output.line("Its tests:", "bold")
    output.text(report.feedback())


def _output_of(ledger: Ledger, attempt: AttemptRecord, stderr: bool) -> bytes:
    from forkwise.ledger.logs import read_log

    return read_log(ledger.directory, attempt.id, stream="stderr" if stderr else None)


def _print(content: bytes, output: Output) -> None:
    """Print what an attempt printed: byte for byte into a pipe, harmless on a terminal."""
    if output.console is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        output.text(content.decode(errors="replace"))


def fork_record(fork: ForkRecord) -> dict[str, Any]:
    """A fork as JSON holds it, without what it was told to do."""
    return {
        "id": fork.id,
        "kind": fork.kind,
        "state": fork.state,
        "origin": fork.origin,
        "parent": fork.parent,
        "started": _iso(fork.started),
        "ended": _iso(fork.ended),
        "process": fork.owner.pid,
        "winner": fork.winner,
        "resolution": fork.resolution,
        "verdict": fork.verdict,
        "commit": fork.commit,
        "undone": fork.undone,
    }


def opened(directory: Path) -> tuple[Workspace, Ledger]:
    """A workspace, and its ledger."""
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import open_ledger

    workspace = Workspace(directory)
    return workspace, open_ledger(workspace)


def _facts(output: Output, facts: dict[str, str]) -> None:
    """Print what is known, by name; what is empty is left out."""
    for name, value in facts.items():
        if value:
            output.line(f"{f'{name}:':12}{value}")


def _commit_text(fork: ForkRecord) -> str:
    if fork.commit is None:
        return ""
    return f"{fork.commit}" if fork.undone is None else f"{fork.commit}, undone by {fork.undone}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at).astimezone().isoformat()


def _took(started: float, ended: float | None) -> str:
    return "" if ended is None else f", took {ended - started:.1f} s"


@click.command("watch", cls=Verb, streams=True, example=("forkwise watch", "forkwise watch k3f9ab --plain"))
@click.argument("name", metavar="[FORK]", required=False)
@click.option(
    "--plain", is_flag=True, help="Lines instead of panels, also in a terminal: for a screen reader, or a log."
)
@workspace_option
@stream_option
def watch(name: str | None, plain: bool, directory: Path, output: Output) -> None:
    """Watch a fork that another process runs, by default the newest that runs.

    In a terminal its attempts are shown in panels, from which it can be decided too: picked, combined, aborted, undone.
    Elsewhere what happens is printed line by line until the fork is over; with --plain what the attempts print is too,
    each line with the attempt's name before it, and forkwise pick, combine and abort decide it from another terminal.
    To end this changes nothing about the fork.
    """
    if not plain and output.is_live and sys.stdin.isatty() and has_panels():
        _watch_in_panels(name, directory, output)
        return
    from forkwise.display.board import Board

    _, ledger = opened(directory)
    with ledger:
        if name is None:
            name = next((fork.id for fork in ledger.forks(state="running") if fork.parent is None), None)
        if name is None:
            raise click.ClickException("no fork is running here; forkwise ls lists those there were")
        if plain and not output.as_json and not (fork := ledger.fork(name)).is_over:
            _tell_verbs(fork, directory, output)
        with Board(ledger, name, output, spoken=ledger.directory if plain else None) as board:
            fork = board.follow()
        if output.as_json:
            output.stream({"fork": fork_record(fork)})
        else:
            show_fork(ledger, fork, directory, output, table=not plain)


def _tell_verbs(fork: ForkRecord, directory: Path, output: Output) -> None:
    """Say by what a fork is decided from another terminal."""
    verbs = {("pick", ".N"): "commits attempt N", ("abort", ".N"): "ends it", ("abort", ""): "gives the fork up"}
    told = ", ".join(f"{command_line(directory, verb, fork.id + at)} {does}" for (verb, at), does in verbs.items())
    output.line(f"From another terminal, {told}.")


def has_panels() -> bool:
    """Whether there is what draws them; says what to do where not."""
    from importlib.util import find_spec

    if find_spec("textual") is not None:
        return True
    click.echo("forkwise: hint: pip install 'forkwise[tui]' has panels for this", err=True)
    return False


def _watch_in_panels(name: str | None, directory: Path, output: Output) -> None:
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.tui.fork_model import Watched
    from forkwise.tui.watch import WatchApp

    enter_to_create(directory, None)  # while there is one thread only: what is picked may have to be mounted
    watched = Watched(directory, name)
    WatchApp(watched).run()
    watched.close()
    if watched.fork is not None:
        _, ledger = opened(directory)
        with ledger:
            show_fork(ledger, ledger.fork(watched.fork), directory, output)


class _DiffVerb(Verb):
    """A verb with an option whose value may be left out, and which would else take the next word for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--tool`` as one without a value."""
        return super().parse_args(ctx, ["--tool=" if word == "--tool" else word for word in args])


@click.command(
    "diff", cls=_DiffVerb, example=("forkwise diff k3f9ab.1 | git apply", "forkwise diff --tool=vimdiff k3f9ab")
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", required=False)
@click.option(
    "--tool",
    metavar="[=TOOL]",
    help="Open a diff tool: git, pycharm, code, one that git knows, or a command with {parent} and {branches}.",
)
@workspace_option
@json_option
def diff(first: str, second: str | None, tool: str | None, directory: Path, output: Output) -> None:
    """Show what turns attempt A into attempt B, or what A alone changed.

    Both are attempts whose branches are still there (of a fork that runs, waits for a pick or was interrupted, or made
    with --keep), or names of branches. With --tool A can be a fork too: then all its attempts are shown beside what
    they were made from. --tool alone takes FORKWISE_DIFFTOOL, PyCharm, VS Code, or what git is set up with.
    """
    from forkwise.files.versions import compare
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import branch_of
    from forkwise.ledger.sqlite import open_ledger

    workspace = Workspace(directory)
    ledger = open_ledger(workspace)
    if tool is not None:
        if output.as_json:
            raise click.UsageError("--tool opens another program, and has nothing for --json to print")
        from forkwise.display.difftool import open_tool, sides_of

        with ledger:
            sides = sides_of(ledger, workspace, first, second)
        open_tool(tool, workspace.path, sides, between=second is not None)
        return
    with ledger:
        found = [branch_of(ledger, workspace, name) for name in (first, second) if name is not None]
    text = found[0].diff() if len(found) == 1 else compare(*found)
    if output.as_json:
        old = found[0].parent if len(found) == 1 else found[0]
        output.document({"from": old.branch_path, "to": found[-1].branch_path, "diff": text})
    else:
        output.diff(text)
