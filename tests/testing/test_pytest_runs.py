"""Real runs of pytest over small projects, with their reports parsed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from forkwise.testing import TestReport, for_command, read_report

PYTEST = f"{shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider"

PASSING = "def test_a(): pass\ndef test_b(): pass\n"
FAILING = "def test_a(): pass\ndef test_b():\n    print('seen before')\n    assert 2 + 2 == 5\n"


def run(project: Path, files: dict[str, str], command: str = PYTEST, **options: str) -> TestReport:
    """Run a command in a project of these files, as an evaluator would, and parse its report."""
    # Its own configuration, so that pytest finds none in a parent directory.
    for name, content in {"pytest.ini": "[pytest]\n", **files}.items():
        (project / name).write_text(content)
    written = project / "out" / "junit.xml"
    # Without plugins, so that installed ones do not change the result.
    environ = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **options}
    wanted = for_command(command, junit=str(written), environ=environ)
    ran = subprocess.run(
        wanted.argv, cwd=project, env=environ | dict(wanted.env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    junit = written.read_bytes() if written.exists() else None
    return read_report(ran.stdout, junit, ran.returncode, wanted.framework)


def counts(report: TestReport) -> tuple[int, int, int, int]:
    return report.passed, report.failed, report.errors, report.skipped


def test_all_pass(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": PASSING})
    assert report.is_pass
    assert (report.source, report.summary) == ("junit", "2 passed")


def test_one_fails_and_the_feedback_says_why(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": FAILING})
    assert (counts(report), report.doubt) == ((1, 1, 0, 0), None)
    (failure,) = report.failures
    assert failure.name == "test_it::test_b"
    assert "assert (2 + 2) == 5" in failure.message
    assert "seen before" in failure.message
    # Captured output is shown, without headings of empty captures.
    assert "Captured Err" not in report.feedback()


def test_kinds_of_tests(tmp_path: Path) -> None:
    source = """
import pytest

@pytest.mark.parametrize("n", [1, 2, 3])
def test_many(n): assert n < 3

@pytest.mark.xfail
def test_expected(): assert False

@pytest.mark.xfail
def test_unexpected(): pass

@pytest.mark.xfail(strict=True)
def test_strict(): pass

@pytest.mark.skip
def test_skipped(): pass

@pytest.fixture
def torn():
    yield
    raise RuntimeError("tear-down")

def test_torn(torn): pass

def test_torn_too(torn): assert False
"""
    report = run(tmp_path, {"test_it.py": source})
    assert counts(report) == (3, 3, 2, 2)
    assert report.doubt is None
    named = [(failure.name.removeprefix("test_it::"), failure.kind) for failure in report.failures]
    assert named == [
        ("test_many[3]", "failed"),
        ("test_strict", "failed"),
        ("test_torn", "error"),
        ("test_torn_too", "failed"),
        ("test_torn_too", "error"),
    ]


def test_an_error_in_collection(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": PASSING, "test_other.py": "import nothing_of_that_name\n"})
    assert (report.errors, report.exit_code, report.doubt) == (1, 2, None)
    assert "nothing_of_that_name" in report.feedback()


def test_a_conftest_that_does_not_load(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": PASSING, "conftest.py": "import nothing_of_that_name\n"})
    assert report.failing
    assert "nothing_of_that_name" in report.feedback()


def test_nothing_collected_is_no_signal(tmp_path: Path) -> None:
    report = run(tmp_path, {"it.py": PASSING})
    assert (report.exit_code, report.is_signal, report.doubt) == (5, False, None)
    assert report.summary == "no tests ran"


def test_all_skipped_is_no_signal(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": "import pytest\npytestmark = pytest.mark.skip\n" + PASSING})
    assert (report.exit_code, report.is_signal, report.is_pass) == (0, False, False)
    assert report.summary == "no tests ran, 2 skipped"


def test_a_wrong_option_is_no_signal_and_is_shown(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": PASSING}, PYTEST + " nowhere.py")
    assert not report.is_signal
    assert "file or directory not found: nowhere.py" in report.feedback()


@pytest.mark.parametrize("exit_code", [0, 1])
def test_an_interpreter_that_dies_in_a_test_has_not_passed(tmp_path: Path, exit_code: int) -> None:
    report = run(tmp_path, {"test_it.py": f"import os\n{PASSING}def test_c(): os._exit({exit_code})\n"})
    assert report.doubt == "pytest gave no report"
    assert report.failing
    assert not report.is_pass


FORGED = """
import os
from pathlib import Path

