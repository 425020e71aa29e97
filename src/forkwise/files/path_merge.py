"""Merge of one path: combine the versions of several branches into one, or describe the clash between them.

``combine`` walks the trees and writes; this module decides a single path and changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from forkwise.files.store.changes import EntryType, entry_type
from forkwise.files.store.scan import user_attributes
from forkwise.linux.trees import open_beneath
from forkwise.text.diff import LIMIT
from forkwise.text.merge3 import ConflictHunk, is_text, merge

__all__ = ["Clash", "ClashKind", "MergedPath", "Metadata", "Version", "merge_path"]

ClashKind = Literal[
    "content", "binary", "large", "target", "type", "deleted and changed", "added differently", "metadata"
]

_BLOCK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_NOUNS: dict[EntryType | None, str] = {
    None: "nothing",
    "file": "a file",
    "directory": "a directory",
    "symlink": "a symlink",
    "special": "a special file",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clash:
    """A path that several branches changed in ways that exclude each other.

    ``branches`` are those involved, in their order. If one deleted a directory and another changed something inside,
    ``path`` is the directory's. ``hunks``, for the kind ``content``, are the conflicting lines: *theirs* is the first
    branch that conflicts, *ours* the merge of those before it.
    """

    path: str
    kind: ClashKind
    branches: tuple[str, ...]
    detail: str
    hunks: tuple[ConflictHunk, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """An entry's metadata besides its type: mode, owner and user-set extended attributes."""

    mode: int
    uid: int
    gid: int
    attributes: Mapping[str, bytes]

    @classmethod
    def of(cls, fd: int) -> Metadata:
        """Read the metadata of an open entry; an ``O_PATH`` descriptor is enough."""
        found = os.fstat(fd)
        return cls(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, user_attributes(_proc_path(fd)))

    def apply_to(self, fd: int) -> None:
        """Set the metadata of an open entry."""
        path, now = _proc_path(fd), Metadata.of(fd)
        for attribute in now.attributes.keys() - self.attributes.keys():
            os.removexattr(path, attribute)
        for attribute, value in self.attributes.items():
            if now.attributes.get(attribute) != value:
                os.setxattr(path, attribute, value)
        if (now.uid, now.gid) != (self.uid, self.gid):
            os.chown(path, self.uid, self.gid)
        if stat.S_IMODE(os.fstat(fd).st_mode) != self.mode:  # chown and setting an ACL change the mode
            os.chmod(path, self.mode)


