"""A workspace, and servers that run in the networks of its branches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forkwise import Branch
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.sandbox.run import spawn
from tests.sandbox.child import need_user_namespaces
from tests.sandbox.conftest import workspace

__all__ = ["serve", "state", "workspace"]

SERVE = """
import socket, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *_):
        pass
host, *ports = sys.argv[2:]
if ":" in host:
    HTTPServer.address_family = socket.AF_INET6
servers = [HTTPServer((host, int(port)), Server) for port in ports]
print("ready", flush=True)
servers[0].serve_forever()
"""

Serve = Callable[..., NetworkSpace]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the state of forkwise in the test's own directory."""
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers in a network of a branch, which is registered, and wait until they listen."""
    need_user_namespaces()
    with ExitStack() as stack:

        def serve(branch: Branch, answer: str, *ports: int, host: str = "127.0.0.1") -> NetworkSpace:
            space = stack.enter_context(NetworkSpace())
            reader, writer = os.pipe()
            command = [sys.executable, "-c", SERVE, answer, host, *map(str, ports)]
            stack.callback(spawn(branch, command, (0, writer, 2), space=space).close)
            os.close(writer)
            with open(reader) as ready:
                assert ready.readline() == "ready\n"
            space.register(branch)
            return space

        yield serve
