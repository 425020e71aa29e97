"""A fork with branches in memory, and the report and outcomes that a judge gets of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from forkwise import BranchDiffReport, BranchOutcome, build_diff_report
from forkwise.live.diff.build import BranchLike

__all__ = ["Files", "Scene", "outcome", "report_of"]


class Files:
    """The files of a branch: the parent's contents, and the branch's changes (None: deleted)."""

    def __init__(self, parent: Mapping[str, bytes], written: Mapping[str, bytes | None]) -> None:
        self.parent = parent
        self.written = written

    def touched(self) -> list[str]:
        return list(self.written)

    def old(self, path: str) -> bytes | None:
        return self.parent.get(path)

    def new(self, path: str) -> bytes | None:
        return self.written[path] if path in self.written else self.parent.get(path)


@dataclass
class Scene:
    """Build branches ``a``, ``b``, … of a parent, with the labels ``the a``, ``the b``."""

    parent: Mapping[str, bytes] = field(default_factory=dict)
    branches: Mapping[str, Mapping[str, bytes | None] | None] = field(default_factory=dict)

    @property
    def runtimes(self) -> list[BranchLike]:
        return [
            SimpleNamespace(
                status=SimpleNamespace(id=name),
                spec=SimpleNamespace(label=f"the {name}"),
                overlay=None if written is None else Files(self.parent, written),
            )
            for name, written in self.branches.items()
        ]

    def report(self, paths: list[str] | None = None) -> BranchDiffReport:
        return build_diff_report("fork", self.runtimes, paths_filter=paths)


def report_of(parent: Mapping[str, bytes], **branches: Mapping[str, bytes | None] | None) -> BranchDiffReport:
    """Build the diff report of branches of a parent."""
    return Scene(parent, branches).report()


def outcome(name: str, **options: Any) -> BranchOutcome:
    """Build the outcome of a branch."""
    settings: dict[str, Any] = {
        "branch_id": name,
        "branch_label": f"the {name}",
        "steer": f"do it the {name} way",
        "final_assistant_message": f"{name} is done",
        "cost_usd": 0.01,
        "turns": 4,
        "error_count": 0,
        "retry_count": 0,
        "stuck_loop_hits": 0,
    }
    return BranchOutcome(**(settings | options))
