"""The preview in a real browser: the token becomes a cookie, with which the page, a WebSocket and events pass."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.preview.listener import PreviewListener
from forkwise.preview.target import TargetBook
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.sandbox.run import spawn
from tests.need import need
from tests.sandbox.child import need_user_namespaces

pytestmark = pytest.mark.integration

SERVER = r"""
import base64, hashlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b'''<!doctype html><title>branch</title><script>
const seen = { events: [] };
function finish() {
    if (!seen.socket || seen.events.length < 2) return;
    seen.url = location.href;
    seen.cookie = document.cookie;
    fetch('/result', { method: 'POST', body: JSON.stringify(seen) });
}
const source = new EventSource('/events');
source.onmessage = event => {
    seen.events.push(event.data);
    if (seen.events.length == 2) { source.close(); finish(); }
};
const socket = new WebSocket(`ws://${location.host}/socket`);
socket.onopen = () => socket.send('hello');
socket.onmessage = event => { seen.socket = event.data; finish(); };
socket.onerror = () => { seen.socket = 'failed'; finish(); };
</script>'''

class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/socket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_header("Sec-WebSocket-Accept", accept)
            self.end_headers()
            head = self.rfile.read(2)
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(head[1] & 127))).upper()
            self.wfile.write(bytes((0x81, len(text))) + text)
            self.close_connection = True
        elif self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: one\n\ndata: two\n\n")
            self.close_connection = True
        else:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Length", str(len(PAGE)))
            self.send_header("Content-Type", "text/html")
            self.send_header("Set-Cookie", "own=1")
            self.end_headers()
            self.wfile.write(PAGE)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        print(body.decode(), "\t", self.headers.get("Cookie", ""), flush=True)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 3000), Server)
print("ready", flush=True)
server.serve_forever()
"""


def test_a_page_with_a_websocket_and_events(workspace: Workspace, tmp_path: Path) -> None:
    need_user_namespaces()
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    need(browser is not None, "chromium is not installed")
    branch = workspace.branch("k3f9ab-1")
    book = TargetBook(workspace)
    with (
        NetworkSpace() as space,
        PreviewListener(book.connect) as listener,
        tempfile.TemporaryDirectory() as scratch,  # for the browser's socket, whose path has to be short
    ):
        reader, writer = os.pipe()
        process = spawn(branch, [sys.executable, "-c", SERVER], (0, writer, 2), space=space)
        os.close(writer)
        with open(reader) as printed:
            try:
                assert printed.readline() == "ready\n"
                space.register(branch)
                token = listener.make_token("k3f9ab-1--3000")
                address = f"http://k3f9ab-1--3000.localhost:{listener.port}/"
                options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
                options += ["--remote-debugging-port=0", f"--user-data-dir={tmp_path}/profile", "--no-first-run"]
                environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": scratch}
                window = subprocess.Popen(
                    [str(browser), *options, f"{address}?forkwise-token={token}"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                try:
                    assert select.select([reader], [], [], 120)[0], f"the browser did not report ({window.poll()})"
                    result, _, cookies = printed.readline().partition("\t")
                finally:
                    window.terminate()
                    window.wait()
            finally:
                process.close()
    book.close()
    seen = json.loads(result)
    assert seen["events"] == ["one", "two"]
    assert seen["socket"] == "HELLO"
    assert seen["url"] == address, "the token is no longer in the address"
    assert seen["cookie"] == "own=1", "the cookie with the token is not for scripts"
    assert cookies.strip() == "own=1", "the server does not get it either"
