"""Resolution: the decisions that a page can make, each through the function that the command line calls for it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from forkwise.concurrency import run_sync
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.display.output import totals
from forkwise.errors import (
    BranchingError,
    BranchNotFoundError,
    BranchStaleError,
    ConflictError,
    ExecutableConfigError,
    LedgerError,
)
from forkwise.explore.follow_up import prepare_follow_up
from forkwise.explore.resume import find_retest, find_tests
from forkwise.fork.combine import Prepared, combine_attempts, commit_choice, line_up_attempts, prepare_choice
from forkwise.fork.control import abort_attempt, abort_fork
from forkwise.fork.resolve import pick, replace_winner
from forkwise.fork.stored_fork import undo
from forkwise.git.repository_change import format_left_repositories
from forkwise.text.clean import truncate
from forkwise.text.phrases import format_number
from forkwise.text.redaction import redact
from forkwise.web.conversation_view import find_conversation
from forkwise.web.nway_table import read_choice
from forkwise.web.task import Outcome, OutcomeButton, render_outcome

if TYPE_CHECKING:
    from forkwise.display.attempt_report import AttemptReport
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.fork.evaluators.tests import Tests
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import ForkView

__all__ = ["ACTIONS", "Desk", "Form", "render_actions", "render_no_decision"]

_CONFLICT_ANSWERS: dict[str, OnConflict] = {
    "Merge": "merge",
    "Take the attempt's": "ours",
    "Keep the workspace's": "theirs",
}
_LISTED = 8
_MAX_DIFF = 60_000
_CHOOSE = "Choose attempts with their boxes, or press x."
_CANCEL = OutcomeButton("Cancel", "cancel")


class Form:
    """The values of a form: attempts by their names on the page, and words."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs

    def get(self, name: str) -> str:
        """Return a value; empty if there is none."""
        return next((value for key, value in self._pairs if key == name), "")

    def get_all(self, name: str) -> list[str]:
        """Return all values of a name, each once."""
        return list(dict.fromkeys(value for key, value in self._pairs if key == name))

    def answer(self, label: str, action: str, tone: str = "", **more: str) -> OutcomeButton:
        """Return an answer that sends the same form again, with ``more`` values."""
        kept = {key: value for key, value in self._pairs if key in _KEPT}
        return OutcomeButton(label, action, {**kept, **more}, tone)


_KEPT = ("attempt", "on_conflict", "force", "allow", "prepared", "commit")


