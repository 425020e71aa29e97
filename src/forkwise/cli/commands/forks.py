"""``forkwise ls``, ``show``, ``watch`` and ``diff``: look at the forks of a workspace and at their attempts."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import (
    StoppedBySignalError,
    Verb,
    has_extra,
    json_option,
    stream_option,
    suggest_extra,
    workspace_option,
)
from forkwise.cli.stop_signal import find_stop_signal
from forkwise.display.columns import Fit
from forkwise.display.output import (
    Output,
    change_record,
    command_line,
    executable_records,
    repository_records,
    size_text,
)
from forkwise.errors import ForkNotFoundError, ForkwiseWarning, LedgerError
from forkwise.text.clean import truncate_line
from forkwise.text.phrases import join_first
from forkwise.text.redaction import Redactor, process_redactor, redact

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import Delta
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.detached_run import DetachedRun
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord, Summary

__all__ = [
    "diff",
    "fork_record",
    "ls",
    "open_workspace",
    "print_output",
    "remedy",
    "show",
    "show_fork",
    "watch",
]


_LISTED = 20
_MOST_ADVICE = 20
_TAIL_LINES = 20
_WIDEST_LABEL = 40
_WIDEST_STEP = 160
_FORKS_FIT = Fit(
    wrapped=("attempts", "commit"),
    shortened=("label",),
    optional=("best", "kind", "started", "cost", "label", "commit"),
)


@click.command("ls", cls=Verb, example=("forkwise ls", "forkwise ls --all --json"))
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=_LISTED,
    show_default=True,
    metavar="N",
    help="Number of forks to list.",
)
@click.option("--all", "everything", is_flag=True, help="List all forks, including those nested in attempts of others.")
@workspace_option
@json_option
def ls(limit: int, everything: bool, directory: Path, output: Output) -> None:
    """List the forks of a workspace, newest first.

    A fork is one run of an explore command: its attempts, and the decision between them. Its state is running,
    interrupted (its process was killed), open (waiting for a pick), resolved, or aborted.
    """
    path, ledger = _open_ledger(directory)
    with ledger:
        found = ledger.summaries(None if everything else limit, outermost=not everything)
        costs = {s.fork.id: _sum_costs(ledger, s.fork) for s in found}
    if output.as_json:
        from forkwise.display.subject import find_agents, find_prompts

        forks = [
            {
                **fork_record(s.fork),
                "label": redact(s.label or "") or None,
                "agents": find_agents(s.fork),
                "prompt": next(iter(find_prompts(s.fork)), None),
                "attempts": s.attempts,
                "best": s.best,
                "cost": costs[s.fork.id],
            }
            for s in found
        ]
        output.document({"workspace": path, "forks": forks})
    elif not found:
        output.line("No forks yet. Start one with: forkwise run, best-of, speculate …")
    else:
        columns = ["fork", "kind", "state", "attempts", "best", "started", "commit", "label"]
        redactor = process_redactor()
        rows = [_fork_row(summary, redactor) for summary in found]
        if any(costs.values()):
            from forkwise.display.board import cost_text

            columns.insert(5, "cost")
            for summary, row in zip(found, rows, strict=True):
                row.insert(5, cost_text(costs[summary.fork.id]))
        output.table(columns, rows, _FORKS_FIT)
        advised = 0
        for summary in found:
            if advised == _MOST_ADVICE:
                output.line("Older forks may need a decision, too: forkwise show FORK says which.", "yellow")
                break
            if advice := remedy(summary.fork, directory):
                advised += 1
                output.line(f"{summary.fork.id} {advice}", "yellow")


def _sum_costs(ledger: Ledger, fork: ForkRecord) -> dict[str, Any]:
    """Return what the attempts of a fork cost together; empty if no agent ran."""
    from forkwise.display.subject import find_agents

    if not find_agents(fork):
        return {}
    from forkwise.display.board import sum_costs

    return sum_costs(ledger.attempts(fork.id))


def _fork_row(summary: Summary, redactor: Redactor) -> list[str]:
    from forkwise.display.subject import format_subject

    fork = summary.fork
    names = {"running": "interrupted"} if fork.state == "interrupted" else {}
    counts = ", ".join(f"{count} {names.get(state, state)}" for state, count in summary.attempts.items())
    best = "" if summary.best is None else f"{summary.best:g}"
    label = truncate_line(redactor.redact(format_subject(fork, summary.label)), _WIDEST_LABEL)
    return [fork.id, fork.kind, fork.state, counts, best, _time_text(fork.started), _commit_text(fork), label]


def remedy(fork: ForkRecord, directory: Path) -> str:
    """Return what the user can do about an undecided fork; nothing if there is nothing to do."""
    if fork.parent is not None:
        return ""
    match fork.state:
        case "interrupted":
            problem, action, verb = "was interrupted", "Resume it", "resume"
        case "open":
            problem, action, verb = "waits for a pick", "Commit the best", "pick"
        case "resolved" if fork.commit is None and not fork.owner.alive:
            problem, action, verb = "was decided but not committed", "Commit it", "resume"
        case _:
            return ""
    commands = [command_line(directory, name, fork.id) for name in (verb, "abort")]
    return f"{problem}. {action}: {commands[0]}. Give it up: {commands[1]}."


@click.command("show", cls=Verb, example=("forkwise show k3f9ab", "forkwise show k3f9ab.2 --output | less"))
@click.argument("name", metavar="FORK|ATTEMPT")
@click.option("--output", "printed", is_flag=True, help="Print only the complete output of the attempt.")
@click.option("--stderr", is_flag=True, help="Print only what the attempt wrote to stderr.")
@click.option(
    "--server",
    metavar="NAME",
    help="Print the output of the attempt's server NAME; NAME.tests is the one for its tests.",
)
@click.option(
    "--network", is_flag=True, help="List the connections that the attempt and its tests requested from the proxy."
)
@workspace_option
@json_option
def show(
    name: str, printed: bool, stderr: bool, server: str | None, network: bool, directory: Path, output: Output
) -> None:
    """Show the details of a fork, or of one attempt (k3f9ab.2).

    For an attempt, print its failing tests, its changes, the summary that later attempts got, and the end of its
    output, even after its branch is gone. An id can be shortened as long as it stays unique.
    """
    workspace, ledger = open_workspace(directory)
    with ledger:
        if "." in name:
            attempt = ledger.attempt(name)
            if server is not None:
                _print_server_log(ledger, attempt, server, output)
            elif network:
                _show_connections(ledger, attempt, output)
            elif (printed or stderr) and not output.as_json:
                print_output(_output_of(ledger, attempt, stderr), output)
            else:
                _show_attempt(ledger, workspace, attempt, output, whole=printed or stderr, stderr=stderr)
        elif printed or stderr or network or server is not None:
            noun = "connections" if network else "output"
            raise click.UsageError(f"only an attempt has {noun}: name one, such as {ledger.fork(name).id}.1")
        else:
            show_fork(ledger, ledger.fork(name), directory, output)


def _show_connections(ledger: Ledger, attempt: AttemptRecord, output: Output) -> None:
    """Print the connections of an attempt."""
    from forkwise.ledger.connections import load_connections

    found = load_connections(ledger.fetch_files(attempt.id), attempt.id)
    if output.as_json:
        document = {"connections": [entry.as_json() for entry in found.entries], "left_out": found.left_out}
        output.document({"attempt": attempt.id, **document})
        return
    if not found.entries:
        output.line(f"the proxy has no record of a connection requested by {attempt.id} or its tests")
        return
    rows = [
        (
            _time_text(entry.at),
            "tests" if entry.of_tests else "attempt",
            "allowed" if entry.allowed else "denied",
            f"{entry.host}:{entry.port}",
            entry.kind,
            str(entry.sent),
            str(entry.received),
            entry.problem,
        )
        for entry in found.entries
    ]
    output.table(("when", "by", "", "to", "how", "sent", "received", "problem"), rows)
    if found.left_out:
        output.line(f"and {found.left_out} more")


def show_fork(ledger: Ledger, fork: ForkRecord, directory: Path, output: Output, *, table: bool = True) -> None:
    """Print the details of a fork, and with ``table`` its attempts."""
    from forkwise.display.board import Board, attempt_record, edits_text, format_total, sum_costs
    from forkwise.display.subject import find_agents, find_prompts, spec_record
    from forkwise.files.store.state import is_ordinary
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.detached_run import load_detached_run

    board = Board(ledger, fork.id, output)
    cost = sum_costs(row.attempt for row in board.rows())
    try:
        run = load_detached_run(ledger.directory, fork.id)
    except LedgerError as error:
        _warn(str(error))
        run = None
    if output.as_json:
        attempts = [attempt_record(row) for row in board.rows()]
        more = {
            "spec": spec_record(fork),
            "cost": cost,
            "attempts": attempts,
            "detached": None if run is None else _run_record(run),
        }
        output.document({"fork": {**fork_record(fork), **more}})
        return
    output.line(f"{fork.id}: {fork.kind}, {fork.state}", "bold")
    _print_facts(
        output,
        {
            "started": f"{_time_text(fork.started)}{_duration_text(fork.started, fork.ended)}",
            "process": _process_text(fork, run),
            "error": _error_text(fork, run),
            "nested in": fork.parent or "",
            "branch": "" if fork.origin == "/main" else fork.origin,
            "agent": ", ".join(find_agents(fork)),
            "prompt": "\n---\n".join(prompts) if (prompts := find_prompts(fork)) else "",
            "tests": str(fork.spec.get("tests") or ""),
            "judged": _verdict_text(fork.verdict or {}),
            "no verdict": "; ".join(map(str, (fork.verdict or {}).get("failures", ()))),
            "decided": _resolution_text(fork),
            "commit": _commit_text(fork),
            "cost": format_total(cost),
        },
    )
    if fork.edits:
        output.line(f"  {edits_text(fork.edits, most=len(fork.edits['paths']))}")
    for warning in (fork.verdict or {}).get("warnings", ()):
        output.line(f"warning: {warning}", "yellow")
    if table:
        board.summary()
    if advice := remedy(fork, directory):
        output.line(f"The fork {advice}", "yellow")
    elif fork.commit is not None and fork.undone is None and fork.origin == "/main":
        limits = "" if is_ordinary(directory) else Workspace(directory).child_view().limits
        output.line(f"{limits}." if limits else f"Undo with: {command_line(directory, 'undo', str(fork.commit))}")


def _process_text(fork: ForkRecord, run: DetachedRun | None) -> str:
    if run is not None and run.is_running:
        return f"{run.process.label}, in the background; its output is in {run.log}"
    return fork.owner.label if fork.state == "running" else ""


def _error_text(fork: ForkRecord, run: DetachedRun | None) -> str:
    """Return why a process in the background failed, unless the fork was decided after that."""
    if run is not None and run.exit_code is None and not run.is_running and fork.state == "interrupted":
        return f"process {run.process.label}, which ran it in the background, was killed"
    return run.message if run is not None and run.is_current(fork) else ""


def _run_record(run: DetachedRun) -> dict[str, Any]:
    return {
        "process": run.process.pid,
        "running": run.is_running,
        "exit_code": run.exit_code,
        "ended": _iso(run.ended),
        "error": run.failure,
        "log": str(run.log),
    }


def _verdict_text(verdict: dict[str, Any]) -> str:
    from forkwise.display.board import usage_text

    listed = ("matches", "votes", "usage", "failures", "warnings")
    facts = {name: value for name, value in verdict.items() if name not in listed and value is not None}
    if votes := verdict.get("votes"):
        facts["by"] = " and ".join(f"{vote['judge']} (confidence {vote['confidence']:.2f})" for vote in votes)
    parts = [str(value) if name == "how" else f"{name} {value}" for name, value in facts.items()]
    return ", ".join([*parts, *filter(None, [usage_text(verdict)])])


def _resolution_text(fork: ForkRecord) -> str:
    resolution = fork.resolution or {}
    winners = fork.winner or ", ".join(resolution.get("attempts", ()))
    parts = [str(resolution.get("how", "")), f"for {winners}" if winners else "", str(resolution.get("reason", ""))]
    abandoned = f"given up: {resolution['abandoned']}" if "abandoned" in resolution else ""
    return ", ".join(part for part in [*parts, abandoned] if part)


def _show_attempt(
    ledger: Ledger, workspace: Workspace, attempt: AttemptRecord, output: Output, *, whole: bool, stderr: bool
) -> None:
    from forkwise.display.board import Row, attempt_record
    from forkwise.display.subject import find_prompts
    from forkwise.fork.stored_fork import StoredFork
    from forkwise.ledger.stored_changes import load_changes

    fork = ledger.fork(attempt.fork)
    branch = StoredFork(ledger, workspace, fork.id).branch(attempt.branch)
    stored = load_changes(ledger.fetch_files(attempt.id), attempt.id) if branch is None else None
    delta = branch.delta() if branch is not None else None if stored is None else stored.delta
    text = _output_of(ledger, attempt, stderr).decode(errors="replace")
    steps = [] if stderr else ledger.find_steps(attempt.id)
    tail = text if whole else "\n".join(text.splitlines()[-_TAIL_LINES:])
    if output.as_json:
        record = {
            **attempt_record(Row(attempt, 0, attempt.id == fork.winner)),
            "fork": fork.id,
            "prompt": next(iter(find_prompts(fork, attempt)), None),
            "command": None if attempt.command is None else [redact(word) for word in attempt.command],
            "branch": None if branch is None else branch.branch_path,
            "changes": None if delta is None else [change_record(change) for change in delta],
            "repository": [] if delta is None else repository_records(delta.repository),
            "unlisted": 0 if stored is None else stored.unlisted,
            "started": _iso(attempt.started),
            "ended": _iso(attempt.ended),
            "ending": attempt.ending,
            "cpu": attempt.cpu,
            "memory": attempt.memory,
            "value": attempt.value,
            "error": attempt.error,
            "tests": attempt.tests,
            "summary": ledger.find_summary(attempt.id),
            "steps": steps,
            "output": tail,
        }
        output.document({"attempt": record})
        return
    output.line(f"{attempt.id}: {attempt.state}{f' ({attempt.reason})' if attempt.reason else ''}", "bold")
    _print_facts(output, _attempt_facts(attempt, fork, branch))
    _print_changes(delta, output)
    if stored is not None and stored.left_out:
        output.line(f"The ledger does not have {stored.left_out}.", "yellow")
    output.executable_config(() if delta is None else delta.executable_config)
    _print_tests(attempt, output)
    _print_summary(ledger.find_summary(attempt.id), output)
    if steps and not whole:
        _print_steps(steps, attempt, output)
    elif tail.strip():
        output.line()
        output.line("End of the output:" if len(tail) < len(text.rstrip("\n")) else "Output:", "bold")
        output.text(tail)


def _print_steps(steps: list[dict[str, Any]], attempt: AttemptRecord, output: Output) -> None:
    """Print what an agent did last, and its closing message."""
    from forkwise.agents.agent_event import format_step

    lines = [line for step in steps if (line := truncate_line(format_step(step), _WIDEST_STEP))]
    if attempt.answer and lines and lines[-1] == truncate_line(attempt.answer, _WIDEST_STEP):
        lines.pop()
    if lines:
        output.line()
        output.line("Steps:" if len(lines) <= _TAIL_LINES else f"The last {_TAIL_LINES} of {len(lines)} steps:", "bold")
        for line in lines[-_TAIL_LINES:]:
            output.line(f"  {line}")
    if attempt.answer:
        output.line()
        output.line("Closing message:", "bold")
        output.text(attempt.answer)


def _attempt_facts(attempt: AttemptRecord, fork: ForkRecord, branch: Branch | None) -> dict[str, str]:
    from forkwise.display.subject import find_prompts

    usage = [
        "" if attempt.cpu is None else f"{attempt.cpu:.1f} s of CPU",
        "" if attempt.memory is None else f"{size_text(attempt.memory)} of memory",
    ]
    scores = attempt.scores or ([] if attempt.score is None else [attempt.score])
    return {
        "label": redact(attempt.label),
        "agent": attempt.agent or "",
        "varied": redact(", ".join(f"{key}={text}" for key, text in (attempt.variation or {}).items())),
        "prompt": "".join(find_prompts(fork, attempt)),
        "fork": f"{fork.id} ({fork.kind}, {fork.state}{', won by this attempt' if fork.winner == attempt.id else ''})",
        "branch": f"{attempt.branch} (dropped)" if branch is None else branch.branch_path,
        "started": ""
        if attempt.started is None
        else f"{_time_text(attempt.started)}{_duration_text(attempt.started, attempt.ended)}",
        "used": ", ".join(text for text in usage if text),
        "no change": "it changed no file, apart from ignored ones" if attempt.no_change else "",
        "exit code": "" if attempt.exit_code is None else str(attempt.exit_code),
        "score": ", ".join(f"{score:g}" for score in scores),
        "cost": _format_cost(attempt.cost or {}),
        "session": attempt.session or "",
        "output": size_text(attempt.output_bytes) if attempt.output_bytes else "",
    }


def _format_cost(cost: dict[str, Any]) -> str:
    from forkwise.display.board import cost_text

    counts = {name: cost.get(f"{name}_tokens") for name in ("input", "cached", "output")}
    tokens = ", ".join(f"{count} {name}" for name, count in counts.items() if isinstance(count, int) and count)
    price = cost_text(cost) if "usd" in cost else ""
    by_list = " by the price list" if price and cost.get("source") == "list" else ""
    return ", ".join(filter(None, [f"{price}{by_list}", f"{tokens} tokens" if tokens else ""]))


def _print_changes(delta: Delta | None, output: Output) -> None:
    if delta is not None:
        output.line("changes:" if delta else "changes:    none")
        output.changes({"added": delta.added, "changed": delta.changed, "deleted": delta.deleted})
        output.repository(delta.repository)


def _print_tests(attempt: AttemptRecord, output: Output) -> None:
    if attempt.tests is None:
        return
    from forkwise.testing.report import TestReport

    report = TestReport.from_json(attempt.tests)
    if report.is_pass:
        found = "" if report.comparison is None else f" ({report.comparison.summary})"
        output.line(f"{'tests:':12}{report.summary}{found}")
        if report.touched:
            output.line(f"{'changed:':12}{', '.join(report.touched)}, which the tests did not use", "yellow")
        return
    output.line()
    output.line("Tests:", "bold")
    output.text(report.feedback())


def _print_summary(recorded: dict[str, Any] | None, output: Output) -> None:
    """Print the summary that later attempts got, without the parts that ``show`` prints anyway."""
    from forkwise.explore.evidence.summary import AttemptSummary

    try:
        summary = None if recorded is None else AttemptSummary.from_json(recorded)
    except ValueError:
        return
    if summary is not None:
        output.line()
        output.line("Summary, by a model:" if summary.is_by_model else "Summary:", "bold")
        output.text(replace(summary, detail="").format_feedback())


def _output_of(ledger: Ledger, attempt: AttemptRecord, stderr: bool) -> bytes:
    from forkwise.ledger.logs import read_log

    return read_log(ledger.fetch_files(attempt.id), attempt.id, stream="stderr" if stderr else None)


def _print_server_log(ledger: Ledger, attempt: AttemptRecord, server: str, output: Output) -> None:
    from forkwise.ledger.logs import list_server_logs, read_log

    known = list_server_logs(ledger.fetch_files(attempt.id), attempt.id)
    if server not in known:
        there_are = f"there are {', '.join(known)}" if known else "its servers printed nothing, or it had none"
        raise click.UsageError(f"{attempt.id} has no output from a server {server!r}; {there_are}")
    content = read_log(ledger.fetch_files(attempt.id), f"{attempt.id}@{server}")
    if output.as_json:
        output.document({"attempt": attempt.id, "server": server, "output": content.decode(errors="replace")})
    else:
        print_output(content, output)


def print_output(content: bytes, output: Output) -> None:
    """Print the output of an attempt: escaped on a terminal, byte for byte elsewhere."""
    if output.console is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        output.text(content.decode(errors="replace"))


def fork_record(fork: ForkRecord) -> dict[str, Any]:
    """Return a fork as a JSON value, without its spec and its attempts."""
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
        "edits": fork.edits,
    }


def open_workspace(directory: Path) -> tuple[Workspace, Ledger]:
    """Open a workspace and its ledger."""
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import open_ledger

    workspace = Workspace(directory)
    return workspace, open_ledger(workspace)


def _open_ledger(directory: Path) -> tuple[str, Ledger]:
    """Open the ledger of a workspace, and return the workspace's path too.

    Unless something has to be recovered, the code of branches and commits is not loaded: that would take longer than
    printing the list.
    """
    from forkwise.files.store.state import StateDir, is_ordinary, locate
    from forkwise.ledger.sqlite import open_ledger_of_state

    if os.path.isdir(directory) and is_ordinary(directory):
        site = locate(directory)
        if StateDir(site.state, site.state).is_settled:
            return site.workspace, open_ledger_of_state(site.state)
    workspace, ledger = open_workspace(directory)
    return str(workspace.path), ledger


def _print_facts(output: Output, facts: dict[str, str]) -> None:
    """Print names and values, one pair per line, without the empty ones."""
    for name, value in facts.items():
        for number, line in enumerate(value.splitlines()):
            output.line(f"{f'{name}:' if number == 0 else '':12}{line}")


def _commit_text(fork: ForkRecord) -> str:
    if fork.commit is None:
        return ""
    return f"{fork.commit}" if fork.undone is None else f"{fork.commit}, undone by {fork.undone}"


def _time_text(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def _iso(timestamp: float | None) -> str | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp).astimezone().isoformat()


def _duration_text(started: float, ended: float | None) -> str:
    return "" if ended is None else f", took {ended - started:.1f} s"


@click.command("watch", cls=Verb, streams=True, example=("forkwise watch", "forkwise watch k3f9ab --plain"))
@click.argument("name", metavar="[FORK]", required=False)
@click.option(
    "--plain", is_flag=True, help="Print lines instead of panels, with the output: for a screen reader or a log."
)
@workspace_option
@stream_option
def watch(name: str | None, plain: bool, directory: Path, output: Output) -> None:
    """Watch a running fork, and decide it while it runs.

    FORK defaults to the newest running one. On a terminal with forkwise[tui], panels show the attempts, and keys pick,
    combine, abort and undo. Otherwise events are printed line by line until the fork is over. With --plain, the output
    of the attempts is printed too, each line after the attempt's id. Leaving does not affect the fork.
    """
    if not plain and output.is_live and sys.stdin.isatty():
        if has_extra("tui"):
            _watch_in_panels(name, directory, output)
            return
        suggest_extra("tui", "shows the fork in panels")
    from forkwise.display.board import Board

    _, ledger = open_workspace(directory)
    with ledger:
        if name is None:
            name = next((fork.id for fork in ledger.forks(state="running") if fork.parent is None), None)
        if name is None:
            raise click.ClickException("no fork is running here; list all forks with forkwise ls")
        if plain and not output.as_json and not (fork := ledger.fork(name)).is_over:
            _print_verbs(fork, directory, output)
        try:
            with Board(ledger, name, output, log_directory=ledger.directory if plain else None) as board:
                fork = board.follow()
        except KeyboardInterrupt:
            raise StoppedBySignalError(find_stop_signal(), f"fork {name} is not affected") from None
        if output.as_json:
            output.stream({"fork": fork_record(fork)})
        else:
            show_fork(ledger, fork, directory, output, table=not plain)


def _print_verbs(fork: ForkRecord, directory: Path, output: Output) -> None:
    """Print the commands that decide a fork from another terminal."""
    verbs = {("pick", ".N"): "commits attempt N", ("abort", ".N"): "stops it", ("abort", ""): "aborts the fork"}
    commands = [f"{command_line(directory, verb, fork.id + end)} {effect}" for (verb, end), effect in verbs.items()]
    output.line(f"From another terminal, {', '.join(commands)}.")


def _watch_in_panels(name: str | None, directory: Path, output: Output) -> None:
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.tui.fork_model import ForkModel
    from forkwise.tui.watch import WatchApp

    enter_to_create(directory, None)  # before threads start: only a single thread can enter a namespace
    watched = ForkModel(directory, name)
    WatchApp(watched).run()
    watched.close()
    if watched.fork is not None:
        _, ledger = open_workspace(directory)
        with ledger:
            show_fork(ledger, ledger.fork(watched.fork), directory, output)


class _DiffVerb(Verb):
    """A command whose option ``--tool`` has an optional value; click would take the next word as the value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``--tool`` as an option with an empty value."""
        return super().parse_args(ctx, ["--tool=" if word == "--tool" else word for word in args])


@click.command(
    "diff", cls=_DiffVerb, example=("forkwise diff k3f9ab.1 | git apply", "forkwise diff --tool=vimdiff k3f9ab")
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", required=False)
@click.option(
    "--tool",
    metavar="[=TOOL]",
    help="Open a diff tool: git, pycharm, code, a tool that git knows, or a command with {parent} and {branches}.",
)
@workspace_option
@json_option
def diff(first: str, second: str | None, tool: str | None, directory: Path, output: Output) -> None:
    """Compare the results of A and B, or show the changes of A.

    A and B are attempts (k3f9ab.2, even if they lost and their branches are gone), commit ids (see forkwise log), or
    branches. With --tool, the branches of attempts must still exist: their fork is undecided, or was made with --keep.
    A can then also be a fork; all its attempts are shown next to their parent. --tool without a value opens
    $FORKWISE_DIFFTOOL, PyCharm, VS Code, or the diff tool of git.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import compare_sides, load_side
    from forkwise.ledger.sqlite import open_ledger
    from forkwise.text.diff import unified

    workspace = Workspace(directory)
    ledger = open_ledger(workspace)
    if tool is not None:
        if output.as_json:
            raise click.UsageError("--tool opens another program and cannot be used with --json")
        from forkwise.display.difftool import open_tool, sides_of

        with ledger:
            branches = sides_of(ledger, workspace, first, second)
        open_tool(tool, workspace.path, branches, between=second is not None)
        return
    with ledger:
        for name in (first, second):
            _refuse_fork(ledger, name, [branch.name for branch in workspace.branches()])
        sides = [load_side(ledger, workspace, name) for name in (first, second) if name is not None]
        old, new = sides[0], sides[-1]
        text = unified(old.files if old is new else compare_sides(workspace, old, new))
        if old is new and old.stored is not None:
            text = old.stored.delta.databases + text
    stored = [(side.name, side.stored) for side in sides if side.stored is not None]
    if output.as_json:
        output.document(
            {
                "from": old.origin if old is new else old.name,
                "to": new.name,
                "diff": text,
                "executable_config": executable_records(new.executable_config),
                "repository": repository_records(new.repository),
                "stored": bool(stored),
                "left_out": [path for _, changes in stored for path in changes.without_content],
                "unlisted": sum(changes.unlisted for _, changes in stored),
                "redacted": any(changes.is_redacted for _, changes in stored),
            }
        )
        return
    output.diff(text)
    output.warn_executable_config(new.executable_config)
    output.warn_repository(new.repository)
    for name, changes in stored:
        if changes.left_out:
            _warn(
                f"the ledger does not have {changes.left_out} of {name}: there were too many files, or they were too "
                "large"
            )
        if changes.is_redacted:
            _warn(f"secrets in the files of {name} were replaced in the ledger: the diff may not apply as it is")


def _refuse_fork(ledger: Ledger, name: str | None, branches: list[str]) -> None:
    """Raise UsageError, with the attempts to choose from, if ``name`` is a fork and nothing else."""
    if name is None or "." in name or "/" in name or name.isdecimal() or name in branches:
        return
    try:
        fork = ledger.fork(name)
    except ForkNotFoundError:
        return
    attempts = [
        f"{attempt.id} ({'won' if attempt.id == fork.winner else attempt.state})"
        for attempt in ledger.attempts(fork.id)
    ]
    listed = join_first(attempts, _LISTED)
    raise click.UsageError(f"{fork.id} is a fork: name one or two of its attempts: {listed or 'it has none'}")


def _warn(message: str) -> None:
    warnings.warn(message, ForkwiseWarning, stacklevel=2)
