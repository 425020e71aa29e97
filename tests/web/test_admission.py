"""Who may open the page, and with which rights: tokens, names, origins, read-only links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from forkwise.web.admission import FORM_HEADER, load_keys
from tests.web.conftest import BASE, FORM, HOST, KEYS, SENT


def test_without_a_token_nothing_is_shown(visitor: TestClient, fork: str) -> None:
    for path in ("/", "/forks", "/events", f"/w/shop/{fork}/", f"/w/shop/{fork}/a/{fork}.1/"):
        answer = visitor.get(path)
        assert answer.status_code == 401
        assert "shop" not in answer.text
    assert visitor.get("/?token=wrong").status_code == 403
    assert visitor.get("/?token=é").status_code == 403


def test_a_token_becomes_a_cookie_that_no_other_site_can_send(visitor: TestClient) -> None:
    answer = visitor.get(f"/?token={KEYS.link_token}")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert KEYS.link_token not in answer.text + cookie
    assert visitor.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example:7370", "127.0.0.1:7370", f"{HOST}.evil.example", HOST[:-1], ""])
def test_another_name_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_of_another_site_is_refused(client: TestClient, site: str) -> None:
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 403


def test_the_policy_allows_nothing_from_elsewhere(client: TestClient, fork: str) -> None:
    for path in ("/", f"/w/shop/{fork}/", f"/w/shop/{fork}/a/{fork}.1/"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_methods_that_no_page_uses_are_refused(client: TestClient) -> None:
    assert client.request("PUT", "/").status_code == 405
    assert client.request("OPTIONS", "/").status_code == 405


def test_a_change_needs_its_own_page(client: TestClient, fork: str) -> None:
    path = f"/w/shop/{fork}/do/abort"
    for headers in (
        {},
        {"origin": BASE},
        {FORM_HEADER: FORM},
        {"origin": "http://evil.example", FORM_HEADER: FORM},
        {"origin": "null", FORM_HEADER: FORM},
        {"origin": BASE.replace("http:", "https:"), FORM_HEADER: FORM},
        {"origin": BASE, FORM_HEADER: FORM[:-1]},
    ):
        assert client.post(path, headers=headers).status_code == 403


def test_a_read_only_link_shows_one_fork(visitor: TestClient, fork: str) -> None:
    token = KEYS.reader_token(f"shop/{fork}")
    assert visitor.get(f"/?token={token}").status_code == 200
    page = visitor.get(f"/w/shop/{fork}/")
    assert page.status_code == 200
    assert "read-only" in page.text
    assert visitor.get(f"/w/shop/{fork}/a/{fork}.1/").status_code == 200
    for path in ("/", "/forks", "/events", "/w/shop/other1/", f"/w/shop/{fork}x/"):
        assert visitor.get(path).status_code == 403
    form = KEYS.derive(f"form shop/{fork}~{KEYS.derive(f'cookie shop/{fork}')}")
    answer = visitor.post(f"/w/shop/{fork}/do/abort", headers={"origin": BASE, FORM_HEADER: form})
    assert answer.status_code == 403
    assert visitor.get(f"/?token=shop/other~{token.partition('~')[2]}").status_code == 403


def test_assets_are_kept_and_nothing_else_is_read(client: TestClient, fork: str) -> None:
    page = client.get(f"/w/shop/{fork}/").text
    address = page.split('src="')[1].split('"')[0]
    assert "immutable" in client.get(address).headers["cache-control"]
    for path in (
        "/assets/x/htmx.js",
        "/assets/x/../../site.py",
        "/assets/x/%2e%2e%2fsite.py",
        "/assets/",
        "/etc/passwd",
    ):
        assert client.get(path).status_code == 404
    base = f"/w/shop/{fork}/a/{fork}.1/"
    for query in (
        "rows?file=../../etc/passwd",
        "rows?file=/etc/passwd",
        "image?file=/etc/passwd",
        "image?file=shop.py",
    ):
        assert client.get(f"{base}{query}").status_code in (404, 415)
    assert client.get(f"{base}output?server=../../x").status_code == 200
    assert client.get(f"{base}output/part?server=../../x&start=0").text == "<pre></pre>"


def test_all_assets_are_small(client: TestClient) -> None:
    from forkwise.web.page_shell import load_assets

    assert sum(len(asset.content) for asset in load_assets().values()) < 200_000
    assert client.get("/").status_code == 200


def test_keys_are_kept_for_their_user_only(tmp_path: Path) -> None:
    path = tmp_path / "web.key"
    first = load_keys(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keys(path).link_token == first.link_token
    assert load_keys(path, renew=True).link_token != first.link_token
    os.chmod(path, 0o644)
    with pytest.raises(PermissionError, match="delete it"):
        load_keys(path)
    path.unlink()
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"."):
        load_keys(path)


def test_a_post_with_both_tokens_reaches_the_page(client: TestClient, fork: str) -> None:
    assert client.post(f"/w/shop/{fork}/do/nothing", headers=SENT).status_code not in (401, 403, 421)
