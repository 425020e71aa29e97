"""Servers in the branches of attempts are linked on the fork's page, for people who may decide it."""

from __future__ import annotations

import html
import http.client
import re
from urllib.parse import urlsplit

from starlette.testclient import TestClient

from forkwise import Workspace
from tests.preview.conftest import Serve, serve
from tests.web.conftest import KEYS

__all__ = ["serve"]


def test_a_server_in_a_branch_is_linked(client: TestClient, workspace: Workspace, fork: str, serve: Serve) -> None:
    base = f"/w/shop/{fork}/"
    assert "Port" not in client.get(f"{base}previews").text
    space = serve(workspace.open(f"{fork}-2"), "hello from inside", 3000)
    page = client.get(base).text
    links = re.findall(r'<a href="(http://[^"]+)"[^>]*>(Port 3000 of [^<]+)</a>', page)
    assert len(links) == 1
    assert links[0][1].startswith(f"Port 3000 of {fork}.2")
    url = urlsplit(html.unescape(links[0][0]))
    assert url.hostname == f"{fork}-2--3000.localhost"
    assert url.port is not None
    inside = http.client.HTTPConnection("127.0.0.1", url.port, timeout=30)
    inside.request("GET", f"/?{url.query}", headers={"Host": url.netloc})
    assert inside.getresponse().status in (200, 302, 303, 307)
    inside.close()
    inside.request("GET", "/", headers={"Host": url.netloc})
    assert inside.getresponse().status in (401, 403)  # without the token of the link
    inside.close()
    blind = client.get(f"/blind/shop/{fork}/previews").text
    assert "Port 3000 of" in blind
    assert fork not in re.sub(r'hx-get="[^"]*"', "", blind)
    client.cookies.clear()
    client.get(f"/?token={KEYS.reader_token(f'shop/{fork}')}")
    assert "Port" not in client.get(f"{base}previews").text
    space.close()
