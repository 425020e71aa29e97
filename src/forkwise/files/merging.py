"""Conflicts met by merging: which of them three versions of a text settle, and what is left."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping

from forkwise.files.ancestor import find_ancestor
from forkwise.files.birth import Birth
from forkwise.files.conflict import Conflict
from forkwise.files.layer import Entry
from forkwise.files.merge import is_text, merge
from forkwise.files.parent import Parent
from forkwise.files.versions import Versions

__all__ = ["merge_conflicts"]


def merge_conflicts(
    conflicts: Iterable[Conflict], entries: Mapping[str, Entry], versions: Versions, parent: Parent, birth: Birth
) -> tuple[dict[str, bytes], list[Conflict]]:
    """The merged content of every path that could be merged, and the conflicts that could not."""
    merged: dict[str, bytes] = {}
    left = []
    for conflict in conflicts:
        entry = entries.get(conflict.path)
        outcome = _merge(entry, versions, parent, birth) if entry else "it is a directory's metadata"
        if isinstance(outcome, bytes):
            merged[conflict.path] = outcome
        else:
            left.append(Conflict(conflict.path, "unmerged", f"{conflict.detail}; {outcome}"))
    return merged, left


def _merge(entry: Entry, versions: Versions, parent: Parent, birth: Birth) -> bytes | str:
    new, old = entry.new, entry.old
    if new is None or old is None or not (stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode)):
        return "only the text of files can be merged"
    base = find_ancestor(parent, entry.path, birth.generation, birth.forked)
    if base is None:
        return "what it was when the branch was made is not known"
    ours, theirs = versions.new(entry), versions.old(entry)
    if not (is_text(base) and is_text(ours) and is_text(theirs)):
        return "it is not text"
    result = merge(base, ours, theirs)
    if not result.clean:
        lines = ", ".join(str(h.start + 1) for h in result.conflicts)
        return f"both changed the same lines (of the common version: {lines})"
    return result.content
