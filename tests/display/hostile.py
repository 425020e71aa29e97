"""A fork whose every text is hostile: markup, escape codes, characters that reorder text, and far too much of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkwise import Workspace
from forkwise.ledger.logs import AttemptLog
from forkwise.ledger.sqlite import SqliteLedger
from forkwise.ledger.stored_changes import save_changes
from forkwise.ledger.stored_outcomes import save_outcomes
from forkwise.testing.report import Comparison, TestFailure, TestReport

__all__ = ["CORPUS", "MARKER", "hostile_fork"]

MARKER = "HOSTILE"

#: Each begins with the marker, so that a test finds where it ended up.
CORPUS = (
    f"{MARKER}<script>alert(1)</script>",
    f"{MARKER}</td></table></style></title></pre><img src=x onerror=alert(1)>",
    f'{MARKER}" onmouseover="alert(1)" x=\'',
    f"{MARKER}<svg onload=alert(1)><a href='javascript:alert(1)'>x</a></svg>",
    f"{MARKER}<!--<![CDATA[ ]]>--><meta http-equiv=refresh content='0;url=http://e.example'>",
    f"{MARKER}\x1b[31m\x1b]8;;http://e.example\x07red\x1b[0m\x00\x07\x7f\x9b",
    f"{MARKER}\u202egnp.exe\u2066\u200b\u2028\ufeff\U000e0041",
    f"{MARKER}Z\u0300{chr(0x0301) * 500}",
    f"{MARKER}&lt;b&gt;&#60;script&#62;",
    f"{MARKER} ![x](http://e.example/p.png) [l](javascript:1) @everyone #1 | `a` | www.e.example ]]>",
    f"{MARKER}``````\n</details>\n# heading\n- [ ] x",
    f"{MARKER}{'x' * 1_000_000}",
)


def _names() -> list[str]:
    return [text.replace("/", "\u2215").replace("\0", "")[:60] for text in CORPUS[:-1]]


@contextmanager
def hostile_fork(directory: Path) -> Iterator[tuple[SqliteLedger, str]]:
    """Record a fork with an attempt for each text of the corpus; the first wins, the second tampered."""
    root = directory / "project"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    workspace = Workspace(root, state=directory / "state", durable=False)
    with SqliteLedger(directory / "ledger") as ledger:
        fork = ledger.begin_fork("best-of", workspace=f"/{CORPUS[0]}", spec={"goal": "\n".join(CORPUS)})
        for index, text in enumerate(CORPUS):
            attempt = ledger.add_attempt(fork.id, str(index), index=index, label=text, branch=f"b{index}")
            ledger.start_attempt(attempt.id)
            with AttemptLog(ledger.directory, attempt.id) as log:
                log.write("stdout", f"{text}\n".encode() * 3)
            report = TestReport(
                passed=1,
                failed=1,
                source="pytest",
                exit_code=1,
                failures=(TestFailure(text[:300], text[:4000]),),
                doubt=f"tampered with: {text}" if index == 1 else None,
                is_tampered=index == 1,
                touched=(text[:200],),
                comparison=Comparison(fixed=1, fixed_ids=(text[:200],), broken=1, broken_ids=(CORPUS[0],)),
            )
            ledger.record_tests(attempt.id, report.as_json())
            ledger.record_steps(attempt.id, [{"kind": "tool", "tool": text[:200], "text": text}, {"text": [text]}])
            save_outcomes(ledger.directory, attempt.id, {text[:200]: "passed", CORPUS[0]: "failed"})
            with workspace.branch(f"b{index}", on_success=None, on_error=None) as branch:
                (branch.path / "a.py").write_text(f"x = 2  # {text}\n", errors="replace")
                if index == 0:
                    for number, name in enumerate(_names()):
                        (branch.path / f"{number}{name}.js").write_text("\n".join(CORPUS), errors="replace")
                    (branch.path / "long.txt").write_text("y\n" * 100_000)
                    (branch.path / "data.bin").write_bytes(b"\0" * 5000)
                save_changes(ledger.directory, attempt.id, branch)
            branch.abort()
            state, reason = ("succeeded", None) if index == 0 else ("failed", text)
            ledger.end_attempt(attempt.id, state, reason=reason, exit_code=0, answer=text)
        first, second = f"{fork.id}.1", f"{fork.id}.2"
        match = {"between": [first, second], "winner": first, "confidence": 0.9, "reason": CORPUS[1], "doubt": None}
        failed = {"between": [first, second], "winner": None, "confidence": 0.0, "reason": "", "doubt": CORPUS[3]}
        ledger.record_verdict(
            fork.id,
            {
                "winner": first,
                "how": CORPUS[0],
                "matches": [match, failed],
                "votes": [{"judge": CORPUS[3], "winner": first, "confidence": 0.9}],
                "failures": [CORPUS[5]],
                "warnings": [CORPUS[6]],
            },
        )
        ledger.resolve(fork.id, how=CORPUS[2], winner=first)
        yield ledger, fork.id
