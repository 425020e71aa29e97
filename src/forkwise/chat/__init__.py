"""Opening a chat without keeping anybody waiting: what an agent needs is loaded in a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from forkwise.chat.events import Listener
from forkwise.concurrency import run_in_thread

if TYPE_CHECKING:
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
    listener: Listener | None = None,
) -> Session:
    """`Session.open`, with all that it imports loaded while the event loop goes on."""
    await run_in_thread(import_module, "forkwise.chat.session")
    from forkwise.chat.session import Session

    return await Session.open(
        directory, model=model, conversation=conversation, is_new=is_new, ask=ask, listener=listener
    )