def pytest_unconfigure(config):
    path = Path(os.environ["PYTEST_ADDOPTS"].split()[0].removeprefix("--junitxml="))
    path.write_text("<testsuite><testcase name='test_a'/><testcase name='test_b'/></testsuite>")
    {then}
"""


def test_a_forged_report_is_found_out_by_the_exit_code(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": FAILING, "conftest.py": FORGED.format(then="pass")})
    assert (report.source, report.failing, report.exit_code) == ("junit", 0, 1)
    assert report.doubt
    assert "the command exited with 1, and its report shows no failure" in report.doubt
    assert not report.is_pass


def test_a_forged_report_and_a_forged_exit_code_are_found_out_by_what_was_printed(tmp_path: Path) -> None:
    leave = "config.get_terminal_writer().flush(); os._exit(0)"
    report = run(tmp_path, {"test_it.py": FAILING, "conftest.py": FORGED.format(then=leave)})
    assert (report.source, report.failing, report.exit_code) == ("junit", 0, 0)
    assert report.doubt == "the output and the JUnit report disagree on whether a test failed"
    assert not report.is_pass


def test_output_that_is_not_utf8(tmp_path: Path) -> None:
    noise = "def test_c():\n    import os\n    os.write(1, b'caf\\xe9 \\x00\\xff')\n    assert 0\n"
    report = run(tmp_path, {"test_it.py": PASSING + noise}, PYTEST + " -s")
    assert counts(report) == (2, 1, 0, 0)
    assert report.doubt is None


@pytest.mark.parametrize(
    "command", ["{} | cat", "{} || true", "cd . && {}; true", "({})", "sh -c '{}' > log", "X=1 {}\ntrue"]
)
def test_pytest_reports_from_any_shell_line(tmp_path: Path, command: str) -> None:
    report = run(tmp_path, {"test_it.py": FAILING}, command.format(PYTEST))
    assert (report.source, counts(report)) == ("junit", (1, 1, 0, 0))
    assert not report.is_pass


def test_options_that_stand_in_the_environment_are_kept(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": FAILING}, PYTEST_ADDOPTS="-k test_a")
    assert (report.source, counts(report)) == ("junit", (1, 0, 0, 0))


def test_where_the_command_has_its_own_report_the_summary_is_read(tmp_path: Path) -> None:
    report = run(tmp_path, {"test_it.py": FAILING}, PYTEST + " --junitxml=own.xml")
    assert (tmp_path / "own.xml").exists()
    assert (report.source, counts(report)) == ("pytest summary", (1, 1, 0, 0))
    assert [failure.name for failure in report.failures] == ["test_it.py::test_b"]


def test_unittest_is_read_too(tmp_path: Path) -> None:
    source = """
import unittest

class It(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): self.assertEqual(2 + 2, 5)
    def test_c(self): raise RuntimeError("oh no")
    @unittest.skip("slow")
    def test_d(self): pass
    @unittest.expectedFailure
    def test_e(self): self.fail()
    @unittest.expectedFailure
    def test_f(self): pass
"""
    report = run(tmp_path, {"test_it.py": source}, f"{shlex.quote(sys.executable)} -m unittest")
    assert (report.source, counts(report), report.doubt) == ("unittest summary", (1, 2, 1, 2), None)
    messages = {failure.name.split()[0]: failure.message for failure in report.failures}
    assert messages["test_b"].endswith("AssertionError: 4 != 5")
    assert messages["test_c"].endswith("RuntimeError: oh no")
