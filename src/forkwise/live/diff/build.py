"""Building a diff report: every path that any branch touched, its versions, and how they agree.

The cost stays low in large forks: renames are found through shared lines instead of comparing all pairs, a version that
several branches share is diffed once, and diffs and the content agreement are computed only when they are first read.
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
    classify,
    find_changed_lines,
    measure_agreement,
)
from forkwise.live.diff.renames import LineCounts, find_origins
from forkwise.text.diff import FileDiff, FileVersion, unified_file

__all__ = [
    "BranchFiles",
    "BranchLike",
    "BranchModes",
    "build_diff_report",
]


class BranchFiles(Protocol):
    """The files of a branch and of its parent."""

    def touched(self) -> Iterable[str]:
        """Return the paths of all files that the branch wrote or deleted: each once, in any order."""
        ...

    def old(self, path: str) -> bytes | None:
        """Return the content of a file in the parent at the fork; None if there was no file."""
        ...

    def new(self, path: str) -> bytes | None:
        """Return the content of a file in the branch; None if there is no file."""
        ...


@runtime_checkable
class BranchModes(Protocol):
    """The modes of a branch's files, for branches on disk: a full ``st_mode``, or None for no file."""

    def old_mode(self, path: str) -> int | None:
        """Return the mode of a file in the parent."""
        ...

    def new_mode(self, path: str) -> int | None:
        """Return the mode of a file in the branch."""
        ...


_BINARY_PROBE_BYTES = 8192  # a NUL in these makes the content binary
_MAX_LINES = 500
_PREVIEW_LINES = 200  # at each end of a diff with more lines
_MAX_TEXT = 200_000  # characters; lines of a longer diff are cut
_MAX_LINE = 2_000
_DEFAULT_MODE = stat.S_IFREG | 0o644


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class _HasLabel(Protocol):
    @property
    def label(self) -> str: ...


class BranchLike(Protocol):
    """The attributes of a branch that a report needs: its id, its label, and its files (None if dropped)."""

    @property
    def status(self) -> _HasId:
        """The status, which has the id."""
        ...

    @property
    def spec(self) -> _HasLabel:
        """The spec, which has the label."""
        ...

    @property
    def overlay(self) -> BranchFiles | None:
        """The files of the branch; None if the branch was dropped."""
        ...


class _PathVersion(NamedTuple):
    """A path before and after the work of one branch. Equal versions are diffed once."""

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


class _LazyDiff:
    """The diff of a version, computed once for all branches that share it."""

    def __init__(self, path: str, version: _PathVersion) -> None:
        self._path = path
        self._version = version
        self._text: str | None = None

    def __call__(self) -> str:
        if self._text is None:
            self._text = _shorten_diff(_format_diff(self._path, self._version))
        return self._text


