"""The command line as a whole: its help, its exit codes, its failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import forkwise
from forkwise import errors
from forkwise.cli import forkwise_command
from forkwise.cli.app import Exit, Verb, exit_code
from forkwise.display.output import Output, printable, size_text

Run = Callable[..., Result]
Ask = Callable[..., Any]


def verbs(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command, with the words that name it."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from verbs(inner, *words, name)
    else:
        yield words, command


VERBS = dict(verbs(forkwise_command))


def test_the_verbs_there_are() -> None:
    branch = ("create", "ls", "path", "diff", "commit", "abort", "rebase", "run", "shell")
    exploring = (
        "run",
        "speculate",
        "best-of",
        "reflexion",
        "tournament",
        "tree",
        "beam",
        "cascade",
        "refine",
        "playoff",
    )
    forks = ("ls", "show", "watch", "wait", "open", "diff", "pick", "combine", "resume", "continue", "agents")
    forks += ("follow-up",)
    forks += ("abort", "report", "export")
    plain = (
        "doctor",
        "log",
        "undo",
        "gc",
        "du",
        "trust",
        "completion",
        "judges",
        "walk",
        "chat",
        "acp",
        "mcp",
        "install",
        "uninstall",
        "serve",
        *exploring,
        *forks,
    )
    models = ("fetch", "path", "rm", "ask")
    worktrees = ("add", "hook", "list", "mount", "remove")
    snapshots = ("create", "ls", "show", "unpack", "rm", "gc")
    groups = {
        "keys": ("set", "ls", "rm"),
        "ledger": ("copy",),
        "port": ("ls",),
        "branch": branch,
        "model": models,
        "worktree": worktrees,
        "snapshot": snapshots,
    }
    grouped = {(group, name) for group, names in groups.items() for name in names}
    assert set(VERBS) == {(name,) for name in plain} | grouped


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_help_teaches(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(forkwise_command, [*words, "--help"]).stdout
    verb = VERBS[words]
    assert isinstance(verb, Verb)
    assert len(verb.example) in (2, 3)
    assert all(f"  $ {line}\n" in said for line in verb.example)
    assert all(text in said for text in ("Exit codes:", "130 interrupted"))
    assert ("--json" in said) == (words != ("acp",))  # which speaks a protocol of its own
    # There is one model and one set of keys for all workspaces, and a store has snapshots of many; the caller of a
    # hook, and an editor, say which workspace it is for.
    is_for_one = words[0] not in ("model", "acp", "keys", "snapshot") and words != ("worktree", "hook")
    assert ("--workspace" in said) == (is_for_one or words == ("snapshot", "create"))


def test_help_has_no_traceback_and_needs_no_workspace(command: Callable[..., Any]) -> None:
    done = command("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exit codes:" in done.stdout


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"forkwise, version {forkwise.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [("branch", "crate"), ("branch", "create"), ("undo", "x"), ("log", "-C", "/nowhere"), ("gc", "--keep", "-1")],
    ids=" ".join,
)
def test_usage_errors(run: Run, ask: Ask, words: tuple[str, ...]) -> None:
    said = run(*words, code=2)
    assert said.stdout == ""
    assert said.stderr.startswith("forkwise: error: ")
    assert ask(*words, code=2)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConflictError("x"), 3),
        (errors.BranchStaleError("x"), 4),
        (errors.BranchNotFoundError("x"), 5),
        (errors.MountError("x"), 6),
        (errors.NamespaceError("x"), 6),
        (errors.CommitError("x"), 1),
        (errors.AbortError("x"), 1),
        (OSError(13, "Permission denied", "/x"), 1),
        (click.UsageError("x"), 2),
        (click.Abort(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code
    assert code in set(Exit)


@pytest.mark.parametrize(
    "error",
    [
        errors.BranchStaleError("it went\nstale", branch="/main/a", paths=["x"]),
        errors.MountError("no view", view="fuse", reason="because", remedy="install it"),
        OSError(13, "Permission denied", "/some/path"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_is_one_line_or_one_document(error: BaseException) -> None:
    @click.command("fails")
    @click.option("--json", "as_json", is_flag=True)
    def fails(as_json: bool) -> None:
        raise error

    root = type(forkwise_command)("root", commands={"fails": fails})
    said = CliRunner().invoke(root, ["fails"])
    assert said.exit_code == exit_code(click.Abort() if isinstance(error, KeyboardInterrupt) else error)
    assert [line for line in said.stderr.splitlines() if line.startswith("forkwise: error: ")]
    assert "Traceback" not in said.output
    record = json.loads(CliRunner().invoke(root, ["fails", "--json"]).stdout)["error"]
    assert {"type", "message", "exit_code"} <= set(record)
    for name, value in vars(error).items():
        assert record[name] == (list(value) if isinstance(value, tuple) else value)
    if isinstance(error, errors.MountError):
        assert "install it" in said.stderr


def test_a_bug_is_not_hidden() -> None:
    @click.command("fails")
    def fails() -> None:
        raise ZeroDivisionError

    said = CliRunner().invoke(type(forkwise_command)("root", commands={"fails": fails}), ["fails"])
    assert isinstance(said.exception, ZeroDivisionError)


def test_a_warning_is_one_line(run: Run, ask: Ask) -> None:
    path = Path(ask("branch", "create", "try-1")["branch"]["path"])
    os.mkfifo(path / "pipe")
    said = run("branch", "commit", "try-1")
    warned = [line for line in said.stderr.splitlines() if line.startswith("forkwise: warning: ")]
    assert len(warned) == 1
    assert "pipe" in warned[0]


def test_interrupted_while_it_waits(project: Path, state: Path) -> None:
    """Ctrl-C while another process holds the workspace: no traceback, nothing left."""
    waits = """
