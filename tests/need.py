"""Requirements of tests: a test skips if the machine lacks something, unless this run must not skip.

With ``FORKWISE_MUST_WORK=1``, as in ``.ci/run``, every such skip is a failure, so that no test is skipped unnoticed.
"""

from __future__ import annotations

import os

import pytest

__all__ = ["need"]


def need(condition: bool, reason: str) -> None:
    """Skip the test with ``reason`` unless ``condition`` holds. With ``FORKWISE_MUST_WORK=1``, fail it instead."""
    if condition:
        return
    if os.environ.get("FORKWISE_MUST_WORK") == "1":
        pytest.fail(f"FORKWISE_MUST_WORK=1, but: {reason}", pytrace=False)
    pytest.skip(reason)