class Desk:
    """Makes decisions for the page. ``program`` is the command line of forkwise, for what outlives the server."""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = list(program)
        self._prepared: dict[str, Prepared] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Drop the combinations that were prepared but not committed."""
        with self._lock:
            left, self._prepared = self._prepared, {}
        for prepared in left.values():
            _drop(prepared)

    # One attempt, or several as they are

    def pick(self, view: ForkView, form: Form) -> Outcome:
        """Commit one attempt, and drop the others."""
        attempt = self._find_one(view, form)
        record, name = attempt.record, view.name_of(attempt.record.id)
        is_bad = record.is_over and record.state != "succeeded"
        if not form.get("sure"):
            lines = ["The other attempts are dropped, and those that still run are stopped. You can undo this."]
            if is_bad:
                lines.insert(0, f"It {record.state}: {record.reason or 'without a reason'}.")
            if attempt.tests is not None and attempt.tests.is_tampered:
                lines.insert(0, "It changed the code that reports its tests, so the result cannot be trusted.")
            label = "Commit it anyway" if is_bad else "Commit it"
            sure = form.answer(label, "pick", "main", sure="1")
            return Outcome("warn" if is_bad else "", f"Commit {name}?", lines, [sure, _CANCEL])
        tests = find_retest(view.served.workspace, record.id)

        def commit(on_conflict: OnConflict, allow: bool | None) -> Commit:
            return pick(
                view.served.workspace,
                record.id,
                on_conflict=on_conflict,
                force=is_bad,
                tests=tests,
                allow_executable_config=allow,
            )

        return self._commit(view, form, "pick", commit)

    def combine(self, view: ForkView, form: Form) -> Outcome:
        """Merge several attempts, test the result, and commit it."""
        attempts = [view.find(name).record.id for name in form.get_all("attempt") or form.get("names").split()]
        names = [view.name_of(attempt) for attempt in attempts]
        if len(attempts) < 2:
            raise HTTPException(400, "Choose two attempts or more.")
        again = {"names": " ".join(names)}
        if not form.get("sure"):
            sure = OutcomeButton("Merge, test and commit", "combine", {**again, "sure": "1"}, "main")
            title = f"Merge {', '.join(names)}?"
            return Outcome(
                "", title, ["The merged files are tested first. The fork is decided if they pass."], [sure, _CANCEL]
            )
        work = combine_attempts(
            view.served.workspace,
            attempts,
            tests=_find_tests(view),
            force=bool(form.get("force")),
            allow_executable_config=True if form.get("allow") else None,
        )
        try:
            done = run_sync(work, alone=True)
        except ExecutableConfigError as error:
            allowed = OutcomeButton("Commit it", "combine", {**again, "sure": "1", "allow": "1"}, "bad")
            return _ask_about_executables(error, allowed)
        if done.commit is not None:
            left = list(format_left_repositories(done.left_repositories))
            return self._report(view, done.commit, left)
        if done.conflicts:
            lines = [view.hide(str(conflict)) for conflict in done.conflicts[:_LISTED]]
            link = build_element("a", "Choose hunk by hunk", href=f"{view.path}compare", class_="button main")
            return Outcome("warn", "Their changes conflict; nothing was committed", lines, [], link)
        assert done.tests is not None
        force = OutcomeButton("Commit anyway", "combine", {**again, "sure": "1", "force": "1"}, "bad")
        lines = [done.tests.doubt or done.tests.summary]
        detail = build_element("pre", truncate(done.tests.feedback(), 6000))
        return Outcome("bad", "The tests of the combination fail", lines, [force, _CANCEL], detail)

    # Hunks

    def prepare(self, view: ForkView, form: Form) -> Outcome:
        """Write chosen hunks into a branch, and test it; the fork stays undecided."""
        values = form.get_all("hunk")
        if not values:
            raise HTTPException(400, "Choose at least one change.")
        served, fork = view.served, view.report.fork.id
        choice = read_choice(view, line_up_attempts(served.workspace, fork), values)
        prepared = run_sync(prepare_choice(served.workspace, fork, choice, tests=_find_tests(view)), alone=True)
        name = token_hex(8)
        with self._lock:
            self._prepared[name] = prepared
        tests = prepared.tests
        result = "This fork has no tests" if tests is None else f"Tests: {tests.doubt or tests.summary}"
        lines = [f"{result}. From {', '.join(map(view.name_of, prepared.attempts))}; nothing is committed yet."]
        lines += format_left_repositories(prepared.left_repositories)
        feedback = "" if tests is None or prepared.is_good else tests.feedback()
        commit = OutcomeButton(
            "Commit it" if prepared.is_good else "Commit it anyway", "commit", {"prepared": name}, "main"
        )
        detail = [
            build_element("pre", truncate(feedback, 6000)) if feedback else None,
            build_element("pre", truncate(prepared.diff or "It changes no file.", _MAX_DIFF)),
        ]
        title = "The combination passes" if prepared.is_good and tests is not None else "The combination"
        tone = "good" if prepared.is_good else "bad"
        return Outcome(tone, title, lines, [commit, OutcomeButton("Discard", "discard", {"prepared": name})], detail)

    def commit(self, view: ForkView, form: Form) -> Outcome:
        """Commit a prepared combination."""
        prepared = self._find_prepared(view, form)

        def commit(on_conflict: OnConflict, allow: bool | None) -> Commit:
            return commit_choice(prepared, on_conflict=on_conflict, allow_executable_config=allow)

        outcome = self._commit(view, form, "commit", commit)
        if not outcome.answers:
            with self._lock:
                self._prepared.pop(form.get("prepared"), None)
        return outcome

    def discard(self, view: ForkView, form: Form) -> Outcome:
        """Drop a prepared combination."""
        prepared = self._find_prepared(view, form)
        with self._lock:
            self._prepared.pop(form.get("prepared"), None)
        _drop(prepared)
        return Outcome("", "Discarded", ["The fork is undecided, as before."])

    def _find_prepared(self, view: ForkView, form: Form) -> Prepared:
        with self._lock:
            found = self._prepared.get(form.get("prepared"))
        if found is None or found.fork != view.report.fork.id:
            raise HTTPException(409, "This combination is gone: the server was started again, or it was committed.")
        return found

    # The rest

    def abort(self, view: ForkView, form: Form) -> Outcome:
        """Abort the fork, or attempts of it."""
        chosen = [view.find(name).record.id for name in form.get_all("attempt")]
        fork = view.report.fork.id
        names = ", ".join(map(view.name_of, chosen))
        if not form.get("sure"):
            title = f"Stop {names}?" if chosen else "Abort the fork?"
            text = "The others continue." if chosen else "All of its branches are dropped."
            sure = OutcomeButton(
                "Stop" if chosen else "Abort",
                "abort",
                {"names": " ".join(map(view.name_of, chosen)), "sure": "1"},
                "bad",
            )
            return Outcome("warn", title, [text], [sure, _CANCEL])
        stopped = [view.find(name).record.id for name in form.get("names").split()]
        for attempt in stopped:
            abort_attempt(view.served.workspace, attempt)
        if stopped:
            return Outcome("", f"Stopped {', '.join(map(view.name_of, stopped))}", ["The others continue."])
        abort_fork(view.served.workspace, fork)
        return Outcome("", "Aborted", ["Its branches were dropped."])

    def resume(self, view: ForkView, form: Form) -> Outcome:
        """Resume an interrupted fork, in a process of its own."""
        self.run_detached(view, "resume", view.report.fork.id)
        return Outcome(
            "good",
            "Resumed",
            ["Attempts that have ended are not run again. The fork keeps running if you close this page."],
        )

    def undo(self, view: ForkView, form: Form) -> Outcome:
        """Undo the fork's commit, or its undo."""
        fork = view.report.fork
        number = fork.commit if fork.undone is None else fork.undone
        if number is None:
            raise HTTPException(409, "This fork has no commit.")
        if not form.get("sure"):
            sure = OutcomeButton("Undo it", "undo", {"sure": "1"}, "main")
            return Outcome(
                "",
                f"Undo commit {number}?",
                ["The files are as before, unless they were changed since."],
                [sure, _CANCEL],
            )
        done = undo(view.served.workspace, number)
        return Outcome("good", f"Undid {number} as {done.id}", [f"{totals(done)}."])

    def override(self, view: ForkView, form: Form) -> Outcome:
        """Undo the winner's commit, and commit another attempt instead."""
        attempt = self._find_one(view, form).record.id
        if not form.get("sure"):
            sure = form.answer("Replace the winner", "override", "main", sure="1")
            return Outcome("", f"Commit {attempt} instead of {view.report.fork.winner}?", [], [sure, _CANCEL])
        try:
            landed = replace_winner(
                view.served.workspace,
                view.report.fork.id,
                attempt,
                "keep_newer",
                tests=find_retest(view.served.workspace, attempt),
                allow_executable_config=True if form.get("allow") else None,
            )
        except BranchNotFoundError as error:
            raise HTTPException(409, f"{error}. Branches of losers are kept with --keep.") from error
        except ExecutableConfigError as error:
            return _ask_about_executables(error, form.answer("Commit it", "override", "bad", sure="1", allow="1"))
        return self._report(view, landed.commit)

    def send(self, view: ForkView, form: Form) -> Outcome:
        """Start a follow-up attempt with the comments on an attempt, in a process of its own."""
        attempt = self._find_one(view, form)
        if view.is_hidden:
            raise HTTPException(403, "A follow-up would reveal who made the attempt: choose first, or show the names.")
        recipe, comments = prepare_follow_up(view.served.ledger, attempt.record.id)
        if not form.get("sure"):
            agent = attempt.record.agent or truncate(attempt.label, 80)
            count = format_number(len(comments), "comment")
            text = f"{agent} runs once more, on top of these changes, with {count}. Its result waits for your pick."
            sure = form.answer("Start it", "send", "main", sure="1")
            detail = build_element("pre", redact(recipe.feedback))
            return Outcome("", f"Send {count} to {attempt.record.id}?", [text], [sure, _CANCEL], detail)
        fork = self.run_detached(view, "follow-up", attempt.record.id)
        link = build_element("a", f"Follow {fork}", href=f"/w/{view.served.key}/{fork}/", class_="button main")
        return Outcome("good", f"Started {fork}", ["It continues if you close this page."], [], link)

    def run_detached(self, view: ForkView, *words: str) -> str:
        """Run a command of forkwise that leaves a process in the background; return what it prints."""
        command = [*self._program, *words, "--detach", "--quiet", "-C", str(view.served.directory.resolve())]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BranchingError(done.stderr.strip()[-1000:] or f"forkwise {words[0]} failed")
        return done.stdout.strip()

    def _find_one(self, view: ForkView, form: Form) -> AttemptReport:
        names = form.get_all("attempt")
        if len(names) != 1:
            raise HTTPException(400, "Choose exactly one attempt.")
        return view.find(names[0])

    def _commit(
        self, view: ForkView, form: Form, action: str, commit: Callable[[OnConflict, bool | None], Commit]
    ) -> Outcome:
        """Commit; ask what to do if the workspace was changed meanwhile, or if files that the machine runs change."""
        given = form.get("on_conflict")
        on_conflict: OnConflict = next((one for one in _CONFLICT_ANSWERS.values() if one == given), "refuse")
        try:
            done = commit(on_conflict, True if form.get("allow") else None)
        except ExecutableConfigError as error:
            return _ask_about_executables(error, form.answer("Commit it", action, "bad", sure="1", allow="1"))
        except BranchStaleError:
            raise
        except ConflictError as error:
            lines = [str(conflict) for conflict in error.conflicts[:_LISTED]]
            answers = [
                form.answer(label, action, sure="1", on_conflict=word) for label, word in _CONFLICT_ANSWERS.items()
            ]
            title = "The workspace was changed meanwhile; nothing was committed"
            return Outcome("warn", title, lines or [str(error)], [*answers, _CANCEL])
        return self._report(view, done)

    def _report(self, view: ForkView, done: Commit | None, notes: Sequence[str] = ()) -> Outcome:
        if view.is_blind:
            order = {view.name_of(one.record.id): one.record.id for one in view.attempts}
            view.served.ledger.record_note(view.report.fork.id, "unblinded", {"order": order})
        if done is None:
            return Outcome("good", "Decided", notes)
        return Outcome("good", f"Committed as {done.id}", [f"{totals(done)}.", *notes], [OutcomeButton("Undo", "undo")])


