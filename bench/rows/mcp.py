"""The MCP server: its start, forks on a large tree, many calls at once, and the size of its tools' descriptions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play
from bench.scratch import Scratch

__all__ = ["measure_mcp"]

_CALLS = 100
_MAIN = "from forkwise.cli import main; main()"


def measure_mcp(scratch: Scratch) -> list[Line]:
    """Measure a server as a client does, over its standard input and output."""
    root = scratch.shared_tree(scratch.many)
    environment = {**os.environ, "FORKWISE_STATE": scratch.new_path("mcp-state")}
    scratch.report("starting forkwise mcp")
    started = play({"wall": lambda: _start(root, environment)[0]}, scratch.rounds(20, 3), warm=1)["wall"]
    cpu = Figure(tuple(_start(root, environment)[1] for _ in range(scratch.rounds(10, 3))))
    lines = [_bound(Line("forkwise mcp: start to its first answer", started), 500)]
    lines.append(_bound(Line("forkwise mcp: start, CPU time", cpu), 500))
    with _serve(root, environment) as client:
        scratch.report("forking eight empty branches by MCP")
        rounds = scratch.rounds(20, 3)
        used = client.read_cpu_time()
        fork = play({"ours": lambda: _fork(client)}, rounds, warm=0)["ours"]
        used = client.read_cpu_time() - used
        name = f"MCP fork of eight empty branches ({scratch.many:,} files)"
        lines.append(_bound(Line(name, fork), 300))
        lines.append(_bound(Line(f"{name} and their abort, CPU time", Figure((used / rounds,))), 300))
        scratch.report(f"{_CALLS} calls at once")
        calls = play({"ours": lambda: _call_at_once(client)}, scratch.rounds(5, 2), warm=1)["ours"]
        line = Line(f"MCP: {_CALLS} calls at once, all answered", calls)
        line.goals.append(Goal("none lost", float(client.lost), 0))
        lines.append(line)
        tools = client.ask("tools/list")["tools"]
    text = json.dumps(tools, separators=(",", ":"))
    size = Line("MCP: tools' descriptions and schemas", Figure((float(len(text)),), "B"))
    size.goals.append(Goal("< 4,000 tokens", _count_tokens(text), 4000))
    return [*lines, size]


def _bound(line: Line, bound_ms: float) -> Line:
    line.goals.append(Goal(f"< {bound_ms:g} ms", line.ours.median * 1000, bound_ms))
    return line


def _count_tokens(text: str) -> int:
    """Return an upper estimate: a token for four letters of a word, and one for each other sign."""
    return sum(-(-len(word) // 4) if word.isalnum() else 1 for word in re.findall(r"\w+|[^\w\s]", text))


class _Client:
    """A client of a server on pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in: IO[bytes] = process.stdin
        self._out: IO[bytes] = process.stdout
        self._process = process
        self._next = 0
        self.lost = 0

    def read_cpu_time(self) -> float:
        """Return the CPU time of the server's process so far, in seconds."""
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def send(self, method: str, **params: Any) -> int:
        self._next += 1
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        self._in.write(json.dumps(message).encode() + b"\n")
        self._in.flush()
        return self._next

    def read(self) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self._out.readline())
            if "result" in message or "error" in message:
                return message

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.send(method, **params)
        found: dict[str, Any] = self.read()["result"]
        return found

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("tools/call", name=tool, arguments=arguments)["structuredContent"]
        return found


def _open(root: str, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], _Client]:
    words = [sys.executable, "-c", _MAIN, "mcp", "-C", root]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, env=environment, **pipes)  # type: ignore[call-overload]
    client = _Client(process)
    client.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "b", "version": "1"})
    return process, client


def _end(process: subprocess.Popen[bytes]) -> float:
    """End a server as its client does, and return the CPU time that it used."""
    assert process.stdin is not None
    process.stdin.close()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    assert process.stdout is not None
    process.stdout.close()
    return used.ru_utime + used.ru_stime


def _start(root: str, environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds to the first answer, and the CPU time of the whole process."""
    began = time.perf_counter()
    process, client = _open(root, environment)
    client.ask("tools/list")
    seconds = time.perf_counter() - began
    return seconds, _end(process)


@contextmanager
def _serve(root: str, environment: dict[str, str]) -> Iterator[_Client]:
    process, client = _open(root, environment)
    try:
        yield client
    finally:
        _end(process)


def _fork(client: _Client) -> float:
    began = time.perf_counter()
    made = client.call("fork", branches=8)
    seconds = time.perf_counter() - began
    client.call("abort", name=made["group"])
    return seconds


def _call_at_once(client: _Client) -> float:
    began = time.perf_counter()
    asked = {client.send("tools/call", name="show", arguments={}) for _ in range(_CALLS)}
    answered = {client.read()["id"] for _ in range(_CALLS)}
    client.lost += len(asked - answered)
    return time.perf_counter() - began
