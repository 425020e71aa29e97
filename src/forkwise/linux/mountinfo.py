"""The mount table: the mounts in /proc/self/mountinfo, and whether a directory is a mount point.

Nothing here touches the mounted filesystem itself: a FUSE mount whose server died would answer with an error, or not at
all.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from forkwise.linux.trees import open_beneath

__all__ = ["MountEntry", "find_entry", "is_mount_point", "mounts", "parse_mountinfo", "remount_flags"]

_MS_RELATIME = 1 << 21
_ST_RELATIME = 4096
# The ST_* flags of statvfs(3) that have the same values as the MS_* flags of mount(2).
_SAME = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of /proc/self/mountinfo: directory ``root`` of the filesystem is mounted at ``point``."""

    root: str
    point: str
    fstype: str
    source: str
    options: tuple[str, ...]


def is_mount_point(path: str) -> bool:
    """Return whether a directory is a mount point, without touching the mounted filesystem."""
    above, name = os.path.split(path)
    directory = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(open_beneath(directory, name, os.O_PATH))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return True
    finally:
        os.close(directory)
    return False


def remount_flags(path: str) -> int:
    """Return the flags for mount(2) that a remount of ``path`` has to repeat, because it clears all others."""
    found = os.statvfs(path).f_flag
    return found & _SAME | (_MS_RELATIME if found & _ST_RELATIME else 0)


def mounts() -> list[MountEntry]:
    """List all mounts of this process's mount namespace, in the order in which they are stacked."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def parse_mountinfo(text: str) -> list[MountEntry]:
    """Parse the format of /proc/self/mountinfo.

    >>> parse_mountinfo("36 35 98:0 / /mnt/a\\\\040b rw,noatime shared:1 - fuse branchfs rw,user_id=0")[0].point
    '/mnt/a b'
    """
    found = []
    for line in text.split("\n"):
        if not line:
            continue
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split(" ")
        fstype, source, options = after.split(" ")
        # Split before unescaping: daxfs and others may have an escaped comma inside a value.
        words = tuple(map(_unescape, options.split(",")))
        found.append(MountEntry(_unescape(root), _unescape(point), fstype, _unescape(source), words))
    return found


def find_entry(path: str, entries: Iterable[MountEntry]) -> MountEntry | None:
    """Find the mount that contains an absolute real path: the innermost, and the last of several on one mount point."""
    best: MountEntry | None = None
    for mount in entries:
        inside = mount.point in ("/", path) or path.startswith(f"{mount.point}/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)
