"""Trees of small files, the same for forkwise and for every peer."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["content", "files", "name", "walk", "write"]


def name(number: int) -> str:
    """Return the path of a file by its number: 100 files in a directory, 25 directories in a parent directory."""
    return f"{number // 2500:02d}/{number // 100 % 25:02d}/file-{number % 100:02d}.txt"


def content(number: int, size: int) -> bytes:
    """Return the content of a file by its number; no two files have the same."""
    line = f"{name(number)} {number * 2654435761 % 2**32:08x}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def files(count: int, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield all files of a tree."""
    return ((name(n), content(n, size)) for n in range(count))


def write(root: str, count: int, size: int) -> None:
    """Write a tree into a new directory."""
    made: set[str] = set()
    for path, data in files(count, size):
        directory = os.path.dirname(path)
        if directory not in made:
            os.makedirs(f"{root}/{directory}")
            made.add(directory)
        with open(f"{root}/{path}", "wb") as file:
            file.write(data)


def walk(root: str) -> int:
    """Read every directory and stat every entry; return the number of entries."""
    count = 0
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return count
