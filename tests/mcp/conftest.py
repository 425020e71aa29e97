"""A small project with tests of its own, and a server on it that is spoken to in this process."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.mcp.protocol import McpClient, McpServer

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 2), 4)\n"
    ),
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state and the configuration of forkwise in the test's own directory."""
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "state"


@pytest.fixture
def project(tmp_path: Path, state: Path) -> Iterator[Path]:
    """Create a workspace with a failing test, and drop its branches afterwards."""
    root = tmp_path / "project"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    yield root
    for branch in reversed(Workspace(root).branches()):
        branch.abort()


class Talker:
    """A client in this process: sends messages and collects what comes back."""

    def __init__(self, server: McpServer, elicitation: str | None = None) -> None:
        self.server = server
        self.client = McpClient()
        self.messages: list[dict[str, Any]] = []
        self.progress: Queue[dict[str, Any]] = Queue()
        self.elicitation = elicitation
        self._ids = itertools.count(1)
        self._answers: dict[Any, Queue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        offered = {} if elicitation is None else {"elicitation": {}}
        self.request("initialize", protocolVersion="2025-06-18", capabilities=offered)

    def take(self, message: dict[str, Any]) -> None:
        json.dumps(message).encode()  # it must be possible to send it
        with self._lock:
            self.messages.append(message)
        if "method" not in message:
            self._answers.setdefault(message["id"], Queue()).put(message)
        elif message["method"] == "notifications/progress":
            self.progress.put(message["params"])
        elif message["method"] == "elicitation/create":
            self.send({"id": message["id"], "result": {"action": self.elicitation}})

    def send(self, message: dict[str, Any]) -> None:
        self.server.receive(json.dumps({"jsonrpc": "2.0", **message}), self.client, self.take)

    def start(self, method: str, **params: Any) -> int:
        number = next(self._ids)
        self._answers[number] = Queue()
        self.send({"id": number, "method": method, "params": params})
        return number

    def finish(self, number: int) -> dict[str, Any]:
        return self._answers[number].get(timeout=300)

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        return self.finish(self.start(method, **params))

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must succeed; return its result."""
        found = self.request("tools/call", name=tool, arguments=arguments)["result"]
        assert not found.get("isError"), found
        structured = found["structuredContent"]
        assert json.loads(found["content"][0]["text"]) == structured
        return dict(structured)

    def fail(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that must fail; return the message."""
        found = self.request("tools/call", name=tool, arguments=arguments)
        if "error" in found:
            return str(found["error"]["message"])
        assert found["result"]["isError"], found
        return str(found["result"]["content"][0]["text"])


@pytest.fixture
def connect(project: Path) -> Iterator[Callable[..., Talker]]:
    """Start a server on the project, and return a client of it."""
    servers = []

    def connect(elicitation: str | None = None, **options: Any) -> Talker:
        servers.append(McpServer(project, **options))
        return Talker(servers[-1], elicitation)

    yield connect
    for server in servers:
        server.close()


@pytest.fixture
def talker(connect: Callable[..., Talker]) -> Talker:
    return connect()
