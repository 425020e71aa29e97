"""Test commands and test reports as values: detect the command, parse its output. Nothing is run here.

The names are imported on first use: compiling the patterns of all formats takes longer than printing a list of forks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = ("report", "command", "parse")


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in found.__all__:
                value: object = getattr(found, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
