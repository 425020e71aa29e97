"""Commands that open a screen when they are typed without arguments, such as ``/fork`` and ``/merge``.

The session runs all other lines, and these commands with arguments. A screen only asks the user; the session does the
work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from forkwise.chat.events import error_text
from forkwise.concurrency import run_in_thread
from forkwise.errors import ExecutableConfigError
from forkwise.tui.chat.approval import TYPED, AcceptanceScreen
from forkwise.tui.chat.pickers import NWAY, DiffPicker, ForkPicker, MergePicker, MergeRow
from forkwise.tui.decide import PreviewScreen, ask_about_executables
from forkwise.tui.diff_view import DiffScreen, NwayScreen
from forkwise.tui.transcript_entry import strip_markdown
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
    "choose",
    "find_opener",
    "override",
    "read_branch_diff",
]


async def choose(session: Session, chat: ChatScreen, path: str = "") -> None:
    """Let the user choose hunks of all changed files, or of one; the fork stays open until the choice is merged."""
    found = await session.choices.line_up()
    lineups = [one for one in found if not path or one.path == path]
    if not lineups:
        chat.show_error(f"no branch that has ended changed {path or 'any file'}")
        return
    names = {view.id: view.label for view in session.branches()}
    nway = NwayScreen(lineups, names=names)
    while await chat.app.push_screen_wait(nway):
        preview = PreviewScreen(session.choices.prepare(dict(nway.choice)), names)
        accepted: Prepared | None = None
        try:
            accepted = await chat.app.push_screen_wait(preview)
        finally:
            if preview.prepared is not None and accepted is None:
                await session.choices.drop(preview.prepared)
        if accepted is not None:
            await _commit_choice(session, chat, accepted)
            return
        nway = NwayScreen(lineups, nway.choice, names)


async def _commit_choice(session: Session, chat: ChatScreen, prepared: Prepared) -> None:
    """Commit a choice; ask first if it changes what the user's machine will run."""
    try:
        await session.choose(prepared)
    except ExecutableConfigError as error:
        if await chat.app.push_screen_wait(ask_about_executables(error.executors.items())):
            await session.choose(prepared, allow_executable_config=True)
        else:
            await session.choices.drop(prepared)


_POLL_S = 0.2  # seconds between two checks whether the prompt is still in use

#: Opens a screen of a chat.
Opener = Callable[["ChatScreen"], Coroutine[Any, Any, None]]


async def fork(chat: ChatScreen) -> None:
    """Ask for the branches of a new fork (``/fork``)."""
    session = _session(chat)
    form = await chat.app.push_screen_wait(ForkPicker(session.fork_form(), session.settings, session.model_name))
    if form is not None:
        await session.open_fork(form)


async def load(chat: ChatScreen) -> None:
    """Ask for a checkpoint to load, the newest first (``/load``)."""
    session = _session(chat)
    found = reversed(await session.checkpoints())
    choices = [
        (one.id, f"{one.created_at.astimezone():%H:%M:%S}  {one.label}  {one.message_count} messages") for one in found
    ]
    if not choices:
        chat.show_error("there is no checkpoint yet")
        return
    chosen = await chat.app.push_screen_wait(ChoiceScreen("load a checkpoint", choices))
    if chosen is not None:
        await session.load(chosen)


async def merge(chat: ChatScreen) -> None:
    """Ask a judge, then the user (``/merge``): accept the verdict, see its diff, or pick another branch.

    Without a confident verdict the user picks at once.
    """
    session = _session(chat)
    verdict = await _ask_judge(chat, session)
    if verdict is None or not verdict.is_sure or verdict.winner is None:
        await override(chat, verdict)
        return
    while True:
        while chat.prompt.text:  # the next enter is meant for the prompt, and would accept the verdict
            chat.status.show_state("judged: send or clear the prompt to continue")
            await asyncio.sleep(_POLL_S)
        chat.status.show_state("")
        answer = await chat.app.push_screen_wait(AcceptanceScreen(verdict))
        if answer is not None and answer.startswith(TYPED):
            chat.prompt.insert(answer.removeprefix(TYPED))
            continue
        if answer == "diff":
            text = await run_in_thread(read_branch_diff, session, verdict.winner)
            await chat.app.push_screen_wait(DiffScreen(f"{verdict.winner}: changes", text))
            continue
        if answer == "accept":
            await session.submit(f"/merge {verdict.winner}")
        elif answer == "override":
            await override(chat, verdict)
        return


