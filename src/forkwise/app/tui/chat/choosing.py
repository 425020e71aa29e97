"""Choosing: the open fork decided hunk by hunk: all versions of its files are lined up, what is taken of whom is put
together, tested and looked at, and only then merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkwise.app.tui.nway import NwayScreen
from forkwise.app.tui.preview import PreviewScreen

if TYPE_CHECKING:
    from forkwise.app.chat.session import Session
    from forkwise.app.tui.chat.screen import ChatScreen
    from forkwise.fork.choosing import Prepared

__all__ = ["choose"]


async def choose(session: Session, chat: ChatScreen, path: str = "") -> None:
    """Have all files that branches changed, or one, chosen from; nothing is decided until something is merged."""
    found = await session.choices.line_up()
    lineups = [one for one in found if not path or one.path == path]
    if not lineups:
        chat.complain(f"no branch that is over changed {path or 'anything'}")
        return
    names = {view.id: view.label for view in session.branches()}
    nway = NwayScreen(lineups, names=names)
    while await chat.app.push_screen_wait(nway):
        preview = PreviewScreen(session.choices.prepare(dict(nway.choice)), names)
        wanted: Prepared | None = None
        try:
            wanted = await chat.app.push_screen_wait(preview)
        finally:
            if preview.prepared is not None and wanted is None:
                await session.choices.drop(preview.prepared)
        if wanted is not None:
            await session.choose(wanted)
            return
        nway = NwayScreen(lineups, nway.choice, names)
