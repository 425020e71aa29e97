"""Patterns whose attempts are judged by the real tests of a project."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BaselineError,
    BeamSearch,
    BestOfN,
    Cascaded,
    Confinement,
    Pattern,
    Reflexion,
    SmallerDiff,
    Speculate,
    SpeculationOutcome,
    SpeculationResult,
    Tests,
    Tournament,
    TreeOfThoughts,
    TreeSearch,
    Workspace,
)
from forkwise.fork.fork import open_ledger

PYTEST = f"{shlex.quote(sys.executable)} -m pytest -q"
UNITTEST = f"{shlex.quote(sys.executable)} -m unittest -v"
SUITE = """
from sums import add

def test_small():
    assert add(1, 2) == 3

def test_nothing():
    assert add(0, 0) == 0
"""
UNITTEST_SUITE = """
import unittest
from sums import add

class Sums(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(1, 2), 3)

    def test_nothing(self):
        self.assertEqual(add(0, 0), 0)
"""
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a * b\n"
LONG = "def add(a, b):\n    # a sum\n    result = a\n    result += b\n    return result\n"


@pytest.fixture
def project(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A Python project that has tests, but no code."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    (workspace.path / "pytest.ini").write_text("[pytest]\n")
    (workspace.path / "test_sums.py").write_text(SUITE)
    return workspace


def writes(code: str, name: str = "sums.py") -> Callable[..., bool]:
    """Build a candidate that writes a file."""

    def work(path: Path, *_: Any) -> bool:
        (path / name).write_text(code)
        return True

    return work


def only(work: Any, project: Workspace, tests: Tests | None = None) -> SpeculationResult:
    """Run one candidate and return its result."""
    outcome = Speculate([work], evaluate=tests or Tests(PYTEST))(project)
    [result] = outcome.all_results
    assert outcome.committed == result.success
    assert result.tests is not None
    return result


by_number = [writes(WRONG), writes("def add("), writes(RIGHT)]


def numbered(path: Path, number: int, *_: Any) -> bool:
    return by_number[number](path)


PATTERNS: dict[str, Callable[[Tests], Pattern]] = {
    "speculate": lambda tests: Speculate(by_number, evaluate=tests),
    "best-of": lambda tests: BestOfN(numbered, 3, evaluate=tests),
    "reflexion": lambda tests: Reflexion(numbered, 3, evaluate=tests),
    "tournament": lambda tests: Tournament(numbered, 3, judge=lambda *_: 0, evaluate=tests),
    "tree": lambda tests: TreeOfThoughts(
        [writes(WRONG), writes(LONG)], expand=lambda *_: [writes(RIGHT)], max_depth=2, evaluate=tests
    ),
    "beam": lambda tests: BeamSearch([writes(LONG)], expand=lambda *_: [writes(RIGHT), writes(WRONG)], evaluate=tests),
    "cascade": lambda tests: Cascaded(
        lambda path, document: writes(RIGHT if any("test_small" in text for text in document) else WRONG)(path),
        fan_out=(1, 1),
        evaluate=tests,
    ),
    "tree-search": lambda tests: TreeSearch([writes(WRONG), writes(RIGHT)], budget=3, max_depth=1, evaluate=tests),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_one_that_passes_wins(name: str, project: Workspace) -> None:
    (project.path / "test_sums.py").write_text(UNITTEST_SUITE)  # unittest starts sooner than pytest
    outcome = PATTERNS[name](Tests(UNITTEST))(project)
    assert outcome.committed
    assert outcome.winner is not None
    assert (project.path / "sums.py").read_text() == RIGHT
    assert outcome.winner.tests is not None
    assert (outcome.winner.tests.summary, outcome.winner.score) == ("2 passed", 1.0)
    assert sorted(p.name for p in project.path.iterdir()) == ["a.txt", "pytest.ini", "sums.py", "test_sums.py"]
    for result in outcome.all_results:
        if not result.success and result.reason != "another attempt won":
            assert str(result.reason).startswith("tests: ")
    with open_ledger(project) as ledger:
        for result in outcome.all_results:
            assert result.attempt is not None
            record = ledger.attempt(result.attempt)
            assert record.tests == (None if result.tests is None else result.tests.as_json())


def test_failures_are_reported(project: Workspace) -> None:
    failed = only(writes(WRONG), project)
    assert failed.reason == "tests: 1 passed, 1 failed: 1 still failing"
    assert failed.score == 1.0, "it broke nothing"
    assert failed.tests is not None
    assert [f.name for f in failed.tests.failures] == ["test_sums::test_small"]


def test_without_a_command_it_is_found(project: Workspace) -> None:
    passed = only(writes(RIGHT), project, Tests())
    assert passed.success, passed.reason
    assert passed.tests is not None
    assert passed.tests.source == "pytest"


def test_without_a_command_that_is_plain_nothing_passes(workspace: Workspace) -> None:
    with pytest.raises(BaselineError, match="no test command was given, and none was detected"):
        Speculate([lambda _: True], evaluate=Tests())(workspace)
    failed = only(lambda _: True, workspace, Tests(baseline=False))
    assert failed.reason == "tests: no test command was given, and none was detected in the project"


@pytest.mark.parametrize(
    "script",
    ["rm test_sums.py", "echo > test_sums.py", "printf '[pytest]\\naddopts = -k none\\n' > pytest.ini"],
)
def test_tests_are_those_of_the_base(script: str, project: Workspace) -> None:
    command = ["sh", "-c", f"printf '%s' '{RIGHT}' > sums.py; {script}"]
    failed = only(command, project, Tests(PYTEST, sealed=False))
    assert not failed.success
    assert "did not run" in str(failed.reason)
    passed = only(command, project)
    assert passed.success
    assert passed.tests is not None
    assert passed.tests.summary == "2 passed"
    assert passed.tests.touched == ("pytest.ini" if "pytest.ini" in script else "test_sums.py",)


def test_tests_that_take_too_long(project: Workspace) -> None:
    code = "import os, time\nopen('caught', 'w')\ndef add(a, b):\n    time.sleep(1000)\n"
    failed = only(writes(code), project, Tests(PYTEST, timeout=1.5, baseline=False))
    assert str(failed.reason).startswith("tests: the tests did not finish within 1.5 s; ")


def test_a_command_that_does_not_exist(project: Workspace) -> None:
    started: list[Path] = []
    with pytest.raises(BaselineError, match=r"127|no-such-command"):
        Speculate([started.append], evaluate=Tests(["no-such-command"]))(project)
    assert not started
    failed = only(writes(RIGHT), project, Tests(["no-such-command"], baseline=False))
    assert not failed.success
    assert "127" in str(failed.reason) or "no-such-command" in str(failed.reason)


@pytest.mark.parametrize(("fails_in", "passes"), [("1", True), ("0|2", False), ("none", True), ("0|1|2", False)])
def test_flaky_tests(fails_in: str, passes: bool, project: Workspace) -> None:
    """The majority of three runs decides; a test that fails in some runs but not in all is named."""
    script = (
        'n=$(cat "$COUNT" 2>/dev/null || echo 0); echo $((n + 1)) > "$COUNT"; '
        'echo "TAP version 13"; echo 1..2; echo "ok 1 - steady"; '
        f'case $n in {fails_in}) echo "not ok 2 - shaky"; exit 1;; *) echo "ok 2 - shaky";; esac'
    )
    room = project.path.parent / "room"
    room.mkdir()
    confinement = Confinement.standard(writable=(str(room),), given={"COUNT": str(room / "count")})
    tests = Tests(["sh", "-c", script], repeat=3, confinement=confinement, baseline=False)
    result = only(lambda _: True, project, tests)
    assert (room / "count").read_text() == "3\n"
    assert result.success == passes
    assert result.tests is not None
    assert result.tests.runs == 3
    assert result.tests.flaky == (("shaky",) if fails_in in ("1", "0|2") else ())


FORGED = """<testsuite name="pytest" tests="2" failures="0" errors="0">
<testcase classname="test_sums" name="test_small"/><testcase classname="test_sums" name="test_nothing"/></testsuite>"""

CHEATS = {
    "exits early with 0": "import os\nos._exit(0)\n",
    "exits with 0 while it is collected": "import sys\nsys.exit(0)\n",
    "kills its parent process": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), 9)\n",
    "kills all it can": "import os\nos.kill(-1, 9)\n",
    "writes the report and goes": f"""