async def _ask_judge(chat: ChatScreen, session: Session) -> Judged | None:
    """Ask the judge; None if it fails or the user cancels. The session stores the verdict: asking again is free."""
    chat.verdict = None
    chat.judging = asyncio.create_task(session.submit("/merge judge"))
    chat.status.show_state("judging … esc: pick yourself")
    try:
        await asyncio.wait([chat.judging])
        if not chat.judging.cancelled() and (error := chat.judging.exception()) is not None:
            chat.show_error(error_text(error))
    finally:
        chat.judging.cancel()
        chat.judging = None
        chat.status.show_state("")
    return chat.verdict


async def override(chat: ChatScreen, verdict: Judged | None) -> None:
    """Let the user pick a branch, next to the judge's reasons."""
    session = _session(chat)
    rows = [
        MergeRow(one.label, one.state, one.error or strip_markdown(one.preview or "")) for one in session.branches()
    ]
    why = "" if verdict is None else f"the judge ({verdict.confidence:.2f}): {verdict.reasoning}"
    picker = MergePicker(
        rows,
        lambda label: run_in_thread(read_branch_diff, session, label),
        partial(_open_difftool, chat),
        preferred=None if verdict is None else verdict.winner,
        why=why,
    )
    choice = await chat.app.push_screen_wait(picker)
    if choice == NWAY:
        await nway(chat)
    elif choice is not None:
        await session.submit(f"/merge {choice}")


async def overrule(chat: ChatScreen) -> None:
    """Ask for the branch to keep instead of the judge's (``/override``)."""
    session = _session(chat)
    others = [(label, label) for label in session.overruled]
    chosen = await chat.app.push_screen_wait(ChoiceScreen("keep instead", others)) if others else ""
    if chosen is not None:
        await session.submit(f"/override {chosen}")


async def nway(chat: ChatScreen, path: str = "") -> None:
    """Show all versions side by side, to choose hunk by hunk (``/nway``)."""
    await choose(_session(chat), chat, path)


async def tree(chat: ChatScreen) -> None:
    """Show the conversation as a tree (``/tree``, and ``/go`` and ``/compare`` without arguments)."""
    from forkwise.tui.chat.tree_screen import TreeScreen

    screen = TreeScreen(_session(chat))
    await chat.app.push_screen_wait(screen)
    if screen.prompt_text:
        chat.submit(screen.prompt_text)


async def fork_diff(chat: ChatScreen) -> None:
    """Ask for a file and for the branches to compare (``/fork diff``)."""
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
            text = await run_in_thread(_read_versions, session, path, labels)
            await chat.app.push_screen_wait(DiffScreen(f"{path}: {', '.join(labels)}", text))


def _read_versions(session: Session, path: str, labels: Sequence[str]) -> str:
    """Return the diffs of a file in some branches."""
    [found] = session.choices.diff([path]).paths
    changes = [change for change in found.branches.values() if change.branch_label in labels]
    return "\n".join(f"diff {change.branch_label}\n{change.unified_diff_vs_parent}" for change in changes)


async def _open_difftool(chat: ChatScreen, label: str) -> None:
    """Open the changes of a branch in a diff tool, if one is installed."""
    session = _session(chat)
    report = await run_in_thread(session.choices.diff)
    name = _find_id(session, label)
    opened = [await session.choices.open_diff(path.path, [label]) for path, _ in report.changes_of(name)]
    if not any(opened):
        chat.show_error("no diff tool was found: set FORKWISE_DIFFTOOL" if opened else f"{label} changed no file")


def read_branch_diff(session: Session, label: str) -> str:
    """Return the changes of a branch as one unified diff."""
    report = session.choices.diff()
    return "".join(change.unified_diff_vs_parent for _, change in report.changes_of(_find_id(session, label)))


def _find_id(session: Session, label: str) -> str:
    return next(one.id for one in session.branches() if one.label == label)


def _session(chat: ChatScreen) -> Session:
    assert chat.session is not None
    return chat.session


#: The screens by the name of their command.
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


def find_opener(line: Line) -> Opener | None:
    """Find the function that opens the screen of a line; None if the session runs the line."""
    if line.command is None:
        return None
    if line.command.name == "nway":
        return partial(nway, path=line.rest)
    return None if line.rest else SCREENS.get(line.command.name)
