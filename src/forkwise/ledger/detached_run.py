"""DetachedRun: what the ledger keeps about a process that runs a fork without a terminal.

``<ledger>/detached/<fork>.log`` has what the process printed, ``<fork>.json`` says which process it is and how it
ended. A document without an exit code belongs to a process that still runs, or was killed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkResolvedError, LedgerError
from forkwise.linux.file_write import replace_file
from forkwise.linux.process_id import ProcessId
from forkwise.text.redaction import process_redactor

if TYPE_CHECKING:
    from forkwise.ledger.records import ForkRecord

__all__ = ["DetachedRun", "load_detached_run", "remove_detached_run"]

_FOLDER = "detached"
_FORMAT = 1
_MAX_DOCUMENT = 64 << 20
_MAX_LOG = 8 << 20  # bytes of the report that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedRun:
    """The process that runs a fork without a terminal, and what it would have told its user.

    ``report_start`` is where the report begins in the log, after the events. Once the process has ended, ``outcome`` is
    the result as a JSON value, ``failure`` the error as a JSON value, with its ``message`` and ``hint`` as lines of
    text, and ``commit`` the number of the fork's commit.
    """

    directory: Path
    fork: str
    process: ProcessId
    report_start: int = 0
    exit_code: int | None = None
    ended: float | None = None
    commit: int | None = None
    outcome: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    message: str = ""
    hint: str = ""

    @property
    def log(self) -> Path:
        """The file with everything that the process prints."""
        return _find_path(self.directory, self.fork, "log")

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.exit_code is None and self.process.alive

    @property
    def is_overruled(self) -> bool:
        """Whether it ended because another process decided the fork."""
        return (self.failure or {}).get("type") == ForkResolvedError.__name__

    def is_current(self, fork: ForkRecord) -> bool:
        """Return whether the process has ended, and nobody else decided or committed its fork."""
        is_last = self.ended is not None and (fork.ended or 0.0) <= self.ended and fork.commit == self.commit
        return is_last and not self.is_overruled

    def read_report(self) -> bytes:
        """Return what the process printed when the fork was decided, without known secrets; at most the last 8 MiB."""
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(min(self.report_start, end), end - _MAX_LOG))
            return process_redactor().redact_bytes(file.read())
        return b""

    def save(self) -> None:
        """Write the document, in one step."""
        data = {
            "format": _FORMAT,
            "process": self.process.dump(),
            "report_start": self.report_start,
            "exit_code": self.exit_code,
            "ended": self.ended,
            "commit": self.commit,
            **process_redactor().redact_data(
                {"outcome": self.outcome, "failure": self.failure, "message": self.message, "hint": self.hint}
            ),
        }
        path = _find_path(self.directory, self.fork, "json")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(data), beside=path.with_suffix(".new"))

    def end(self, exit_code: int, ended: float, **facts: Any) -> DetachedRun:
        """Return the run as it is after its end, and write it."""
        # Redact here and not in the reader, because only this process knows the secrets in its environment.
        content = self.log.read_bytes()
        start = len(process_redactor().redact_bytes(content[: self.report_start]))
        if (clean := process_redactor().redact_bytes(content)) != content:
            self.log.write_bytes(clean)
        run = replace(self, exit_code=exit_code, ended=ended, report_start=start, **facts)
        run.save()
        return run


def load_detached_run(directory: str | os.PathLike[str], fork: str) -> DetachedRun | None:
    """Return the record of the last detached process of a fork; None if there was none.

    Raises LedgerError if it is damaged.
    """
    try:
        with _find_path(directory, fork, "json").open("rb") as file:
            content = file.read(_MAX_DOCUMENT)
    except FileNotFoundError:
        return None
    try:
        data = json.loads(content)
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError("it has an unknown format")
        return DetachedRun(
            directory=Path(directory),
            fork=fork,
            process=ProcessId.load(data["process"]),
            report_start=int(data["report_start"]),
            exit_code=None if data["exit_code"] is None else int(data["exit_code"]),
            ended=None if data["ended"] is None else float(data["ended"]),
            commit=None if data["commit"] is None else int(data["commit"]),
            outcome=_check_table(data["outcome"]),
            failure=_check_table(data["failure"]),
            message=str(data["message"]),
            hint=str(data["hint"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LedgerError(f"the record of the detached process of {fork} is damaged: {error}", subject=fork) from error


def remove_detached_run(directory: str | os.PathLike[str], fork: str) -> None:
    """Delete the record of the detached process of a fork."""
    for kind in ("json", "new", "log"):
        _find_path(directory, fork, kind).unlink(missing_ok=True)


def _check_table(value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("it has a value of another kind")
    return None if value is None else dict(value)


def _find_path(directory: str | os.PathLike[str], fork: str, kind: str) -> Path:
    if not re.fullmatch(r"[a-z0-9]+", fork):
        raise LedgerError(f"{fork!r} is not the id of a fork, such as k3f9ab", subject=fork)
    return Path(directory, _FOLDER, f"{fork}.{kind}")
