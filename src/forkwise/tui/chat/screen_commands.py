"""Commands that open a screen in a chat when nothing stands behind them, in one table. All others, and these where they
say more, are the session's alone. A screen asks; what was answered is handed to the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from forkwise.chat.events import error_text
from forkwise.concurrency import run_in_thread
from forkwise.tui.chat.approval import AcceptanceScreen
from forkwise.tui.chat.pickers import NWAY, DiffPicker, ForkPicker, MergePicker, MergeRow
from forkwise.tui.decide import PreviewScreen
from forkwise.tui.diff_view import DiffScreen, NwayScreen
from forkwise.tui.widgets import ChoiceScreen

if TYPE_CHECKING:
    from forkwise.chat.events import Judged
    from forkwise.chat.session import Session
    from forkwise.chat.slash_commands import Line
    from forkwise.fork.combine import Prepared
    from forkwise.tui.chat.screen import ChatScreen

__all__ = [
    "SCREENS",
    "Opener",
    "branch_diff",
    "choose",
    "opener_of",
    "override",
]


async def choose(session: Session, chat: ChatScreen, path: str = "") -> None:
    """Have all files that branches changed, or one, chosen from; nothing is decided until something is merged."""
    found = await session.choices.line_up()
    lineups = [one for one in found if not path or one.path == path]
    if not lineups:
        chat.show_error(f"no branch that is over changed {path or 'anything'}")
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


_WRITING = 0.2  # seconds between two looks at whether somebody still writes

#: Opens a screen in a chat.
Opener = Callable[["ChatScreen"], Coroutine[Any, Any, None]]


async def fork(chat: ChatScreen) -> None:
    """``/fork``: the branches are asked for."""
    session = _session(chat)
    form = await chat.app.push_screen_wait(ForkPicker(session.fork_form(), session.settings, session.model_name))
    if form is not None:
        await session.open_fork(form)


async def load(chat: ChatScreen) -> None:
    """``/load``: a checkpoint is chosen, the newest first."""
    session = _session(chat)
    found = reversed(await session.checkpoints())
    choices = [
        (one.id, f"{one.created_at.astimezone():%H:%M:%S}  {one.label}  {one.message_count} messages") for one in found
    ]
    if not choices:
        chat.show_error("there is no checkpoint yet")
        return
    chosen = await chat.app.push_screen_wait(ChoiceScreen("go back to", choices))
    if chosen is not None:
        await session.load(chosen)


async def merge(chat: ChatScreen) -> None:
    """``/merge``: a judge is asked. What it is sure of is accepted, looked at or overridden; else a person picks."""
    session = _session(chat)
    verdict = await _judged(chat, session)
    if verdict is None or not verdict.is_sure or verdict.winner is None:
        await override(chat, verdict)
        return
    while chat.prompt.text:  # who is writing would answer with the next enter
        chat.status.tell("judged: send or clear what is written")
        await asyncio.sleep(_WRITING)
    chat.status.tell("")
    while True:
        answer = await chat.app.push_screen_wait(AcceptanceScreen(verdict))
        if answer == "diff":
            text = await run_in_thread(branch_diff, session, verdict.winner)
            await chat.app.push_screen_wait(DiffScreen(f"{verdict.winner}: what it changed", text))
            continue
        if answer == "accept":
            await session.submit(f"/merge {verdict.winner}")
        elif answer == "override":
            await override(chat, verdict)
        return


async def _judged(chat: ChatScreen, session: Session) -> Judged | None:
    """What a judge says, which costs nothing when it is asked again; None where it fails, or is not waited for."""
    chat.verdict = None
    chat.judging = asyncio.create_task(session.submit("/merge judge"))
    chat.status.tell("judging … esc: pick yourself")
    try:
        await asyncio.wait([chat.judging])
        if not chat.judging.cancelled() and (error := chat.judging.exception()) is not None:
            chat.show_error(error_text(error))
    finally:
        chat.judging.cancel()
        chat.judging = None
        chat.status.tell("")
    return chat.verdict


async def override(chat: ChatScreen, verdict: Judged | None) -> None:
    """A person picks, with what the judge said to go by."""
    session = _session(chat)
    rows = [MergeRow(one.label, one.state, one.error or one.preview or "") for one in session.branches()]
    why = "" if verdict is None else f"the judge ({verdict.confidence:.2f}): {verdict.reasoning}"
    picker = MergePicker(
        rows,
        lambda label: run_in_thread(branch_diff, session, label),
        partial(_open_outside, chat),
        preferred=None if verdict is None else verdict.winner,
        why=why,
    )
    choice = await chat.app.push_screen_wait(picker)
    if choice == NWAY:
        await nway(chat)
    elif choice is not None:
        await session.submit(f"/merge {choice}")


async def overrule(chat: ChatScreen) -> None:
    """``/override``: another branch than the one that judges chose is picked."""
    session = _session(chat)
    others = [(label, label) for label in session.overruled]
    chosen = await chat.app.push_screen_wait(ChoiceScreen("take instead", others)) if others else ""
    if chosen is not None:
        await session.submit(f"/override {chosen}")


async def nway(chat: ChatScreen, path: str = "") -> None:
    """``/nway``: all versions of the files, or of one, lined up, to be taken hunk by hunk."""

    await choose(_session(chat), chat, path)


async def tree(chat: ChatScreen) -> None:
    """``/tree``, and ``/go`` and ``/compare`` that say nothing more: places are found by walking."""
    from forkwise.tui.chat.tree_screen import TreeScreen

    screen = TreeScreen(_session(chat))
    await chat.app.push_screen_wait(screen)
    if screen.written:
        chat.submit(screen.written)


async def fork_diff(chat: ChatScreen) -> None:
    """``/fork diff``: a file is chosen, and the branches whose versions of it are compared."""
    session = _session(chat)
    report = await run_in_thread(session.choices.diff)
    touched = {
        path.path: [change.branch_label for change in path.branches.values() if change.operation != "untouched"]
        for path in report.paths
    }
    if not touched:
        chat.show_error("no branch changed a file")
        return
    picker = DiffPicker(touched)
    chosen = await chat.app.push_screen_wait(picker)
    if chosen is not None:
        path, labels = chosen
        if not await session.choices.open_diff(path, labels):
            text = await run_in_thread(_versions, session, path, labels)
            await chat.app.push_screen_wait(DiffScreen(f"{path}: {', '.join(labels)}", text))


def _versions(session: Session, path: str, labels: Sequence[str]) -> str:
    """What some branches made of a file."""
    [found] = session.choices.diff([path]).paths
    changes = [change for change in found.branches.values() if change.branch_label in labels]
    return "\n".join(f"diff {change.branch_label}\n{change.unified_diff_vs_parent}" for change in changes)


async def _open_outside(chat: ChatScreen, label: str) -> None:
    """Show what a branch changed in a diff tool, if there is one."""
    session = _session(chat)
    report = await run_in_thread(session.choices.diff)
    name = _id_of(session, label)
    opened = [await session.choices.open_diff(path.path, [label]) for path, _ in report.changes_of(name)]
    if not any(opened):
        chat.show_error("there is no diff tool: set FORKWISE_DIFFTOOL" if opened else f"{label} changed no file")


def branch_diff(session: Session, label: str) -> str:
    """What a branch changed, as one unified diff."""
    report = session.choices.diff()
    return "".join(change.unified_diff_vs_parent for _, change in report.changes_of(_id_of(session, label)))


def _id_of(session: Session, label: str) -> str:
    return next(one.id for one in session.branches() if one.label == label)


def _session(chat: ChatScreen) -> Session:
    assert chat.session is not None
    return chat.session


#: By the name of a command.
SCREENS: dict[str, Opener] = {
    "fork": fork,
    "fork diff": fork_diff,
    "load": load,
    "merge": merge,
    "nway": nway,
    "override": overrule,
    "tree": tree,
    "go": tree,
    "compare": tree,
}


def opener_of(line: Line) -> Opener | None:
    """What opens the screen that a line asks for; None where the session does it alone."""
    if line.command is None:
        return None
    if line.command.name == "nway":
        return partial(nway, path=line.rest)
    return None if line.rest else SCREENS.get(line.command.name)
