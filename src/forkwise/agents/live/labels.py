"""Labels of branches: what people call them. Each is used once in a fork, and can be the name of a directory."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["plain_labels"]

_LONGEST = 80
_ODD = re.compile(r"[/\\\x00-\x1f\x7f]+")


def plain_labels(labels: Iterable[str]) -> list[str]:
    """The labels as they are used: without what leads out of a directory, and each once.

    >>> plain_labels(["fast", "fast", " ", "../../etc/x"])
    ['fast', 'fast-2', 'branch-3', 'etc-x']
    """
    used: set[str] = set()
    plain = []
    for number, label in enumerate(labels, start=1):
        first = name = _ODD.sub("-", label).lstrip(" .-").rstrip()[:_LONGEST] or f"branch-{number}"
        times = 1
        while name.casefold() in used:
            times += 1
            name = f"{first}-{times}"
        used.add(name.casefold())
        plain.append(name)
    return plain
