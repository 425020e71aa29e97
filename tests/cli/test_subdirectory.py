"""From a subdirectory: which workspace a command means, and where its attempts and tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from forkwise import Workspace, open_ledger
from forkwise.cli import forkwise_command
from forkwise.cli.workspace_search import find_workspace
from tests.cli.test_explore import sh
from tests.need import need

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def below(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the project a git repository, and enter a subdirectory of it."""
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    monkeypatch.chdir(project / "sub")
    return project / "sub"


def test_attempts_start_in_the_same_subdirectory(run: Run, ask: Ask, below: Path, project: Path) -> None:
    said = run("run", *sh('pwd > here; echo "$PWD" >> here; cat c.txt >> here; cat ../a.txt >> here')).stdout
    assert (below / "here").read_text() == f"{below}\n{below}\nthree\none\n"
    assert "Undo with: forkwise undo 1\n" in said
    assert ask("log")["workspace"] == str(project)
    run("undo", "1")
    assert not (below / "here").exists()


def test_a_program_is_looked_for_where_the_user_is(run: Run, below: Path) -> None:
    (below / "do.sh").write_text("#!/bin/sh\necho x > done\n")
    (below / "do.sh").chmod(0o755)
    run("run", "--", "./do.sh")
    assert (below / "done").exists()
    assert "not found" in run("run", "--", "./sub/do.sh", code=2).stderr


def test_tests_and_judges_start_there_too(run: Run, ask: Ask, below: Path) -> None:
    (below / "check.sh").write_text("pwd; test -e made && echo ok 1 || echo not ok 1; echo 1..1\n")
    run("run", "--test", "sh check.sh", *sh("echo x > made"))
    assert (below / "made").exists()
    (below / "judge.sh").write_text('test -e c.txt && if grep -q 2 "$2/sub/n"; then echo 1; else echo 0; fi\n')
    run("tournament", "2", "--judge", "sh judge.sh", *sh("echo $FORKWISE_ATTEMPT > n"))
    assert (below / "n").read_text() == "2\n"


def test_detected_tests_run_in_the_environment_above(run: Run, below: Path, project: Path, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (below / "test_a.py").write_text("import os\n\ndef test_a():\n    assert os.path.exists('made')\n")
    (project / ".venv/lib/python3/site-packages/pytest").mkdir(parents=True)
    (project / ".venv/bin").mkdir()
    python = project / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\ntouch {room}/used\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    run("run", "-q", "--writable", str(room), "--test", "auto", *sh("echo x > made"))
    assert (room / "used").exists()


def test_detected_tests_run_where_they_are_found(run: Run, below: Path, project: Path) -> None:
    (project / "Makefile").write_text("test:\n\ttest -e sub/made\n")
    run("run", "--test", "auto", *sh("echo x > made"))
    (below / "Makefile").write_text("test:\n\ttest -e again\n")
    run("run", "--test", "auto", *sh("echo x > again"))


def test_a_resumed_fork_starts_where_it_was_started(run: Run, below: Path, project: Path) -> None:
    run("run", "--no-commit", *sh("pwd"))
    with open_ledger(Workspace(project)) as ledger:
        assert ledger.forks()[0].spec["subdirectory"] == "sub"


def test_a_subdirectory_that_was_deleted_in_the_branch(run: Run, below: Path) -> None:
    said = run("tree", "-c", "rm -r ../sub", "--expand", "true", "--depth", "2", "--json", "-q", "--no-commit").stdout
    assert f"the command was to start in {below}, which it cannot enter in its branch: No such file" in said
    said = run("run", "--no-baseline", "--test", "true", *sh("rm -r ../sub; echo x > ../a.txt"), code=7).stdout
    assert f"was to start in {below}" in said


def test_a_directory_that_a_commit_deleted_is_no_workspace(run: Run, below: Path) -> None:
    run("run", *sh("rm -r ../sub"))
    assert "enter it again with cd" in run("ls", code=2).stderr


@pytest.mark.parametrize("words", [("-C", "{}", "ls"), ("ls", "-C", "{}"), ("--workspace", "{}", "ls")])
def test_the_workspace_is_named_before_or_after_the_verb(
    ask: Ask, below: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    other = tmp_path / "other"
    other.mkdir(exist_ok=True)
    assert ask(*(word.format(other) for word in words))["workspace"] == str(other)


def test_the_word_after_the_verb_counts(ask: Ask, below: Path, tmp_path: Path) -> None:
    assert ask("-C", str(tmp_path), "ls", "-C", str(below))["workspace"] == str(below)


def test_a_failure_is_json_with_an_option_before_the_verb(run: Run, project: Path) -> None:
    said = run("-C", str(project), "run", "--json", "--", "no-such-program", code=2).stdout
    assert said.count("\n") == 1, "one line, as of every command that streams"


def test_the_variable(ask: Ask, run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_WORKSPACE", str(project))
    monkeypatch.chdir(tmp_path)
    assert ask("ls")["workspace"] == str(project)
    assert "Undo with: forkwise undo 1\n" in run("run", *sh("pwd > here")).stdout
    assert (project / "here").read_text() == f"{project}\n"
    monkeypatch.setenv("FORKWISE_WORKSPACE", "/no/such/directory")
    assert "FORKWISE_WORKSPACE" in run("ls", code=2).stderr


def test_history_is_found_upwards(ask: Ask, run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "sub")
    assert ask("ls")["workspace"] == str(project / "sub")
    monkeypatch.chdir(project)
    run("run", *sh("echo x > made"))
    monkeypatch.chdir(project / "sub")
    assert ask("ls")["workspace"] == str(project)


def test_the_nearest_repository_counts(below: Path, project: Path) -> None:
    (below / "inner/deep").mkdir(parents=True)
    (below / "inner/.git").write_text("gitdir: ../../.git/modules/inner\n")
    assert find_workspace(str(below / "inner/deep")) == str(below / "inner")
    assert find_workspace(str(below)) == str(project)


def test_neither_home_nor_what_is_above_it_counts(below: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert find_workspace(str(below)) == str(below)
    assert find_workspace(str(project)) == str(project)
    monkeypatch.setenv("HOME", str(below))
    assert find_workspace(str(below)) == str(below)


def test_nobody_else_can_lay_a_workspace_around_a_directory(below: Path, project: Path) -> None:
    need(os.geteuid() == 0, "only root can give files away")
    os.chown(project / ".git", 12345, 12345)
    assert find_workspace(str(below)) == str(below)
    os.chown(project / ".git", 0, 0)
    os.chown(project, 12345, 12345)
    assert find_workspace(str(below)) == str(below)
    os.chown(project, 0, 0)
    project.chmod(0o1777)
    assert find_workspace(str(below)) == str(below)


def test_python_s_workspace_is_the_directory_it_names(below: Path) -> None:
    assert Workspace(below).path == below
    assert CliRunner().invoke(forkwise_command, ["-C", str(below), "ls", "--json"]).output.count(str(below)) == 1


def test_plain_test_files_are_found(run: Run, project: Path) -> None:
    (project / "test_made.py").write_text("import os\n\n\ndef test_made():\n    assert os.path.exists('made')\n")
    run("run", "--test", "auto", *sh("true"), code=7)
    run("run", "--test", "auto", *sh("echo x > made"))
