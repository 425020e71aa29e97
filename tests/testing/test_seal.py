"""Which paths grade, the grading tables in mixed files, and attempts compared with the base test by test."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forkwise.testing.baseline import Baseline, TestRun, combine_runs
from forkwise.testing.command import for_command
from forkwise.testing.evidence import Injection, RunEvidence, read_evidence
from forkwise.testing.injected.evidence_channel import open_channel
from forkwise.testing.report import Outcome, TestReport, combine
from forkwise.testing.seal import Seal
from forkwise.testing.tables import put_back

GRADING = {
    "pytest -q": [
        "tests/test_a.py",
        "tests/data/golden.json",
        "pkg/sub/conftest.py",
        "pytest.ini",
        "a_test.py",
        "sitecustomize.py",
        ".venv/lib/python3.11/site-packages/evil.pth",
        ".venv/lib/python3.11/site-packages/_pytest/runner.py",
        "x.dist-info/entry_points.txt",
        ".env",
    ],
    "python -m unittest": ["test/test_a.py", "usercustomize.py"],
    "npx jest": ["src/__tests__/a.js", "a.test.ts", "jest.config.js", "node_modules/.bin/jest", "__mocks__/fs.js"],
    "go test ./...": ["a/b_test.go", "a/testdata/in"],
    "cargo test": ["tests/a.rs", ".cargo/config.toml"],
    "make test": ["Makefile", "tests/test_a.py", "a_test.go"],
    "sh ./check.sh": ["check.sh"],
    "python3 scripts/verify.py": ["scripts/verify.py"],
}
OTHERS = {
    "pytest -q": ["src/calc.py", "Makefile", "README.md", "docs/conftest.md", "contest.py", "latest/a.py"],
    "npx jest": ["src/a.js", "src/latest.ts"],
    "go test ./...": ["a/b.go", "tests/a.py"],
    "cargo test": ["Cargo.lock"],
    "test -e made.py": ["made.py"],
    "grep -q x data.txt": ["data.txt"],
    "python3 main.py": ["main.py"],
}


@pytest.mark.parametrize(("command", "path"), [(c, p) for c, paths in GRADING.items() for p in paths])
def test_paths_that_grade(command: str, path: str) -> None:
    assert Seal.of_command(for_command(command)).role(path) in ("whole", "script")


@pytest.mark.parametrize(("command", "path"), [(c, p) for c, paths in OTHERS.items() for p in paths])
def test_paths_that_do_not_grade(command: str, path: str) -> None:
    assert Seal.of_command(for_command(command)).role(path) is None


@pytest.mark.parametrize("path", ["pytest.py", "src/unittest/__init__.py", "json.py", "os.py"])
def test_modules_in_the_place_of_others(path: str) -> None:
    assert Seal.of_command(for_command("pytest")).role(path) == "module"


def test_the_last_pattern_decides() -> None:
    seal = Seal.of_command(for_command("pytest"), ("golden", "!tests/helpers/*", "tests/helpers/core.py"))
    assert seal.role("golden/deep/a.txt") == "whole"
    assert seal.role("tests/helpers/util.py") is None
    assert seal.role("tests/helpers/core.py") == "whole"


PYPROJECT = '[project]\nname = "a"\n\n[tool.pytest.ini_options]\naddopts = "-q"\n'


@pytest.mark.parametrize(
    "theirs",
    [
        PYPROJECT.replace("-q", "--collect-only"),
        '[project]\nname = "a"\n',
        '[project]\nname = "a"\n[tool]\npytest.ini_options.addopts = "-k none"\n',
        '[project]\nname = "a"\n[tool.pytest]\nini_options = {addopts = "--co"}\n',
        PYPROJECT + '\n[tool.coverage.run]\nplugins = ["evil"]\n',
        'tool.pytest.ini_options.addopts = "x"\n[project]\nname = "a"\n',
    ],
)
def test_tables_of_pyproject(theirs: str) -> None:
    merged = put_back("sub/pyproject.toml", theirs.encode(), PYPROJECT.encode())
    assert merged is not None
    assert tomllib.loads(merged.decode()).get("tool") in (
        {"pytest": {"ini_options": {"addopts": "-q"}}},
        {"pytest": {"ini_options": {"addopts": "-q"}}, "coverage": {}},
    )
    assert tomllib.loads(merged.decode())["project"] == {"name": "a"}


def test_what_does_not_grade_stays() -> None:
    theirs = PYPROJECT + "\n[tool.ruff]\nline-length = 100\n"
    assert put_back("pyproject.toml", theirs.encode(), PYPROJECT.encode()) == theirs.encode()
    package = {"dependencies": {"left-pad": "1"}, "scripts": {"test": "true"}, "jest": {"bail": 1}}
    merged = put_back("package.json", json.dumps(package).encode(), b'{"scripts": {"test": "jest"}}')
    assert json.loads(merged or b"") == {"dependencies": {"left-pad": "1"}, "scripts": {"test": "jest"}}
    merged = put_back("setup.cfg", b"[metadata]\nname = b\n[tool:pytest]\naddopts = --co\n", b"[metadata]\nname = a\n")
    assert merged == b"[metadata]\nname = b\n\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[", b"{", b"[]", b"3", b"[" * 5000])
@pytest.mark.parametrize("name", ["pyproject.toml", "package.json", "setup.cfg", "Cargo.toml"])
def test_files_that_cannot_be_merged_are_the_bases(name: str, content: bytes) -> None:
    assert put_back(name, content, b"") in (b"", content)
    assert put_back(name, content, None) in (None, b"", content)
    assert put_back(name, None, b"x = 1\n") == b"x = 1\n"


# Comparison


def run(outcomes: Mapping[str, Outcome], evidence: RunEvidence | None = None) -> TestRun:
    values = list(outcomes.values())
    failing = values.count("failed") + values.count("error")
    report = TestReport(
        passed=values.count("passed"),
        failed=failing,
        skipped=values.count("skipped"),
        source="pytest",
        exit_code=int(failing > 0),
        outcomes=outcomes,
    )
    return TestRun(report, evidence)


BASE: dict[str, Outcome] = {"t.py::a": "passed", "t.py::b": "failed", "t.py::c[1]": "passed", "t.py::s": "skipped"}


@pytest.mark.parametrize(
    ("changes", "summary", "doubt"),
    [
        ({"t.py::b": "passed"}, "1 fixed", None),
        ({"t.py::a": "failed"}, "1 broken, 1 still failing", None),
        ({"t.py::a": "skipped", "t.py::b": "skipped"}, "1 broken, 1 still failing", None),
        ({"t.py::a": None, "t.py::b": "passed"}, "1 fixed", "1 test of the base did not run: t.py::a"),
        ({"t.py::c[1]": None, "t.py::c[2]": "passed"}, "1 broken, 1 still failing", None),
        ({"t.py::s": "failed"}, "1 broken, 1 still failing", None),
        ({"t.py::n": "passed"}, "1 still failing", None),
        ({"t.py::n": "error"}, "1 broken, 1 still failing", None),
    ],
)
def test_comparison_with_the_base(changes: dict[str, Outcome | None], summary: str, doubt: str | None) -> None:
    merged = {name: outcome for name, outcome in {**BASE, **changes}.items() if outcome is not None}
    report = combine_runs([run(merged)], Baseline((run(BASE),)), "/ws")
    assert report.comparison is not None
    assert (report.comparison.summary, report.doubt) == (summary, doubt)


def test_a_file_that_could_not_be_collected() -> None:
    baseline = Baseline((run({"t.py": "error", "u.py::a": "passed"}),))
    fixed = combine_runs([run({"t.py::a": "passed", "u.py::a": "passed"})], baseline, "/ws")
    partly = combine_runs([run({"t.py::a": "passed", "t.py::b": "failed", "u.py::a": "passed"})], baseline, "/ws")
    assert fixed.comparison is not None
    assert partly.comparison is not None
    assert (fixed.comparison.summary, partly.comparison.summary) == ("1 fixed", "1 still failing")


def test_tests_that_vary_on_the_base_are_set_apart() -> None:
    baseline = Baseline((run(BASE), run({**BASE, "t.py::a": "failed"})))
    report = combine_runs([run({**BASE, "t.py::a": "failed", "t.py::b": "passed"})], baseline, "/ws")
    assert report.comparison is not None
    assert (report.comparison.summary, report.comparison.set_apart) == ("1 fixed", ("t.py::a",))


def test_the_report_survives_the_ledger() -> None:
    report = combine_runs([run({**BASE, "t.py::b": "passed"})], Baseline((run(BASE),)), "/ws")
    assert TestReport.from_json(json.loads(json.dumps(report.as_json()))) == report
    assert combine([report]) == report


# Evidence


def line(**record: Any) -> bytes:
    return json.dumps({"token": "t", "process": 1, **record}).encode() + b"\n"


START, END = line(kind="start"), line(kind="end", exit=0)
PASSED = line(kind="test", id="a", outcome="passed")
CANARY = line(kind="canary", id="c", expected="failed", outcome="failed")
WITH_CANARY = START + PASSED + CANARY + END


def read(data: bytes) -> RunEvidence:
    found = read_evidence(data, "t")
    assert found is not None
    return found


def judge(data: bytes, base: bytes = WITH_CANARY) -> TestReport:
    def as_run(records: bytes) -> TestRun:
        evidence = read(records)
        return run(evidence.outcomes, evidence)

    return combine_runs([as_run(data)], Baseline((as_run(base),)), "/ws")


def test_evidence_of_a_run_that_is_as_it_should_be() -> None:
    report = judge(WITH_CANARY)
    assert (report.doubt, report.is_tampered, report.outcomes) == (None, False, {"a": "passed"})
    outside = line(kind="plugin", name="x", origin="/ws-state/injected/x.py")
    assert judge(WITH_CANARY + outside).doubt is None, "the name of its directory begins like the workspace's"


@pytest.mark.parametrize(
    ("data", "doubt"),
    [
        (
            START + PASSED + line(kind="canary", id="c", expected="failed", outcome="passed") + END,
            "a test that must fail passed",
        ),
        (
            WITH_CANARY + line(kind="canary", id="d", expected="passed", outcome="failed"),
            "a test that must pass failed",
        ),
        (WITH_CANARY + line(kind="plugin", name="x", origin="/ws/src/evil.py"), "src/evil.py is a plugin"),
        (WITH_CANARY + line(kind="plugin", name="7", origin="calc"), "calc is a plugin"),
        (WITH_CANARY + line(kind="patched", name="TestCase.assertEqual"), "replaced TestCase.assertEqual"),
        (WITH_CANARY + line(kind="flipped", id="a"), "a raised, and was reported as passed"),
        (START + PASSED + line(kind="setup", id="a") + PASSED + CANARY + END, "more than once"),
    ],
)
def test_tampered_runs(data: bytes, doubt: str) -> None:
    report = judge(data)
    assert report.is_tampered
    assert doubt in str(report.doubt)


def test_runs_without_a_signal() -> None:
    assert "ended before it had finished" in str(judge(START + PASSED + CANARY).doubt)
    assert "known outcome" in str(judge(START + PASSED + END).doubt)
    baseline = Baseline((TestRun(run({"a": "passed"}).report, read(WITH_CANARY)),))
    assert "did not report" in str(combine_runs([run({"a": "passed"})], baseline, "/ws").doubt)


def test_the_worst_outcome_counts_and_lines_of_others_do_not() -> None:
    failed = line(kind="test", id="a", outcome="failed", message="no")
    assert read(START + failed + PASSED + END).outcomes == {"a": "failed"}
    forged = PASSED.replace(b'"t"', b'"guess"')
    assert read(START + forged + b"\xff{[\n" + line(kind=3) + line(kind="test", id=7) + END).outcomes == {}
    assert read_evidence(forged, "t") is None
    rerun = line(kind="session", reruns=True)
    assert read(START + rerun + failed + line(kind="setup", id="a") + PASSED + END).outcomes == {"a": "passed"}


def test_names_of_what_is_injected_cannot_be_guessed() -> None:
    one, other = Injection("/in", "/out"), Injection("/in", "/out")
    assert not set(one.files()) & set(other.files())
    assert all("evidence_channel" not in content for content in one.files().values())
    command = for_command("cd a && python3 -m unittest -v", injection=one)
    assert command.text == f"cd a && python3 {one.unittest_main} -v"
    assert command.env["PYTHONPATH"].startswith("/in")
    kept = for_command("pytest", injection=one, environ={"PYTEST_ADDOPTS": "-x", "PYTHONPATH": "lib"})
    assert kept.env["PYTEST_ADDOPTS"].startswith("-x ")
    assert kept.env["PYTHONPATH"] == "/in:lib"


def test_workers_inherit_what_their_runner_was_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader_fd = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    given = Injection("/in", str(tmp_path / "fifo")).environment({"PYTEST_ADDOPTS": "-x"}, "-x --junitxml=report.xml")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    channel = open_channel()
    assert channel is not None
    assert (os.environ["PYTEST_ADDOPTS"], os.environ.get("FORKWISE_EVIDENCE")) == ("-x", None)
    channel.lend()
    assert {name: os.environ.get(name) for name in given} == given
    channel.withdraw()
    assert (os.environ["PYTEST_ADDOPTS"], os.environ.get("FORKWISE_EVIDENCE")) == ("-x", None)
    os.close(reader_fd)
