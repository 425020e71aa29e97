"""A fork and a conversation that never change, for tests of the panels: no disk, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from tools.screenshots.store_versions import HASHED, PARENT, SORTED

from forkwise.conversation.conversation import Conversation
from forkwise.display.board import Row
from forkwise.files.branch import Branch
from forkwise.files.selection import AlignedPath, Choice
from forkwise.fork.combine import Prepared
from forkwise.ledger.change_watch import ChangeWatch
from forkwise.ledger.records import AttemptRecord, AttemptState, ForkRecord
from forkwise.linux.process_id import ProcessId
from forkwise.testing.report import TestReport
from forkwise.text.diff import FileDiff, FileVersion, unified
from forkwise.text.merge3 import align
from forkwise.tui.fork_model import ForkModel, ForkSnapshot

__all__ = [
    "ScriptedFork",
    "scripted_talk",
]


_STARTED = 1_800_000_000.0
_FORK = "k3f9ab"
_PATH = "src/store.py"
_MODE = 0o100644

_VERSIONS = {f"{_FORK}.1": HASHED, f"{_FORK}.2": SORTED}
_ATTEMPTS: tuple[tuple[str, AttemptState, dict[str, object]], ...] = (
    ("claude -p 'a hash table'", "succeeded", {"score": 0.92, "files": 3, "cost": {"usd": 0.21}, "ended": 41.0}),
    ("claude -p 'a B-tree'", "running", {"files": 2, "cost": {"usd": 0.34}}),
    ("claude -p 'an LSM tree'", "running", {"files": 5, "cost": {"usd": 0.48}}),
    ("codex exec 'a skip list'", "failed", {"files": 1, "cost": {"usd": 0.09}, "ended": 12.0, "reason": "exit code 1"}),
    ("codex exec 'sorted arrays'", "cancelled", {"files": 0, "ended": 30.0, "reason": "out of time"}),
    ("gemini -p 'what is fastest'", "pending", {}),
)
_LINES = {
    f"{_FORK}.1": "I will replace the list of rows by a dictionary.\n  edit src/store.py\n  edit src/index.py\n"
    "$ pytest -q\n24 passed in 0.81s\nDone: lookups take constant time now.\n",
}


class ScriptedFork(ForkModel):
    """A fork of six attempts; two are running."""

    def __init__(self) -> None:
        self.fork = _FORK

    def close(self) -> None:
        """Do nothing: no ledger is open."""

    def watch_changes(self) -> ChangeWatch:
        """Return a watch without a ledger."""
        return ChangeWatch()

    def now(self) -> float:
        """Return a fixed time."""
        return _STARTED + 75

    def read(self) -> ForkSnapshot:
        """Return the fork."""
        owner = ProcessId.current()
        fork = ForkRecord(
            id=_FORK, kind="best-of", workspace="/project", spec={}, owner=owner, started=_STARTED, stored="running"
        )
        return ForkSnapshot(fork, "running", tuple(Row(_attempt(n), 0, has_won=False) for n in range(len(_ATTEMPTS))))

    def output(self, attempt: str, start: int) -> tuple[int, bytes]:
        """Return all output of an attempt."""
        text = _LINES.get(attempt, "").encode()
        return len(text), text[start:]

    def steps(self, attempt: str, after: int) -> tuple[int, str] | None:
        """Return None: no attempt is an agent whose output has steps."""
        return None

    def diff(self, attempt: str) -> str:
        """Return the changes of an attempt."""
        return _diff(_VERSIONS[attempt].encode())

    def line_up(self, attempts: Sequence[str]) -> list[AlignedPath]:
        """Return a file that two attempts changed, and one that an attempt added."""
        base = FileVersion(_MODE, PARENT.encode())
        texts = {name: text.encode() for name, text in _VERSIONS.items()}
        versions = {name: FileVersion(_MODE, text) for name, text in texts.items()}
        added = {f"{_FORK}.2": FileVersion(_MODE, b"sortedcontainers\n")}
        return [
            AlignedPath("requirements.txt", None, added, None),
            AlignedPath(_PATH, base, versions, align(PARENT.encode(), texts)),
        ]

    async def prepare(self, choice: Mapping[str, Choice]) -> Prepared:
        """Return the choice, with tests that pass."""
        alignment = self.line_up(())[1].alignment
        hunks = choice[_PATH]
        assert alignment is not None
        assert not isinstance(hunks, str)
        report = TestReport(source="pytest summary", exit_code=0, passed=24)
        made = _diff(alignment.apply(hunks))
        return Prepared(_FORK, tuple(_VERSIONS), cast("Branch", None), made, report)

    def drop(self, prepared: Prepared) -> None:
        """Do nothing: there is no branch."""


def _attempt(number: int) -> AttemptRecord:
    label, state, facts = _ATTEMPTS[number]
    started = None if state == "pending" else _STARTED + number
    ended = facts.get("ended")
    return AttemptRecord(
        id=f"{_FORK}.{number + 1}",
        fork=_FORK,
        key=str(number),
        round=0,
        index=number,
        label=label,
        branch=f"{_FORK}-{number}",
        state=state,
        started=started,
        ended=None if ended is None else _STARTED + number + cast("float", ended),
        reason=cast("str | None", facts.get("reason")),
        score=cast("float | None", facts.get("score")),
        files=cast("int | None", facts.get("files")),
        cost=cast("dict[str, float] | None", facts.get("cost")),
        tests=TestReport(source="pytest summary", exit_code=0, passed=24).as_json() if state == "succeeded" else None,
    )


def _diff(content: bytes) -> str:
    return unified([FileDiff(_PATH, FileVersion(_MODE, PARENT.encode()), FileVersion(_MODE, content))])


def scripted_talk() -> Conversation:
    """Build a conversation that was forked twice."""
    talk = Conversation()
    talk.say("How should the store keep its rows?")
    fork = talk.reply("There are two ways: a hash table, or something sorted.")
    talk.label("two ways", fork)
    first = talk.reply("Constant time for each lookup, no order.", talk.say("Try the hash table.", fork))
    talk.here = talk.reply("All 24 tests pass.", talk.say("Write it.", first))
    second = talk.reply("Ranges become cheap.", talk.say("Try something sorted.", fork))
    talk.reply("A B-tree: wide nodes, few of them.", talk.say("Which tree?", second))
    talk.reply("A skip list: simple, and it can be read while it is written.", talk.say("Without a tree?", second))
    return talk
