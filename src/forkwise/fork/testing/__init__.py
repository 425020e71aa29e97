"""The tests of an attempt: the command that runs them, and what they said, as values. Nothing is run here."""

from __future__ import annotations

from forkwise.fork.testing.command import Framework, TestCommand, for_command
from forkwise.fork.testing.finding import find_test_command
from forkwise.fork.testing.reading import read_report
from forkwise.fork.testing.repetition import combine
from forkwise.fork.testing.report import FailureKind, Source, TestFailure, TestReport

__all__ = [
    "FailureKind",
    "Framework",
    "Source",
    "TestCommand",
    "TestFailure",
    "TestReport",
    "combine",
    "find_test_command",
    "for_command",
    "read_report",
]
