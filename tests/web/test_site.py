"""The pages: forks, attempts, diffs in windows, output in parts, and hostile contents that stay text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from forkwise import Workspace
from forkwise.ledger.logs import AttemptLog
from forkwise.ledger.sqlite import open_ledger
from forkwise.web.catalogue import Catalogue
from forkwise.web.site import build_site
from tests.display.hostile import MARKER, hostile_fork
from tests.web.conftest import BASE, HOST, KEYS, SHOP, make_fork

PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


def test_the_list_is_searched_and_filtered(client: TestClient, fork: str) -> None:
    assert fork in client.get("/").text
    assert fork in client.get("/forks?q=best-of").text
    assert fork in client.get(f"/forks?q={fork}&state=open").text
    assert "No fork matches" in client.get("/forks?q=nothing-like-this").text
    assert "No fork matches" in client.get("/forks?state=running").text


def test_a_part_that_has_not_changed_is_not_sent_again(client: TestClient, fork: str) -> None:
    for path in ("/forks", f"/w/shop/{fork}/columns", f"/w/shop/{fork}/verdict", f"/w/shop/{fork}/tests"):
        version = re.search(r'data-version="(\w+)"', client.get(path).text)
        assert version is not None
        assert client.get(f"{path}?version={version[1]}").status_code == 204
        assert client.get(f"{path}?version=0123456789abcdef").status_code == 200


def test_no_panel_drops_the_last_of_several_changes(client: TestClient, fork: str) -> None:
    """While htmx throttles one event of an element, it drops all of that element's events."""
    for path in ("/", f"/w/shop/{fork}/", f"/w/shop/{fork}/a/{fork}.1/"):
        triggers = re.findall(r'hx-trigger="([^"]*sse:[^"]*)"', client.get(path).text)
        assert triggers
        assert not [one for one in triggers if "throttle" in one]


def test_a_fork_has_a_column_for_each_attempt(client: TestClient, fork: str) -> None:
    page = client.get(f"/w/shop/{fork}/").text
    assert "Tax is 20 percent" in page
    assert page.count('class="card attempt-card') == 3
    assert "✓ fixed" in page
    assert "notes.md" in client.get(f"/w/shop/{fork}/a/{fork}.2/touched").text
    assert client.get("/w/shop/nothere/").status_code == 404
    assert client.get(f"/w/other/{fork}/").status_code == 404
    assert client.get(f"/w/shop/{fork}/a/{fork}.9/").status_code == 404
    assert client.get(f"/w/shop/{fork[:3]}/").status_code == 404  # a beginning of an id is not an address


def test_changes_against_the_base_and_another_attempt(client: TestClient, fork: str) -> None:
    base = f"/w/shop/{fork}/a/{fork}.1/"
    page = client.get(base).text
    assert "1 file against the base" in page
    assert 'class="diff"' in page
    assert 'class="diff split"' in client.get(f"{base}?view=split").text
    page = client.get(f"{base}?with={fork}.2").text
    assert f"2 files against {fork}.2" in page
    assert client.get(f"{base}?with={fork}.8").status_code == 404


def test_white_space_can_be_ignored(client: TestClient, workspace: Workspace) -> None:
    fork = make_fork(workspace, [{"shop.py": SHOP.replace("    ", "\t").replace("RATE = 1", "RATE = 2")}])
    base = f"/w/shop/{fork}/a/{fork}.1/rows?file=shop.py&start=0"
    assert client.get(base).text.count('<tr class="new"') == 3
    assert client.get(f"{base}&space=off").text.count('<tr class="new"') == 1


def test_a_long_file_is_sent_in_windows(client: TestClient, workspace: Workspace) -> None:
    text = "".join(f"line {number}\n" for number in range(5000))
    fork = make_fork(workspace, [{"long.txt": text}])
    base = f"/w/shop/{fork}/a/{fork}.1/"
    page = client.get(base).text
    assert page.count("<tr") < 200
    seen = page.count('<tr class="new"')
    following = re.search(r'hx-get="([^"]+)"[^>]*hx-trigger="near once', page)
    while following is not None:
        page = client.get(following[1].replace("&amp;", "&")).text
        seen += page.count('<tr class="new"')
        following = re.search(r'hx-get="([^"]+)"', page)
    assert seen == 5000


def test_pictures_are_shown_and_other_binaries_are_not(client: TestClient, workspace: Workspace) -> None:
    fork = make_fork(workspace, [{"logo.png": PICTURE, "data.bin": b"\0\1", "fake.png": b"\0<svg onload=alert(1)>"}])
    base = f"/w/shop/{fork}/a/{fork}.1/"
    assert "image?file=logo.png&amp;side=new" in client.get(base).text
    answer = client.get(f"{base}image?file=logo.png&side=new")
    assert answer.content == PICTURE
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert client.get(f"{base}image?file=fake.png&side=new").status_code == 415
    assert client.get(f"{base}image?file=logo.png&side=old").status_code == 404


