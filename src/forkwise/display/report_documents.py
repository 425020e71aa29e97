"""The documents of a report: an HTML page, a Markdown summary, the winner's JUnit XML, and JSON, in one directory.

The directory is opened before anything runs, and files in it are replaced by renames, so that a winner cannot redirect
them by putting a symbolic link in its place.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from forkwise.display.attempt_report import AttemptReport, ForkReport, read_report
from forkwise.display.board import attempt_record
from forkwise.display.html.fork_page import duration_text, render_report
from forkwise.display.output import change_record, printable
from forkwise.display.subject import spec_record
from forkwise.ledger.ledger import Ledger
from forkwise.text.clean import truncate, truncate_line, truncate_middle
from forkwise.text.diff import unified_file
from forkwise.text.phrases import format_number, format_usd
from forkwise.text.redaction import process_redactor, redact

__all__ = [
    "SUMMARY_LIMIT",
    "ReportDirectory",
    "append_summary",
    "build_junit",
    "build_record",
    "build_summary",
]

#: The most bytes that GitHub shows of a step's summary.
SUMMARY_LIMIT = 1 << 20

_MAX_DIFF = 60_000  # characters in the summary
_MAX_LISTED = 50  # attempts and tests in the summary
_MAX_CASES = 20_000  # in JUnit
_MAX_CHANGES = 1000  # of one attempt, in JSON
_FORMAT = 1


class ReportDirectory:
    """A directory for the documents of a report. The constructor creates it, and raises OSError if that fails."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._place = os.path.realpath(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> ReportDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory; further calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, ledger: Ledger, fork: str, *, version: str) -> str:
        """Write the documents of a fork, and return its summary. Raises OSError if a file cannot be written."""
        self._check_place()
        report = read_report(ledger, fork)
        summary = build_summary(report)
        documents = {
            "index.html": render_report(report, version=version),
            "summary.md": summary,
            "junit.xml": build_junit(report),
            "report.json": json.dumps(build_record(report, version=version), indent=2) + "\n",
        }
        for name, text in documents.items():
            self._replace(name, text.encode("utf-8", "backslashreplace"))
        return summary

    def _check_place(self) -> None:
        """Raise OSError if the directory was moved or replaced: it may belong to an undo record by now."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self.path)) and self._place == os.path.realpath(self.path):
                return
        problem = "the report was not written: its directory was removed or replaced while the attempts ran"
        raise OSError(errno.ESTALE, problem, str(self.path))

    def _replace(self, name: str, content: bytes) -> None:
        beside = f".{name}.{os.getpid()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=self._fd)
        try:
            with open(os.open(beside, flags, 0o644, dir_fd=self._fd), "wb") as file:
                file.write(content)
            os.rename(beside, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            with suppress(OSError):
                os.unlink(beside, dir_fd=self._fd)
            raise OSError(
                error.errno, f"the report was not written: {error.strerror}", str(self.path / name)
            ) from error


def append_summary(summary: str, path: str) -> bool:
    """Append a summary to the file that GitHub shows; return False if the file would be larger than GitHub accepts."""
    content = summary.encode("utf-8", "backslashreplace")
    with open(path, "ab") as file:
        if file.tell() + len(content) >= SUMMARY_LIMIT:
            return False
        file.write(content)
    return True


# Markdown


def build_summary(report: ForkReport) -> str:
    """Format a fork as Markdown for GitHub: the decision, the attempts, the tests and the winner's diff."""
    fork = report.fork
    sign = (
        "✅"
        if fork.winner is not None and fork.undone is None
        else "❌"
        if fork.state == "aborted" and report.chosen is None
        else "⚠️"
    )
    facts = [format_number(len(report.attempts), "attempt")]
    facts.append(duration_text(report.seconds))
    facts += [] if report.usd is None else [format_usd(report.usd)]
    lines = [
        f"## {sign} forkwise {_quote(fork.kind)}: {_quote(report.headline)}",
        "",
        f"{_quote(truncate_line(report.goal, 400))}",
        "",
        f"{', '.join(facts)}. {_quote(truncate_line(report.reason, 400))}".rstrip(),
        "",
        *_summary_warnings(report),
        *_summary_attempts(report),
        *_summary_tests(report),
        *_summary_diff(report),
    ]
    return "\n".join(lines) + "\n"


