"""Comments are kept in the ledger and say where their line went; pictures are drawn from events."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from forkwise import Workspace
from forkwise.ledger.sqlite import open_ledger
from tests.web.conftest import SENT


def say(client: TestClient, fork: str, **values: str) -> str:
    answer = client.post(f"/w/shop/{fork}/comments", data=values, headers=SENT)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_comment_on_a_line_is_kept(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = say(client, fork, text="Why 1.2?", attempt=f"{fork}.1", path="shop.py", line="6", side="new")
    assert "Why 1.2?" in page
    assert "return value * 1.2" in page
    assert "Please address these comments" in page
    with open_ledger(workspace) as ledger:
        [comment] = ledger.find_comments(fork)
        assert comment["line"] == 6
        assert comment["quote"] == "    return value * 1.2"
        before = ledger.fork(fork)
        ledger.rebuild()
        assert ledger.fork(fork) == before
        assert ledger.find_comments(fork) == [comment]
    assert "Why 1.2?" in client.get(f"/w/shop/{fork}/a/{fork}.1/").text
    assert "Why 1.2?" not in client.get(f"/w/shop/{fork}/a/{fork}.2/").text
    assert "Why 1.2?" in client.get(f"/w/shop/{fork}/").text


@pytest.mark.parametrize(
    ("line", "quote", "words"),
    [
        (1, "    return value * 1.2", "it was 1 and is 6 now"),
        (6, "gone", "not there any more"),
        (6, "    return value * 1.2", ""),
    ],
)
def test_a_line_that_moved_says_so(
    client: TestClient, workspace: Workspace, fork: str, line: int, quote: str, words: str
) -> None:
    with open_ledger(workspace) as ledger:
        place = {"attempt": f"{fork}.1", "path": "shop.py", "line": line, "side": "new", "quote": quote}
        ledger.record_comment(fork, {"text": "x", **place})
    page = client.get(f"/w/shop/{fork}/comments").text
    assert words in page
    assert bool(words) == ("it was" in page)


def test_what_is_no_comment_is_refused(client: TestClient, fork: str) -> None:
    base = f"/w/shop/{fork}/comments"
    for values, code in (
        ({"text": "  "}, 400),
        ({"text": "x" * 20_000}, 413),
        ({"text": "x", "attempt": "nobody"}, 404),
        ({"text": "x", "attempt": f"{fork}.1", "path": "../../etc/passwd"}, 404),
    ):
        assert client.post(base, data=values, headers=SENT).status_code == code
    assert client.post(base, data={"text": "x"}).status_code == 403
    page = say(
        client, fork, text="<img src=x onerror=alert(1)>\u202e", attempt=f"{fork}.1", path="shop.py", line="9" * 30
    )
    assert "<img" not in page
    assert "\u202e" not in page


def test_pictures_show_when_attempts_ran_and_how_far_they_agree(client: TestClient, fork: str) -> None:
    page = client.get(f"/w/shop/{fork}/").text
    assert page.count('class="bar-succeeded"') == 3
    assert "$0.75" in page
    agreement = client.get(f"/w/shop/{fork}/agreement").text
    assert agreement.count('scope="row"') == 3
    assert "heat h" in agreement
    blind = client.get(f"/blind/shop/{fork}/").text + client.get(f"/blind/shop/{fork}/agreement").text
    assert "$0.75" not in blind
    assert f"{fork}.1" not in blind
