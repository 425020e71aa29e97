"""FollowUp: one more attempt on top of the changes of an earlier one, with people's comments as feedback.

It is in a fork of its own, so that it is compared, picked and aborted like any other; the earlier fork is not changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from forkwise.concurrency import run_in_thread
from forkwise.errors import BranchError, BranchNotFoundError, LedgerError
from forkwise.explore.pattern import Observer, Options, Pattern, Search, SpeculationOutcome
from forkwise.files.combine import combine
from forkwise.files.file_tree import FileTree
from forkwise.files.workspace import Workspace
from forkwise.fork.candidate import Candidate, Subject
from forkwise.fork.stored_fork import branch_gone_error, branch_of
from forkwise.ledger.sqlite import open_ledger
from forkwise.ledger.stored_changes import load_changes
from forkwise.text.clean import truncate_middle

if TYPE_CHECKING:
    from forkwise.explore.recipe import Recipe
    from forkwise.files.branch import Branch, Parent
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord
    from forkwise.text.diff import FileDiff, FileVersion

__all__ = [
    "FollowUp",
    "build_on",
    "find_follow_ups",
    "find_unsent",
    "follow_up",
    "format_comments",
    "prepare_follow_up",
]

_INTRODUCTION = """\
The files in this directory contain the changes of that earlier attempt. Keep them, and continue from there.
People have read these changes and said:
"""
_MAX_FEEDBACK = 24 << 10  # bytes: with the prompt, an agent may get it as one argument
_MAX_GOAL = 400


class FollowUp(Pattern):
    """Run one candidate once, with ``feedback``, in a branch that starts with the changes of the attempt ``base``."""

    kind: ClassVar[str] = "follow-up"

    def __init__(
        self,
        task: Subject,
        base: str,
        feedback: str,
        *,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        self._candidate = Candidate.of(task)
        self._feedback = feedback
        self.settings = replace(self.settings, make_branch=lambda parent, name: build_on(base, parent, name))

    async def explore(self, search: Search) -> Attempt | None:
        return search.select_best(await search.run([search.fork.add(self._candidate, 0, feedback=self._feedback)]))


async def follow_up(
    workspace: Workspace | str | os.PathLike[str],
    attempt: str,
    text: str = "",
    *,
    observer: Observer | None = None,
) -> SpeculationOutcome:
    """Run the candidate of an attempt once more, on top of what it changed, with comments on it as feedback.

    The comments are those in the ledger that no earlier follow-up got, and ``text``. The result waits for a pick.
    Raises LedgerError if there are no comments, or if the attempt's command is not stored.
    """
    workspace = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(workspace) as ledger:
        recipe, comments = prepare_follow_up(ledger, attempt, text)
        note = {"attempt": ledger.attempt(attempt).id, "comments": [one["id"] for one in comments if "id" in one]}
        watcher = _Watcher(ledger, note, observer)
        return await recipe.pattern(workspace).run(workspace, observer=watcher)


def prepare_follow_up(ledger: Ledger, attempt: str, text: str = "") -> tuple[Recipe, list[dict[str, Any]]]:
    """Return the recipe of a follow-up, and the comments in it. Raises LedgerError if it cannot be started."""
    from forkwise.explore.recipe import Recipe  # noqa: PLC0415 - recipes know all patterns, this one too

    record = ledger.attempt(attempt)
    fork = ledger.fork(record.fork)
    if fork.parent is not None:
        raise LedgerError(f"{record.id} is inside attempt {fork.parent}: follow up on that one instead")
    if not record.is_over:
        raise LedgerError(f"{record.id} still runs: stop it first, or wait for its end")
    try:
        recipe = Recipe.from_json(fork.spec)
    except LedgerError as error:
        raise LedgerError(
            f"{record.id} was started by a program, and its command is not stored: only that program can run it again"
        ) from error
    comments = find_unsent(ledger, record)
    if not comments and not text.strip():
        raise LedgerError(
            f"there is no comment on {record.id} that was not sent yet: write one on the page of forkwise serve, or "
            f"give one with the command, as in forkwise follow-up {record.id} 'TEXT'"
        )
    said = format_comments([*comments, *([{"text": text.strip()}] if text.strip() else [])])
    return _build_recipe(recipe, record, said), comments


def _build_recipe(recipe: Recipe, record: AttemptRecord, said: str) -> Recipe:
    variants = recipe.variants
    if variants and record.variant is not None and 0 <= record.variant < len(variants):
        variants = (variants[record.variant],)
    command = tuple(record.command or (variants[0].command if variants else recipe.commands[0]))
    return replace(
        recipe,
        kind="follow-up",
        commands=(command,),
        variants=variants[:1],
        n=1,
        goal=truncate_middle(f"Follow-up of {record.id}: {' '.join(said.split())}", _MAX_GOAL),
        base=record.id,
        feedback=f"{_INTRODUCTION}\n{said}\n",
        commit=False,
        keep=True,
        stop_when=(),
        cross_tests=False,
        judge=None,
        judge_model=None,
    )


class _Watcher:
    """An observer that records in the ledger which fork follows up on an attempt, and forwards its callbacks."""

    def __init__(self, ledger: Ledger, note: Mapping[str, Any], observer: Observer | None) -> None:
        self._ledger = ledger
        self._note = note
        self._observer = observer

    def fork_started(self, fork: str) -> None:
        origin = self._ledger.attempt(self._note["attempt"]).fork
        self._ledger.record_note(origin, "sent", {**self._note, "fork": fork})
        if self._observer is not None:
            self._observer.fork_started(fork)

    def winner_found(self, branch: Branch) -> None:
        if self._observer is not None:
            self._observer.winner_found(branch)


def find_follow_ups(ledger: Ledger, fork: str) -> list[dict[str, Any]]:
    """Return the follow-ups on attempts of a fork, the oldest first: ``attempt``, ``fork`` and ids of ``comments``."""
    notes = [event.data.get("note") for event in ledger.events(fork=fork) if event.kind == "sent"]
    return [note for note in notes if isinstance(note, dict) and isinstance(note.get("fork"), str)]


def find_unsent(ledger: Ledger, attempt: AttemptRecord) -> list[dict[str, Any]]:
    """Return the comments on an attempt that no follow-up has received yet."""
    sent = {name for note in find_follow_ups(ledger, attempt.fork) for name in note.get("comments") or ()}
    found = ledger.find_comments(attempt.fork)
    return [one for one in found if one.get("attempt") == attempt.id and one.get("id") not in sent]


def format_comments(comments: Sequence[Mapping[str, Any]]) -> str:
    """Format comments for an agent, each with its file, its line and the text of that line.

    >>> print(format_comments([{"path": "a.py", "line": 3, "quote": "x = 1", "text": "Why 1?"}, {"text": "Nice."}]))
    a.py, line 3:
    > x = 1
    Why 1?
    <BLANKLINE>
    Nice.
    """
    parts = []
    for one in comments:
        line = (
            f"line {one['line']}{' before the change' if one.get('side') == 'old' else ''}" if one.get("line") else ""
        )
        place = ", ".join(str(word) for word in (one.get("path"), line) if word)
        quote = f"> {one['quote']}" if one.get("quote") else ""
        parts.append(
            "\n".join(text for text in (f"{place}:" if place else "", quote, str(one.get("text", ""))) if text)
        )
    said = "\n\n".join(parts).encode("utf-8", "replace").decode().replace("\0", "")
    return truncate_middle(said, _MAX_FEEDBACK if said.isascii() else _MAX_FEEDBACK // 4)


# The branch


def build_on(base: str, parent: Parent, name: str) -> Branch:
    """Create a branch ``name`` of ``parent`` with the changes of the attempt ``base``.

    They are copied from its branch or, if that is gone, from the ledger. Raises BranchError if the ledger does not have
    all of them, or if the same files were changed since.
    """
    workspace = parent.workspace
    with open_ledger(workspace) as ledger:
        try:
            source = branch_of(ledger, workspace, base)
        except BranchNotFoundError:
            return _restore(ledger, ledger.attempt(base), parent, name)
    if source.status == "stale":
        source.rebase()
    return combine(parent, [source], name).branch


def _restore(ledger: Ledger, attempt: AttemptRecord, parent: Parent, name: str) -> Branch:
    stored = load_changes(ledger.directory, attempt.id)
    if stored is None:
        raise branch_gone_error(attempt)
    lacks = [file.path for file in stored.files if any(side and side.content is None for side in (file.old, file.new))]
    if lacks or stored.unlisted or stored.is_redacted:
        what = f"not the content of {lacks[0]}" if lacks else "not all of its changes as they were"
        raise BranchError(f"the branch of {attempt.id} is gone, and the ledger has {what}: keep branches with --keep")
    branch = parent.branch(name, on_success=None, on_error=None)
    try:
        branch.mark_confined()
        tree = FileTree(os.fspath(branch.path), os.fspath(branch.workspace.path))
        for file in stored.files:
            _write(tree, file, attempt.id)
    except BaseException as error:
        branch.abort()
        if isinstance(error, OSError | ValueError):
            raise BranchError(f"the changes of {attempt.id} cannot be repeated: {error}", branch=name) from error
        raise
    return branch


def _write(tree: FileTree, file: FileDiff, attempt: str) -> None:
    if any(side is not None and not stat.S_ISREG(side.mode) for side in (file.old, file.new)):
        raise BranchError(f"{file.path} is a symbolic link, which cannot be repeated without the branch of {attempt}")
    current: bytes | None = None
    with suppress(FileNotFoundError, NotADirectoryError):
        current = tree.read(file.path)
    if current == _content(file.new):
        return  # the attempt was committed
    if current != _content(file.old):
        raise BranchError(f"{file.path} was changed since {attempt} changed it, and its branch is gone")
    if file.new is None:
        tree.remove(file.path)
    else:
        tree.write(file.path, file.new.content or b"", stat.S_IMODE(file.new.mode))


def _content(version: FileVersion | None) -> bytes | None:
    return None if version is None else version.content
