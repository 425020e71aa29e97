"""Comments are kept in the ledger and say where their line went; pictures are drawn from events."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest
from starlette.testclient import TestClient

from forkwise import Workspace
from forkwise.fork.resolve import pick
from forkwise.ledger.sqlite import open_ledger
from forkwise.web.admission import FORM_HEADER
from forkwise.web.catalogue import Catalogue
from forkwise.web.site import build_site
from tests.web.conftest import BASE, HOST, KEYS, SENT
from tests.web.test_resolution import decide, press


def say(client: TestClient, fork: str, **values: str) -> str:
    answer = client.post(f"/w/shop/{fork}/comments", data=values, headers=SENT)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_comment_on_a_line_is_kept(client: TestClient, workspace: Workspace, fork: str) -> None:
    page = say(client, fork, text="Why 1.2?", attempt=f"{fork}.1", path="shop.py", line="6", side="new")
    assert "Why 1.2?" in page
    assert "return value * 1.2" in page
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


def test_comments_are_sent_to_a_follow_up(visitor: TestClient, workspace: Workspace) -> None:
    from forkwise.explore.recipe import Recipe

    script = 'cat "$FORKWISE_FEEDBACK" > heard.txt; echo again >> shop.py'
    recipe = Recipe(kind="run", commands=(("sh", "-c", script),), commit=False, keep=True)
    fork = asyncio.run(recipe.pattern(workspace).run(workspace)).fork
    assert fork is not None
    catalogue = Catalogue([workspace.path])
    program = [sys.executable, "-c", "from forkwise.cli import main; main()"]
    with TestClient(build_site(catalogue, KEYS, [HOST], program=program), base_url=BASE) as client:
        client.get(f"/?token={KEYS.link_token}")
        base, name = f"/w/shop/{fork}/", f"{fork}.1"
        assert "no comment" in decide(client, fork, "send", {"attempt": name})
        assert "Send to" not in client.get(f"{base}a/{name}/").text
        say(client, fork, text="<b>Once</b> is enough", attempt=name, path="shop.py", line="10", side="new")
        assert f"Send to {name}" in client.get(f"{base}a/{name}/").text
        assert "show the names" in decide(client, fork, "send", {"attempt": "A"}, "blind")
        page = decide(client, fork, "send", {"attempt": name})
        assert "shop.py, line 10:\n&gt; again\n&lt;b&gt;Once" in page
        page = press(client, fork, page, "Start it")
        following = re.search(r'href="/w/shop/(\w+)/"', page)
        assert following is not None, page
        assert following[1] in client.get(f"{base}follow-ups").text
        assert following[1] in client.get(f"{base}follow-ups?attempt={name}").text
        assert "Send to" not in client.get(f"{base}a/{name}/").text
        reader = {"cookie": f"forkwise-7370={KEYS.exchange(KEYS.reader_token(f'shop/{fork}'))}"}
        client.cookies.clear()
        assert client.get(base, headers=reader).status_code == 200
        assert "Send to" not in client.get(f"{base}a/{name}/", headers=reader).text
        form = KEYS.derive(f"form {KEYS.exchange(KEYS.reader_token(f'shop/{fork}'))}")
        refused = client.post(f"{base}do/send", data={"attempt": name, "sure": "1"}, headers={**reader, **SENT})
        assert refused.status_code == 403
        headers = {**reader, "origin": BASE, FORM_HEADER: form}
        assert client.post(f"{base}do/send", data={"attempt": name, "sure": "1"}, headers=headers).status_code == 403
    with open_ledger(workspace) as ledger:
        with ledger.watch_changes() as watch:
            while ledger.fork(following[1]).state == "running":
                watch.wait(0.05, 1.0)
        assert len(ledger.forks()) == 2
    pick(workspace, f"{following[1]}.1")
    assert (workspace.path / "shop.py").read_text().endswith("again\nagain\n")
    assert "<b>Once</b> is enough" in (workspace.path / "heard.txt").read_text()
    catalogue.close()
