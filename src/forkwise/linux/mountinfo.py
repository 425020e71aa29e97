"""What is mounted where: whether a directory is a mount point, and the mounts the kernel lists.

Apart from the views because several ask, and none of these questions may touch the mounted filesystem: one whose
server has died would answer with an error, or not at all.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from forkwise.linux.trees import open_beneath

__all__ = ["Mount", "holding", "is_mount_point", "kept_flags", "mounts", "parse_mountinfo"]

_MS_RELATIME = 1 << 21
_ST_RELATIME = 4096
_SAME = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME  # MS_* has the same numbers


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo: ``root`` of the filesystem is seen at ``point``."""

    root: str
    point: str
    fstype: str
    source: str
    options: tuple[str, ...]


def is_mount_point(path: str) -> bool:
    """Whether something is mounted on a directory, told without a word to what is mounted there."""
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


def kept_flags(path: str) -> int:
    """The flags for mount(2) that a remount of ``path`` has to repeat, because it drops what it does not name."""
    found = os.statvfs(path).f_flag
    return found & _SAME | (_MS_RELATIME if found & _ST_RELATIME else 0)


def mounts() -> list[Mount]:
    """All mounts of this process's namespace, in the order they are stacked."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def parse_mountinfo(text: str) -> list[Mount]:
    """Read the format of /proc/self/mountinfo.

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
        # Split before unescaping: daxfs and others may have a comma inside a value.
        words = tuple(map(_unescape, options.split(",")))
        found.append(Mount(_unescape(root), _unescape(point), fstype, _unescape(source), words))
    return found


def holding(path: str, among: Iterable[Mount]) -> Mount | None:
    """The mount on which an absolute real path lies: the innermost, and of several on one point the last."""
    best: Mount | None = None
    for mount in among:
        inside = mount.point in ("/", path) or path.startswith(f"{mount.point}/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)
