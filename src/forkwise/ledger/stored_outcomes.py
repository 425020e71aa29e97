"""The outcome of each test of an attempt, kept in the ledger for reports.

``<ledger>/tests/<attempt>.z`` is a JSON object of test ids and outcomes, compressed by zlib. The counts, and the tests
that an attempt fixed or broke, are in its record; this is what a report needs to list all of them.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

from forkwise.errors import LedgerError
from forkwise.ledger.records import attempt_file
from forkwise.linux.file_write import replace_file
from forkwise.text.clean import clean_text, truncate_middle
from forkwise.text.redaction import process_redactor

__all__ = ["load_outcomes", "remove_outcomes", "save_outcomes"]

_MAX_TESTS = 20_000
_MAX_NAME = 300
_MAX_DOCUMENT = 64 << 20  # bytes after decompression
_OUTCOMES = ("passed", "failed", "error", "skipped")


def save_outcomes(directory: str | os.PathLike[str], attempt: str, outcomes: Mapping[str, str]) -> None:
    """Keep the outcomes of an attempt's tests, up to a limit and without known secrets; those that did not pass first.

    If the disk is full, nothing is kept.
    """
    if not outcomes:
        return
    redact = process_redactor().redact
    ordered = sorted(outcomes.items(), key=lambda item: item[1] in ("passed", "skipped"))
    kept = {truncate_middle(clean_text(redact(name)), _MAX_NAME): what for name, what in islice(ordered, _MAX_TESTS)}
    path = attempt_file(directory, attempt, "tests", "z")
    with suppress(OSError):  # such as a full disk, which must not fail the attempt
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, zlib.compress(json.dumps(kept).encode()), beside=path.with_suffix(".new"))


def load_outcomes(directory: str | os.PathLike[str], attempt: str) -> dict[str, str]:
    """Return the kept outcomes by test id; none if nothing was kept. Raises LedgerError if they are damaged."""
    try:
        packed = attempt_file(directory, attempt, "tests", "z").read_bytes()
    except FileNotFoundError:
        return {}
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, _MAX_DOCUMENT)
        if not unpacking.eof:
            raise ValueError("they are incomplete or too large")
        document = json.loads(content)
        if not isinstance(document, dict) or not all(outcome in _OUTCOMES for outcome in document.values()):
            raise ValueError("they have an unknown format")
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise LedgerError(f"the stored test results of {attempt} are damaged: {error}", subject=attempt) from error
    return document


def remove_outcomes(directory: str | os.PathLike[str], attempt: str) -> None:
    """Delete the kept outcomes of an attempt."""
    attempt_file(directory, attempt, "tests", "z").unlink(missing_ok=True)
