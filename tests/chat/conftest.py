"""Chats run on asyncio, on a small project with a state of its own, of which nothing is left afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkwise import Workspace
from tests.chat.scripted_chat import write_script
from tests.cli.conftest import state
from tests.leftovers import workspace

__all__ = ["anyio_backend", "model", "project", "state", "workspace"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def project(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that is chatted in."""
    monkeypatch.delenv("FORKWISE_DIFFTOOL", raising=False)
    return workspace.path


@pytest.fixture
def model(workspace: Workspace) -> str:
    """A model that plays the script of `talking`."""
    room = workspace.path.parent / "script"
    room.mkdir()
    return write_script(room)