def _summary_warnings(report: ForkReport) -> Iterator[str]:
    verdict = report.fork.verdict or {}
    for text in (*verdict.get("warnings", ()), *verdict.get("failures", ())):
        yield f"> ⚠️ {_quote(truncate_line(redact(str(text)), 300))}\n"
    for attempt in report.attempts[:_MAX_LISTED]:
        if attempt.tests is not None and attempt.tests.is_tampered:
            yield f"> 🚫 {attempt.record.id}: tests were tampered with: {_quote(truncate_line(attempt.trouble, 300))}\n"


def _summary_attempts(report: ForkReport) -> Iterator[str]:
    has_cost = any(attempt.usd is not None for attempt in report.attempts)
    yield f"| attempt | state | tests | files | time |{' cost |' if has_cost else ''} result |"
    yield f"| --- | --- | --- | --- | --- |{' --- |' if has_cost else ''} --- |"
    shown = sorted(report.attempts, key=lambda attempt: attempt is not report.chosen)[:_MAX_LISTED]
    for attempt in shown:
        record, tests = attempt.record, attempt.tests
        cells = [
            f"**{record.id}**" if attempt is report.chosen else record.id,
            "🏆 won" if attempt.row.has_won else record.state,
            "" if tests is None else f"{tests.passed}/{tests.ran}" if tests.ran else _quote(tests.summary),
            "" if record.files is None else str(record.files),
            "" if attempt.seconds is None else duration_text(attempt.seconds),
            *([] if not has_cost else ["" if attempt.usd is None else format_usd(attempt.usd)]),
            _quote(truncate_line(redact(record.reason or record.last_line or ""), 160)),
        ]
        yield f"| {' | '.join(cells)} |"
    if len(report.attempts) > len(shown):
        yield f"\n{len(report.attempts) - len(shown)} more attempts are in the report."
    yield ""


def _summary_tests(report: ForkReport) -> Iterator[str]:
    chosen = report.chosen
    found = None if chosen is None or chosen.tests is None else chosen.tests.comparison
    if found is None:
        return
    groups = {"Fixed": found.fixed_ids, "Broken": found.broken_ids, "Still failing": found.still_failing_ids}
    for title, ids in groups.items():
        if ids:
            names = ", ".join(_code(truncate_middle(name, 160)) for name in ids[:_MAX_LISTED])
            yield f"**{title}**: {names}{', …' if len(ids) > _MAX_LISTED else ''}\n"


def _summary_diff(report: ForkReport) -> Iterator[str]:
    changes = None if report.chosen is None else report.chosen.read_changes()
    if changes is None or not changes.files:
        return
    parts: list[str] = []
    size = 0
    for number, file in enumerate(changes.files):
        is_large = any(side is not None and len(side.content or b"") > _MAX_DIFF for side in (file.old, file.new))
        text = f"# {file.path}: too large for the summary\n" if is_large else unified_file(file)
        lines = [
            truncate(printable(line, keep="\t"), 400) for line in text.split("\n") if not line.startswith("index ")
        ]
        text = "\n".join(lines)
        if size + len(text) > _MAX_DIFF:
            parts.append(f"# {len(changes.files) - number} more files are in the report\n")
            break
        parts.append(text)
        size += len(text)
    body = "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)
    fence = "`" * (max((len(run) for run in re.findall("`+", body)), default=0) + 3)
    yield f"<details><summary>Diff of {report.chosen.record.id if report.chosen else ''}</summary>\n"
    yield f"{fence}diff\n{body}{fence}\n\n</details>\n"


def _quote(text: str) -> str:
    """Escape text for Markdown, so that nothing in it is a link, an image, a mention, HTML or a table's cell.

    >>> _quote("![x](http://e) @me")
    '&#33;&#91;x&#93;&#40;http&#58;&#47;&#47;e&#41; &#64;me'
    """
    shown = printable(text)
    return "".join(c if c.isalnum() or c in " -," or not c.isascii() else f"&#{ord(c)};" for c in shown)


def _code(text: str) -> str:
    return f"<code>{_quote(text)}</code>"


