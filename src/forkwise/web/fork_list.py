"""Fork list: the newest forks of all workspaces, filtered and live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from forkwise.display.board import cost_text, sum_costs
from forkwise.display.html.fork_page import duration_text, format_moment
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.display.subject import find_agents, format_subject
from forkwise.errors import LedgerError
from forkwise.text.clean import truncate
from forkwise.text.phrases import format_number
from forkwise.text.redaction import redact
from forkwise.web.page_shell import build_panel, render_shell

if TYPE_CHECKING:
    from forkwise.ledger.records import Summary
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import Catalogue, ServedWorkspace

__all__ = ["FORK_WORDS", "render_list", "render_list_page"]

_LISTED = 100
_SEARCHED = 1000
_TONES = {"running": "warn", "open": "warn", "resolved": "good", "interrupted": "bad"}
#: The text that the page shows for a state.
FORK_WORDS = {"open": "waits for a pick", "resolved": "decided"}
_STATES = ("running", "open", "interrupted", "resolved", "aborted")


class _Entry(NamedTuple):
    served: ServedWorkspace
    summary: Summary


def render_list_page(catalogue: Catalogue, visitor: Visitor, query: Mapping[str, str]) -> str:
    """Render the page with all forks."""
    more = build_element("a", "Conversations", href="/c/", class_="small") if visitor.fork is None else None
    title = build_element("div", build_element("h1", "Forks"), more, class_="line")
    body = [title, _render_filters(catalogue, query), render_list(catalogue, query)]
    return render_shell("Forks · forkwise", body, visitor, events="/events")


def _render_filters(catalogue: Catalogue, query: Mapping[str, str]) -> Markup:
    search = build_element(
        "input",
        type="search",
        name="q",
        value=query.get("q", ""),
        placeholder="Goal, agent, id or branch",
        aria_label="Search",
        autocomplete="off",
        maxlength=200,
    )
    states = _render_options("state", "Any state", {name: FORK_WORDS.get(name, name) for name in _STATES}, query)
    named = {served.key: served.name for served in catalogue}
    workspaces = _render_options("workspace", "All workspaces", named, query) if len(named) > 1 else None
    return build_element(
        "form",
        search,
        states,
        workspaces,
        class_="filters",
        role="search",
        action="/",
        hx_get="/forks",
        hx_target="#forks",
        hx_swap="outerHTML",
        hx_trigger="input changed delay:200ms, change, submit",
    )


def _render_options(name: str, everything: str, found: Mapping[str, str], query: Mapping[str, str]) -> Markup:
    options = [build_element("option", everything, value="")]
    options += [
        build_element("option", text, value=value, selected=query.get(name) == value) for value, text in found.items()
    ]
    return build_element("select", options, name=name, aria_label=name.capitalize())


def render_list(catalogue: Catalogue, query: Mapping[str, str]) -> Markup:
    """Render the list of forks that match a query."""
    entries, failures = _find(catalogue, query)
    wanted = {name: query.get(name, "") for name in ("q", "state", "workspace") if query.get(name)}
    address = f"/forks?{urlencode(wanted)}" if wanted else "/forks"
    parts: list[Child] = [build_element("p", text, class_="note bad") for text in failures]
    if entries:
        many = len(catalogue.workspaces) > 1
        rows = [_render_entry(entry, shows_workspace=many) for entry in entries[:_LISTED]]
        parts.append(build_element("ul", rows, class_="forks", aria_label="Forks"))
        if len(entries) > _LISTED:
            parts.append(build_element("p", f"{len(entries) - _LISTED} older forks are not listed.", class_="soft"))
    elif wanted:
        parts.append(build_element("p", "No fork matches.", class_="empty"))
    else:
        text = "There is no fork yet. Start one, for example: forkwise best-of 3 -- COMMAND. It will appear here."
        parts.append(build_element("p", text, class_="empty"))
    return build_panel("forks", address, parts, trigger="sse:fork, sse:progress")


def _find(catalogue: Catalogue, query: Mapping[str, str]) -> tuple[list[_Entry], list[str]]:
    words = query.get("q", "").lower().split()
    state, only = query.get("state", ""), query.get("workspace", "")
    entries: list[_Entry] = []
    failures: list[str] = []
    for served in catalogue:
        if only and served.key != only:
            continue
        try:
            found = served.ledger.summaries(_SEARCHED, outermost=True)
        except LedgerError as error:
            failures.append(f"The ledger of {served.name} cannot be read: {error}")
            continue
        entries += [_Entry(served, summary) for summary in found]
    entries = [entry for entry in entries if _matches(entry, words, state)]
    entries.sort(key=lambda entry: -entry.summary.fork.started)
    return entries, failures


def _matches(entry: _Entry, words: list[str], state: str) -> bool:
    fork = entry.summary.fork
    if state and fork.state != state:
        return False
    if not words:
        return True
    parts = (fork.id, fork.kind, entry.served.name, format_subject(fork, entry.summary.label), *find_agents(fork))
    text = " ".join(parts).lower()
    return all(word in text for word in words)


def _render_entry(entry: _Entry, *, shows_workspace: bool) -> Markup:
    served, summary = entry
    fork = summary.fork
    subject = redact(format_subject(fork, summary.label)) or fork.kind
    state = fork.state
    word = "undone" if fork.undone is not None else FORK_WORDS.get(state, state)
    tone = "" if fork.undone is not None else _TONES.get(state, "")
    link = build_element(
        "a", truncate(subject.strip(), 200), href=f"/w/{served.key}/{fork.id}/", class_="subject", dir="auto"
    )
    attempts = sum(summary.attempts.values())
    counted = [format_number(attempts, "attempt")]
    counted += [f"{count} {name}" for name, count in summary.attempts.items()]
    records = served.ledger.attempts(fork.id) if attempts else []
    tested = [record.tests for record in records if record.tests is not None]
    passing = sum(1 for report in tested if report.get("failed") == 0 and report.get("errors", 0) == 0)
    last = max((record.ended or 0.0 for record in records), default=0.0)
    took = "" if state == "running" else duration_text(max((fork.ended or last) - fork.started, 0.0))
    owner = f"process {fork.owner.label}" if state == "running" else ""
    facts = [
        fork.id,
        served.name if shows_workspace else "",
        fork.kind,
        *counted,
        f"{passing} of {len(tested)} pass the tests" if tested else "",
        cost_text(sum_costs(records)),
        owner,
    ]
    moment = format_moment(fork.started)
    when = build_element("time", moment, datetime=moment)
    since = str(fork.started) if state == "running" else None
    length = build_element("span", took, data_since=since, class_="took")
    line = build_element(
        "div", _join([text for text in facts if text]), " · ", when, " · ", length, class_="soft small"
    )
    pill = build_element("span", word, class_=f"pill {tone}".strip())
    return build_element("li", build_element("div", pill, link, class_="line"), line, class_="card stop", tabindex=-1)


def _join(texts: list[str]) -> str:
    return " · ".join(texts)
