"""The part of SECURITY.md that tells what was tried and what stops it: written from the table of attempts.

``python -m tests.sandbox.escapes.page`` brings it up to date.
"""

from __future__ import annotations

from pathlib import Path

from tests.sandbox.escapes.attempt import ATTEMPTS
from tests.sandbox.escapes.drive import TABLE

__all__ = ["BEGIN", "END", "PAGE", "section", "updated"]

PAGE = Path(__file__).parents[3] / "SECURITY.md"
BEGIN = "## What was tried, and what stops it"
END = "<!-- end of what was tried -->"

_SCOPE = {
    ("standard", "strict"): "standard, strict",
    ("strict",): "strict",
    ("none", "private", "strict"): "network none or private, strict",
    ("none", "strict"): "network none, strict",
}


def section() -> str:
    """The table, after the text that explains it."""
    assert TABLE  # the attempts are in ATTEMPTS because these modules were imported
    rows = [
        f"| {a.name} | {a.tries} | {a.stopped_by} | {_SCOPE[a.under]}{', as root' if a.by == 'root' else ''} |"
        for a in ATTEMPTS.values()
    ]
    lines = [
        BEGIN,
        "",
        f"{len(rows)} programs in `tests/sandbox/escapes` try to get out, each knowing every path, process number and",
        "port it is after. They run as root and as a user without privileges, as commands, and as functions of a",
        "`BranchContext` wherever they end by returning. The world outside is compared before and after, and most of",
        "those on files and sockets are also run without a sandbox, where they succeed.",
        "",
        "| attempt | what it tries | what stops it | under |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        END,
    ]
    return "\n".join(lines)


def updated(page: str) -> str:
    """The page with the section as it should be."""
    if BEGIN not in page:
        return f"{page.rstrip()}\n\n{section()}\n"
    before, _, rest = page.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