# JUnit

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def build_junit(report: ForkReport) -> str:
    """Format the tests of the winner as JUnit XML. Without a winner, there is one failed test case with the reason."""
    chosen = report.chosen
    suite = ElementTree.Element("testsuite", name=_xml(f"forkwise {report.fork.kind} {report.fork.id}"))
    if chosen is None:
        reasons = [f"{a.record.id} {a.record.state}: {redact(a.record.reason or '')}" for a in report.attempts[:50]]
        text = "\n".join([report.headline, report.reason, *reasons]).strip()
        _add_case(suite, "forkwise", f"{report.fork.kind} has a winner", "failed", report.headline, text)
    else:
        _add_cases(suite, chosen)
    cases = list(suite)
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    seconds = 0.0 if chosen is None or chosen.tests is None else chosen.tests.duration
    suite.set("time", f"{seconds:.3f}")
    suite.set("timestamp", datetime.fromtimestamp(report.fork.started, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    root = ElementTree.Element(
        "testsuites", {key: suite.attrib[key] for key in ("tests", "failures", "errors", "time")}
    )
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add_cases(suite: ElementTree.Element, attempt: AttemptReport) -> None:
    tests = attempt.tests
    if tests is None:
        _add_case(suite, "forkwise", f"{attempt.record.id} won; no tests were requested", "passed")
        return
    messages = {failure.name: failure.message for failure in tests.failures}
    # Runners name a test differently in their output and in their report; only the last part is the same.
    by_end = {name.rpartition("::")[2]: message for name, message in messages.items()}
    outcomes: Mapping[str, str] = attempt.outcomes or {failure.name: failure.kind for failure in tests.failures}
    for number, (name, outcome) in enumerate(outcomes.items()):
        if number >= _MAX_CASES:
            break
        message = messages.get(name) or by_end.get(name.rpartition("::")[2], "")
        group, _, own = name.rpartition("::")
        _add_case(suite, group, own, outcome, message.partition("\n")[0], message)
    if not attempt.outcomes and tests.passed:
        _add_case(suite, "forkwise", f"tests without names in the runner's output: {tests.summary}", "passed")
    if not len(suite) or tests.doubt is not None:
        how = "passed" if tests.is_pass else "failed"
        _add_case(suite, "forkwise", f"test command: {tests.summary}", how, tests.doubt or "", tests.output)


def _add_case(
    suite: ElementTree.Element, group: str, name: str, outcome: str, message: str = "", text: str = ""
) -> None:
    path, _, rest = group.partition("::")
    is_file = path.endswith((".py", ".js", ".ts", ".jsx", ".tsx", ".mjs", ".go", ".rs"))
    words = [path.rpartition(".")[0].replace("/", ".") if is_file else path, *rest.split("::")]
    attributes = {"classname": _xml(".".join(word for word in words if word)), "name": _xml(name), "time": "0"}
    if is_file:
        attributes["file"] = _xml(path)
    case = ElementTree.SubElement(suite, "testcase", attributes)
    tag = {"failed": "failure", "error": "error", "skipped": "skipped"}.get(outcome)
    if tag is not None:
        found = ElementTree.SubElement(case, tag, {"message": _xml(truncate(message or outcome, 500))})
        found.text = _xml(truncate_middle(text, 8000)) if text else None


def _xml(text: str) -> str:
    """Replace what XML cannot contain."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


# JSON


def build_record(report: ForkReport, *, version: str) -> dict[str, Any]:
    """Return a report as a JSON value."""
    fork = report.fork
    record = {
        "format": _FORMAT,
        "forkwise": version,
        "fork": {
            "id": fork.id,
            "kind": fork.kind,
            "state": fork.state,
            "workspace": fork.workspace,
            "started": _iso(fork.started),
            "ended": _iso(fork.ended),
            "goal": report.goal,
            "spec": spec_record(fork),
            "baseline": fork.baseline,
            "verdict": fork.verdict,
            "resolution": fork.resolution,
            "commit": fork.commit,
            "undone": fork.undone,
        },
        "headline": report.headline,
        "reason": report.reason,
        "winner": fork.winner,
        "best": None if report.chosen is None else report.chosen.record.id,
        "seconds": report.seconds,
        "usd": report.usd,
        "attempts": [_build_attempt(attempt) for attempt in report.attempts],
    }
    cleaned: dict[str, Any] = process_redactor().redact_data(record)
    return cleaned


def _build_attempt(attempt: AttemptReport) -> dict[str, Any]:
    changes = attempt.read_changes()
    tests = attempt.tests
    return {
        **attempt_record(attempt.row),
        "started": _iso(attempt.record.started),
        "ended": _iso(attempt.record.ended),
        "cpu": attempt.record.cpu,
        "memory": attempt.record.memory,
        "changes": None if changes is None else [change_record(change) for change in [*changes.delta][:_MAX_CHANGES]],
        "failures": [] if tests is None else [asdict(failure) for failure in tests.failures],
        "outcomes": dict(attempt.outcomes),
        "steps": list(attempt.steps),
        "output": attempt.read_output(),
    }


def _iso(timestamp: float | None) -> str | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC).isoformat()
