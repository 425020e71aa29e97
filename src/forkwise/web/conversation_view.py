"""Conversation view: the tree of a stored conversation, the messages that lead to one of its nodes, and two compared.

Messages are read as the ledger's JSON, so that the server does not need pydantic-ai.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from forkwise.display.html.diff_table import render_diff
from forkwise.display.html.fork_page import format_moment
from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.errors import LedgerError
from forkwise.text.clean import truncate, truncate_line, truncate_middle
from forkwise.text.diff import FileDiff, FileVersion
from forkwise.text.redaction import process_redactor, redact
from forkwise.web.page_shell import build_panel, render_shell

if TYPE_CHECKING:
    from forkwise.ledger.ledger import Ledger
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import Catalogue, ForkView

__all__ = ["ConversationTree", "find_conversation", "load_tree", "render_conversation", "render_conversations"]

_MOST_ROWS = 2000
_DEEPEST = 30  # levels of branches that are indented
_MOST_MESSAGES = 400
_MOST_LISTED = 200
_LONGEST = 20_000  # characters of a part of a message
_COMPARED_ROWS = 1500
_MARK = "Mark two messages to compare them."


@dataclass
class _Node:
    """A message: its role, its texts, its tool calls, and the results of calls that it contains."""

    id: int
    parent: int
    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # id, name, arguments
    results: dict[str, str] = field(default_factory=dict)
    replies: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its first line."""
        said = next((text.strip() for text in self.texts if text.strip()), "")
        if said or not self.calls:
            return truncate_line(said, 110) or "…"
        return f"calls {truncate_line(', '.join(name for _, name, _ in self.calls), 80)}"


@dataclass(frozen=True)
class ConversationTree:
    """A conversation as the page shows it; node 0 is the root, without a message."""

    id: str
    title: str
    here: int
    labels: Mapping[int, Sequence[str]]
    nodes: Mapping[int, _Node]

    def find(self, text: str) -> _Node:
        """Return a node by its number as a text. Raises HTTPException if there is none."""
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
        if number < 1 or number not in self.nodes:
            raise HTTPException(404, "There is no such message in this conversation.")
        return self.nodes[number]

    def path_to(self, node: _Node) -> list[_Node]:
        """Return the messages from the first one to ``node``."""
        path = [node]
        while path[-1].parent:
            path.append(self.nodes[path[-1].parent])
        return path[::-1]


def find_conversation(view: ForkView) -> str | None:
    """Return the id of the stored conversation of a live fork; None if there is none."""
    name = view.report.fork.spec.get("conversation")
    if not isinstance(name, str) or not name:
        return None
    known = {record.id for record in view.served.ledger.conversations.all()}
    return name if name in known else None


def load_tree(ledger: Ledger, name: str) -> ConversationTree:
    """Load a conversation. Raises HTTPException if there is none, or if it cannot be read."""
    try:
        record, rows = ledger.conversations.load(name)
    except LedgerError as error:
        raise HTTPException(404, "There is no such conversation.") from error
    nodes = {0: _Node(0, 0, "start")}
    redactor = process_redactor()
    try:
        for row in rows:
            if row.parent not in nodes or row.node in nodes:
                raise ValueError(f"message {row.node} has no place in it")
            nodes[row.node] = _read_message(row.node, row.parent, redactor.redact_data(json.loads(row.message)))
            for part in json.loads(row.results) if row.results else ():
                _add_result(nodes[row.node].results, redactor.redact_data(part))
            nodes[row.parent].replies.append(row.node)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HTTPException(409, f"This conversation is damaged: {truncate(str(error), 300)}") from error
    labels: dict[int, list[str]] = {}
    for label, number in record.labels.items():
        labels.setdefault(number, []).append(label)
    return ConversationTree(record.id, record.title, record.here, labels, nodes)


def _read_message(number: int, parent: int, message: Any) -> _Node:
    node = _Node(number, parent, "model" if message.get("kind") == "response" else "user")
    for part in message.get("parts") or ():
        kind, content = part.get("part_kind"), part.get("content")
        if kind == "tool-call":
            node.calls.append((str(part.get("tool_call_id")), str(part.get("tool_name")), _as_text(part.get("args"))))
        elif kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
            _add_result(node.results, part)
        elif kind == "thinking":
            node.thoughts.append(_as_text(content))
        elif kind == "system-prompt":
            node.thoughts.append(f"Instructions: {_as_text(content)}")
        else:
            node.texts.append(_as_text(content))
    if node.role == "user" and node.results and not node.texts:
        node.role = "tools"
    return node


def _add_result(results: dict[str, str], part: Any) -> None:
    results[str(part.get("tool_call_id"))] = _as_text(part.get("content"))


