"""Decisions on the page: each question, answer and refusal, and what it does to the workspace."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Mapping, Sequence

import pytest
from starlette.testclient import TestClient

from forkwise import Workspace
from forkwise.fork.resolve import pick
from forkwise.ledger.sqlite import open_ledger
from tests.web.conftest import SENT, SHOP, make_fork

Values = Mapping[str, str | Sequence[str]]


def decide(client: TestClient, fork: str, action: str, values: Values | None = None, mode: str = "w") -> str:
    """Send a form, wait until the decision is made, and return what the page then shows."""
    base = f"/{mode}/shop/{fork}/"
    answer = client.post(f"{base}do/{action}", data=dict(values or {}), headers=SENT)
    assert answer.status_code == 200, answer.text
    page = answer.text
    deadline = time.monotonic() + 60
    while found := re.search(rf'hx-get="({base}jobs/\w+)"', page):
        assert time.monotonic() < deadline
        page = client.get(found[1]).text
    return page


def answers(page: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the buttons of a question: by label, the action and its values."""
    found = re.findall(r'<button[^>]*hx-post="[^"]*/do/(\w+)" hx-vals="([^"]*)"[^>]*>([^<]*)<', page)
    return {label: (action, json.loads(html.unescape(values))) for action, values, label in found}


def press(client: TestClient, fork: str, page: str, label: str, mode: str = "w") -> str:
    """Press one of the buttons of a question."""
    action, values = answers(page)[label]
    return decide(client, fork, action, values, mode)


