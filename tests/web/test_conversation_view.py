"""Conversations: the tree, the messages that lead to a node, two nodes compared, and hostile contents."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from forkwise import Workspace
from forkwise.ledger.records import ConversationRecord, MessageRow
from forkwise.ledger.sqlite import open_ledger
from tests.display.hostile import CORPUS
from tests.web.conftest import KEYS


def ask(number: int, parent: int, *contents: Any) -> MessageRow:
    parts = [{"part_kind": "user-prompt", "content": content} for content in contents]
    return MessageRow(number, parent, [], json.dumps({"kind": "request", "parts": parts}))


def answer(number: int, parent: int, text: str = "", **calls: Any) -> MessageRow:
    parts: list[Any] = [{"part_kind": "thinking", "content": f"thought {number}"}]
    parts += [{"part_kind": "text", "content": text}] if text else []
    parts += [
        {"part_kind": "tool-call", "tool_name": n, "args": a, "tool_call_id": f"{number}-{n}"} for n, a in calls.items()
    ]
    return MessageRow(number, parent, [], json.dumps({"kind": "response", "parts": parts}))


def bring(number: int, parent: int, call: str, content: Any) -> MessageRow:
    part = {"part_kind": "tool-return", "tool_name": "x", "tool_call_id": call, "content": content}
    return MessageRow(number, parent, [], json.dumps({"kind": "request", "parts": [part]}))


TALK = [
    ask(1, 0, "How is tax computed?"),
    answer(2, 1, look={"path": "shop.py"}),
    bring(3, 2, "2-look", {"found": "return value"}),
    answer(4, 3, "It is not."),
    ask(5, 4, "Use 1.2"),
    answer(6, 5, "Done with a factor."),
    ask(7, 4, "Use 6 / 5"),
    answer(8, 7, "Done with a fraction."),
]


def store(workspace: Workspace, rows: list[MessageRow], name: str = "talk1", **labels: int) -> None:
    with open_ledger(workspace) as ledger:
        ledger.conversations.save(ConversationRecord(name, rows[-1].node, labels, "On tax"), rows)


def test_a_conversation_is_drawn_and_walked(client: TestClient, workspace: Workspace) -> None:
    store(workspace, TALK, branch_1=6)
    assert 'href="/c/shop/talk1/"' in client.get("/c/").text
    page = client.get("/c/shop/talk1/").text
    assert "8 messages, 2 branches" in page
    tree = client.get("/c/shop/talk1/tree").text
    assert tree.count('role="treeitem"') == 6  # the call and its result are folded
    assert tree.count('role="group"') == 2
    assert tree.index("It is not.") < tree.index("Done with a factor.") < tree.index("Done with a fraction.")
    assert "branch_1" in tree
    messages = client.get("/c/shop/talk1/messages?node=6").text
    assert "Done with a factor." in messages
    assert "fraction" not in messages
    assert re.search(r'<details class="call"><summary>.*look .*shop\.py.*found', messages, re.DOTALL)


def test_two_leaves_are_compared_after_what_they_share(client: TestClient, workspace: Workspace) -> None:
    store(workspace, TALK)
    page = client.get("/c/shop/talk1/messages?compare=6&compare=8").text
    assert "They share 4 messages, up to message 4" in page
    assert 'class="diff split"' in page
    assert "How is tax" not in page


def test_the_conversation_of_a_live_fork_is_on_its_page(client: TestClient, workspace: Workspace) -> None:
    store(workspace, TALK)
    with open_ledger(workspace) as ledger:
        spec = {"conversation": "talk1", "goal": "Tax"}
        fork = ledger.begin_fork("live", workspace=str(workspace.path), spec=spec).id
        other = ledger.begin_fork("live", workspace=str(workspace.path), spec={"conversation": "gone"}).id
    assert f'href="/w/shop/{fork}/conversation/"' in client.get(f"/w/shop/{fork}/").text
    assert "It is not." in client.get(f"/w/shop/{fork}/conversation/").text
    assert client.get(f"/w/shop/{fork}/conversation/nothing").status_code == 404
    assert client.get(f"/w/shop/{other}/conversation/").status_code == 404
    assert client.get(f"/blind/shop/{fork}/conversation/").status_code == 403
    client.cookies.clear()
    client.get(f"/?token={KEYS.reader_token(f'shop/{fork}')}")
    assert client.get(f"/w/shop/{fork}/conversation/").status_code == 200
    assert client.get("/c/shop/talk1/").status_code == 403
    assert client.get("/c/").status_code == 403


@pytest.mark.parametrize(
    "query", ["node=0", "node=99", "node=-1", "node=x", "compare=1&compare=99", "node=" + "9" * 400]
)
def test_an_unknown_message_is_refused(client: TestClient, workspace: Workspace, query: str) -> None:
    store(workspace, TALK)
    assert client.get(f"/c/shop/talk1/?{query}").status_code == 404


def test_hostile_messages_stay_text_and_small(client: TestClient, workspace: Workspace) -> None:
    rows = [ask(1, 0, "x" * (1 << 20), {"kind": "image-url", "url": "http://evil.example/x.png"})]
    rows.append(answer(2, 1, "\n".join(CORPUS), **{CORPUS[0][:50]: CORPUS[1]}))
    rows.append(bring(3, 2, f"2-{CORPUS[0][:50]}", [CORPUS[2], {"a": "\u202e\x1b[31m"}]))
    rows += [answer(number, number - 1, "\u202e<img src=x onerror=alert(1)>") for number in range(4, 1000)]
    rows += [ask(number, number - 998, "deep") for number in range(1000, 1200)]
    store(workspace, rows, **{"<script>alert(1)</script>": 2})
    base = "/c/shop/talk1/"
    for path in (base, f"{base}tree", f"{base}messages?node=3", f"{base}messages?compare=3&compare=1100"):
        page = client.get(path)
        assert page.status_code == 200, path
        assert len(page.content) < 2_000_000, path
        text = re.sub(r'<script src="/assets/\w+/[\w.]+" defer></script>', "", page.text)
        for word in ("<script", "<img", "<svg onload", "\x1b", "\u202e", "evil.example"):
            assert word not in text, (path, word)


@pytest.mark.parametrize(
    "rows",
    [
        [MessageRow(1, 5, [], '{"kind": "request", "parts": []}')],
        [MessageRow(1, 0, [], "[1, 2]")],
        [MessageRow(1, 0, [], '{"kind": "request", "parts": [3]}')],
        [MessageRow(1, 0, [], "{")],
        [MessageRow(1, 0, [], "[" * 100_000)],
    ],
)
def test_a_damaged_conversation_is_no_failure_of_the_server(
    client: TestClient, workspace: Workspace, rows: list[MessageRow]
) -> None:
    store(workspace, rows)
    answer = client.get("/c/shop/talk1/")
    assert answer.status_code == 409
    assert "damaged" in answer.text
