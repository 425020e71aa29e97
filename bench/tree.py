"""Trees of small files, the same for forkwise and for every peer."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["content", "files", "name", "plant", "walk"]


def name(number: int) -> str:
    """The path of a file by its number: a hundred in a directory, twenty-five such directories in another."""
    return f"{number // 2500:02d}/{number // 100 % 25:02d}/file-{number % 100:02d}.txt"


def content(number: int, size: int) -> bytes:
    """The content of a file by its number: no two have the same."""
    line = f"{name(number)} {number * 2654435761 % 2**32:08x}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def files(count: int, size: int) -> Iterator[tuple[str, bytes]]:
    """All files of a tree."""
    return ((name(n), content(n, size)) for n in range(count))


def plant(root: str, count: int, size: int) -> None:
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
    """Visit every directory and stat every entry; gives the number of entries."""
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