class Version(NamedTuple):
    """A branch's version of a path: ``found`` below the directory ``root``; None if there is nothing."""

    branch: str
    root: int
    path: str
    found: os.stat_result | None

    @property
    def type(self) -> EntryType | None:
        """The type of the entry; None if there is nothing."""
        return None if self.found is None else entry_type(self.found.st_mode)

    @contextmanager
    def open(self, flags: int = os.O_PATH | os.O_NOFOLLOW) -> Iterator[int]:
        """Open the entry for the duration of a ``with`` block."""
        fd = open_beneath(self.root, self.path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def metadata(self) -> Metadata:
        """The metadata of the entry."""
        with self.open() as fd:
            return Metadata.of(fd)

    @property
    def content(self) -> bytes:
        """The content of a file."""
        with self.open(_READ) as fd, open(fd, "rb", closefd=False) as file:
            return file.read()

    @property
    def target(self) -> str:
        """The target of a symlink."""
        with self.open() as fd:
            return os.readlink("", dir_fd=fd)

    def has_content_of(self, other: Version) -> bool:
        """Return whether two files have the same content, comparing block by block."""
        if self.found is None or other.found is None or self.found.st_size != other.found.st_size:
            return False
        with (
            self.open(_READ) as one,
            other.open(_READ) as two,
            open(one, "rb", closefd=False) as first,
            open(two, "rb", closefd=False) as second,
        ):
            while block := first.read(_BLOCK):
                if block != second.read(_BLOCK):
                    return False
            return True

    def is_same_as(self, other: Version) -> bool:
        """Return whether two entries are equal apart from their times; for directories only the metadata counts."""
        if self.type != other.type:
            return False
        if self.type is None or self.metadata != other.metadata:
            return self.type is None
        if self.type == "file":
            return self.has_content_of(other)
        return self.type != "symlink" or self.target == other.target


class MergedPath(NamedTuple):
    """The result for a path: the version ``source``, with merged ``content`` or ``metadata`` if these are not None."""

    source: Version
    content: bytes | None = None
    metadata: Metadata | None = None

    @property
    def is_merged(self) -> bool:
        """Whether the result combines more than one branch."""
        return self.content is not None or self.metadata is not None


def merge_path(base: Version, versions: Sequence[Version]) -> MergedPath | Clash:
    """Merge the versions of one path, whose common base is ``base``. Return the result or the clash.

    A single version is returned as it is, without opening it.
    """
    first = versions[0]
    if len(versions) == 1:
        return MergedPath(first)
    types = {v.type for v in versions}
    if len(types) > 1:
        kind: ClashKind = "deleted and changed" if None in types else "type" if base.found else "added differently"
        return _clash(kind, versions, ", ".join(f"{v.branch} has {_NOUNS[v.type]} there" for v in versions))
    if first.type is None:
        return MergedPath(first)
    typed_base = base if base.type == first.type else None
    if first.type == "file":
        agreed = _merge_content(typed_base, versions)
    elif first.type == "symlink":
        agreed = _merge_target(typed_base, versions)
    else:
        agreed = versions
    if isinstance(agreed, Clash):
        return agreed
    metadata = _merge_metadata(typed_base and typed_base.metadata, [v.metadata for v in versions])
    if metadata is None:
        return _clash("metadata", versions, f"{_names(versions)} gave it different modes, owners or attributes")
    if isinstance(agreed, bytes):
        return MergedPath(first, agreed, metadata)
    unchanged = next((v for v in agreed if v.metadata == metadata), None)
    return MergedPath(unchanged) if unchanged else MergedPath(agreed[0], None, metadata)


def _clash(kind: ClashKind, versions: Sequence[Version], detail: str, hunks: tuple[ConflictHunk, ...] = ()) -> Clash:
    return Clash(versions[0].path or ".", kind, tuple(v.branch for v in versions), detail, hunks)


def _names(versions: Sequence[Version]) -> str:
    return ", ".join(v.branch for v in versions)


def _merge_content(base: Version | None, versions: Sequence[Version]) -> Sequence[Version] | bytes | Clash:
    """Return the versions that have the resulting content, or the content itself if it had to be merged."""
    groups: list[list[Version]] = []
    for version in versions:
        if base and version.has_content_of(base):
            continue
        group = next((g for g in groups if version.has_content_of(g[0])), None)
        if group is None:
            groups.append([version])
        else:
            group.append(version)
    if len(groups) < 2:
        return groups[0] if groups else versions
    if base is None:
        return _clash("added differently", versions, f"{_names(versions)} added files with different content")
    several = [base, *(g[0] for g in groups)]
    if any(v.found and v.found.st_size > LIMIT for v in several):
        return _clash("large", versions, f"{_names(versions)} changed it, and it is too large to merge")
    began, *contents = (v.content for v in several)
    if not all(is_text(c) for c in (began, *contents)):
        return _clash("binary", versions, f"{_names(versions)} changed it, and it is not text")
    merged = contents[0]
    for content in contents[1:]:
        both = merge(began, merged, content)
        if not both.clean:
            lines = ", ".join(str(h.start + 1) for h in both.conflicts)
            detail = f"{_names(versions)} changed the same lines (of the common version: {lines})"
            return _clash("content", versions, detail, both.conflicts)
        merged = both.content
    return merged


def _merge_target(base: Version | None, versions: Sequence[Version]) -> Sequence[Version] | Clash:
    """Return the versions of a symlink that have the resulting target."""
    different = _changed_values(base and base.target, [v.target for v in versions])
    if len(different) > 1:
        detail = f"{_names(versions)} have symlinks with different targets there"
        return _clash("target" if base else "added differently", versions, detail)
    return [v for v in versions if v.target in different] or versions


def _merge_metadata(base: Metadata | None, several: Sequence[Metadata]) -> Metadata | None:
    """Merge mode, owner, group and each attribute separately; None if one of them was changed in different ways."""
    began = base.attributes if base else {}
    names = sorted({*began, *(name for metadata in several for name in metadata.attributes)})
    fields: list[tuple[Any, list[Any]]] = [
        (base and base.mode, [metadata.mode for metadata in several]),
        (base and base.uid, [metadata.uid for metadata in several]),
        (base and base.gid, [metadata.gid for metadata in several]),
        *((began.get(name), [metadata.attributes.get(name) for metadata in several]) for name in names),
    ]
    different = [_changed_values(old, new) for old, new in fields]
    if any(len(d) > 1 for d in different):
        return None
    mode, uid, gid, *values = (d[0] if d else old for d, (old, _) in zip(different, fields, strict=True))
    return Metadata(mode, uid, gid, {n: v for n, v in zip(names, values, strict=True) if v is not None})


def _changed_values(base: T | None, values: Sequence[T]) -> list[T]:
    """Return the distinct values that differ from the base."""
    found: list[T] = []
    for value in values:
        if value != base and value not in found:
            found.append(value)
    return found


def _proc_path(fd: int) -> str:
    """Return a path to an open entry, for the calls that do not accept an ``O_PATH`` descriptor."""
    return f"/proc/self/fd/{fd}"
