"""``forkwise branch``: each command, with text and with JSON output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from tests.need import need

Run = Callable[..., Result]
Ask = Callable[..., Any]


def make(ask: Ask, name: str, *words: str) -> Path:
    """Create a branch and return its directory."""
    return Path(ask("branch", "create", name, *words)["branch"]["path"])


def test_create_makes_a_branch_that_stays(ask: Ask, project: Path) -> None:
    made = ask("branch", "create", "try-1")["branch"]
    assert made["branch_path"] == "/main/try-1"
    assert made["kept"] is True
    assert (Path(made["path"]) / "a.txt").read_text() == "one\n"
    assert [branch.name for branch in Workspace(project).branches()] == ["try-1"]


def test_create_says_where_the_branch_is(run: Run) -> None:
    need(os.geteuid() == 0, "without privileges a branch is visible only inside a sandbox")
    lines = run("branch", "create", "try-1").stdout.splitlines()
    assert lines[0].startswith("/main/try-1")
    assert Path(lines[1], "a.txt").exists()


def test_create_nests(ask: Ask) -> None:
    make(ask, "outer")
    inner = ask("branch", "create", "inner", "--from", "outer")["branch"]
    assert (inner["branch_path"], inner["parent"]) == ("/main/outer/inner", "/main/outer")


def test_create_twice_is_an_error(run: Run, ask: Ask) -> None:
    make(ask, "try-1")
    failed = run("branch", "create", "try-1", code=1)
    assert "try-1" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["", "..", "a/b", ".", "x" * 300])
def test_create_refuses_bad_names(run: Run, name: str) -> None:
    assert run("branch", "create", "--", name, code=1).stderr.startswith("forkwise: error: ")


def test_create_with_a_view(ask: Ask) -> None:
    assert ask("branch", "create", "plain", "--view", "copy")["branch"]["view"] == "copy"


def test_create_with_a_view_that_is_none(ask: Ask) -> None:
    error = ask("branch", "create", "try-1", "--view", "daguerreotype", code=6)["error"]
    assert error["type"] == "MountError"
    assert "daguerreotype" in error["message"]


def test_ls(run: Run, ask: Ask) -> None:
    assert "No branches" in run("branch", "ls").stdout
    make(ask, "one")
    make(ask, "two")
    assert [b["branch_path"] for b in ask("branch", "ls")["branches"]] == ["/main/one", "/main/two"]
    table = run("branch", "ls").stdout
    assert "/main/one" in table
    assert "kept" in table


def test_path_is_all_that_is_printed(run: Run, ask: Ask) -> None:
    path = make(ask, "try-1")
    assert run("branch", "path", "try-1").stdout == f"{path}\n"
    assert ask("branch", "path", "/main/try-1")["path"] == str(path)


def test_diff_is_a_patch(run: Run, ask: Ask) -> None:
    path = make(ask, "try-1")
    (path / "a.txt").write_text("uno\n")
    text = run("branch", "diff", "try-1").stdout
    assert "-one\n+uno\n" in text


def test_diff_lists_changes(run: Run, ask: Ask) -> None:
    path = make(ask, "try-1")
    (path / "a.txt").write_text("uno\n")
    (path / "b.txt").unlink()
    (path / "new.txt").write_text("new\n")
    changes = ask("branch", "diff", "try-1")["changes"]
    assert {c["path"]: c["kind"] for c in changes} == {"a.txt": "changed", "b.txt": "deleted", "new.txt": "added"}
    stat = run("branch", "diff", "try-1", "--stat").stdout
    assert "1 added, 1 changed, 1 deleted." in stat
    assert "new.txt" in stat


def test_a_name_cannot_drive_the_terminal(run: Run, ask: Ask) -> None:
    path = make(ask, "try-1")
    (path / "evil\x1b[2J\n.txt").write_text("")
    (path / os.fsdecode(b"\xff.txt")).write_text("")
    shown = run("branch", "diff", "try-1", "--stat").stdout
    assert "\x1b" not in shown
    assert r"evil\x1b[2J\n.txt" in shown
    assert r"\xff.txt" in shown
    assert len(ask("branch", "diff", "try-1")["changes"]) == 2


def test_commit_says_how_to_take_it_back(run: Run, ask: Ask, project: Path) -> None:
    (make(ask, "try-1") / "a.txt").write_text("uno\n")
    said = run("branch", "commit", "try-1").stdout
    assert (project / "a.txt").read_text() == "uno\n"
    assert "Committed /main/try-1 as 1: 0 added, 1 changed, 0 deleted." in said
    assert "forkwise undo 1" in said
    assert "No branches" in run("branch", "ls").stdout


def test_commit_names_the_workspace_where_it_was_named(run: Run, ask: Ask, project: Path) -> None:
    (make(ask, "try-1") / "a.txt").write_text("uno\n")
    assert f"forkwise undo 1 -C {project}" in run("branch", "commit", "try-1", "-C", str(project)).stdout


def test_commit_as_a_document(ask: Ask) -> None:
    (make(ask, "try-1") / "new").write_text("")
    commit = ask("branch", "commit", "try-1", "--no-durable")["commit"]
    assert (commit["id"], commit["added"], commit["durable"]) == (1, ["new"], False)


def test_commit_into_a_branch_promises_no_undo(run: Run, ask: Ask, project: Path) -> None:
    make(ask, "outer")
    for name in ("inner", "other"):
        (make(ask, name, "--from", "outer") / name).write_text("")
    said = run("branch", "commit", "outer/inner").stdout
    assert "forkwise undo" not in said
    assert "part of /main/outer" in said
    ask("branch", "rebase", "outer/other")
    assert ask("branch", "commit", "outer/other")["commit"]["undo_id"] is None


def test_colours_on_a_terminal(run: Run, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(ask, "try-1")
    (path / "a.txt").write_text("u\x1b[2Jno\r\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = run("branch", "diff", "try-1").stdout
    assert "\x1b[31m-one\x1b[0m\n" in text
    assert "\x1b[2J" not in text
    assert r"+u\x1b[2Jno\r" in text
    assert "\x1b[1m" in run("branch", "ls").stdout
    assert "\x1b[33m" in run("branch", "diff", "try-1", "--stat").stdout


def test_commit_refuses_a_conflict(run: Run, ask: Ask, project: Path) -> None:
    (make(ask, "try-1") / "a.txt").write_text("uno\n")
    (project / "a.txt").write_text("changed elsewhere\n")
    error = ask("branch", "commit", "try-1", code=3)["error"]
    assert (error["type"], error["paths"]) == ("ConflictError", ["a.txt"])
    assert [c["path"] for c in error["conflicts"]] == ["a.txt"]
    said = run("branch", "commit", "try-1", code=3)
    assert said.stdout == ""
    assert "a.txt" in said.stderr
    assert "--on-conflict" in said.stderr
    assert (project / "a.txt").read_text() == "changed elsewhere\n"


@pytest.mark.parametrize(("side", "text"), [("ours", "uno\n"), ("theirs", "changed elsewhere\n")])
def test_commit_settles_a_conflict(run: Run, ask: Ask, project: Path, side: str, text: str) -> None:
    (make(ask, "try-1") / "a.txt").write_text("uno\n")
    (project / "a.txt").write_text("changed elsewhere\n")
    run("branch", "commit", "try-1", "--on-conflict", side)
    assert (project / "a.txt").read_text() == text


def test_a_stale_branch_and_its_rebase(run: Run, ask: Ask, project: Path) -> None:
    first, second = make(ask, "first"), make(ask, "second")
    (first / "a.txt").write_text("uno\n")
    (second / "b.txt").write_text("due\n")
    run("branch", "commit", "first")
    assert "forkwise branch rebase" in run("branch", "commit", "second", code=4).stderr
    assert ask("branch", "rebase", "second")["conflicts"] == []
    run("branch", "commit", "second")
    assert [(project / name).read_text() for name in ("a.txt", "b.txt")] == ["uno\n", "due\n"]


def test_a_rebase_that_meets_a_conflict(run: Run, ask: Ask) -> None:
    first, second = make(ask, "first"), make(ask, "second")
    (first / "a.txt").write_text("uno\n")
    (second / "a.txt").write_text("ein\n")
    run("branch", "commit", "first")
    assert [c["path"] for c in ask("branch", "rebase", "second", code=3)["conflicts"]] == ["a.txt"]


def test_abort(run: Run, ask: Ask, project: Path) -> None:
    path = make(ask, "try-1")
    (path / "a.txt").write_text("uno\n")
    assert "Aborted /main/try-1." in run("branch", "abort", "try-1").stdout
    assert (project / "a.txt").read_text() == "one\n"
    assert not path.exists()
    assert ask("branch", "abort", "try-1", code=5)["error"]["type"] == "BranchNotFoundError"


@pytest.mark.parametrize("verb", ["path", "diff", "commit", "abort", "rebase", "shell"])
def test_a_branch_that_is_not_there(run: Run, verb: str) -> None:
    said = run("branch", verb, "nowhere", code=5)
    assert said.stdout == ""
    assert "nowhere" in said.stderr.splitlines()[0]


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "/", "/main", "a/../b", "try-1/.."])
def test_a_name_cannot_lead_elsewhere(run: Run, ask: Ask, name: str, state: Path) -> None:
    make(ask, "try-1")
    run("branch", "abort", "--", name, code=5)
    assert [b["name"] for b in ask("branch", "ls")["branches"]] == ["try-1"]
    assert state.exists()


def test_a_closed_pipe(ask: Ask, project: Path) -> None:
    (make(ask, "try-1") / "big.txt").write_text("a line\n" * 100_000)
    script = f"{sys.executable} -c 'from forkwise.cli import main; main()' branch diff try-1 | head -n 1"
    done = subprocess.run(["sh", "-c", script], cwd=project, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("diff --git a/big.txt b/big.txt\n", "")


def test_shell_runs_a_command_in_the_branch(ask: Ask, command: Callable[..., Any], project: Path) -> None:
    make(ask, "try-1")
    script = 'echo "$FORKWISE_BRANCH"; cat a.txt; echo more > d.txt; exit 7'
    done = command("branch", "shell", "try-1", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (7, "/main/try-1\none\n")
    assert ask("branch", "diff", "try-1")["changes"][0]["path"] == "d.txt"
    assert not (project / "d.txt").exists()


def test_shell_starts_the_users_shell(
    ask: Ask, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(ask, "try-1")
    own = tmp_path / "own-shell"
    own.write_text("#!/bin/sh\nexec cat a.txt\n")
    own.chmod(0o755)
    monkeypatch.setenv("SHELL", str(own))
    assert command("branch", "shell", "try-1").stdout == "one\n"


def test_shell_passes_on_the_signal_that_ended_its_command(ask: Ask, command: Callable[..., Any]) -> None:
    make(ask, "try-1")
    done = command("branch", "shell", "try-1", "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == 128 + signal.SIGTERM


def test_shell_with_a_command_that_is_not_there(ask: Ask, command: Callable[..., Any]) -> None:
    make(ask, "try-1")
    done = command("branch", "shell", "try-1", "--", "no-such-command")
    assert done.returncode == 1
    said = "forkwise: error: the command 'no-such-command' could not be started: No such file or directory"
    assert done.stderr.splitlines() == [said]


def test_run_confines_a_command(ask: Ask, command: Callable[..., Any], project: Path, tmp_path: Path) -> None:
    make(ask, "try-1")
    script = f"pwd; echo two > a.txt; echo out > {tmp_path}/outside; exit 3"
    done = command("branch", "run", "try-1", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (3, f"{project}\n")
    assert not (tmp_path / "outside").exists()
    assert (project / "a.txt").read_text() == "one\n"
    assert ask("branch", "diff", "try-1")["changes"][0]["path"] == "a.txt"


def test_run_takes_limits_and_more_to_write_to(ask: Ask, command: Callable[..., Any], tmp_path: Path) -> None:
    make(ask, "try-1")
    cache = tmp_path / "cache"
    cache.mkdir()
    script = f"echo kept > {cache}/file; sleep 1000"
    done = command("branch", "run", "try-1", "--writable", str(cache), "--timeout", "0.5", "--", "sh", "-c", script)
    assert done.returncode == 124
    assert (cache / "file").read_text() == "kept\n"
    assert command("branch", "run", "try-1").returncode == 2, "a command is needed"


def test_an_interrupted_command_decides_itself(ask: Ask, project: Path) -> None:
    """Ctrl-C reaches the whole foreground group; the command may ignore it, and forkwise waits for the command."""
    make(ask, "try-1")
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.01; done"
    program = [sys.executable, "-c", "from forkwise.cli import main; main()"]
    with subprocess.Popen(
        [*program, "branch", "shell", "try-1", "--", "sh", "-c", script],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (9, "caught\n", "")


@pytest.mark.parametrize("options", [(), ("--include-ignored",)])
def test_commit_takes_ignored_files_of_a_persons_own_branch(ask: Ask, project: Path, options: tuple[str, ...]) -> None:
    """And those of an attempt's branch only on request, as the fork that made it would."""
    own = make(ask, "own")
    (own / "a.pyc").write_text("x")
    ask("branch", "commit", "own")
    assert (project / "a.pyc").exists()
    (project / "a.pyc").unlink()
    branch = Workspace(project).branch("attempt", None, None)
    branch.set_ignore("git")
    (branch.path / "a.pyc").write_text("x")
    (branch.path / "made").write_text("x")
    branch.keep()
    ask("branch", "commit", "attempt", *options)
    assert (project / "made").exists()
    assert (project / "a.pyc").exists() == bool(options)