import os, re
place = re.search(r"--junitxml=(\\S+)", os.environ["PYTEST_ADDOPTS"])[1].strip("'")
os.makedirs(os.path.dirname(place), exist_ok=True)
open(place, "w").write('''{FORGED}''')
os._exit(1)
""",
    "makes the report a directory": """
import os, re
os.makedirs(re.search(r"--junitxml=(\\S+)", os.environ["PYTEST_ADDOPTS"])[1].strip("'"))
def add(a, b): return 0
""",
    "makes the report a way to somewhere else": """
import os, re
os.symlink("/etc/passwd", re.search(r"--junitxml=(\\S+)", os.environ["PYTEST_ADDOPTS"])[1].strip("'"))
def add(a, b): return 0
""",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pass(cheat: str, project: Workspace) -> None:
    failed = only(writes(CHEATS[cheat]), project, Tests(PYTEST, timeout=30))
    assert not failed.success
    assert str(failed.reason).startswith("tests: ")
    assert not (project.path / "sums.py").exists()


def test_tests_cannot_change_what_is_committed(project: Workspace) -> None:
    code = f"{RIGHT}\nopen('planted', 'w').write('planted')\nopen('a.txt', 'a').write('# changed')\n"
    assert only(writes(code), project).success
    assert sorted(p.name for p in project.path.iterdir()) == ["a.txt", "pytest.ini", "sums.py", "test_sums.py"]
    assert (project.path / "a.txt").read_text() == "one\n"


def test_a_run_that_changes_what_grades_is_not_believed(project: Workspace) -> None:
    report = only(writes(f"{RIGHT}\nopen('pytest.ini', 'a').write('# changed')\n"), project)
    assert not report.success
    assert report.reason == "tests: tampered with: while the tests ran, something changed pytest.ini"


def test_tests_added_to_a_file_of_the_base_run_apart(project: Workspace) -> None:
    """They can count against an attempt; what it changed of the base's own tests counts for nothing."""

    def work(added: str) -> Callable[..., bool]:
        def act(path: Path, *_: Any) -> bool:
            (path / "test_sums.py").write_text(SUITE.replace("== 3", "== 4") + added)
            return writes(RIGHT)(path)

        return act

    good, bad = "\ndef test_more():\n    assert add(1, 1) == 2\n", "\ndef test_more():\n    assert add(1, 1) == 3\n"
    outcome = BestOfN([work(""), work(bad), work(good), writes(RIGHT)], evaluate=Tests(PYTEST))(project)
    found = [result.tests.comparison for result in outcome.all_results if result.tests is not None]
    assert [(c.added_passed, c.added_failed) for c in found if c] == [(0, 0), (0, 1), (1, 0), (0, 0)]
    assert [result.success for result in outcome.all_results] == [True] * 4
    scores = [c.added_failed + c.changed_graders for c in found if c]
    assert scores == [1, 2, 1, 0]
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 3, "one that left the tests alone"