@dataclass
class _BranchVersions:
    id: str
    label: str
    files: BranchFiles | None
    untouched: BranchChange = field(init=False)
    versions: dict[str, _PathVersion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.untouched = BranchChange(self.id, self.label, "untouched", None, "", 0, is_binary=False)

    def read(self) -> None:
        """Read all versions that differ from the parent's."""
        if self.files is None:
            return
        modes = self.files if isinstance(self.files, BranchModes) else None
        for path in self.files.touched():
            old_mode = new_mode = _DEFAULT_MODE
            if modes:
                old_mode, new_mode = modes.old_mode(path) or _DEFAULT_MODE, modes.new_mode(path) or _DEFAULT_MODE
            version = _PathVersion(self.files.old(path), self.files.new(path), old_mode, new_mode)
            if version.operation != "untouched":
                self.versions[path] = version


def build_diff_report(
    fork_id: str, runtimes: Sequence[BranchLike], *, paths_filter: Sequence[str] | None = None
) -> BranchDiffReport:
    """Compare the files of branches with the parent and with each other.

    ``paths_filter`` restricts the listed paths to these, including those that no branch touched; the summary always
    covers all touched paths. Diffs are in git's format and can be applied, except in three cases: invalid UTF-8 is
    replaced by U+FFFD, a diff of more than 500 lines loses its middle, and one of more than 200,000 characters has its
    long lines cut.

    Raises ValueError if two branches have the same id.
    """
    branches = [_BranchVersions(runtime.status.id, runtime.spec.label, runtime.overlay) for runtime in runtimes]
    if len({branch.id for branch in branches}) < len(branches):
        raise ValueError(f"several branches have the same id: {', '.join(branch.id for branch in branches)}")
    for branch in branches:
        branch.read()
    touched = sorted({path for branch in branches for path in branch.versions})
    diffs = {path: _build_path(path, branches) for path in touched}
    _set_origins(diffs, branches)
    summary = _build_summary(diffs.values(), branches)
    if paths_filter is not None:
        diffs = {path: diffs.get(path) or _build_untouched_path(path, branches) for path in sorted(set(paths_filter))}
    return BranchDiffReport(fork_id, list(diffs.values()), summary)


def _build_path(path: str, branches: Sequence[_BranchVersions]) -> PathDiff:
    by_version: dict[_PathVersion, BranchChange] = {}
    changes = {}
    first: _PathVersion | None = None
    states: list[tuple[bytes | None, int]] = []
    for branch in branches:
        version = branch.versions.get(path)
        if version is None:
            changes[branch.id] = branch.untouched
            continue
        first = first or version
        states.append((version.new, 0 if version.new is None else version.new_mode))
        same = by_version.get(version)
        if same is None:
            changes[branch.id] = by_version[version] = _build_change(path, version, branch)
        else:
            changes[branch.id] = same.copy_with(branch_id=branch.id, branch_label=branch.label)
    return PathDiff(path, _decode(first and first.old), changes, classify(states))


def _build_untouched_path(path: str, branches: Sequence[_BranchVersions]) -> PathDiff:
    """Build the entry of a requested path that no branch changed."""
    files = next((branch.files for branch in branches if branch.files is not None), None)
    content = None if files is None else files.old(path)
    return PathDiff(path, _decode(content), {branch.id: branch.untouched for branch in branches}, classify([]))


def _build_change(path: str, version: _PathVersion, branch: _BranchVersions) -> BranchChange:
    new = version.new
    size = 0 if new is None else len(new)
    if new is not None and _is_binary(new):
        digest = sha256(new).hexdigest()
        diff = f"[binary · {size} bytes · sha256:{digest[:12]}]"
        return BranchChange(branch.id, branch.label, version.operation, None, diff, size, True, digest)
    diff_later: Any = _LazyDiff(path, version)
    text = None if new is None else new.decode("utf-8", "replace")
    return BranchChange(branch.id, branch.label, version.operation, text, diff_later, size, is_binary=False)


def _measure_shared_work(branches: Sequence[_BranchVersions]) -> float | None:
    """Measure how much of the branches' work is the same."""
    lines: dict[bytes | None, frozenset[bytes]] = {}  # by content: branches mostly share the parent's

    def pieces(version: _PathVersion) -> frozenset[Hashable]:
        if version.new is not None and _is_binary(version.new):
            return frozenset([version.new])
        if version.old not in lines:
            lines[version.old] = frozenset((version.old or b"").splitlines())
        # If no line was added or removed (a mode change, reordered lines), the whole version counts as one piece.
        return find_changed_lines(lines[version.old], set((version.new or b"").splitlines())) or frozenset([version])

    return measure_agreement(
        {branch.id: {piece for version in branch.versions.values() for piece in pieces(version)} for branch in branches}
    )


def _format_diff(path: str, version: _PathVersion) -> str:
    old = None if version.old is None else FileVersion(version.old_mode, version.old)
    new = None if version.new is None else FileVersion(version.new_mode, version.new)
    text = unified_file(FileDiff(path.lstrip("/"), old, new))
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _shorten_diff(diff: str) -> str:
    if len(diff) <= _MAX_TEXT and diff.count("\n") <= _MAX_LINES:
        return diff
    lines = diff.splitlines(keepends=True)
    if len(lines) > _MAX_LINES:
        omitted = f"... [{len(lines) - 2 * _PREVIEW_LINES} lines truncated] ...\n"
        lines = [*lines[:_PREVIEW_LINES], omitted, *lines[-_PREVIEW_LINES:]]
    if len(diff) > _MAX_TEXT:
        lines = [_shorten_line(line) for line in lines]
    return "".join(lines)


def _shorten_line(line: str) -> str:
    omitted = len(line) - _MAX_LINE
    return line if omitted <= 0 else f"{line[:_MAX_LINE]}... [{omitted} characters truncated] ...\n"


def _is_binary(content: bytes) -> bool:
    return content.find(b"\0", 0, _BINARY_PROBE_BYTES) >= 0


def _decode(content: bytes | None) -> str | None:
    return None if content is None or _is_binary(content) else content.decode("utf-8", "replace")


def _set_origins(diffs: dict[str, PathDiff], branches: Sequence[_BranchVersions]) -> None:
    """Set the origin of each branch's renamed and copied files."""
    parent = {path: v.old for branch in branches for path, v in branch.versions.items() if v.old is not None}
    line_counts: LineCounts = {}
    for branch in branches:
        created = {path: v.new for path, v in branch.versions.items() if v.old is None and v.new is not None}
        if not created:
            continue
        deleted = {path: v.old for path, v in branch.versions.items() if v.new is None and v.old is not None}
        kept = {path: content for path, content in parent.items() if path not in deleted}
        for path, origin in find_origins(created, deleted, kept, line_counts).items():
            changes = diffs[path].branches
            if origin.is_rename:
                changes[branch.id] = changes[branch.id].copy_with(
                    renamed_from=origin.path, similarity=origin.similarity
                )
                old_changes = diffs[origin.path].branches
                old_changes[branch.id] = old_changes[branch.id].copy_with(renamed_to=path, similarity=origin.similarity)
            else:
                changes[branch.id] = changes[branch.id].copy_with(copied_from=origin.path, similarity=origin.similarity)


def _build_summary(diffs: Iterable[PathDiff], branches: Sequence[_BranchVersions]) -> DiffSummary:
    counts: dict[str, int] = defaultdict(int)
    unique = dict.fromkeys((branch.id for branch in branches), 0)
    for diff in diffs:
        counts[diff.agreement] += 1
        if diff.agreement == "unique":
            unique[next(b.id for b in branches if diff.path in b.versions)] += 1
    total, split = sum(counts.values()), counts["split"]
    agreement_later: Any = partial(_measure_shared_work, branches)
    return DiffSummary(total, counts["unanimous_change"], split, unique, 1.0 - split / max(total, 1), agreement_later)
