"""Fixtures of the protocol's tests: those of chats."""

from __future__ import annotations

from tests.chat.conftest import anyio_backend, model, project, state, workspace

__all__ = ["anyio_backend", "model", "project", "state", "workspace"]