def test_output_comes_in_parts_of_whole_lines(client: TestClient, workspace: Workspace, fork: str) -> None:
    lines = [f"line {number} {'x' * (number % 90)}" for number in range(4000)]
    lines[2000] = "y" * 150_000
    with open_ledger(workspace) as ledger, AttemptLog(ledger.directory, f"{fork}.1") as log:
        log.write("stdout", "\n".join([*lines, ""]).encode())
    base = f"/w/shop/{fork}/a/{fork}.1/output"
    size = int(re.search(r'data-size="(\d+)"', client.get(base).text)[1])  # type: ignore[index]
    step = int(re.search(r'data-step="(\d+)"', client.get(base).text)[1])  # type: ignore[index]
    found = ""
    for start in range(0, size, step):
        answer = client.get(f"{base}/part?start={start}")
        assert answer.headers["x-output-size"] == str(size)
        found += answer.text.removeprefix("<pre>").removesuffix("</pre>")
    assert found.split("\n")[:4000] == lines
    assert client.get(f"{base}/part?start=-1").status_code == 400
    assert client.get(f"{base}/part?start=99999999999999").status_code == 400


def test_hostile_contents_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "states"))
    with hostile_fork(tmp_path) as (ledger, fork):
        catalogue = Catalogue([tmp_path / "project"])
        served = next(iter(catalogue))
        served.ledger.close()
        object.__setattr__(served, "ledger", ledger)
        with TestClient(build_site(catalogue, KEYS, [HOST]), base_url=BASE) as client:
            client.get(f"/?token={KEYS.link_token}")
            base = f"/w/project/{fork}/"
            paths = ["/", base, f"{base}columns"]
            for number in (1, 2, 7, 12):
                attempt = f"{base}a/{fork}.{number}/"
                paths += [attempt, f"{attempt}?view=split", f"{attempt}output", f"{attempt}output/part?start=0"]
            for path in [*paths, f"{base}a/{fork}.1/touched"]:
                answer = client.get(path)
                assert answer.status_code == 200, path
                assert len(answer.content) < 1_500_000, path
                text = re.sub(r'<script src="/assets/\w+/[\w.]+" defer></script>', "", answer.text)
                for word in (
                    "<script",
                    "<img src=x",
                    "<svg onload",
                    "onerror=alert(1)>",
                    "</td></table></style>",
                    "\x1b",
                    "\u202e",
                ):
                    assert word not in text, (path, word)
            assert MARKER in client.get(base).text


def test_a_blind_page_names_nobody_until_the_choice(client: TestClient, workspace: Workspace, fork: str) -> None:
    base = f"/blind/shop/{fork}/"
    for path in (base, f"{base}columns", f"{base}tests", f"{base}a/A/", f"{base}a/B/?with=A"):
        page = client.get(path).text
        assert not re.search(r"agent-[123]|0\.25", page), path
        assert not re.search(rf"{fork}\.[123]", page), path
    assert client.get(f"{base}a/A/output").status_code == 403
    assert client.get(f"{base}a/{fork}.1/").status_code == 404
    with open_ledger(workspace) as ledger:
        ledger.resolve(fork, how="pick", winner=f"{fork}.1")
    assert "agent-1" in client.get(base).text


def test_the_feed_names_what_changed(client: TestClient, workspace: Workspace, fork: str) -> None:
    import asyncio

    from forkwise.web.feed import EventFeed

    async def follow() -> list[str]:
        catalogue = Catalogue([workspace.path])
        feed = EventFeed(catalogue)
        stream = feed.follow("shop", fork)
        found = [await anext(stream), await anext(stream)]
        with open_ledger(workspace) as ledger:
            ledger.record_comment(fork, {"text": "hello"})
        found.append(await asyncio.wait_for(anext(stream), 30))
        await stream.aclose()
        feed.close()
        catalogue.close()
        return found

    found = asyncio.run(follow())
    assert "event: open" in found[0]
    assert found[1:] == ["event: fork\ndata: \n\n"] * 2


def test_a_page_that_is_up_to_date_is_not_told_to_look_again(workspace: Workspace, fork: str) -> None:
    import asyncio

    from forkwise.web.feed import EventFeed

    async def follow(after: int) -> list[str]:
        catalogue = Catalogue([workspace.path])
        feed = EventFeed(catalogue)
        stream = feed.follow("shop", fork, after)
        found = [await anext(stream)]
        with open_ledger(workspace) as ledger:
            watcher = feed._watchers["shop"]
            while watcher._new:  # until it was looked at
                await asyncio.sleep(0.01)
            ledger.record_comment(fork, {"text": "hello"})
        found.append(await asyncio.wait_for(anext(stream), 30))
        await stream.aclose()
        feed.close()
        catalogue.close()
        return found

    catalogue = Catalogue([workspace.path])
    view = catalogue.open_fork("shop", fork)
    catalogue.close()
    assert view.events.endswith(f"?after={view.seen}")
    assert asyncio.run(follow(view.seen))[1:] == ["event: fork\ndata: \n\n"]
    with open_ledger(workspace) as ledger:
        assert ledger.last_event() > view.seen
    assert asyncio.run(follow(view.seen))[1:] == ["event: fork\ndata: \n\n"]