def _as_text(content: Any) -> str:
    """Return a message's content as text; for files and pictures, only their kind."""
    if isinstance(content, list):
        text = "\n".join(_as_text(one) for one in content)
    elif isinstance(content, dict) and "kind" in content and ("url" in content or "data" in content):
        text = f"[{content['kind']}]"
    elif isinstance(content, str):
        text = content
    else:
        text = "" if content is None else json.dumps(content, ensure_ascii=False)
    return truncate_middle(text, _LONGEST)


# Pages


def render_conversations(catalogue: Catalogue, visitor: Visitor) -> str:
    """Render the list of all stored conversations."""
    rows = []
    for served in catalogue:
        for record in served.ledger.conversations.all()[:_MOST_LISTED]:
            moment = format_moment(record.updated)
            facts = [record.id, served.name, f"{len(record.labels)} labels" if record.labels else "", moment]
            title = truncate_line(redact(record.title), 200) or record.id
            link = build_element("a", title, href=f"/c/{served.key}/{record.id}/", class_="subject", dir="auto")
            line = build_element("div", " · ".join(fact for fact in facts if fact), class_="soft small")
            rows.append(
                build_element("li", build_element("div", link, class_="line"), line, class_="card stop", tabindex=-1)
            )
    listed: Child = build_element("ul", rows, class_="forks", aria_label="Conversations")
    if not rows:
        listed = build_element("p", "No conversation is stored: live forks, forkwise walk and chats keep theirs here.")
    body = [build_element("h1", "Conversations"), listed]
    return render_shell("Conversations · forkwise", body, visitor, events=None)


def render_conversation(
    tree: ConversationTree,
    visitor: Visitor,
    address: str,
    query: Sequence[tuple[str, str]],
    *,
    events: str | None = None,
    trail: Child = None,
    only: str = "",
) -> str:
    """Render the page of a conversation at ``address``; ``query`` names the ``node`` to read, or two to ``compare``.

    With ``only``, return one part of the page: ``tree`` or ``messages``.
    """
    chosen = [tree.find(value) for name, value in query if name == "compare"][:2]
    wanted = [tree.find(value) for name, value in query if name == "node"][:1]
    here = tree.nodes.get(tree.here)
    node = wanted[0] if wanted else here if here is not None and here.id else None
    if node is None and len(tree.nodes) > 1:
        node = tree.nodes[max(tree.nodes)]
    if len(chosen) == 2:
        shown: Child = _render_comparison(tree, chosen[0], chosen[1])
    else:
        shown = None if node is None else _render_path(tree, node)
    messages = build_element("section", shown, id="messages", aria_label="Messages", aria_live="polite", tabindex=-1)
    if only == "messages":
        return messages
    current = urlencode([("node", str(node.id))]) if wanted and node is not None else ""
    panel = build_panel(
        "tree",
        f"{address}tree{f'?{current}' if current else ''}",
        _render_tree(tree, address, node),
        trigger="sse:fork, sse:progress",
    )
    if only == "tree":
        return panel
    name = truncate_line(redact(tree.title), 120) or tree.id
    hint = "j and k move, Enter reads, x marks; two marked messages can be compared."
    body = [
        build_element("h1", name, dir="auto"),
        build_element("p", f"{len(tree.nodes) - 1} messages, {_count_leaves(tree)} branches. {hint}", class_="soft"),
        build_element("div", panel, messages, class_="conversation"),
    ]
    return render_shell(f"{name} · forkwise", body, visitor, events=events, trail=trail)


def _count_leaves(tree: ConversationTree) -> int:
    return sum(1 for node in tree.nodes.values() if node.id and not node.replies)


def _render_tree(tree: ConversationTree, address: str, current: _Node | None) -> Markup:
    """Render the tree: consecutive messages are on one level, and only branches are indented."""
    rows: dict[int, list[Child]] = {0: []}  # by the first node of the level
    pending = [(reply, 0, 0) for reply in reversed(tree.nodes[0].replies)]
    order: list[tuple[int, int]] = []
    count = 0
    while pending and count < _MOST_ROWS:
        number, level, depth = pending.pop()
        node = tree.nodes[number]
        if _is_stop(tree, node):
            rows[level].append(_render_stop(tree, node, address, is_current=node is current))
            count += 1
        forks = len(node.replies) > 1 and depth < _DEEPEST
        for reply in reversed(node.replies):
            if forks:
                rows[reply] = []
                order.append((level, reply))
            pending.append((reply, reply if forks else level, depth + forks))
    for level, reply in reversed(order):  # the innermost first; a level's branches come after its own messages
        branch = build_element("ul", rows[reply], role="group")
        rows[level].append(build_element("li", branch, role="none", class_="twig"))
    more = build_element("p", "Further messages are not drawn.", class_="soft small") if pending else None
    drawn = build_element("ul", rows[0], role="tree", aria_label="Messages", class_="tree")
    compare = build_element(
        "button", "Compare", type="submit", class_="main", data_needs="2", data_exactly="true", disabled=True
    )
    return build_element(
        "form",
        build_element(
            "div", compare, build_element("span", id="chosen", class_="soft small", data_hint=_MARK), class_="row"
        ),
        drawn,
        more,
        method="get",
        action=address,
        id="decide",
    )