#: The actions of a page: the words shown while one is in progress, and the method that does it.
ACTIONS: Mapping[str, tuple[str, Callable[[Desk, ForkView, Form], Outcome]]] = {
    "abort": ("aborting", Desk.abort),
    "combine": ("merging and testing", Desk.combine),
    "commit": ("committing", Desk.commit),
    "discard": ("discarding", Desk.discard),
    "override": ("replacing the winner", Desk.override),
    "pick": ("committing", Desk.pick),
    "prepare": ("merging and testing", Desk.prepare),
    "resume": ("resuming", Desk.resume),
    "send": ("starting the follow-up", Desk.send),
    "undo": ("undoing", Desk.undo),
}


def _ask_about_executables(error: ExecutableConfigError, allowed: OutcomeButton) -> Outcome:
    lines = [f"{path}: {executor}" for path, executor in list(error.executors.items())[:_LISTED]]
    return Outcome("warn", "This changes what your machine will run. Commit it anyway?", lines, [allowed, _CANCEL])


def _drop(prepared: Prepared) -> None:
    with suppress(BranchNotFoundError):
        prepared.branch.abort()


def _find_tests(view: ForkView) -> Tests | None:
    """Return the fork's tests; None if it has none, or if they are a function of a program that is not stored."""
    try:
        return find_tests(view.served.workspace, view.report.fork)
    except LedgerError:
        return None