@pytest.mark.integration  # needs pytest-xdist
def test_workers_of_xdist_report_too(project: Workspace) -> None:
    (project.path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist.plugin -n 2\n")
    patch = """
import _pytest.reports
build = _pytest.reports.TestReport.from_item_and_call.__func__
def lie(cls, item, call):
    report = build(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(lie)
"""
    cheat = only(writes(WRONG + patch), project)
    assert not cheat.success
    assert "tampered with" in str(cheat.reason)
    honest = only(writes(RIGHT), project)
    assert honest.success, honest.reason
    assert honest.tests is not None
    assert sorted(honest.tests.outcomes) == ["test_sums.py::test_nothing", "test_sums.py::test_small"]


# Several evaluators in order


def test_of_those_that_pass_the_smaller_change_wins(project: Workspace) -> None:
    outcome = BestOfN([writes(LONG), writes(WRONG), writes(RIGHT)], evaluate=[Tests(PYTEST), SmallerDiff()])(project)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 2
    assert outcome.winner.score == 1.0


def test_judges_in_order(project: Workspace) -> None:
    asked: list[str] = []

    def taste(path: Path) -> float:
        asked.append((path / "sums.py").read_text())
        return 1.0 if "result" in asked[-1] else 0.0

    candidates = [writes(RIGHT), writes(LONG), writes(WRONG)]
    outcome: SpeculationOutcome = BestOfN(candidates, evaluate=[Tests(PYTEST), taste, SmallerDiff()])(project)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1, "the earlier evaluator decides"
    assert sorted(asked) == sorted([RIGHT, LONG]), "a failed attempt is not evaluated further"
    with open_ledger(project) as ledger:
        [fork] = ledger.forks()
        scores = [a.scores for a in ledger.attempts(fork.id)]
    assert scores == [[1.0, 1.0, 0.0, 0.0, -2.0], [1.0, 1.0, 0.0, 1.0, -5.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("judges", [[], (), "pytest", 3, [3], [[]], None], ids=repr)
def test_an_invalid_evaluator_is_an_error_at_once(judges: Any) -> None:
    if judges is None:
        Speculate([["true"]], evaluate=None)
        return
    with pytest.raises(TypeError, match="an evaluator is a function"):
        Speculate([["true"]], evaluate=judges)


@pytest.mark.parametrize("fixture", ["setUpClass", "setUpModule"])
def test_a_fixture_of_unittest_that_failed_on_the_base_is_fixed(fixture: str, project: Workspace) -> None:
    place = "\n    @classmethod\n    def setUpClass(cls):\n" if fixture == "setUpClass" else "\ndef setUpModule():\n"
    set_up = f"{place}        import sums\n        assert sums.READY\n"
    (project.path / "test_sums.py").write_text(UNITTEST_SUITE + set_up)
    (project.path / "sums.py").write_text(f"READY = False\n{RIGHT}")
    report = only(writes(f"READY = True\n{RIGHT}"), project, Tests(UNITTEST))
    assert report.success
    assert report.tests is not None
    assert report.tests.comparison is not None
    assert (report.tests.summary, report.tests.comparison.fixed) == ("2 passed", 1)
