"""Both transports, with the client of the protocol's own SDK, and with raw HTTP."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from forkwise.mcp.protocol import McpServer
from forkwise.mcp.transport import HttpTransport

SLEEP = str(10_000_000 + os.getpid())  # seconds
TOKEN = "a-token-that-nobody-guesses"
PROGRAM = [sys.executable, "-P", "-c", "from forkwise.cli import main; main()"]


@pytest.fixture
def transport(project: Path) -> Iterator[HttpTransport]:
    transport = HttpTransport(McpServer(project), TOKEN)
    thread = threading.Thread(target=transport.serve)
    thread.start()
    yield transport
    transport.close()
    thread.join()


async def accept(_context: Any, _params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


async def use(client: Client, project: Path) -> None:
    """Fork, write, diff, pick and undo, as an agent does."""

    async def call(tool: str, **arguments: Any) -> dict[str, Any]:
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result
        return dict(result.structured_content or {})

    assert len((await client.list_tools()).tools) == 10
    assert len((await client.list_prompts()).prompts) == 2
    first, _ = (await call("fork", branches=2))["branches"]
    await call("write", branch=first, files=[{"path": "new.txt", "content": "é\n"}])
    assert "+é" in (await call("diff", name=first))["text"]
    assert (await call("pick", names=[first]))["committed"]
    assert (project / "new.txt").read_text() == "é\n"
    assert (await call("undo"))["committed"]
    assert not (project / "new.txt").exists()
    wrong = await client.call_tool("diff", {"name": "nothing"})
    assert wrong.is_error
    results: list[Any] = []

    async def show() -> None:
        results.append(await client.call_tool("show", {}))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(show)
    assert len(results) == 20


def test_an_sdk_client_on_standard_input_and_output(project: Path) -> None:
    async def main() -> None:
        words = [*PROGRAM[1:], "-C", str(project), "mcp"]
        server = StdioServerParameters(command=PROGRAM[0], args=words, env=dict(os.environ))
        async with Client(server, elicitation_callback=accept) as client:
            await use(client, project)

    anyio.run(main)


def test_an_sdk_client_on_http(project: Path, transport: HttpTransport) -> None:
    @asynccontextmanager
    async def connect() -> Any:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http_client,
            streamable_http_client(transport.url, http_client=http_client) as streams,
        ):
            yield streams

    async def main() -> None:
        async with Client(connect(), elicitation_callback=accept) as client:
            await use(client, project)

    anyio.run(main)


def request(transport: HttpTransport, method: str = "POST", body: Any = None, **fields: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", transport.port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", **{k.replace("_", "-"): v for k, v in fields.items()}}
    headers = {name: value for name, value in headers.items() if value}
    path = headers.pop("Path", "/mcp")
    connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    session = answer.getheader("Mcp-Session-Id")
    connection.close()
    return answer.status, session or (json.loads(content) if content else None)


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # the process has ended


START = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


def test_http_refuses_strangers(transport: HttpTransport) -> None:
    assert request(transport, body=START, Authorization="")[0] == 401
    assert request(transport, body=START, Authorization="Bearer wrong")[0] == 401
    assert request(transport, body=START, Authorization=f"Basic {TOKEN}")[0] == 401
    assert request(transport, body=START, Origin="https://example.org")[0] == 403
    assert request(transport, body=START, Origin="null")[0] == 403
    assert request(transport, body=START, Host="example.org")[0] == 403
    assert request(transport, body=START, Path="/other")[0] == 404
    assert request(transport, "GET")[0] == 405
    assert request(transport, body=PING)[0] == 400
    assert request(transport, body=PING, Mcp_Session_Id="guess")[0] == 404
    assert request(transport, body=b"{", Mcp_Session_Id="guess")[0] == 400
    assert request(transport, "POST", Content_Length="99999999999")[0] == 413
    assert request(transport, "POST", Content_Length="x")[0] == 411


def test_an_http_session_ends(transport: HttpTransport) -> None:
    status, session = request(transport, body=START, Origin="http://localhost:1")
    assert status == 200
    assert request(transport, body=PING, Mcp_Session_Id=session)[0] == 200
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert request(transport, body=notice, Mcp_Session_Id=session)[0] == 202
    assert request(transport, "DELETE", Mcp_Session_Id=session)[0] == 204
    assert request(transport, body=PING, Mcp_Session_Id=session)[0] == 404


def test_the_end_of_standard_input_ends_commands_and_the_server(project: Path) -> None:
    process = subprocess.Popen([*PROGRAM, "-C", str(project), "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(number: int, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()

    ask(1, "initialize", protocolVersion="2025-06-18", capabilities={})
    ask(2, "tools/call", name="fork", arguments={"branches": 1})
    answers = {}
    while 2 not in answers:
        answer = json.loads(process.stdout.readline())
        answers[answer["id"]] = answer
    (branch,) = answers[2]["result"]["structuredContent"]["branches"]
    command = f"exec sleep {SLEEP}"
    params = {"name": "run", "arguments": {"branch": branch, "command": command}, "_meta": {"progressToken": 1}}
    ask(3, "tools/call", **params)
    assert json.loads(process.stdout.readline())["method"] == "notifications/progress"  # it runs
    process.stdin.close()
    with process.stdout:
        rest = process.stdout.read()
    assert process.wait(timeout=120) == 0
    assert b"Traceback" not in rest
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if SLEEP in read(path)]


def test_a_line_that_is_too_long_is_skipped(project: Path) -> None:
    ping = json.dumps(PING).encode()
    lines = b'"' + b"x" * (33 << 20) + b'"\n' + ping + b"\n" + b"\n"
    done = subprocess.run([*PROGRAM, "-C", str(project), "mcp"], input=lines, stdout=subprocess.PIPE, timeout=300)
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert "larger than 32 MiB" in first["error"]["message"]
    assert second["result"] == {}
