"""The page of a fork: hostile contents stay text, everything is bounded, and a browser loads and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from forkwise.display.attempt_report import read_report
from forkwise.display.html.fork_page import render_report
from tests.display.hostile import CORPUS, MARKER, hostile_fork
from tests.need import need

ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "div", "a", "header", "span", "h1", "main", "section", "h2",
    "p", "dl", "dt", "dd", "nav", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "colgroup",
    "col", "progress", "details", "summary", "h3", "pre", "code", "mark", "strong", "footer", "wbr",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "dir", "role", "scope", "tabindex",
    "colspan", "open", "max", "value", "hidden", "aria-label", "aria-hidden", "data-label",
}  # fmt: skip
VOID = {"meta", "col", "wbr"}


class Checker(HTMLParser):
    """Collects the elements of a page, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.others: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hostile_fork(tmp_path_factory.mktemp("hostile")) as (ledger, fork):
        yield render_report(read_report(ledger, fork), version="1.0")


@pytest.fixture(scope="module")
def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker


def test_only_elements_and_attributes_of_the_program(checked: Checker) -> None:
    assert checked.open == []
    assert checked.elements <= ELEMENTS
    assert {name for _, name, _ in checked.attributes} <= ATTRIBUTES
    assert checked.others == []
    assert not [value for _, _, value in checked.attributes if MARKER in value or "\n" in value]
    links = {value for tag, name, value in checked.attributes if name == "href"}
    assert links
    assert all(re.fullmatch(r"#[a-z0-9-]+", link) for link in links)
    ids = [value for _, name, value in checked.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links} <= set(ids)


def test_hostile_text_is_shown(checked: Checker) -> None:
    text = "".join(checked.text)
    for shown in ("<script>alert(1)</script>", "onerror=alert(1)", "\\u202egnp.exe", "&lt;b&gt;", "@everyone"):
        assert f"{MARKER}" in text
        assert shown in text
    for word in ("won", "tampered", "binary", "more characters", "The judge", "Why it failed"):
        assert word.lower() in text.lower()


def test_nothing_invisible_and_nothing_that_reorders(page: str) -> None:
    assert not [c for c in set(page) if not c.isprintable() and c not in "\n\t"]
    assert "\u0301" * 4 not in page


def test_bounded(page: str) -> None:
    assert len(page) < 2_000_000
    assert max(len(line) for line in re.split(r"[\n<]", page)) < 3000


def test_policy_allows_only_the_style_sheet(page: str, checked: Checker) -> None:
    [policy] = [v for tag, name, v in checked.attributes if name == "content" and "default-src" in v]
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style
    assert "@import" not in style
    assert "style" not in {name for _, name, _ in checked.attributes}
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index(MARKER, page.index("</title>"))


@pytest.mark.integration
def test_in_a_browser(page: str, tmp_path: Path) -> None:
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    need(browser is not None, "Chromium is not installed")
    assert browser is not None
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200 if self.path == "/index.html" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if self.path == "/index.html":
                self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            done = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom",
                 "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
                 "--host-resolver-rules=MAP * 127.0.0.1:9", f"http://127.0.0.1:{server.server_port}/index.html"],
                capture_output=True, text=True, timeout=120, check=True,
            )  # fmt: skip
        finally:
            server.shutdown()
            thread.join()
    assert set(requests) <= {"/index.html", "/favicon.ico"}, requests  # a browser asks for its icon by itself
    assert "/favicon.ico" not in requests
    assert "Content Security Policy" not in done.stderr  # nothing was even tried
    drawn = Checker()
    drawn.feed(re.sub(r"</?(?:html|body|head|tbody)[^>]*>", "", done.stdout))
    assert "script" not in drawn.elements
    assert drawn.elements <= ELEMENTS
    assert {name for _, name, _ in drawn.attributes} <= ATTRIBUTES


def test_the_corpus_is_hostile() -> None:
    assert all(text.startswith(MARKER) for text in CORPUS)
