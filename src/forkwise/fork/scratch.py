"""Scratch: a branch in which something is run for what it says, such as tests or a judge, and which nobody commits.

Apart, because what is left of one after a kill is known by its name, and goes although it holds changes.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkwise.files.branch import Branch
from forkwise.files.parent import Parent
from forkwise.sandbox.threads import in_thread, to_its_end

__all__ = ["is_scratch", "scratch"]

_NAME = re.compile(r"scratch-[0-9a-f]{12}")


@asynccontextmanager
async def scratch(parent: Parent) -> AsyncIterator[Branch]:
    """A new branch, dropped when the block ends."""
    making = in_thread(parent.branch, f"scratch-{secrets.token_hex(6)}", None, None)
    try:
        yield await asyncio.shield(making)
    finally:
        branch = await to_its_end(making)  # cancelled or not: else it would be nobody's
        await to_its_end(in_thread(branch.abort))


def is_scratch(branch: Branch) -> bool:
    """Whether a branch was made for that."""
    return _NAME.fullmatch(branch.name) is not None