def _is_stop(tree: ConversationTree, node: _Node) -> bool:
    """Return whether a message has a row of its own: tool calls and their results in between are folded."""
    has_text = any(text.strip() for text in node.texts)
    return has_text or len(node.replies) != 1 or node.id in tree.labels or node.id == tree.here


def _render_stop(tree: ConversationTree, node: _Node, address: str, *, is_current: bool) -> Markup:
    labels = [build_element("span", truncate_line(name, 40), class_="pill") for name in tree.labels.get(node.id, ())]
    place = build_element("span", "here", class_="pill warn") if node.id == tree.here else None
    link = build_element(
        "a",
        node.title,
        href=f"{address}?node={node.id}",
        dir="auto",
        hx_get=f"{address}messages?node={node.id}",
        hx_target="#messages",
        hx_swap="outerHTML",
        aria_current="true" if is_current else None,
    )
    box = build_element(
        "input", type="checkbox", name="compare", value=str(node.id), class_="pick", aria_label=f"Mark {node.id}"
    )
    who = build_element("span", f"{node.role} {node.id}", class_="soft small who")
    return build_element(
        "li", box, who, link, labels, place, role="treeitem", class_=f"stop said-{node.role}", tabindex=-1
    )


def _render_path(tree: ConversationTree, node: _Node) -> Child:
    path = tree.path_to(node)
    left = len(path) - _MOST_MESSAGES
    shown = path[max(left, 0) :]
    results: dict[str, str] = {}
    for one in path:
        results |= one.results
    for reply in node.replies:
        results |= tree.nodes[reply].results
    return [
        build_element("h2", f"Message {node.id}"),
        build_element("p", f"{left} earlier messages are not shown.", class_="soft small") if left > 0 else None,
        [_render_message(one, results) for one in shown],
    ]


def _render_message(node: _Node, results: Mapping[str, str]) -> Child:
    if node.role == "tools":
        return None  # its results are shown with the calls
    thoughts = [
        build_element("details", build_element("summary", "Thought", class_="small"), build_element("pre", text))
        for text in node.thoughts
        if text.strip()
    ]
    calls = [_render_call(name, arguments, results.get(call)) for call, name, arguments in node.calls]
    texts = [build_element("p", text, dir="auto", class_="said") for text in node.texts if text.strip()]
    head = build_element("div", f"{node.role} {node.id}", class_="soft small")
    return build_element("article", head, thoughts, texts, calls, class_=f"card message said-{node.role}")


def _render_call(name: str, arguments: str, result: str | None) -> Markup:
    brief = truncate_line(arguments, 80)
    answer = build_element("pre", result) if result is not None else build_element("p", "No result yet.", class_="soft")
    summary = build_element("summary", build_element("code", f"{truncate_line(name, 60)} {brief}"))
    return build_element("details", summary, build_element("pre", arguments), answer, class_="call")


def _render_comparison(tree: ConversationTree, first: _Node, second: _Node) -> Child:
    """Render the messages in which two nodes differ, side by side."""
    paths = [tree.path_to(node) for node in (first, second)]
    common = 0
    while common < min(map(len, paths)) and paths[0][common] is paths[1][common]:
        common += 1
    texts = ["".join(f"{line}\n" for one in path[common:] for line in _list_lines(one)) for path in paths]
    mode = stat.S_IFREG | 0o644
    versions = [FileVersion(mode, text.encode("utf-8", "replace")) for text in texts]
    both = FileDiff("conversation.txt", versions[0], versions[1])
    table, left = render_diff(both, count=_COMPARED_ROWS, is_split=True)
    fork = paths[0][common - 1].id if common else 0
    where = f"They share {common} messages, up to message {fork}." if common else "They have no message in common."
    return [
        build_element("h2", f"Messages {first.id} and {second.id}"),
        build_element("p", where, class_="soft"),
        build_element("div", table, class_="file scroll", tabindex=0, role="region", aria_label="Comparison")
        if table
        else build_element("p", "After that they are identical.", class_="empty"),
        build_element("p", f"{left} more rows are not shown.", class_="soft small") if left else None,
    ]


def _list_lines(node: _Node) -> list[str]:
    lines = [f"{node.role}: {line}" for text in node.texts for line in text.splitlines()]
    lines += [f"calls {name} {truncate_line(arguments, 400)}" for _, name, arguments in node.calls]
    return lines + [f"result: {line}" for text in node.results.values() for line in text.splitlines()[:40]]
