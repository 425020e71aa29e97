"""What a test does where the machine lacks something: skip, unless this run promised that everything works.

On CI ``FORKWISE_MUST_WORK=1`` turns every such skip into a failure, so that no view goes untested unnoticed.
"""

from __future__ import annotations

import os

import pytest

__all__ = ["need"]


def need(condition: bool, reason: str) -> None:
    """Go on where ``condition`` holds; else skip the test, or fail it where everything must work."""
    if condition:
        return
    if os.environ.get("FORKWISE_MUST_WORK") == "1":
        pytest.fail(f"FORKWISE_MUST_WORK=1, but: {reason}", pytrace=False)
    pytest.skip(reason)
