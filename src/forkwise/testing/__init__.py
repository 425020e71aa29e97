"""Test commands and test reports as values: detect the command, parse its output. Nothing is run here."""

from __future__ import annotations

from forkwise.testing.command import Framework, TestCommand, find_test_command, for_command
from forkwise.testing.parse import read_report
from forkwise.testing.report import FailureKind, Source, TestFailure, TestReport, combine

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
