"""The toolbox: what each tool does, with the functions that the command line uses. Results are small JSON values."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.errors import BranchNotFoundError, ConflictError, ForkNotFoundError, LedgerError
from forkwise.files.file_tree import FileTree
from forkwise.files.workspace import Workspace
from forkwise.fork.stored_fork import branch_of
from forkwise.ledger.detached_run import load_detached_run
from forkwise.ledger.ledger import Ledger, new_id
from forkwise.ledger.sqlite import open_ledger
from forkwise.mcp.job import HANDLE_PREFIX, CallJob, CallJobs, ToolError
from forkwise.text.clean import clean_text, truncate_line
from forkwise.text.phrases import join_first
from forkwise.text.redaction import redact

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import Commit, Conflict
    from forkwise.ledger.records import AttemptRecord, ForkRecord
    from forkwise.testing.report import TestReport

__all__ = ["Confirm", "Toolbox"]

#: Asks the user for a decision; returns the reason for a refusal, or an empty text.
Confirm = Callable[[str], str]

GROUP_PREFIX = "try-"
_PAGE = 12_000  # characters
_LISTED = 50
_SHOWN_OUTPUT = 6_000
_MAX_OUTPUT = 1 << 20  # characters of a command's output that can be read in pages
_MAX_FILE = 4 << 20
_RUN_S = 600
_WAIT_S = 30
_PACE_S = 0.2
_START = "from forkwise.cli import main; main()"
_LONGEST_LINE = 300
_ATTEMPT = re.compile(r"[a-z0-9]+(\.[0-9]+)+")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools on one workspace. ``environment`` holds variables, such as keys, that nested agents get in addition."""

    directory: Path
    jobs: CallJobs
    environment: Mapping[str, str]

    # fork

    def fork(self, arguments: Mapping[str, Any], job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Create empty branches, or start attempts in the background."""
        kinds = [name for name in ("branches", "commands", "agent") if arguments.get(name)]
        if len(kinds) != 1:
            raise ToolError("give exactly one of branches, commands, or agent with prompts")
        if kinds == ["branches"]:
            if others := sorted(set(arguments) - {"branches"}):
                raise ToolError(f"{others[0]} does not apply to empty branches: use run and test on them")
            return self._create_branches(arguments["branches"])
        if kinds == ["agent"] and not arguments.get("prompts"):
            raise ToolError("an agent needs prompts")
        if kinds == ["commands"] and arguments.get("prompts"):
            raise ToolError("prompts are for an agent: give agent instead of commands")
        return self._start_attempts(arguments, job)

    def _create_branches(self, number: int) -> dict[str, Any]:
        from forkwise.servers.data_branch import make_branch

        workspace = Workspace(self.directory)
        group = f"{GROUP_PREFIX}{new_id()}"
        made: list[Branch] = []
        try:
            for index in range(1, number + 1):
                branch = make_branch(workspace, f"{group}-{index}")
                made.append(branch)
                if not branch.view_kind.native:
                    branch.set_ignore("git")
                branch.mark_confined()
                branch.keep()
        except BaseException:
            for branch in made:
                branch.abort()
            raise
        return {"group": group, "branches": [branch.name for branch in made], "view": made[0].view}

    def _start_attempts(self, arguments: Mapping[str, Any], job: CallJob) -> dict[str, Any]:
        subjects = arguments.get("commands") or arguments["prompts"]
        number = arguments.get("n") or len(subjects)
        pattern = ["speculate", "--all"] if arguments.get("commands") else ["best-of", str(number)]
        words = ["-C", str(self.directory), *pattern, "--no-commit", "--detach", "--json"]
        words += [f"--{name}={arguments[name]}" for name in ("test", "judge", "budget") if name in arguments]
        if "timeout_s" in arguments:
            words.append(f"--timeout={arguments['timeout_s']}")
        with tempfile.TemporaryDirectory(prefix="forkwise-mcp-") as directory:
            if arguments.get("commands"):
                for _, command in zip(range(number), cycle(subjects), strict=False):
                    words += ["-c", command]
            else:
                file = Path(directory, "variations.toml")
                file.write_text(_format_variations(subjects), encoding="utf-8")
                words += [f"--agent={arguments['agent']}", f"--variations={file}"]
            started = self._start_command(words, job)
        fork = started["fork"]
        return {"fork": fork, "attempts": number, "state": "running", "next": f"wait with handle {fork}"}

    def _start_command(self, words: Sequence[str], job: CallJob) -> dict[str, Any]:
        """Start the command line in a process of its own, which outlives this server; return the fork."""
        # -P: the current directory is the workspace, whose modules must not be imported.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env={**self.environment, **os.environ},
            start_new_session=True,
        )
        with process:
            while True:
                try:
                    output, errors = process.communicate(timeout=_PACE_S)
                    break
                except subprocess.TimeoutExpired:
                    if job.is_cancelled.is_set():
                        process.terminate()
        for line in output.decode(errors="replace").splitlines():
            with suppress(ValueError):
                document = json.loads(line)
                if "error" in document:
                    raise ToolError(str(document["error"].get("message", "the fork could not be started")))
                if "detached" in document:
                    job.warnings += [
                        text.removeprefix("forkwise: warning: ")
                        for text in clean_text(errors).splitlines()
                        if "warning: " in text
                    ]
                    return dict(document["detached"])
        raise ToolError(f"the fork could not be started: {clean_text(errors)[-_LONGEST_LINE:].strip()}")

    # wait

    def wait(self, arguments: Mapping[str, Any], job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Wait for something new in a fork or a job."""
        handle = arguments["handle"]
        deadline = time.monotonic() + arguments.get("timeout_s", _WAIT_S)
        if handle.startswith(HANDLE_PREFIX):
            return self._wait_for_job(self.jobs.find(handle), job, deadline)
        with self._open_ledger() as (_, ledger):
            fork = ledger.fork(handle.partition(".")[0]).id
            cursor = arguments.get("cursor", 0)
            while True:
                seen, changed = _find_new(ledger, fork, cursor)
                record = ledger.fork(fork)
                left = deadline - time.monotonic()
                attempts = ledger.attempts(fork)
                over = sum(attempt.is_over for attempt in attempts)
                job.message = f"{over} of {len(attempts)} attempts are over"
                is_news = over < len(attempts) and any(a.id in changed and a.is_over for a in attempts)
                run = load_detached_run(ledger.directory, fork)
                is_running = record.state == "running" or (run is not None and run.process.alive)
                if not is_running or is_news or left <= 0 or job.is_cancelled.is_set():
                    news = [_attempt_line(attempt) for attempt in attempts if attempt.id in changed]
                    facts = _fork_facts(record, len(attempts), over)
                    facts |= {"state": "running"} if is_running else {}  # its process still holds the branches
                    return facts | {"new": news[:_LISTED], "cursor": seen}
                time.sleep(min(_PACE_S, max(left, 0.0)))

    def _wait_for_job(self, wanted: CallJob, job: CallJob, deadline: float) -> dict[str, Any]:
        if wanted is job:
            raise ToolError("a call cannot wait for itself")
        while not wanted.is_over and time.monotonic() < deadline and not job.is_cancelled.is_set():
            job.message = wanted.message or wanted.title
            wanted.wait(_PACE_S)
        if not wanted.is_over:
            return {"job": wanted.id, "state": "running", "doing": wanted.message or wanted.title}
        if wanted.error is not None:
            raise wanted.error
        job.warnings += wanted.warnings
        return {"job": wanted.id, "state": "over", **(wanted.result or {})}

    # show, diff

    def show(self, arguments: Mapping[str, Any], _job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Show the workspace, a fork, an attempt, a branch or a job."""
        name, offset = arguments.get("name"), arguments.get("offset", 0)
        if name is None:
            return self._show_workspace()
        if name.startswith(HANDLE_PREFIX):
            job = self.jobs.find(name)
            state = "over" if job.is_over else "running"
            return {"job": job.id, "doing": job.title, "state": state, **_cut_page(job.text, offset)}
        with self._open_ledger() as (workspace, ledger):
            if _is_attempt(name):
                return _show_attempt(ledger, workspace, name, offset if arguments.get("output") else None)
            with suppress(BranchNotFoundError):
                return _show_branch(workspace.open(name))
            try:
                fork = ledger.fork(name)
            except ForkNotFoundError:
                group = [b.name for b in workspace.branches() if b.name.rpartition("-")[0] == name]
                if group:
                    return {"group": name, "branches": group}
                raise
            attempts = ledger.attempts(fork.id)
            facts = _fork_facts(fork, len(attempts), sum(attempt.is_over for attempt in attempts))
            baseline = _shorten(fork.baseline)
            return facts | {
                "kind": fork.kind,
                "baseline": baseline,
                "verdict": _shorten(fork.verdict),
                "list": [_attempt_line(attempt) for attempt in attempts[:_LISTED]],
            }

    def _show_workspace(self) -> dict[str, Any]:
        with self._open_ledger() as (workspace, ledger):
            forks = [_fork_facts(s.fork) | {"attempts": s.attempts} for s in ledger.summaries(10, outermost=True)]
            branches = [branch for branch in workspace.branches() if branch.kept]
            commits = [
                {"commit": one.id, "branch": one.branch, "undone_by": one.undone_by, "undoes": one.undoes}
                for one in workspace.history()[:5]
            ]
        jobs = [{"job": job.id, "doing": job.title} for job in self.jobs.list_open() if job.title != "show"]
        return {
            "workspace": str(self.directory),
            "forks": forks,
            "branches": [branch.name for branch in branches[:_LISTED]],
            "jobs": jobs[:_LISTED],
            "commits": commits,
        }

    def diff(self, arguments: Mapping[str, Any], _job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Show what one side changed, or how two differ."""
        from forkwise.fork.stored_fork import compare_sides, load_side
        from forkwise.text.diff import unified

        with self._open_ledger() as (workspace, ledger):
            names = [arguments["name"], *([arguments["other"]] if "other" in arguments else [])]
            for name in names:
                _refuse_fork(ledger, workspace, name)
            sides = [load_side(ledger, workspace, name) for name in names]
            files = list(sides[0].files if len(sides) == 1 else compare_sides(workspace, *sides))
            path = arguments.get("path", "").strip("/")
            if path:
                files = [file for file in files if file.path == path or file.path.startswith(f"{path}/")]
            text = unified(files)
        offset = arguments.get("offset", 0)
        page = _cut_page(text, offset)
        if offset:
            return page
        first: dict[str, Any] = {"files": [file.path for file in files[:_LISTED]], "files_in_all": len(files)}
        if risky := sides[-1].executable_config:
            first["makes_your_machine_run"] = [path for path, _ in risky[:_LISTED]]
        return first | page

    # run, write, test

    def run(self, arguments: Mapping[str, Any], job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Run a shell command in a branch."""
        from forkwise.sandbox.run import arun_in_branch

        with self._open_branch(arguments["branch"]) as branch:
            branch.mark_confined()
            output = _CommandText(job)
            timeout = arguments.get("timeout_s", _RUN_S)
            with self.jobs.heavy:
                done = job.await_(
                    arun_in_branch(
                        branch,
                        ["sh", "-c", arguments["command"]],
                        confinement=self._find_confinement(),
                        timeout=timeout,
                        capture=False,
                        on_output=output.add,
                    )
                )
        text = output.finish()
        found: dict[str, Any] = {"exit_code": done.returncode, "ending": done.ending, "output": text[-_SHOWN_OUTPUT:]}
        if len(text) > _SHOWN_OUTPUT:
            found["note"] = f"only the end of {output.size} bytes; show with name {job.id} returns all of it in pages"
        return found

    def _find_confinement(self) -> Any:
        from forkwise.config.shared_paths import make_shared, read_shared_paths
        from forkwise.sandbox.confinement import Confinement

        shared = read_shared_paths(self.directory)
        writable = tuple(p for path, source in shared.items() for p in make_shared([path], source, self.directory))
        return replace(Confinement.preset("standard"), network="auto", writable=writable)

    def write(self, arguments: Mapping[str, Any], _job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Write, edit and delete files of a branch."""
        with self._open_branch(arguments["branch"]) as branch:
            branch.mark_confined()
            tree = FileTree(os.fspath(branch.path), os.fspath(branch.workspace.path))
            planned = [_plan_edit(tree, edit) for edit in arguments["files"]]
            for path, content in planned:
                if content is None:
                    tree.remove(path)
                else:
                    tree.write(path, content)
        paths = {
            "written": [path for path, content in planned if content is not None],
            "deleted": [path for path, content in planned if content is None],
        }
        return {"branch": arguments["branch"], **{name: found for name, found in paths.items() if found}}

    def test(self, arguments: Mapping[str, Any], job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Run tests on branches, one after the other."""
        results = []
        for name in arguments["branches"]:
            with self._open_branch(name) as branch:
                job.message = f"testing {name}"
                tests = self._find_tests(name, arguments)
                with self.jobs.heavy:
                    report = job.await_(tests.test(branch))
                results.append({"branch": name, **_test_facts(report)})
        return {"tests": results}

    def _find_tests(self, name: str, arguments: Mapping[str, Any]) -> Any:
        from forkwise.explore.resume import find_tests
        from forkwise.fork.evaluators.tests import Tests

        command = arguments.get("command")
        command = None if command == "auto" else command
        if _is_attempt(name):
            with self._open_ledger() as (workspace, ledger), suppress(LedgerError):
                fork = ledger.fork(ledger.attempt(name).fork)
                if (found := find_tests(workspace, fork, command)) is not None:
                    return found
        tests = Tests(command, timeout=arguments.get("timeout_s", _RUN_S))
        if tests.find(self.directory) is None:
            raise ToolError(f"no test command was given, and none was found in {self.directory}")
        return tests

    # pick, undo, abort

    def pick(self, arguments: Mapping[str, Any], job: CallJob, confirm: Confirm) -> dict[str, Any]:
        """Commit an attempt, a branch, or several combined."""
        names = list(dict.fromkeys(arguments["names"]))
        with self._open_ledger() as (workspace, ledger):
            kinds = {_find_kind(ledger, workspace, name) for name in names}
        if len(kinds) > 1 or (kinds == {"fork"} and len(names) > 1):
            raise ToolError("only attempts of one fork, or branches of one group, can be combined")
        if refusal := confirm(self._describe_pick(names)):
            return {"committed": False, "reason": refusal}
        workspace = Workspace(self.directory, allow_executable_config=False)
        if kinds == {"branch"}:
            return self._pick_branches(workspace, names, arguments)
        if len(names) > 1:
            return self._combine(workspace, names, arguments, job)
        from forkwise.explore.resume import find_retest
        from forkwise.fork.resolve import pick

        commit = pick(
            workspace,
            names[0],
            on_conflict=arguments.get("on_conflict", "refuse"),
            keep=arguments.get("keep", False),
            force=arguments.get("force", False),
            tests=find_retest(workspace, names[0]),
        )
        return _commit_facts(commit)

    def _describe_pick(self, names: Sequence[str]) -> str:
        """Describe a commit to the user: where, what, and how much."""
        total = None
        if len(names) == 1:
            with self._open_ledger() as (workspace, ledger), suppress(BranchNotFoundError, LedgerError):
                total = len(branch_of(ledger, workspace, names[0]).delta())
        paths = "" if total is None else f" ({total} changed paths)"
        return f"Commit {' and '.join(names)}{paths} to {self.directory}? forkwise undo takes it back."

    def _pick_branches(
        self, workspace: Workspace, names: Sequence[str], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        from forkwise.files.combine import combine
        from forkwise.fork.stored_fork import record_branch_commit

        branches = [workspace.open(name) for name in names]
        group = branches[0].name.rpartition("-")[0]
        on_conflict = arguments.get("on_conflict", "refuse")
        more: dict[str, Any] = {}
        if len(branches) == 1:
            commit = branches[0].commit(on_conflict=on_conflict)
        else:
            prefer = {path: name for path, is_path, name in _split_preferences(arguments) if is_path}
            combination = combine(workspace, branches, f"{group}-all-{new_id()}", prefer=prefer)
            try:
                if not combination.clean:
                    return {"committed": False, "conflicts": [_clash_facts(one) for one in combination.conflicts]}
                commit = combination.branch.commit(on_conflict=on_conflict)
            finally:
                combination.branch._abort_if_open()
            more = {"merged": list(combination.merged)[:_LISTED]}
        record_branch_commit(workspace, commit)
        if group.startswith(GROUP_PREFIX) and not arguments.get("keep", False):
            more["dropped"] = _drop_group(workspace, group)
        return _commit_facts(commit) | more

    def _combine(
        self, workspace: Workspace, names: Sequence[str], arguments: Mapping[str, Any], job: CallJob
    ) -> dict[str, Any]:
        from forkwise.explore.resume import find_tests
        from forkwise.fork.combine import combine_attempts

        with open_ledger(workspace) as ledger:
            fork = ledger.fork(ledger.attempt(names[0]).fork)
        preferences = _split_preferences(arguments)
        result = job.await_(
            combine_attempts(
                workspace,
                names,
                tests=find_tests(workspace, fork, None),
                prefer={path: name for path, is_path, name in preferences if is_path},
                favour=[name for _, is_path, name in preferences if not is_path],
                on_conflict=arguments.get("on_conflict", "refuse"),
                keep=arguments.get("keep", False),
                force=arguments.get("force", False),
            )
        )
        tests = {} if result.tests is None else {"tests": _test_facts(result.tests)}
        if result.commit is None:
            return {"committed": False, "conflicts": [_clash_facts(one) for one in result.conflicts], **tests}
        return _commit_facts(result.commit) | {"merged": list(result.merged)[:_LISTED]} | tests

    def undo(self, arguments: Mapping[str, Any], _job: CallJob, confirm: Confirm) -> dict[str, Any]:
        """Undo a commit."""
        from forkwise.fork.stored_fork import undo

        number = arguments.get("commit")
        subject = "the last commit" if number is None else f"commit {number}"
        if refusal := confirm(f"Undo {subject} in {self.directory}?"):
            return {"committed": False, "reason": refusal}
        return _commit_facts(undo(Workspace(self.directory), number))

    def abort(self, arguments: Mapping[str, Any], _job: CallJob, _confirm: Confirm) -> dict[str, Any]:
        """Drop a fork, an attempt, a branch or a group, or cancel a job."""
        from forkwise.fork.control import abort_attempt, abort_fork

        name = arguments["name"]
        if name.startswith(HANDLE_PREFIX):
            self.jobs.find(name).cancel()
            return {"cancelled": name}
        workspace = Workspace(self.directory)
        if name.startswith(GROUP_PREFIX) and (dropped := _drop_group(workspace, name)):
            return {"dropped": dropped}
        if _is_attempt(name):
            return {"aborted": name, "dropped": list(abort_attempt(workspace, name, "aborted by an MCP client"))}
        try:
            branch = workspace.open(name)
        except BranchNotFoundError:
            return {"aborted": name, "dropped": list(abort_fork(workspace, name, "aborted by an MCP client"))}
        with self._open_ledger() as (_, ledger), suppress(ForkNotFoundError):
            fork = ledger.fork(branch.name.partition("-")[0])
            raise ToolError(f"{name} is the branch of an attempt of fork {fork.id}: abort the attempt or the fork")
        branch.abort()
        return {"dropped": [branch.name]}

    # shared

    @contextmanager
    def _open_ledger(self) -> Iterator[tuple[Workspace, Ledger]]:
        workspace = Workspace(self.directory)
        with open_ledger(workspace) as ledger:
            yield workspace, ledger

    @contextmanager
    def _open_branch(self, name: str) -> Iterator[Branch]:
        """Open a branch, or the branch of an attempt that is over."""
        with self._open_ledger() as (workspace, ledger):
            branch = branch_of(ledger, workspace, name)
            if _is_attempt(name) and not ledger.attempt(name).is_over:
                raise ToolError(f"attempt {name} still runs: wait for its end, or abort it")
        yield branch

    # resources

    def read_resource(self, uri: str) -> tuple[str, str]:
        """Return the type and the text of a resource. Raises ToolError if there is none."""
        parts = uri.removeprefix("forkwise://").split("/")
        with self._open_ledger() as (workspace, ledger):
            match parts:
                case ["workspace"]:
                    return "application/json", json.dumps(self._show_workspace())
                case ["fork", name]:
                    from forkwise.display.attempt_report import read_report
                    from forkwise.display.report_documents import build_summary

                    return "text/markdown", build_summary(read_report(ledger, ledger.fork(name).id))[: _PAGE * 4]
                case ["attempt", name, "log"]:
                    from forkwise.ledger.logs import read_log

                    content = read_log(ledger.fetch_files(name := ledger.attempt(name).id), name, tail=_PAGE * 4)
                    return "text/plain", redact(clean_text(content))
                case ["attempt", name, "diff"]:
                    from forkwise.fork.stored_fork import load_side
                    from forkwise.text.diff import unified

                    return "text/x-diff", unified(load_side(ledger, workspace, name).files)[: _PAGE * 4]
        raise ToolError(f"there is no resource {uri[:_LONGEST_LINE]!r}")

    def list_resources(self) -> list[dict[str, str]]:
        """Return the resources of the newest forks."""
        with self._open_ledger() as (_, ledger):
            forks = [summary.fork.id for summary in ledger.summaries(10, outermost=True)]
        found = [{"uri": "forkwise://workspace", "name": "workspace", "mimeType": "application/json"}]
        return found + [
            {"uri": f"forkwise://fork/{fork}", "name": f"fork {fork}", "mimeType": "text/markdown"} for fork in forks
        ]


class _CommandText:
    """A command's output as text of limited size; what exceeds it is dropped at the beginning."""

    def __init__(self, job: CallJob) -> None:
        self.size = 0
        self._job = job
        self._content = bytearray()

    def add(self, _stream: str, piece: bytes) -> None:
        self.size += len(piece)
        self._content += piece
        if len(self._content) > 2 * _MAX_OUTPUT:
            del self._content[:-_MAX_OUTPUT]
        lines = clean_text(bytes(self._content[-_LONGEST_LINE:])).strip().splitlines()
        self._job.message = lines[-1] if lines else ""

    def finish(self) -> str:
        self._job.text = redact(clean_text(bytes(self._content[-_MAX_OUTPUT:])))
        return self._job.text


def _format_variations(prompts: Sequence[str]) -> str:
    import tomlkit

    return tomlkit.dumps({"attempt": [{"prompt": prompt} for prompt in prompts]})


def _find_new(ledger: Ledger, fork: str, cursor: int) -> tuple[int, set[str]]:
    """Return the number of a fork's last event, and the attempts that have events after ``cursor``."""
    events = ledger.events(after=cursor, fork=fork)
    return max((event.seq for event in events), default=cursor), {e.attempt for e in events if e.attempt is not None}


def _fork_facts(fork: ForkRecord, attempts: int | None = None, over: int | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"fork": fork.id, "state": fork.state}
    if attempts is not None:
        facts |= {"attempts": attempts, "over": over}
    best = fork.winner or (fork.verdict or {}).get("winner")
    facts |= {"best": best} if best else {}
    for name in ("commit", "undone"):
        if (value := getattr(fork, name)) is not None:
            facts[name] = value
    return facts


def _attempt_line(attempt: AttemptRecord) -> dict[str, Any]:
    """Return an attempt in brief."""
    tests = attempt.tests or {}
    facts = {
        "attempt": attempt.id,
        "state": attempt.state,
        "label": truncate_line(redact(attempt.label), 80),
        "reason": truncate_line(attempt.reason or "", _LONGEST_LINE),
        "files": attempt.files,
        "score": attempt.score,
        "tests": tests.get("summary"),
        "usd": (attempt.cost or {}).get("usd"),
        "doing": truncate_line(redact(attempt.last_line or ""), 120) if not attempt.is_over else "",
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _show_attempt(ledger: Ledger, workspace: Workspace, name: str, offset: int | None) -> dict[str, Any]:
    from forkwise.fork.stored_fork import load_side
    from forkwise.ledger.logs import read_log
    from forkwise.testing.report import TestReport

    attempt = ledger.attempt(name)
    if offset is not None:
        return {
            "attempt": attempt.id,
            **_cut_page(redact(clean_text(read_log(ledger.fetch_files(attempt.id), attempt.id))), offset),
        }
    facts = _attempt_line(attempt)
    if attempt.answer:
        facts["answer"] = attempt.answer[:_SHOWN_OUTPUT]
    if attempt.tests is not None:
        report = TestReport.from_json(attempt.tests)
        if not report.is_pass:
            facts["failures"] = report.feedback(3000)
    with suppress(BranchNotFoundError):
        paths = [file.path for file in load_side(ledger, workspace, attempt.id).files]
        facts |= {"paths": paths[:_LISTED], "paths_in_all": len(paths)}
    tail = redact(clean_text(read_log(ledger.fetch_files(attempt.id), attempt.id, tail=3000)))
    return facts | {"output_end": tail, "output_bytes": attempt.output_bytes}


def _show_branch(branch: Branch) -> dict[str, Any]:
    delta = branch.delta()
    changes = [f"{change.kind} {change.path}" for change in delta]
    return {
        "branch": branch.name,
        "status": branch.status,
        "changes": changes[:_LISTED],
        "changes_in_all": len(changes),
    }


def _refuse_fork(ledger: Ledger, workspace: Workspace, name: str) -> None:
    """Raise ToolError, with the attempts to choose from, if a name is that of a fork only."""
    if _is_attempt(name) or name.isdecimal() or any(branch.name == name for branch in workspace.branches()):
        return
    with suppress(ForkNotFoundError):
        attempts = [attempt.id for attempt in ledger.attempts(ledger.fork(name).id)]
        raise ToolError(f"{name} is a fork: name one or two of its attempts: {join_first(attempts, _LISTED)}")


def _is_attempt(name: str) -> bool:
    return _ATTEMPT.fullmatch(name) is not None


def _find_kind(ledger: Ledger, workspace: Workspace, name: str) -> str:
    """Return whether a name means an attempt, a branch or a fork. Raises if it means nothing."""
    if _is_attempt(name):
        return f"attempt of {ledger.attempt(name).fork}"
    try:
        branch = workspace.open(name)
    except BranchNotFoundError:
        ledger.fork(name)
        return "fork"
    with suppress(ForkNotFoundError):
        fork = ledger.fork(branch.name.partition("-")[0])
        raise ToolError(f"{name} is the branch of an attempt of fork {fork.id}: pick the attempt")
    return "branch"


def _drop_group(workspace: Workspace, group: str) -> list[str]:
    dropped = []
    for branch in workspace.branches():
        if branch.name.rpartition("-")[0] == group and branch.parent is branch.workspace:
            with suppress(BranchNotFoundError):
                branch.abort()
                dropped.append(branch.name)
    return dropped


def _plan_edit(tree: FileTree, edit: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """Return a path and its new content, None to delete it. Raises ToolError if the edit does not fit the file."""
    path = edit["path"]
    given = [
        name for name in ("content", "old", "delete") if edit.get(name) is not None and edit.get(name) is not False
    ]
    if len(given) != 1 or ("new" in edit) != ("old" in edit):
        raise ToolError(f"{path[:_LONGEST_LINE]!r}: give content, or old and new, or delete")
    if not path:
        raise ToolError("a path is empty")
    tree.resolve(path, follow=given != ["delete"])
    if given == ["delete"]:
        if tree.entry(path) is None:
            raise ToolError(f"there is no {path!r} to delete")
        return path, None
    if given == ["content"]:
        return path, edit["content"].encode()
    if tree.stat(path).st_size > _MAX_FILE:
        raise ToolError(f"{path!r} is larger than {_MAX_FILE >> 20} MiB: edit it with run")
    content = tree.read(path)
    old = edit["old"].encode()
    found = content.count(old) if old else 0
    if found != 1:
        raise ToolError(f"{path!r}: old must occur exactly once, and occurs {found} times")
    return path, content.replace(old, edit["new"].encode())


def _split_preferences(arguments: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [word.rpartition("=") for word in arguments.get("prefer", ())]


def _test_facts(report: TestReport) -> dict[str, Any]:
    facts: dict[str, Any] = {"passes": report.is_pass, "summary": report.summary}
    if report.comparison is not None:
        facts["compared"] = report.comparison.summary
    if report.doubt:
        facts["doubt"] = report.doubt
    if not report.is_pass:
        facts["feedback"] = redact(report.feedback(3000))
    return facts


def _clash_facts(clash: Any) -> dict[str, Any]:
    return {"path": clash.path, "kind": clash.kind, "between": list(clash.branches), "detail": clash.detail}


def _commit_facts(commit: Commit) -> dict[str, Any]:
    facts: dict[str, Any] = {"committed": True, "commit": commit.id, "branch": commit.branch}
    for name in ("added", "changed", "deleted", "skipped"):
        if found := list(getattr(commit, name)):
            facts[name] = found[:_LISTED]
            if len(found) > _LISTED:
                facts[f"{name}_in_all"] = len(found)
    if commit.undoes is not None:
        facts["undoes"] = commit.undoes
    if commit.conflicts:
        facts["conflicts"] = [conflict_facts(conflict) for conflict in commit.conflicts[:_LISTED]]
    if commit.note:
        facts["note"] = commit.note
    return facts


def conflict_facts(conflict: Conflict) -> str:
    """Return a conflict as a text."""
    return truncate_line(str(conflict), _LONGEST_LINE)


def list_conflicts(error: ConflictError) -> list[str]:
    """Return the conflicts of an error as texts."""
    return [conflict_facts(conflict) for conflict in error.conflicts[:_LISTED]]


def _cut_page(text: str, offset: int) -> dict[str, Any]:
    """Return one page of a text, which ends at a line's end where possible, and where the next one begins."""
    end = min(offset + _PAGE, len(text))
    if end < len(text):
        end = text.rfind("\n", offset + 1, end) + 1 or end
    page: dict[str, Any] = {"text": text[offset:end], "characters_in_all": len(text)}
    return page | ({"next": end} if end < len(text) else {})


def _shorten(verdict: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a verdict without its long parts."""
    if verdict is None:
        return None
    return {name: value for name, value in verdict.items() if len(json.dumps(value, default=str)) < _LONGEST_LINE * 2}
