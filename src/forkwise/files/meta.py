"""Meta: what a directory is beside what it holds, before and after a commit."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any

__all__ = ["Meta", "facts", "has_same_owner"]


@dataclass(slots=True)
class Meta:
    """A directory's own metadata before and after: mode, owner, mtime and, where they differ, attributes. ``changed``
    is when somebody had last changed it, by the filesystem's clock, ``inode`` its number."""

    path: str
    before: list[int]
    after: list[int]
    changed: int = 0
    inode: int = 0
    attributes_before: dict[str, str] | None = None
    attributes_after: dict[str, str] | None = None

    @classmethod
    def change(
        cls,
        path: str,
        old: os.stat_result | None,
        new: os.stat_result | None,
        old_attributes: dict[str, bytes] | None = None,
        new_attributes: dict[str, bytes] | None = None,
        *,
        keeps_time: bool = False,
    ) -> Meta:
        """Metadata that goes from one to the other; ``keeps_time`` leaves the mtime to the filesystem."""
        after = facts(new)
        if old is not None and new is not None and has_same_owner(new, old):
            after[1:3] = old.st_uid, old.st_gid
        meta = cls(path, facts(old), after, *((0, 0) if old is None else (old.st_ctime_ns, old.st_ino)))
        if keeps_time:
            meta.after[3] = -1
        if old_attributes != new_attributes:
            meta.attributes_before = {k: v.hex() for k, v in (old_attributes or {}).items()}
            meta.attributes_after = {k: v.hex() for k, v in (new_attributes or {}).items()}
        return meta

    def inverse(self) -> Meta:
        attributes = self.attributes_after, self.attributes_before
        return Meta(self.path, self.after, self.before, self.changed, self.inode, *attributes)

    def dump(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]


def facts(entry: os.stat_result | None) -> list[int]:
    """A directory's metadata as the journal keeps it."""
    assert entry is not None
    return [stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid, entry.st_mtime_ns]


def has_same_owner(new: os.stat_result, old: os.stat_result) -> bool:
    """Whether what lies in a layer is owned as what it was made from. Who is not root cannot give things to others:
    what is made from somebody else's is theirs in the layer, and nobody has changed that."""
    if new.st_uid == old.st_uid:
        return new.st_gid == old.st_gid
    return new.st_uid == os.geteuid() != 0
