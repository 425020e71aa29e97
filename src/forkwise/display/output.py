"""The output of commands: JSON for programs, tables and coloured text for people, and the JSON form of each value.

rich is imported only when text is printed on a terminal, because importing it takes longer than most commands. Names
from a branch are escaped first, so that a file name cannot send control codes to the terminal.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.display.columns import GAP, Fit, fit_columns, measure_cell
from forkwise.text.clean import escape_character

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.table import Table

    from forkwise.files.branch import Branch
    from forkwise.files.gc import Collected
    from forkwise.files.store.changes import Change, Commit, Conflict, Delta
    from forkwise.git.repository_change import RepositoryChange
    from forkwise.sandbox.doctor import Report

__all__ = [
    "FOUND_WORKSPACE",
    "MARKS",
    "Output",
    "branch_record",
    "change_record",
    "collected_record",
    "command_line",
    "commit_record",
    "conflict_record",
    "executable_records",
    "grid",
    "printable",
    "report_record",
    "size_text",
    "totals",
]

FOUND_WORKSPACE = "forkwise.workspace"
"""The key in a command's context for a workspace that was found rather than named."""

MARKS = {"added": "+", "changed": "~", "deleted": "-"}
STYLES = {"added": "green", "changed": "yellow", "deleted": "red"}
_LISTED = 20


class Output:
    """Prints the result of a command, as JSON or as text; with ``is_plain`` never in colour."""

    def __init__(self, *, as_json: bool, is_plain: bool = False) -> None:
        self.as_json = as_json
        self._is_plain = is_plain
        self._console: Console | None = None

    @property
    def console(self) -> Console | None:
        """The terminal, or None if stdout is not one: then text is written without colours or wrapping."""
        if self._is_plain:
            return None
        if self._console is None and (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        return self._console

    @property
    def is_live(self) -> bool:
        """Whether output can be redrawn: it is text, and stdout is a terminal that can move its cursor."""
        console = None if self.as_json or not sys.stdout.isatty() else self.console
        return console is not None and not console.is_dumb_terminal

    def document(self, value: object) -> None:
        """Print the only JSON document of a command."""
        sys.stdout.write(json.dumps(value, indent=2) + "\n")

    def stream(self, value: object) -> None:
        """Print one of several JSON documents on a line of its own, and flush it."""
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line of text."""
        if self.console is None:
            sys.stdout.write(f"{printable(text)}\n")
        else:
            self.console.print(printable(text), style=style or None)

    def text(self, text: str) -> None:
        """Print text of several lines, such as the output of an attempt."""
        for line in text.splitlines() or [""]:
            self.line(line)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], fit: Fit | None = None) -> None:
        """Print a table. On a terminal, ``fit`` says how it is made to fit; by default the last column is wrapped."""
        if self.console is None:
            cells = [[printable(cell) for cell in row] for row in rows]
            sys.stdout.writelines(_plain_table([list(columns), *cells]))
        else:
            table = grid(columns, rows, fit or Fit(wrapped=(columns[-1],)), self.console.width)
            self.console.print(table, soft_wrap=False, crop=False)

    def changes(self, paths: dict[str, Sequence[str]], *, limit: int = _LISTED) -> None:
        """Print up to ``limit`` changed paths, and the number of those left out."""
        rows = [(kind, path) for kind, names in paths.items() for path in names]
        for kind, path in rows[:limit]:
            self.line(f"  {MARKS[kind]} {path}", STYLES[kind])
        if len(rows) > limit:
            self.line(f"  and {len(rows) - limit} more")

    def conflicts(self, conflicts: Iterable[Conflict]) -> None:
        """Print conflicts."""
        for conflict in conflicts:
            detail = f" ({conflict.detail})" if conflict.detail else ""
            self.line(f"  ! {conflict.path}: {conflict.kind}{detail}", "red")

    def executable_config(self, paths: Iterable[tuple[str, str]]) -> None:
        """Print the paths that change what the user's machine will run."""
        for number, (path, executor) in enumerate(paths):
            if number == 0:
                self.line("This changes what your machine will run:", "bold yellow")
            self.line(f"  {path}: {executor}", "yellow")

    def repository(self, sentences: Iterable[object]) -> None:
        """Print what happened in git repositories, in one line each."""
        for sentence in sentences:
            self.line(f"  git: {sentence}", "cyan")

    def warn_repository(self, sentences: Iterable[object]) -> None:
        """Print what happened in git repositories to stderr, beside a diff for other programs."""
        for sentence in sentences:
            click.echo(f"forkwise: git: {printable(str(sentence))}", err=True)

    def warn_executable_config(self, paths: Iterable[tuple[str, str]]) -> None:
        """Print the paths that change what the user's machine will run to stderr, beside a diff for other programs."""
        for number, (path, executor) in enumerate(paths):
            if number == 0:
                click.echo("forkwise: this changes what your machine will run:", err=True)
            click.echo(f"  {printable(path)}: {printable(executor)}", err=True)

    def paged_diff(self, text: str) -> None:
        """Print a diff, through a pager if it is longer than the terminal."""
        console = self.console
        if console is None or not sys.stdin.isatty() or text.count("\n") < console.height:
            self.diff(text)
            return
        with console.capture() as capture:
            self.diff(text)
        with _coloured_pager():
            click.echo_via_pager(capture.get(), color=True)

    def diff(self, text: str) -> None:
        """Print a unified diff: coloured and escaped on a terminal, byte for byte elsewhere."""
        if self.console is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
            sys.stdout.buffer.flush()
            return
        for line in text.removesuffix("\n").split("\n"):
            self.console.print(printable(line, keep="\t"), style=_diff_style(line))


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], fit: Fit, width: int) -> Table:
    """Build a table for a terminal that is ``width`` wide. If it cannot be made to fit, it is wider."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    widths = fit_columns(columns, cells, width, fit, cell_len)
    total = sum(widths.values()) + GAP * (len(widths) - 1)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", width=max(total, 1))
    for i, size in widths.items():
        is_wrapped = columns[i] in fit.wrapped
        overflow: OverflowMethod = "fold" if is_wrapped else "ellipsis" if columns[i] in fit.shortened else "ignore"
        table.add_column(columns[i], width=size, no_wrap=not is_wrapped, overflow=overflow)
    for row in cells:
        table.add_row(*(Text(row[i], style=_cell_style(row[i])) for i in widths))
    return table


def _plain_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(measure_cell, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - measure_cell(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip() + "\n"


@contextmanager
def _coloured_pager() -> Iterator[None]:
    """Let less and lv show colours while the block runs; by default they print escape codes as text."""
    before = {name: os.environ.get(name) for name in ("LESS", "LV")}
    less = before["LESS"]
    # An R after other letters may be part of an option's argument, such as a prompt string.
    os.environ["LESS"] = f"-R {less}" if less else "FRX"
    os.environ.setdefault("LV", "-c")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def printable(text: str, keep: str = "") -> str:
    """Replace control characters and undecodable bytes by escapes, except the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else escape_character(c) for c in text)


