"""Parse the report of a test command from its JUnit file, its output and its exit code.

A JUnit file takes precedence over the output, and the output over the exit code. No input raises; what cannot be
parsed, or is contradictory, becomes the report's doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from forkwise.testing.formats.cargo import read_cargo
from forkwise.testing.formats.go import read_go
from forkwise.testing.formats.jest import read_jest, read_jest_json, read_vitest
from forkwise.testing.formats.junit import read_junit
from forkwise.testing.formats.python import read_pytest, read_unittest
from forkwise.testing.formats.tap import read_tap
from forkwise.testing.report import Tally, TestReport
from forkwise.text.clean import clean_text, truncate_middle

if TYPE_CHECKING:
    from forkwise.testing.evidence import RunEvidence

__all__ = ["read_report"]

_MAX_OUTPUT = 16 << 20
_MAX_LINES = 250_000
_MAX_KEPT_OUTPUT = 4000

# The exit code of pytest, and of unittest since Python 3.12, if there were no tests.
_EXIT_NO_TESTS = 5
# The exit codes of a shell if the command cannot be executed, or is not found.
_EXIT_NOT_RUN = (126, 127)

_READERS: dict[str, tuple[Callable[[str], Tally | None], ...]] = {
    "go": (read_go,),
    "jest": (read_jest_json, read_jest),
    "vitest": (read_jest_json, read_vitest),
    "tap": (read_tap,),
    "cargo": (read_cargo,),
    "pytest": (read_pytest,),
    "unittest": (read_unittest,),
}


def read_report(
    output: bytes,
    junit: bytes | None,
    exit_code: int,
    hint: str | None = None,
    *,
    duration: float = 0.0,
    evidence: RunEvidence | None = None,
) -> TestReport:
    r"""Build the report of a test command.

    ``output`` is all that the command printed, ``junit`` the content of its JUnit file or None. ``hint`` names the
    framework (``TestCommand.framework``) whose report is expected: only that format is tried, and if it is missing, the
    command counts as failed whatever its exit code. Without a hint every format is tried; if none matches,
    the command counts as one test, and its exit code says whether it passed. ``evidence`` takes precedence over all.

    >>> read_report(b"..\n2 passed in 0.01s\n", None, 0, "pytest").is_pass
    True
    >>> read_report(b"..\n2 passed in 0.01s\n", None, 1, "pytest").doubt
    'the command exited with 1, and its report shows no failure'
    >>> read_report(b"all fine\n", None, 0).summary
    'exit code 0'
    """
    end = _cut_to_end(output)
    text = clean_text(end)
    doubts: list[str] = []
    written = None
    if junit is not None:
        try:
            written = read_junit(junit)
        except ValueError as error:
            doubts.append(f"the JUnit report could not be read: {error}")
    printed = _parse_output(text, hint)
    if written and printed and bool(written.failing) != bool(printed.failing):
        doubts.append("the output and the JUnit report disagree on whether a test failed")
    if printed and not written and len(end) < len(output):
        doubts.append(f"of {len(output)} bytes of output, only the last {len(end)} were read")
    tally = written or printed or _tally_exit_code(exit_code, hint)
    if evidence is not None:
        tally = _tally_evidence(evidence, tally, hint)
        if written and written.failing and not tally.failing:
            doubts.append("the JUnit report has failing tests, and the runner's own process reported none")
    doubts += tally.doubts
    if contradiction := _find_contradiction(tally, exit_code):
        doubts.append(contradiction)
    return TestReport(
        passed=tally.passed,
        failed=tally.failed,
        errors=tally.errors,
        skipped=tally.skipped,
        failures=tuple(tally.failures),
        source=tally.source,
        exit_code=exit_code,
        duration=duration,
        output=truncate_middle(text.strip(), _MAX_KEPT_OUTPUT),
        doubt="; ".join(doubts) or None,
        outcomes=tally.outcomes,
    )


def _tally_evidence(evidence: RunEvidence, reported: Tally, hint: str | None) -> Tally:
    """Count what the runner's own process reported; take the output of failures from a report with as many failures."""
    tally = evidence.tally("unittest" if hint == "unittest" else "pytest")
    if len(reported.failures) == len(tally.failures):
        tally.failures = reported.failures
    return tally


def _cut_to_end(output: bytes) -> bytes:
    """Return the end of the output, limited in bytes and lines, so that parsing is fast."""
    lines = output[-_MAX_OUTPUT:].rsplit(b"\n", _MAX_LINES)
    return b"\n".join(lines[-_MAX_LINES:])


def _parse_output(text: str, hint: str | None) -> Tally | None:
    readers = _READERS.get(hint or "") or [reader for readers in _READERS.values() for reader in readers]
    return next((tally for reader in readers if (tally := reader(text))), None)


def _tally_exit_code(exit_code: int, hint: str | None) -> Tally:
    tally = Tally("exit code")
    if exit_code in _EXIT_NOT_RUN:
        tally.doubts.append(f"the command could not be run (exit code {exit_code})")
        return tally
    if hint in _READERS:
        tally.doubts.append(f"{hint} gave no report")
    if exit_code:
        tally.fail("the test command", "")
    elif hint in _READERS:
        tally.fail("the test command", "", "error")
    else:
        tally.passed = 1
    return tally


def _find_contradiction(tally: Tally, exit_code: int) -> str | None:
    if tally.source == "exit code":
        return None
    if tally.failing and exit_code == 0:
        return f"the command exited with 0, and its report shows {tally.failing} failing"
    if tally.passed and not tally.failing and exit_code != 0:
        return f"the command exited with {exit_code}, and its report shows no failure"
    if not tally.passed and not tally.failing and exit_code not in (0, _EXIT_NO_TESTS):
        return f"the command exited with {exit_code} before a test ran"
    return None
