"""Fixtures of chat tests: asyncio, a small project with its own state directory, and a scripted model."""

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
    """The directory of the chat."""
    monkeypatch.delenv("FORKWISE_DIFFTOOL", raising=False)
    return workspace.path


@pytest.fixture
def model(workspace: Workspace) -> str:
    """A model that plays `SCRIPT` of `scripted_chat`."""
    directory = workspace.path.parent / "script"
    directory.mkdir()
    return write_script(directory)