_CELLS = {
    **{MARKS[kind]: style for kind, style in STYLES.items()},
    "yes": "green",
    "no": "red",
    "stale": "yellow",
    "won": "bold green",
    "succeeded": "green",
    "running": "cyan",
    "failed": "red",
    "faulted": "yellow",
    "pending": "dim",
    "cancelled": "dim",
}


def _cell_style(cell: str) -> str:
    return _CELLS.get(cell, "")


def _diff_style(line: str) -> str | None:
    if line.startswith(("+++", "---", "diff ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])


def command_line(directory: Path, *words: str) -> str:
    """Return a forkwise command line for the workspace ``directory``, quoted for a shell.

    It names the workspace unless the command finds it from the current directory.
    """
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(FOUND_WORKSPACE)
    option = () if directory == Path(".") or str(directory) == found else ("-C", str(directory))
    return shlex.join(("forkwise", *words, *option))


def size_text(size: int) -> str:
    """Format a number of bytes with a binary unit."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def totals(values: Commit | Delta) -> str:
    """Format how many paths were added, changed and deleted."""
    if getattr(values, "note", ""):
        return "its paths are not recorded"
    return f"{len(values.added)} added, {len(values.changed)} changed, {len(values.deleted)} deleted"


def branch_record(branch: Branch) -> dict[str, Any]:
    """Return a branch as a JSON value, without its directory: reading that would mount the view."""
    return {
        "name": branch.name,
        "branch_path": branch.branch_path,
        "parent": branch.branch_path.rpartition("/")[0],
        "view": branch.view,
        "status": branch.status,
        "created": branch.created.isoformat(),
        "owner_alive": branch.owner_alive,
        "kept": branch.kept,
    }


def change_record(change: Change) -> dict[str, Any]:
    """Return a changed path as a JSON value."""
    return asdict(change)


def repository_records(changes: Iterable[RepositoryChange]) -> list[dict[str, Any]]:
    """Return what was done to git repositories as a JSON value, each also as a text."""
    return [{**asdict(change), "text": str(change)} for change in changes]


def commit_record(commit: Commit) -> dict[str, Any]:
    """Return a commit as a JSON value.

    ``undo_id`` is None for a commit into a branch, because only the workspace has undo, and for a commit with a note.
    """
    return {
        **asdict(commit),
        "at": commit.at.isoformat(),
        "undo_id": commit.undo_id if commit.branch.count("/") == 2 and not commit.note else None,
        "conflicts": [conflict_record(conflict) for conflict in commit.conflicts],
        "executable_config": executable_records(commit.executable_config),
    }


def executable_records(paths: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return paths that change what the user's machine will run as a JSON value."""
    return [{"path": path, "executor": executor} for path, executor in paths]


def conflict_record(conflict: Conflict) -> dict[str, Any]:
    """Return a conflict as a JSON value."""
    return asdict(conflict)


def collected_record(collected: Collected) -> dict[str, Any]:
    """Return the result of a garbage collection as a JSON value."""
    return asdict(collected)


def report_record(report: Report) -> dict[str, Any]:
    """Return the report of ``forkwise doctor`` as a JSON value."""
    return {**asdict(report), "chosen": report.chosen}
