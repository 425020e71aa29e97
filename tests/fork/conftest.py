"""A workspace whose forks are killed, with a check that nothing is left after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import Workspace
from tests.fork.kill_at_point import Scene
from tests.leftovers import workspace

__all__ = ["scene", "workspace"]


@pytest.fixture
def scene(workspace: Workspace, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A workspace and its helpers. Cleans up only after a failed test: the others must leave nothing behind."""
    outside = tmp_path / "outside"
    outside.mkdir()
    failed = request.session.testsfailed
    yield Scene(workspace, outside)
    if request.session.testsfailed > failed:
        for branch in reversed(workspace.branches()):
            branch.abort()