import fcntl, os, sys
import forkwise.cli
flock = fcntl.flock
def loud(fd, how):
    print("waiting", flush=True)
    return flock(fd, how)
fcntl.flock = loud
forkwise.cli.main()
"""
    holds = """
import sys
from forkwise.files.store.state import locate, locked
with locked(locate(sys.argv[1]).state):
    print("held", flush=True)
    sys.stdin.read()
"""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True, "cwd": project}
    with subprocess.Popen([sys.executable, "-c", holds, str(project)], **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        words = [sys.executable, "-c", waits, "branch", "create", "try-1"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        holder.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.split() == ["forkwise:", "error:", "interrupted"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ünï", "plain ünï"), ("a\x1b[0m", r"a\x1b[0m"), ("two\nlines", r"two\nlines"), ("\udcff", r"\xff")],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")])
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


def test_the_output_may_be_a_file_in_memory(project: Path, command: Callable[..., Any]) -> None:
    """Landlock takes no rule for such a file, and restricts none."""
    command("branch", "create", "b", check=True)
    fd = os.memfd_create("output")
    program = [
        sys.executable,
        "-c",
        "from forkwise.cli import main; main()",
        "branch",
        "run",
        "b",
        "--",
        "cat",
        "a.txt",
    ]
    done = subprocess.run(program, cwd=project, stdout=fd, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.pread(fd, 100, 0) == b"one\n"
    os.close(fd)


STARTING = """
import os, signal, sys
from forkwise.cli import main

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "forkwise.cli.verbs":
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Finder)
sys.argv[1:] = ["undo"]
main()
"""


@pytest.mark.parametrize(("name", "word"), [("SIGINT", "interrupted"), ("SIGHUP", "hung up")])
def test_a_signal_while_modules_are_loaded(name: str, word: str) -> None:
    done = subprocess.run([sys.executable, "-c", STARTING.format(signal=name)], capture_output=True, text=True)
    assert done.returncode == 128 + getattr(signal, name)
    assert done.stderr == f"forkwise: error: {word}; nothing was changed\n"


SWALLOWED = """
import os, signal, threading
from forkwise.cli.stop_signal import raise_on_stop_signals

def generate():
    try:
        yield
    finally:
        os.kill(os.getpid(), signal.SIGINT)

raise_on_stop_signals()
try:
    generator = generate()
    next(generator)
    del generator
    threading.Event().wait(600)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_python_swallows_is_sent_again() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_signal_after_a_commit_says_that_it_stays(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setattr(Output, "line", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    said = run("run", "-q", "--", "sh", "-c", "echo x > new.txt", code=130).stderr
    assert (project / "new.txt").exists()
    assert said.endswith("was committed as 1 before that, and stays: forkwise undo 1 takes it back\n")
    said = run("undo", code=130).stderr
    assert not (project / "new.txt").exists()
    assert (
        said
        == "forkwise: error: interrupted; commit 2 was made before that, and stays: forkwise undo 2 takes it back\n"
    )


NOHUP = """
import asyncio, os, signal, sys
from forkwise.cli import main

sleep = asyncio.sleep

async def hang_up(*arguments):  # called while the exploration runs
    os.kill(os.getpid(), signal.SIGHUP)
    return await sleep(*arguments)

signal.signal(signal.SIGHUP, signal.SIG_IGN)
asyncio.sleep = hang_up
sys.argv[1:] = ["run", "-q", "--", "sh", "-c", "echo x > new.txt"]
main()
"""


def test_a_hang_up_that_nohup_ignores_is_ignored(project: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NOHUP], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (project / "new.txt").exists()
