"""Requirements of tests: a test skips if the machine lacks something, unless this run must not skip.

With ``FORKWISE_MUST_WORK=1``, as in ``.ci/run``, every such skip is a failure, so that no test is skipped unnoticed.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from forkwise import Workspace

__all__ = ["need", "need_recorded_changes", "need_user_name"]


def need(condition: bool, reason: str) -> None:
    """Skip the test with ``reason`` unless ``condition`` holds. With ``FORKWISE_MUST_WORK=1``, fail it instead."""
    if condition:
        return
    if os.environ.get("FORKWISE_MUST_WORK") == "1":
        pytest.fail(f"FORKWISE_MUST_WORK=1, but: {reason}", pytrace=False)
    pytest.skip(reason)


def need_recorded_changes(directory: Path) -> None:
    """Skip the test if an agent's changes in a workspace itself cannot be undone, because a branch is a copy."""
    reason = "an agent's changes in the workspace itself are recorded only with a view that does not copy"
    need(not Workspace(directory).child_view().whole, reason)


def need_user_name() -> None:
    """Skip the test if the id of this user has no name: fusermount3 refuses to mount for it."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        need(False, f"fusermount3 needs a user name, and the user id {os.getuid()} has none")
