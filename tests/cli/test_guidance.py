"""Messages that save a guess: what a sandbox hides, what killed a test, what a name stands for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import BestOfN, CommitNotFoundError, Tests, Workspace
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.limits import Limits, choose_enforcement
from tests.cli.test_explore import sh
from tests.need import need

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def script() -> Iterator[Path]:
    """Write a script outside the workspace, in the machine's own /tmp."""
    with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix="forkwise-test-", suffix=".sh") as file:
        file.write("#!/bin/sh\necho x > made\n")
        file.flush()
        path = Path(file.name)
        path.chmod(0o755)
        copy = path.with_suffix(".copy.sh")  # a file that is open for writing cannot be executed
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o755)
        try:
            yield copy
        finally:
            copy.unlink()


@pytest.mark.parametrize("words", [("--", "{}"), ("--", "sh", "{}"), ("-c", "{}"), ("-c", "cat {}")])
def test_a_file_of_the_machine_s_tmp(ask: Ask, run: Run, script: Path, words: tuple[str, ...]) -> None:
    given = [word.format(script) for word in words]
    said = run("run", *given, code=7).stdout
    assert f"{script} exists, but a sandbox has its own /tmp" in said
    assert f"--show {script}" in said


def test_a_shown_file_of_the_machine_s_tmp_can_be_run(run: Run, script: Path, project: Path) -> None:
    run("run", "--show", str(script), "--", str(script))
    assert (project / "made").read_text() == "x\n"
    run("run", "--show", str(script), *sh(f"echo more >> {script}"), code=7)
    assert "more" not in script.read_text()


def test_a_file_that_exists_nowhere_is_not_explained(run: Run) -> None:
    assert "has its own" not in run("run", *sh("cat /tmp/forkwise-no-such-file"), code=7).stdout


def test_what_a_command_only_prints_is_no_question_about_the_machine(run: Run, script: Path, project: Path) -> None:
    (project / "ask.sh").write_text(f"echo '{script}: No such file or directory'; exit 1\n")
    assert "has its own" not in run("run", "--", "sh", "ask.sh", code=7).stdout


def test_tests_in_the_machine_s_tmp(run: Run, script: Path) -> None:
    said = run("run", "--test", str(script), *sh("echo x > made"), code=1)
    assert f"{script} exists, but a sandbox has its own /tmp" in said.stderr


HOG = "python3 -c 'x = [bytearray(1 << 20) for _ in range(400)]'"


def test_tests_that_ran_out_of_memory(project: Path) -> None:
    limits = Limits(memory=64 << 20)
    need(str(choose_enforcement(limits)["memory"]).startswith("cgroup"), "no control group limits memory")
    tests = Tests(HOG, confinement=replace(Confinement.standard(), limits=limits), baseline=False)
    outcome = BestOfN(["sh", "-c", "echo x > made"], 1, evaluate=tests)(Workspace(project))
    reason = outcome.all_results[0].reason or ""
    assert reason == "tests: the tests were killed because they ran out of memory, more than their limit of 64 MiB"


@pytest.mark.parametrize("line", ["kill -9 $$", "sh -c 'kill -9 $$'; exit $?"])
def test_tests_that_were_killed(run: Run, line: str) -> None:
    said = run("run", "--no-baseline", "--test", line, *sh("echo x > made"), code=7).stdout
    assert "killed by SIGKILL, usually because the machine ran out of memory" in said


def test_undo_of_a_commit_that_does_not_exist(run: Run, ask: Ask, project: Path) -> None:
    assert "there is no commit 999" in run("undo", "999", code=5).stderr
    assert ask("undo", "999", code=5)["error"]["type"] == "CommitNotFoundError"
    run("run", *sh("echo x > made"))
    run("diff", "999", code=5)
    with pytest.raises(CommitNotFoundError):
        Workspace(project).undo(999)


def test_feedback_ends_with_a_newline(run: Run, project: Path) -> None:
    work = 'test -s "$FORKWISE_FEEDBACK" && cp "$FORKWISE_FEEDBACK" told && exit; printf "no end"; exit 1'
    run("reflexion", *sh(work))
    told = (project / "told").read_text()
    assert told.endswith("no end\n")
    assert not told.endswith("\n\n")


def test_a_branch_that_is_nobody_s_attempt_makes_no_ledger(run: Run, project: Path) -> None:
    run("branch", "create", "try-1")
    run("branch", "commit", "try-1")
    assert not (Workspace(project).state / "ledger").exists()


def test_diff_of_a_fork_names_its_attempts(run: Run, ask: Ask) -> None:
    run("speculate", "--all", "-c", "echo a > n", "-c", "exit 1")
    fork = ask("ls")["forks"][0]["id"]
    said = run("diff", fork[:4], code=2).stderr
    assert f"{fork} is a fork: name one or two of its attempts: {fork}.1 (won), {fork}.2 (failed)" in said
    assert "name one or two of its attempts" in ask("diff", f"{fork}.1", fork, code=2)["error"]["message"]
    run("diff", "nothing-like-it", code=5)
