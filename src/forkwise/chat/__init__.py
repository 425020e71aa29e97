"""A chat session without a screen: an agent in a workspace, with its conversation and its forks.

`open_session` is the entrance. It imports the agent libraries in a thread, so that the event loop is not blocked and a
user interface can draw its first frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from forkwise.concurrency import run_in_thread

if TYPE_CHECKING:
    from forkwise.chat.events import Listener
    from forkwise.chat.session import Session

__all__ = [
    "open_session",
]


async def open_session(
    directory: Path,
    *,
    model: str | None = None,
    conversation: str | None = None,
    is_new: bool = False,
    ask: Sequence[str] = (),
    allow_executable_config: bool = False,
    listener: Listener | None = None,
) -> Session:
    """Open a session as `Session.open` does, importing what it needs in a thread."""
    await run_in_thread(import_module, "forkwise.chat.session")
    from forkwise.chat.session import Session

    return await Session.open(
        directory,
        model=model,
        conversation=conversation,
        is_new=is_new,
        ask=ask,
        allow_executable_config=allow_executable_config,
        listener=listener,
    )
