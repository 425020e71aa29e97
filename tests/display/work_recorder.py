"""A listener that records what long work reports."""

from __future__ import annotations

from forkwise.progress import Work

__all__ = ["WorkRecorder"]


class WorkRecorder:
    """Records each piece of work that has ended: what it was, how far it came, and how much there was."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int, int | None]] = []

    def begin(self, work: Work) -> None:
        pass

    def end(self, work: Work) -> None:
        self.ended.append((work.description, work.done, work.total))
