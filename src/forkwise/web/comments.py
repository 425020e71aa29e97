"""Comments: what people say about a fork, an attempt, a file or a line, kept in the ledger."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from forkwise.display.html.fork_page import format_moment
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.errors import LedgerError
from forkwise.explore.follow_up import find_follow_ups, find_unsent, format_comments
from forkwise.testing.report import TestReport
from forkwise.text.clean import truncate, truncate_line, truncate_middle
from forkwise.text.diff import lines_of
from forkwise.text.phrases import format_number
from forkwise.web.fork_list import FORK_WORDS
from forkwise.web.page_shell import build_panel

if TYPE_CHECKING:
    from forkwise.display.attempt_report import AttemptReport
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import ForkView
    from forkwise.web.resolution import Form

__all__ = ["add_comment", "render_comments", "render_follow_ups"]

_MAX_COMMENT = 10_000
_MAX_QUOTE = 300
_MOST_COMMENTS = 500
_MOST_FOLLOW_UPS = 50


def add_comment(view: ForkView, form: Form) -> None:
    """Record a comment sent by a form. Raises HTTPException if it is empty, or if its subject does not exist."""
    text = form.get("text").replace("\r\n", "\n").strip()
    if not text:
        raise HTTPException(400, "Write something first.")
    if len(text) > _MAX_COMMENT:
        raise HTTPException(413, f"A comment has at most {_MAX_COMMENT} characters.")
    comment: dict[str, Any] = {"text": text, "author": _find_author()}
    if name := form.get("attempt"):
        attempt = view.find(name)
        comment["attempt"] = attempt.record.id
        if path := form.get("path"):
            file = next((one for one in view.read_files(attempt) if one.path == path), None)
            if file is None:
                raise HTTPException(404, f"{name} did not change {truncate_middle(path, 200)}.")
            comment["path"] = path.encode("utf-8", "surrogateescape").decode(errors="replace")
            line, side = form.get("line"), "old" if form.get("side") == "old" else "new"
            version = file.old if side == "old" else file.new
            lines = [] if version is None or version.content is None else lines_of(version.content)
            if line.isascii() and line.isdecimal() and len(line) < 9 and 0 < int(line) <= len(lines):
                quote = lines[int(line) - 1].decode(errors="replace").rstrip("\r\n")
                comment |= {"line": int(line), "side": side, "quote": quote[:_MAX_QUOTE]}
    view.served.ledger.record_comment(view.report.fork.id, comment)


def _find_author() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def render_comments(view: ForkView, visitor: Visitor, attempt: str = "") -> Markup:
    """Render the comments on a fork, or those on one attempt, and the form for another one."""
    found = view.served.ledger.find_comments(view.report.fork.id)[-_MOST_COMMENTS:]
    wanted = view.find(attempt).record.id if attempt else None
    shown = [one for one in found if wanted is None or one.get("attempt") == wanted]
    items = [_render_comment(view, one) for one in shown]
    content: list[Child] = [
        build_element("h2", "Comments", id="talk") if items or visitor.can_write else None,
        build_element("ul", items, class_="comments") if items else None,
        _render_form(view, attempt) if visitor.can_write else None,
        _render_sending(view, visitor, view.find(attempt)) if attempt and items else None,
    ]
    address = f"{view.path}comments" + (f"?attempt={attempt}" if attempt else "")
    return build_panel("comments", address, content, trigger="sse:fork")


def _render_form(view: ForkView, attempt: str) -> Markup:
    about = f"Comment on {attempt}" if attempt else "Comment on this fork"
    hint = " Click a line's number, or press c, to comment on it." if attempt else ""
    fields = [build_element("input", type="hidden", name=name, value="") for name in ("path", "line", "side")]
    return build_element(
        "form",
        fields,
        build_element("input", type="hidden", name="attempt", value=attempt),
        build_element("label", f"{about}.{hint}", for_="comment-text", class_="soft small", id="comment-about"),
        build_element("textarea", name="text", id="comment-text", rows=2, maxlength=_MAX_COMMENT, required=True),
        build_element(
            "div",
            build_element("button", "Comment", type="submit", class_="main"),
            build_element("button", "Cancel", type="reset"),
            class_="row",
        ),
        class_="talk",
        id="comment-form",
        hx_post=f"{view.path}comments",
        hx_target="#comments",
        hx_swap="outerHTML",
    )


def _render_comment(view: ForkView, comment: Mapping[str, Any]) -> Markup:
    attempt, path, line = comment.get("attempt"), comment.get("path"), comment.get("line")
    name = view.name_of(str(attempt)) if attempt else ""
    place = [name, truncate_middle(str(path), 160) if path else "", f"line {line}" if line else ""]
    words = ", ".join(word for word in place if word) or "the fork"
    address = f"{view.path}a/{name}/" if attempt else view.path
    head = build_element(
        "div",
        build_element("strong", str(comment.get("author") or "A person")),
        " on ",
        build_element("a", words, href=address, dir="ltr"),
        build_element("span", format_moment(float(comment["at"])), class_="soft small"),
        class_="row small",
    )
    quote = comment.get("quote")
    moved = _describe_move(view, comment)
    return build_element(
        "li",
        head,
        build_element("pre", str(quote)) if quote else None,
        build_element("p", moved, class_="soft small") if moved else None,
        build_element("p", truncate(str(comment.get("text", "")), _MAX_COMMENT), dir="auto", class_="said"),
        class_="card",
        data_at=str(comment["at"]),
    )


def _describe_move(view: ForkView, comment: Mapping[str, Any]) -> str:
    """Say where the line of a comment is now; empty if it has not moved."""
    line, quote = comment.get("line"), comment.get("quote")
    if not isinstance(line, int) or not isinstance(quote, str):
        return ""
    attempt = next((one for one in view.attempts if one.record.id == comment.get("attempt")), None)
    file = None
    if attempt is not None:
        file = next((one for one in view.read_files(attempt) if one.path == comment.get("path")), None)
    version = None if file is None else file.old if comment.get("side") == "old" else file.new
    if version is None or version.content is None:
        return "This file is not among the changes any more."
    texts = [text.decode(errors="replace").rstrip("\r\n")[:_MAX_QUOTE] for text in lines_of(version.content)]
    if 0 < line <= len(texts) and texts[line - 1] == quote:
        return ""
    places = [number for number, text in enumerate(texts, start=1) if text == quote]
    if not places:
        return f"The line is not there any more; it was line {line}."
    return f"The line moved: it was {line} and is {min(places, key=lambda number: abs(number - line))} now."


def _render_sending(view: ForkView, visitor: Visitor, attempt: AttemptReport) -> Child:
    """Render the feedback that a follow-up to an attempt would get, and the button that starts it."""
    unsent = find_unsent(view.served.ledger, attempt.record)
    if not unsent:
        return None
    name = view.name_of(attempt.record.id)
    button = build_element(
        "button",
        f"Send to {name}",
        type="button",
        class_="main",
        hx_post=f"{view.path}do/send",
        hx_vals=json.dumps({"attempt": name}),
        hx_target="#decision",
        hx_swap="outerHTML",
    )
    prompt = build_element(
        "details",
        build_element("summary", "As a prompt for an agent", class_="small"),
        build_element("pre", view.hide(format_comments(unsent))),
    )
    can_send = visitor.can_write and not view.is_hidden
    return [build_element("div", button, class_="row") if can_send else None, prompt]


def render_follow_ups(view: ForkView, attempt: str = "") -> Markup:
    """Render the follow-ups on a fork's attempts, or on one of them, as they run."""
    wanted = view.find(attempt).record.id if attempt else None
    notes = [] if view.is_hidden else find_follow_ups(view.served.ledger, view.report.fork.id)
    rows = [_render_follow_up(view, one) for one in notes[-_MOST_FOLLOW_UPS:] if wanted in (None, one.get("attempt"))]
    content = [build_element("h2", "Follow-ups"), build_element("ul", rows, class_="forks")] if rows else None
    address = f"{view.path}follow-ups" + (f"?attempt={attempt}" if attempt else "")
    return build_panel("follow-ups", address, content, trigger="sse:fork, sse:progress")


def _render_follow_up(view: ForkView, note: Mapping[str, Any]) -> Markup:
    name, ledger = str(note["fork"]), view.served.ledger
    count = len(note.get("comments") or ())
    said = f"{format_number(count, 'comment')} on {note.get('attempt')}"
    try:
        fork = ledger.fork(name)
        records = ledger.attempts(fork.id)
    except LedgerError:
        return build_element(
            "li", build_element("span", f"{name} · {said} · not in the ledger any more"), class_="card"
        )
    record = records[-1] if records else None
    state = fork.state if record is None or fork.state != "running" else record.state
    tests = None if record is None or record.tests is None else TestReport.from_json(record.tests)
    facts = [said, "" if tests is None else tests.summary, truncate_line(record.last_line or "", 100) if record else ""]
    link = build_element("a", fork.id, href=f"/w/{view.served.key}/{fork.id}/", class_="subject")
    return build_element(
        "li",
        build_element("div", build_element("span", FORK_WORDS.get(state, state), class_="pill"), link, class_="line"),
        build_element("div", " · ".join(fact for fact in facts if fact), class_="soft small", dir="auto"),
        class_="card stop",
        tabindex=-1,
        data_at=str(fork.started),
    )
