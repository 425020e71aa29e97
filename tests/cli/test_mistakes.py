"""Wrong words on the command line: each is one line that says what is wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.test_explore import sh

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("commit", "try-1"), "'forkwise branch commit'"),
        (("fetch",), "'forkwise model fetch'"),
        (("branch", "undo"), "'forkwise undo'"),
        (("rm", "x"), "'forkwise snapshot rm' or 'forkwise keys rm' or 'forkwise model rm'"),
    ],
)
def test_a_command_of_another_group(run: Run, ask: Ask, words: tuple[str, ...], meant: str) -> None:
    assert f"Did you mean {meant}?" in run(*words, code=2).stderr
    assert ask(*words, code=2)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("undo", "x"), "Invalid value for 'ID': 'x' is not a valid integer."),
        (("best-of", "0", "--", "true"), "Invalid value for 'N': 0 is not in the range x>=1."),
        (("install",), "Missing argument 'AGENT'. Choose from: claude, codex, gemini, cursor, vscode, opencode"),
        (("agents", "claude"), "'claude' is not 'check': forkwise agents lists all agents"),
        (("serve", "--tls", "a.txt"), "Option '--tls' requires 2 arguments."),
        (("serve", "--tls", "a.txt", "a.txt"), "they are not a certificate and its key in PEM format"),
        (("worktree", "list"), "project is not in a git repository; create one with git init"),
        (("chat", "--model", "no:such"), "the model no:such is not available: unknown model: no:such"),
    ],
    ids=" ".join,
)
def test_a_wrong_value(run: Run, words: tuple[str, ...], message: str) -> None:
    result = CODES.get(words[0], 2)
    said = run(*words, code=result).stderr
    assert message in said
    assert result != 2 or f"forkwise: hint: forkwise {words[0]}" in said


CODES = {"worktree": 1, "chat": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--timeout", "-1"), "'-1' is not a duration such as 90s, 10m or 1.5h"),
        (("--timeout", "0"), "'0' is not above zero"),
        (("--timeout", "nan"), "'nan' is not a duration"),
        (("--processes", "0"), "0 is not in the range x>=1"),
        (("--writable", "/no/such"), "--writable /no/such: no such file or directory"),
        (("--show", "/no/such"), "--show /no/such: no such file or directory"),
    ],
    ids=" ".join,
)
def test_limits_and_paths_of_a_command_in_a_branch(run: Run, options: tuple[str, ...], message: str) -> None:
    run("branch", "create", "b")
    assert message in run("branch", "run", "b", *options, "--", "true", code=2).stderr


def test_a_time_limit_has_a_unit(run: Run) -> None:
    run("branch", "create", "b")
    run("branch", "run", "b", "--timeout", "1h", "--", "true")


def test_a_fork_that_is_not_interrupted(run: Run, ask: Ask) -> None:
    run("run", "--no-commit", *sh("echo x > made"))
    [fork] = ask("ls")["forks"]
    said = run("resume", fork["id"], code=4).stderr
    assert "it is open; commit an attempt with forkwise pick, or abort it" in said
    assert f"forkwise follow-up {fork['id']}.1 'TEXT'" in run("follow-up", f"{fork['id']}.1", code=1).stderr
    run("pick", fork["id"])
    assert "forkwise undo 1 reverts it" in run("abort", fork["id"], code=4).stderr


def test_a_name_that_may_be_a_fork_or_a_branch(run: Run) -> None:
    said = run("diff", "nothing", code=5).stderr
    assert "list the branches with forkwise branch ls, and the forks with forkwise ls" in said


def test_a_winner_that_was_refused_can_be_committed(run: Run, project: Path) -> None:
    line = "mkdir .vscode; echo '{}' > .vscode/tasks.json"
    said = run("run", *sh(line), "commit", "pick", code=1).stderr  # these are words of the command, not of forkwise
    hint = said.splitlines()[-1].removeprefix("forkwise: hint: the winner was kept: forkwise ")
    assert hint.endswith(" --allow-executable-config")
    run(*hint.split())
    assert (project / ".vscode/tasks.json").exists()


def test_no_place_for_the_state(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FORKWISE_STATE", str(project / "state"))
        assert run("log", code=6).stderr.count("set FORKWISE_STATE") == 1


def test_a_diff_tool_that_is_not_installed(run: Run) -> None:
    run("branch", "create", "b")
    run("branch", "run", "b", "--", "sh", "-c", "echo x > a.txt")
    said = run("diff", "--tool=no-such-tool {parent} {branches}", "b", code=1).stderr
    assert "choose another diff tool with --tool=TOOL" in said


def test_a_damaged_ledger(run: Run, state: Path) -> None:
    run("run", *sh("echo x > made"))
    [database] = state.rglob("ledger.db")
    for file in database.parent.glob("ledger.db*"):
        file.unlink()
    database.write_text("this is no database, and long enough to be read as the header of one" * 20)
    assert "file is not a database; see forkwise doctor --repair" in run("ls", code=1).stderr