def render_actions(view: ForkView, visitor: Visitor) -> Markup:
    """Render the buttons for the decisions that the fork's state allows."""
    fork = view.report.fork
    links: list[Child] = [build_element("a", "Compare all", href=f"{view.path}compare", class_="button")]
    if not fork.is_over:
        other = f"/{'w' if view.is_blind else 'blind'}/{view.served.key}/{fork.id}/"
        links.append(
            build_element("a", "Show names" if view.is_blind else "Compare blind", href=other, class_="button")
        )
    if not view.is_hidden and find_conversation(view) is not None:
        links.append(build_element("a", "Conversation", href=f"{view.path}conversation/", class_="button"))
    if not visitor.can_write:
        return build_element("div", links, class_="actions")
    is_uncommitted = fork.stored == "resolved" and fork.commit is None and fork.parent is None
    buttons: list[Child] = []
    if fork.parent is None:
        if not fork.is_over or is_uncommitted:
            buttons.append(_build_button(view, "Pick", "pick", 1, tone="main", exactly=True))
        if not fork.is_over:
            buttons.append(_build_button(view, "Combine", "combine", 2))
            buttons.append(_build_button(view, "Stop attempts", "abort", 1))
        if fork.commit is not None and fork.undone is None:
            buttons.append(_build_button(view, "Undo", "undo"))
            if fork.winner is not None and len(view.report.attempts) > 1:
                buttons.append(_build_button(view, "Override", "override", 1, exactly=True))
        elif fork.undone is not None:
            buttons.append(_build_button(view, "Undo the undo", "undo"))
        if fork.state == "interrupted" or is_uncommitted:
            buttons.append(_build_button(view, "Resume", "resume", tone="main"))
        if not fork.is_over or is_uncommitted:
            buttons.append(_build_button(view, "Abort all", "abort", tone="bad", alone=True))
    hint = build_element("span", id="chosen", class_="soft small", data_hint=_CHOOSE) if not fork.is_over else None
    return build_element(
        "div", build_element("form", buttons, hint, id="decide", class_="actions"), links, class_="actions"
    )


def _build_button(
    view: ForkView,
    label: str,
    action: str,
    needs: int = 0,
    *,
    tone: str = "",
    exactly: bool = False,
    alone: bool = False,
) -> Markup:
    return build_element(
        "button",
        label,
        type="button",
        class_=tone or None,
        hx_post=f"{view.path}do/{action}",
        hx_target="#decision",
        hx_swap="outerHTML",
        hx_params="not attempt" if alone else None,
        data_needs=str(needs) if needs else None,
        data_exactly="true" if exactly else None,
        disabled=bool(needs),
    )


def render_no_decision(view: ForkView) -> Markup:
    """Render the placeholder in which a decision will be shown."""
    return render_outcome(None, view.path)
