"""Building a diff report: every path that any branch touched, what each made of it, and how they relate.

Nothing is compared with everything: a version that several branches share is diffed once and when somebody reads it,
renames are found through lines, and the text itself by an algorithm that costs little where little changed. How far the
branches did the same work is worked out when somebody asks.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forkwise.live.diff.diff_report import (
    BranchChange,
    BranchDiffOperation,
    BranchDiffReport,
    DiffSummary,
    PathDiff,
    changed_lines,
    classify,
    content_agreement,
)
from forkwise.live.diff.renames import Known, origins
from forkwise.text.diff import FileDiff, Side, unified_file

__all__ = [
    "BranchFiles",
    "BranchLike",
    "BranchModes",
    "build_diff_report",
]


class BranchFiles(Protocol):
    """The files of a branch, and of what it was forked from."""

    def touched(self) -> Iterable[str]:
        """The paths of all files that the branch wrote or deleted; each once, in any order."""
        ...

    def old(self, path: str) -> bytes | None:
        """What the parent had there at the fork; None where there was no file."""
        ...

    def new(self, path: str) -> bytes | None:
        """What the branch has there; None where there is no file."""
        ...


@runtime_checkable
class BranchModes(Protocol):
    """The permissions of a branch's files, for those that have them: a full ``st_mode``, or None for no file."""

    def old_mode(self, path: str) -> int | None:
        """That in the parent."""
        ...

    def new_mode(self, path: str) -> int | None:
        """That in the branch."""
        ...


_SNIFFED = 8192  # where a NUL makes content binary
_MOST_LINES = 500
_SHOWN = 200  # lines at each end of a diff that has more
_MOST_TEXT = 200_000  # characters of a diff of which every line is whole
_LONGEST_LINE = 2_000
_FILE = stat.S_IFREG | 0o644


class _Named(Protocol):
    @property
    def id(self) -> str: ...


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


class BranchLike(Protocol):
    """What a report needs of a branch: its id, its label, and its files, or None where those are gone."""

    @property
    def status(self) -> _Named:
        """That with the id."""
        ...

    @property
    def spec(self) -> _Labelled:
        """That with the label."""
        ...

    @property
    def overlay(self) -> BranchFiles | None:
        """The files."""
        ...


class _Version(NamedTuple):
    """A path before and after in one branch. Equal versions are diffed once."""

    old: bytes | None
    new: bytes | None
    old_mode: int
    new_mode: int

    @property
    def operation(self) -> BranchDiffOperation:
        if self.new is None:
            return "untouched" if self.old is None else "deleted"
        if self.old is None:
            return "created"
        return "untouched" if self.old == self.new and self.old_mode == self.new_mode else "modified"


class _LateDiff:
    """The diff of a version, worked out once for all branches that have it."""

    def __init__(self, path: str, version: _Version) -> None:
        self._path = path
        self._version = version
        self._text: str | None = None

    def __call__(self) -> str:
        if self._text is None:
            self._text = _preview(_diff(self._path, self._version))
        return self._text


@dataclass
class _Branch:
    id: str
    label: str
    files: BranchFiles | None
    untouched: BranchChange = field(init=False)
    versions: dict[str, _Version] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.untouched = BranchChange(self.id, self.label, "untouched", None, "", 0, is_binary=False)

    def read(self) -> None:
        """All versions that differ from the parent's."""
        if self.files is None:
            return
        modes = self.files if isinstance(self.files, BranchModes) else None
        for path in self.files.touched():
            old_mode = new_mode = _FILE
            if modes:
                old_mode, new_mode = modes.old_mode(path) or _FILE, modes.new_mode(path) or _FILE
            version = _Version(self.files.old(path), self.files.new(path), old_mode, new_mode)
            if version.operation != "untouched":
                self.versions[path] = version


def build_diff_report(
    fork_id: str, runtimes: Sequence[BranchLike], *, paths_filter: Sequence[str] | None = None
) -> BranchDiffReport:
    """What branches made of their files, compared with the parent and with each other.

    With ``paths_filter`` only those paths are listed, also those that no branch touched; the summary is over all that
    any branch touched. Diffs are in git's format and can be applied, unless a text is not UTF-8 (its odd bytes are
    shown as U+FFFD), a diff has more than 500 lines (its middle is left out), or more than 200,000 characters (the
    ends of its longest lines are).
    """
    branches = [_Branch(runtime.status.id, runtime.spec.label, runtime.overlay) for runtime in runtimes]
    if len({branch.id for branch in branches}) < len(branches):
        raise ValueError(f"several branches have the same id: {', '.join(branch.id for branch in branches)}")
    for branch in branches:
        branch.read()
    touched = sorted({path for branch in branches for path in branch.versions})
    diffs = {path: _path_diff(path, branches) for path in touched}
    _tell_origins(diffs, branches)
    summary = _summary(diffs.values(), branches)
    if paths_filter is not None:
        diffs = {path: diffs.get(path) or _quiet(path, branches) for path in sorted(set(paths_filter))}
    return BranchDiffReport(fork_id, list(diffs.values()), summary)


