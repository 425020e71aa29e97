"""Agreement: what several branches' versions of one path come to together, or why they do not go together.

Apart from the combination that walks the trees and writes: here one path is decided, and nothing is changed.
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
    """A path that several branches changed in ways that do not go together.

    ``branches`` are those involved, in their order; of a directory that one deleted and another changed inside, the
    path is the directory's. ``hunks``, for the kind ``content``, are the lines in question: *theirs* is the first
    branch that does not fit, *ours* what those before it came to.
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
    """What an entry is beside its type and content: mode, owner, and the attributes a user gave it."""

    mode: int
    uid: int
    gid: int
    attributes: Mapping[str, bytes]

    @classmethod
    def of(cls, fd: int) -> Metadata:
        """Those of an open entry; a descriptor of O_PATH will do."""
        found = os.fstat(fd)
        return cls(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, user_attributes(_again(fd)))

    def apply_to(self, fd: int) -> None:
        """Make them those of an open entry."""
        path, now = _again(fd), Metadata.of(fd)
        for attribute in now.attributes.keys() - self.attributes.keys():
            os.removexattr(path, attribute)
        for attribute, value in self.attributes.items():
            if now.attributes.get(attribute) != value:
                os.setxattr(path, attribute, value)
        if (now.uid, now.gid) != (self.uid, self.gid):
            os.chown(path, self.uid, self.gid)
        if stat.S_IMODE(os.fstat(fd).st_mode) != self.mode:  # a change of owner or of an access list changes it
            os.chmod(path, self.mode)


class Version(NamedTuple):
    """What a branch has at a path: ``found`` beneath the directory ``root``, or nothing, if that is None."""

    branch: str
    root: int
    path: str
    found: os.stat_result | None

    @property
    def type(self) -> EntryType | None:
        return None if self.found is None else entry_type(self.found.st_mode)

    @contextmanager
    def opened(self, flags: int = os.O_PATH | os.O_NOFOLLOW) -> Iterator[int]:
        fd = open_beneath(self.root, self.path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def looks(self) -> Metadata:
        with self.opened() as fd:
            return Metadata.of(fd)

    @property
    def content(self) -> bytes:
        """What a file holds."""
        with self.opened(_READ) as fd, open(fd, "rb", closefd=False) as file:
            return file.read()

    @property
    def target(self) -> str:
        """Where a symlink leads."""
        with self.opened() as fd:
            return os.readlink("", dir_fd=fd)

    def has_content_of(self, other: Version) -> bool:
        """Whether two files hold the same; block by block, however large they are."""
        if self.found is None or other.found is None or self.found.st_size != other.found.st_size:
            return False
        with (
            self.opened(_READ) as one,
            other.opened(_READ) as two,
            open(one, "rb", closefd=False) as mine,
            open(two, "rb", closefd=False) as its,
        ):
            while block := mine.read(_BLOCK):
                if block != its.read(_BLOCK):
                    return False
            return True

    def is_same_as(self, other: Version) -> bool:
        """Whether both have the same: of directories, whether these themselves look alike. Times do not count."""
        if self.type != other.type:
            return False
        if self.type is None or self.looks != other.looks:
            return self.type is None
        if self.type == "file":
            return self.has_content_of(other)
        return self.type != "symlink" or self.target == other.target


class MergedPath(NamedTuple):
    """What a path becomes: what ``source`` has, but with ``content`` or ``looks`` where those are merged."""

    source: Version
    content: bytes | None = None
    looks: Metadata | None = None

    @property
    def is_merged(self) -> bool:
        return self.content is not None or self.looks is not None


def merge_path(base: Version, versions: Sequence[Version]) -> MergedPath | Clash:
    """What versions of one path come to, all taken together, or how they clash.

    ``base`` is what all of them began as. A single version is taken as it is, and not even opened.
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
    began = base if base.type == first.type else None
    if first.type == "file":
        alike = _agree_on_content(began, versions)
    elif first.type == "symlink":
        alike = _agree_on_target(began, versions)
    else:
        alike = versions
    if isinstance(alike, Clash):
        return alike
    looks = _agree_on_looks(began and began.looks, [v.looks for v in versions])
    if looks is None:
        return _clash("metadata", versions, f"{_names(versions)} gave it different modes, owners or attributes")
    if isinstance(alike, bytes):
        return MergedPath(first, alike, looks)
    as_it_is = next((v for v in alike if v.looks == looks), None)
    return MergedPath(as_it_is) if as_it_is else MergedPath(alike[0], None, looks)


def _clash(kind: ClashKind, versions: Sequence[Version], detail: str, hunks: tuple[ConflictHunk, ...] = ()) -> Clash:
    return Clash(versions[0].path or ".", kind, tuple(v.branch for v in versions), detail, hunks)


def _names(versions: Sequence[Version]) -> str:
    return ", ".join(v.branch for v in versions)


def _agree_on_content(base: Version | None, versions: Sequence[Version]) -> Sequence[Version] | bytes | Clash:
    """The versions that have the content agreed on, or that content itself, where it is merged."""
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
        return _clash("added differently", versions, f"{_names(versions)} put files there that are not the same")
    several = [base, *(g[0] for g in groups)]
    if any(v.found and v.found.st_size > LIMIT for v in several):
        return _clash("large", versions, f"{_names(versions)} changed it, and it is too large to be merged")
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


def _agree_on_target(base: Version | None, versions: Sequence[Version]) -> Sequence[Version] | Clash:
    different = _different(base and base.target, [v.target for v in versions])
    if len(different) > 1:
        detail = f"{_names(versions)} have symlinks there that do not lead to the same"
        return _clash("target" if base else "added differently", versions, detail)
    return [v for v in versions if v.target in different] or versions


def _agree_on_looks(base: Metadata | None, several: Sequence[Metadata]) -> Metadata | None:
    """Mode, owner, group and every attribute by itself; None where one of them was changed in different ways."""
    began = base.attributes if base else {}
    names = sorted({*began, *(name for looks in several for name in looks.attributes)})
    fields: list[tuple[Any, list[Any]]] = [
        (base and base.mode, [looks.mode for looks in several]),
        (base and base.uid, [looks.uid for looks in several]),
        (base and base.gid, [looks.gid for looks in several]),
        *((began.get(name), [looks.attributes.get(name) for looks in several]) for name in names),
    ]
    different = [_different(old, new) for old, new in fields]
    if any(len(d) > 1 for d in different):
        return None
    mode, uid, gid, *values = (d[0] if d else old for d, (old, _) in zip(different, fields, strict=True))
    return Metadata(mode, uid, gid, {n: v for n, v in zip(names, values, strict=True) if v is not None})


def _different(base: T | None, values: Sequence[T]) -> list[T]:
    """The values that are not the base's, each once."""
    found: list[T] = []
    for value in values:
        if value != base and value not in found:
            found.append(value)
    return found


def _again(fd: int) -> str:
    """An open entry by a path, for the calls that take no descriptor of O_PATH."""
    return f"/proc/self/fd/{fd}"
