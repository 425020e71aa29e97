"""``--report`` of the explore commands and ``forkwise report``: what is written, where, and when."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from junitparser import JUnitXml

Run = Callable[..., Result]
Ask = Callable[..., Any]
NAMES = ["index.html", "junit.xml", "report.json", "summary.md"]
TESTS = "import pathlib\n\n\ndef test_a():\n    assert pathlib.Path('a.txt').read_text() == 'good\\n'\n"


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_what_attempts_did_with_git_is_in_the_page(run: Run, project: Path, tmp_path: Path) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run(["git", *identity, *words], cwd=project, check=True)
    commit = f"git {' '.join(identity)} commit -qam"
    lines = ("-c", f"echo 1 > a.txt; {commit} '<b>one'; git tag '<i>'", "-c", "echo 2 > a.txt")
    run("speculate", "--all", "--report", str(tmp_path / "out"), *lines)
    page = (tmp_path / "out/index.html").read_text()
    assert "1 file, 1 commit, 1 tag" in page
    assert page.count("1 commit") == 1
    assert "<b>one" not in page
    assert "<i>" not in page


def test_best_of_with_tests(run: Run, ask: Ask, project: Path, tmp_path: Path) -> None:
    (project / "test_a.py").write_text(TESTS)
    target = tmp_path / "deep" / "out"
    lines = ("-c", "echo good > a.txt", "-c", "echo bad > a.txt; echo '<script>alert(1)</script>'")
    said = run("speculate", "--all", "--test", f"{sys.executable} -m pytest -q", "--report", str(target), *lines).stdout
    assert f"Report: {target / 'index.html'}" in said
    assert sorted(os.listdir(target)) == NAMES
    page = (target / "index.html").read_text()
    fork = ask("ls")["forks"][0]["id"]
    assert f"{fork}.1 won" in page
    assert "✓ fixed" in page
    assert "○ still failing" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    [suite] = JUnitXml.fromfile(str(target / "junit.xml"))
    assert [(case.classname, case.name) for case in suite] == [("test_a", "test_a")]
    record = json.loads((target / "report.json").read_text())
    assert record["winner"] == f"{fork}.1"
    assert [attempt["outcomes"] for attempt in record["attempts"]] == [
        {"test_a.py::test_a": "passed"},
        {"test_a.py::test_a": "failed"},
    ]
    assert "🏆 won" in (target / "summary.md").read_text()
    # Later, from the ledger alone, the same.
    again = tmp_path / "again"
    assert ask("report", fork, str(again))["files"] == [
        str(again / name) for name in ("index.html", "summary.md", "junit.xml", "report.json")
    ]

    def without_times(text: str) -> str:
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", text)

    assert without_times((again / "index.html").read_text()) == without_times(page)
    assert run("report", f"{fork}.2", str(again)).stdout == f"Report of {fork} written to {again / 'index.html'}.\n"


def test_json_names_the_report(run: Run, tmp_path: Path) -> None:
    said = run("run", "--json", "--report", str(tmp_path / "out"), "--", "touch", "x").stdout
    assert json.loads(said.splitlines()[-1])["outcome"]["report"] == str(tmp_path / "out")


def test_without_a_winner(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out"
    run("best-of", "2", "--report", str(target), "--", "false", code=7)
    assert "No winner" in (target / "index.html").read_text()
    assert JUnitXml.fromfile(str(target / "junit.xml")).failures == 1
    assert "❌" in (target / "summary.md").read_text()


def test_a_fork_that_waits(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out"
    run("best-of", "2", "--no-commit", "--report", str(target), "--", "touch", "x")
    assert "Undecided: it waits for a pick" in (target / "index.html").read_text()
    run("abort", json.loads((target / "report.json").read_text())["fork"]["id"])


def test_a_result_that_is_only_a_git_branch(run: Run, project: Path, tmp_path: Path) -> None:
    for words in (("init", "-q"), ("config", "user.name", "t"), ("config", "user.email", "t@example.com")):
        subprocess.run(["git", *words], cwd=project, check=True)
    subprocess.run("git add -A && git commit -qm base", shell=True, cwd=project, check=True)
    target = tmp_path / "out"
    run("best-of", "2", "--as-branch=best", "--report", str(target), "--", "touch", "x")
    record = json.loads((target / "report.json").read_text())
    assert record["best"] == f"{record['fork']['id']}.1"
    assert f"{record['best']} was the best" in (target / "index.html").read_text()
    assert JUnitXml.fromfile(str(target / "junit.xml")).failures == 0


def test_in_a_job_of_github(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run("run", "--", "touch", "x")
    assert summary.read_text() == "before\n"  # only with --report
    run("run", "--report", str(tmp_path / "out"), "--", "touch", "y")
    assert summary.read_text() == "before\n" + (tmp_path / "out/summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary"))
    warned = run("run", "--report", str(tmp_path / "out"), "--", "touch", "z").stderr
    assert "summary was not written: No such file" in warned


def test_a_directory_that_cannot_be_made(run: Run, project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("run", "--report", str(tmp_path / "file"), "--", "touch", "x", code=2)
    assert "is a file" in result.stderr
    result = run("run", "--report", str(tmp_path / "file" / "out"), "--", "touch", "x", code=2)
    assert "no report can be written" in result.stderr
    assert not (project / "x").exists()


def test_a_winner_cannot_redirect_the_report(run: Run, project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run("run", "--report", "out", "--", "sh", "-c", f"rm -rf out; ln -s {elsewhere} out", code=1)
    assert not os.listdir(elsewhere)
    run("undo")
    assert not os.listdir(project / "out")


def test_an_error_still_leaves_a_report(run: Run, tmp_path: Path) -> None:
    run("run", "--test", "no-such-program", "--report", str(tmp_path / "out"), "--", "touch", "x", code=1)
    assert "No winner" in (tmp_path / "out/index.html").read_text()


def test_a_signal_still_leaves_a_report(project: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from forkwise.cli import main; main()"]
    words = ["run", "--json", "--report", str(tmp_path / "out"), "--", "sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen([*program, *words], cwd=project, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if '"started"' in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 143
    assert "No winner" in (tmp_path / "out/index.html").read_text()
