"""Winners that deserve it: attempts without a change, ignored files, and judges that fail, on the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def outcome(run: Run) -> Callable[..., Any]:
    def outcome(*words: str, code: int = 0) -> Any:
        return json.loads(run(words[0], "--json", *words[1:], code=code).stdout.splitlines()[-1])["outcome"]

    return outcome


def sh(line: str) -> tuple[str, ...]:
    return "--", "sh", "-c", line


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An agent that runs its prompt as a shell command."""
    config = tmp_path / "config/forkwise"
    config.mkdir(parents=True)
    (config / "agents.toml").write_text('[obey]\ncommand = ["sh", "-c", "{prompt}"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return "obey"


def test_an_agent_that_changes_nothing_does_not_win(outcome: Callable[..., Any], agent: str, run: Run) -> None:
    made = "if [ $FORKWISE_ATTEMPT = 2 ]; then echo x > made; fi"
    result = outcome("best-of", "3", "--agent", agent, made)
    assert result["winner"].endswith(".2")
    assert [a["no_change"] for a in result["attempts"]] == [True, False, True]
    assert [a["state"] for a in result["attempts"]] == ["failed", "succeeded", "failed"]
    assert "no change" in run("show", result["attempts"][0]["id"]).stdout


def test_nothing_but_attempts_without_a_change(run: Run, outcome: Callable[..., Any], agent: str, ask: Ask) -> None:
    said = run("run", "--agent", agent, "mkdir __pycache__; touch __pycache__/a.pyc", code=7).stdout
    assert "No attempt changed anything; nothing was changed." in said
    assert outcome("run", "--allow-empty", "--agent", agent, "true")["commit"] is not None


def test_a_command_may_change_nothing(outcome: Callable[..., Any]) -> None:
    result = outcome("best-of", "2", *sh("[ $FORKWISE_ATTEMPT = 1 ] || echo x > made"))
    assert [a["state"] for a in result["attempts"]] == ["succeeded", "succeeded"]
    assert result["winner"].endswith(".2")
    assert outcome("run", "--", "true")["commit"] is not None


def test_generated_files_decide_nothing_and_are_not_committed(outcome: Callable[..., Any], project: Path) -> None:
    """The first fix is the smaller one, but its byte code and caches are many."""
    line = (
        "if [ $FORKWISE_ATTEMPT = 1 ]; then echo 1 > fix; mkdir -p __pycache__ .pytest_cache; "
        "seq 50 > .pytest_cache/x; seq 50 > __pycache__/a.pyc; else printf '1\\n2\\n' > fix; fi"
    )
    result = outcome("best-of", "2", *sh(line))
    assert result["winner"].endswith(".1")
    assert result["attempts"][0]["files"] == 1
    assert result["commit"]["added"] == ["fix"]
    assert not (project / "__pycache__").exists()


def test_ignored_files_are_committed_on_request(outcome: Callable[..., Any], project: Path) -> None:
    outcome("run", "--include-ignored", *sh("mkdir __pycache__; echo > __pycache__/a.pyc"))
    assert (project / "__pycache__/a.pyc").exists()


def test_tests_see_what_the_commit_brings(outcome: Callable[..., Any], run: Run, project: Path) -> None:
    (project / "__pycache__").mkdir()
    (project / "__pycache__/old.pyc").write_text("base")
    line = "echo 1 > fix; mkdir .mypy_cache; echo 1 > .mypy_cache/x; echo new > __pycache__/old.pyc"
    test = "test -e fix && test ! -e .mypy_cache && grep base __pycache__/old.pyc"
    assert outcome("run", "--test", test, *sh(line))["commit"]["added"] == ["fix"]

    result = outcome(
        "run", "--test", "test -e .mypy_cache/x", *sh("echo 2 > fix2; mkdir .mypy_cache; echo > .mypy_cache/x"), code=7
    )
    assert result["attempts"][0]["needs_ignored"] == [".mypy_cache"]
    assert "--include-ignored" in result["attempts"][0]["reason"]
    outcome(
        "run", "--include-ignored", "--test", "test -e .mypy_cache/x", *sh("mkdir .mypy_cache; echo > .mypy_cache/x")
    )
    assert os.path.exists(project / ".mypy_cache/x")


def test_the_printed_diff_is_what_is_committed(run: Run, project: Path) -> None:
    said = run("run", *sh("echo hello > fix; mkdir .ruff_cache; echo secret > .ruff_cache/x")).stdout
    assert "hello" in said
    assert "ruff_cache" not in said


def test_a_judge_that_does_not_exist_is_reported_before_any_attempt(run: Run, ask: Ask) -> None:
    for judge in ("no-such-program --now", "./missing.sh", "", "'"):
        run("tournament", "2", "--judge", judge, *sh("echo > made"), code=2)
    assert ask("ls")["forks"] == []


@pytest.mark.parametrize(
    ("judge", "reason"),
    [("echo neither #", "printed neither"), ("exit 3 #", "ended with 3"), ("sleep 60 #", "timeout")],
)
def test_a_judge_that_fails_decides_nothing(
    run: Run, ask: Ask, outcome: Callable[..., Any], project: Path, judge: str, reason: str
) -> None:
    made = ("--test-timeout", "0.3", *sh("echo $FORKWISE_ATTEMPT > made"))
    result = outcome("tournament", "2", "--judge", judge, *made, code=8)
    assert (result["winner"], result["commit"], result["state"]) == (None, None, "open")
    [warning] = result["warnings"]
    assert reason in warning
    assert not (project / "made").exists()
    assert ask("show", result["fork"])["fork"]["verdict"]["warnings"] == [warning]
    assert f"warning: {warning}" in run("show", result["fork"]).stdout
    run("pick", f"{result['fork']}.2")
    assert (project / "made").read_text() == "2\n"


def test_scores_decide_where_the_judge_fails(outcome: Callable[..., Any], project: Path, run: Run) -> None:
    line = "echo $FORKWISE_ATTEMPT > made; echo $FORKWISE_ATTEMPT > $FORKWISE_SCORE"
    result = outcome("tournament", "2", "--judge", "exit 3 #", *sh(line))
    assert (project / "made").read_text() == "2\n"
    assert "scores decided instead" in result["warnings"][0]
    done = run("tournament", "2", "--judge", "exit 3 #", *sh("echo $FORKWISE_ATTEMPT > made"), code=8)
    assert "forkwise: warning: the judge failed in 1 of 1 match" in done.stderr
    assert "nothing was committed" in done.stdout


def test_pick_can_include_ignored_files(outcome: Callable[..., Any], project: Path, run: Run) -> None:
    line = sh("echo x > made; mkdir .mypy_cache; echo x > .mypy_cache/x")
    run("pick", outcome("run", "--no-commit", *line)["fork"])
    assert not (project / ".mypy_cache").exists()
    run("pick", "--include-ignored", outcome("run", "--no-commit", *line)["fork"])
    assert (project / ".mypy_cache/x").exists()
