"""The section of SECURITY.md about escape attempts and what stops them, generated from the table of attempts.

``python -m tests.sandbox.escapes.page`` updates it.
"""

from __future__ import annotations

from pathlib import Path

from tests.sandbox.escapes.attempt import ATTEMPTS
from tests.sandbox.escapes.drive import TABLE

__all__ = ["BEGIN", "END", "PAGE", "section", "updated"]

PAGE = Path(__file__).parents[3] / "SECURITY.md"
BEGIN = "## Escape attempts and what stops them"
END = "<!-- end of escape attempts -->"

_SCOPE = {
    ("standard", "strict"): "standard, strict",
    ("strict",): "strict",
    ("none", "private", "strict"): "network none or private, strict",
    ("none", "strict"): "network none, strict",
    ("none", "private", "strict", "proxy"): "network none, private or proxy, strict",
    ("proxy",): "network proxy",
}


def section() -> str:
    """Return the section: an introduction and the table."""
    assert TABLE  # the attempts are in ATTEMPTS because these modules were imported
    rows = [
        f"| {a.name} | {a.tries} | {a.stopped_by} | {_SCOPE[a.under]}{', as root' if a.by == 'root' else ''} |"
        for a in ATTEMPTS.values()
    ]
    lines = [
        BEGIN,
        "",
        f"{len(rows)} programs in `tests/sandbox/escapes` try to escape. Each knows every path, process number and",
        "port it aims at. They run as root and as an unprivileged user, as commands, and also as functions of a",
        "`BranchContext` if they end by returning. The state outside is compared before and after. Most attempts on",
        "files and sockets are also run without a sandbox, where they succeed.",
        "",
        "| attempt | what it tries | what stops it | under |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        END,
    ]
    return "\n".join(lines)


def updated(page: str) -> str:
    """Return the page with the section updated."""
    if BEGIN not in page:
        return f"{page.rstrip()}\n\n{section()}\n"
    before, _, rest = page.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