def test_pick_asks_commits_and_can_be_undone(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = decide(client, fork, "pick", {"attempt": f"{fork}.1"})
    assert "1.2" not in (workspace.path / "shop.py").read_text()
    assert answers(press(client, fork, page, "Cancel")) == {}
    page = press(client, fork, page, "Commit it")
    assert "Committed as 1" in page
    assert "value * 1.2" in (workspace.path / "shop.py").read_text()
    assert "Undo" in client.get(f"/w/shop/{fork}/actions").text
    page = press(client, fork, press(client, fork, page, "Undo"), "Undo it")
    assert "Undid 1 as 2" in page
    assert (workspace.path / "shop.py").read_text() == SHOP


def test_a_fork_decided_elsewhere_is_not_decided_again(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = decide(client, fork, "pick", {"attempt": f"{fork}.1"})
    pick(workspace, f"{fork}.3")
    assert "Not done" in press(client, fork, page, "Commit it")
    assert "RATE = 1.2" in (workspace.path / "shop.py").read_text()


def test_a_conflict_is_explained_and_answered(client: TestClient, workspace: Workspace, fork: str) -> None:
    (workspace.path / "shop.py").write_text(SHOP.replace("RATE = 1", "RATE = 7"))
    page = decide(client, fork, "pick", {"attempt": f"{fork}.1", "sure": "1"})
    assert "The workspace was changed meanwhile" in page
    assert "shop.py" in page
    page = press(client, fork, page, "Merge")
    assert "Committed as 1" in page
    text = (workspace.path / "shop.py").read_text()
    assert "RATE = 7" in text
    assert "value * 1.2" in text


def test_what_a_machine_would_run_is_asked_about(client: TestClient, workspace: Workspace) -> None:
    fork = make_fork(workspace, [{".vscode/tasks.json": '{"tasks": []}', "a.txt": "a\n"}])
    for branch in workspace.branches():
        branch.mark_confined()
    page = decide(client, fork, "pick", {"attempt": f"{fork}.1", "sure": "1"})
    assert "changes what your machine will run" in page
    assert not (workspace.path / "a.txt").exists()
    assert "Committed as 1" in press(client, fork, page, "Commit it")


def test_combine_merges_or_leads_to_the_hunks(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = decide(client, fork, "combine", {"attempt": [f"{fork}.1", f"{fork}.2"]})
    page = press(client, fork, page, "Merge, test and commit")
    assert "Their changes conflict" in page
    assert f"/w/shop/{fork}/compare" in page
    page = decide(client, fork, "combine", {"attempt": [f"{fork}.1", f"{fork}.3"]})
    assert "Committed as 1" in press(client, fork, page, "Merge, test and commit")
    text = (workspace.path / "shop.py").read_text()
    assert "value * 1.2" in text
    assert "RATE = 1.2" in text


def boxes(client: TestClient, fork: str, path: str) -> list[str]:
    page = client.get(f"/w/shop/{fork}/compare/file", params={"file": path}).text
    return [html.unescape(value) for value in re.findall(r'name="hunk" value="([^"]*)"', page)]


def test_hunks_are_tested_before_they_are_committed(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = client.get(f"/w/shop/{fork}/compare").text
    assert page.index("shop.py") < page.index("notes.md")
    found = boxes(client, fork, "shop.py")
    assert len(found) == 3
    chosen = [value for value in found if value.endswith((f"{fork}.2", f"{fork}.3"))]
    page = decide(client, fork, "prepare", {"hunk": [*chosen, *boxes(client, fork, "notes.md")]})
    assert "nothing is committed yet" in page
    assert (workspace.path / "shop.py").read_text() == SHOP
    kept = len(workspace.branches())
    assert "Discarded" in press(client, fork, page, "Discard")
    assert len(workspace.branches()) == kept - 1
    page = decide(client, fork, "prepare", {"hunk": chosen})
    assert "Committed as 1" in press(client, fork, page, "Commit it")
    text = (workspace.path / "shop.py").read_text()
    assert "value * 6 / 5" in text
    assert "RATE = 1.2" in text


def test_overlapping_and_unknown_hunks_are_refused(client: TestClient, fork: str) -> None:
    found = boxes(client, fork, "shop.py")
    both = [value for value in found if value.endswith((f"{fork}.1", f"{fork}.2"))]
    assert "overlap" in decide(client, fork, "prepare", {"hunk": both})
    for value in (found[0].replace("shop.py", "other.py"), found[0].replace("|", " "), f"x|0-1|{fork}.9", "||"):
        assert "Not done" in decide(client, fork, "prepare", {"hunk": value})
    assert "Choose at least one" in decide(client, fork, "prepare")


def test_abort_and_what_is_not_a_decision(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = decide(client, fork, "abort")
    assert "Aborted" in press(client, fork, page, "Abort")
    assert workspace.branches() == []
    assert client.post(f"/w/shop/{fork}/do/explode", headers=SENT).status_code == 404
    assert client.get(f"/w/shop/{fork}/do/abort").status_code == 405
    assert client.post(f"/w/shop/{fork}/do/pick", content=b"\xff" * 10, headers=SENT).status_code == 400
    assert client.post(f"/w/shop/{fork}/do/pick", content=b"a" * (2 << 20), headers=SENT).status_code == 413
    assert "exactly one" in decide(client, fork, "pick")


def test_an_override_replaces_the_winner(client: TestClient, workspace: Workspace, fork: str) -> None:
    pick(workspace, f"{fork}.1", keep=True)
    page = decide(client, fork, "override", {"attempt": f"{fork}.3"})
    assert "Committed as" in press(client, fork, page, "Replace the winner")
    text = (workspace.path / "shop.py").read_text()
    assert "RATE = 1.2" in text
    assert "value * 1.2" not in text


def test_a_blind_choice_is_recorded(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = decide(client, fork, "pick", {"attempt": "B"}, "blind")
    assert fork + "." not in page
    assert "Committed as 1" in press(client, fork, page, "Commit it", "blind")
    with open_ledger(workspace) as ledger:
        notes = [event.data["note"] for event in ledger.events(fork=fork) if event.kind == "unblinded"]
        assert ledger.fork(fork).winner == notes[0]["order"]["B"]


@pytest.mark.parametrize("mode", ["w", "blind"])
def test_two_decisions_at_once_are_not_made(client: TestClient, workspace: Workspace, fork: str, mode: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    names = ["A", "B"] if mode == "blind" else [f"{fork}.1", f"{fork}.3"]

    def send(name: str) -> int:
        values = {"attempt": name, "sure": "1"}
        return client.post(f"/{mode}/shop/{fork}/do/pick", data=values, headers=SENT).status_code

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(send, names))
    assert set(found) <= {200, 409}
    deadline = time.monotonic() + 60
    with open_ledger(workspace) as ledger:
        while ledger.fork(fork).commit is None:
            assert time.monotonic() < deadline
    assert len(workspace.history()) == 1