def _path_diff(path: str, branches: Sequence[_Branch]) -> PathDiff:
    shown: dict[_Version, BranchChange] = {}
    changes = {}
    first: _Version | None = None
    states: list[tuple[bytes | None, int]] = []
    for branch in branches:
        version = branch.versions.get(path)
        if version is None:
            changes[branch.id] = branch.untouched
            continue
        first = first or version
        states.append((version.new, 0 if version.new is None else version.new_mode))
        same = shown.get(version)
        if same is None:
            changes[branch.id] = shown[version] = _show(path, version, branch)
        else:
            changes[branch.id] = same.but(branch_id=branch.id, branch_label=branch.label)
    return PathDiff(path, _text(first and first.old), changes, classify(states))


def _quiet(path: str, branches: Sequence[_Branch]) -> PathDiff:
    """A path that was asked for and that no branch changed."""
    files = next((branch.files for branch in branches if branch.files is not None), None)
    content = None if files is None else files.old(path)
    return PathDiff(path, _text(content), {branch.id: branch.untouched for branch in branches}, classify([]))


def _show(path: str, version: _Version, branch: _Branch) -> BranchChange:
    new = version.new
    size = 0 if new is None else len(new)
    if new is not None and _is_binary(new):
        digest = sha256(new).hexdigest()
        diff = f"[binary · {size} bytes · sha256:{digest[:12]}]"
        return BranchChange(branch.id, branch.label, version.operation, None, diff, size, True, digest)
    late: Any = _LateDiff(path, version)
    text = None if new is None else new.decode("utf-8", "replace")
    return BranchChange(branch.id, branch.label, version.operation, text, late, size, is_binary=False)


def _shared_work(branches: Sequence[_Branch]) -> float | None:
    """How much of the work of branches is the same."""
    lines: dict[bytes | None, frozenset[bytes]] = {}  # of each content, of which the parent's is mostly there often

    def pieces(version: _Version) -> frozenset[Hashable]:
        if version.new is not None and _is_binary(version.new):
            return frozenset([version.new])
        if version.old not in lines:
            lines[version.old] = frozenset((version.old or b"").splitlines())
        # Where no line says what changed (a mode, the order of lines), the change as a whole is the piece.
        return changed_lines(lines[version.old], set((version.new or b"").splitlines())) or frozenset([version])

    return content_agreement(
        {branch.id: {piece for version in branch.versions.values() for piece in pieces(version)} for branch in branches}
    )


def _diff(path: str, version: _Version) -> str:
    old = None if version.old is None else Side(version.old_mode, version.old)
    new = None if version.new is None else Side(version.new_mode, version.new)
    text = unified_file(FileDiff(path.lstrip("/"), old, new))
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _preview(diff: str) -> str:
    if len(diff) <= _MOST_TEXT and diff.count("\n") <= _MOST_LINES:
        return diff
    lines = diff.splitlines(keepends=True)
    if len(lines) > _MOST_LINES:
        left_out = f"... [{len(lines) - 2 * _SHOWN} lines truncated] ...\n"
        lines = [*lines[:_SHOWN], left_out, *lines[-_SHOWN:]]
    if len(diff) > _MOST_TEXT:
        lines = [_shortened(line) for line in lines]
    return "".join(lines)


def _shortened(line: str) -> str:
    left_out = len(line) - _LONGEST_LINE
    return line if left_out <= 0 else f"{line[:_LONGEST_LINE]}... [{left_out} characters truncated] ...\n"


def _is_binary(content: bytes) -> bool:
    return content.find(b"\0", 0, _SNIFFED) >= 0


def _text(content: bytes | None) -> str | None:
    return None if content is None or _is_binary(content) else content.decode("utf-8", "replace")


def _tell_origins(diffs: dict[str, PathDiff], branches: Sequence[_Branch]) -> None:
    """Write into the changes of each branch what its new files came from."""
    parent = {path: v.old for branch in branches for path, v in branch.versions.items() if v.old is not None}
    known: Known = {}
    for branch in branches:
        created = {path: v.new for path, v in branch.versions.items() if v.old is None and v.new is not None}
        if not created:
            continue
        deleted = {path: v.old for path, v in branch.versions.items() if v.new is None and v.old is not None}
        kept = {path: content for path, content in parent.items() if path not in deleted}
        for path, origin in origins(created, deleted, kept, known).items():
            changes = diffs[path].branches
            if origin.is_rename:
                changes[branch.id] = changes[branch.id].but(renamed_from=origin.path, similarity=origin.similarity)
                left = diffs[origin.path].branches
                left[branch.id] = left[branch.id].but(renamed_to=path, similarity=origin.similarity)
            else:
                changes[branch.id] = changes[branch.id].but(copied_from=origin.path, similarity=origin.similarity)


def _summary(diffs: Iterable[PathDiff], branches: Sequence[_Branch]) -> DiffSummary:
    counted: dict[str, int] = defaultdict(int)
    unique = dict.fromkeys((branch.id for branch in branches), 0)
    for diff in diffs:
        counted[diff.agreement] += 1
        if diff.agreement == "unique":
            unique[next(b.id for b in branches if diff.path in b.versions)] += 1
    total, split = sum(counted.values()), counted["split"]
    late: Any = partial(_shared_work, branches)
    return DiffSummary(total, counted["unanimous_change"], split, unique, 1.0 - split / max(total, 1), late)
