"""Which commits of a workspace stand, and what leads from how all stands now to how it stood at some commit."""

from __future__ import annotations

from collections.abc import Sequence

from forkwise.errors import CommitError
from forkwise.files.commit import Commit

__all__ = ["to_be_undone"]


def to_be_undone(history: Sequence[Commit], head: int) -> list[int]:
    """Which commits, undos and redos have to be taken back, in order, for all to stand as it did at a number.

    A commit with its undos and redos is a chain whose last link says whether it stands.
    """
    if history and head < history[-1].id - 1:
        raise CommitError(f"commits after {head} were collected: the files cannot be had back as they were then")
    chains: dict[int, list[Commit]] = {}
    first_of: dict[int, int] = {}
    for commit in reversed(history):
        first = first_of.get(commit.undoes or 0, commit.id)
        first_of[commit.id] = first
        chains.setdefault(first, []).append(commit)
    drop, bring_back = [], []
    for chain in chains.values():
        then = [commit for commit in chain if commit.id <= head]
        is_standing, was_standing = chain[-1].kind != "undo", bool(then) and then[-1].kind != "undo"
        if is_standing and not was_standing:
            drop.append(chain[-1].id)
        elif was_standing and not is_standing:
            bring_back.append(chain[-1].id)
    return sorted(drop, reverse=True) + sorted(bring_back, reverse=True)
