"""The server: HTTP/1.1 on the loopback, one thread per connection, so that a script may block.

It checks each request by the provider's rules, passes valid ones to the script, and records everything. A wait on a
connection ends when its client hangs up or the server stops.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Self

from tests.provider.anthropic_wire import ANTHROPIC
from tests.provider.openai_wire import OPENAI
from tests.provider.reply import Drop, Failure, Reply, as_reply
from tests.provider.request import Request
from tests.provider.rules import AnthropicOptions, Fault, anthropic_fault, openai_fault
from tests.provider.script import Responder
from tests.provider.wire import Wire, new_id

__all__ = ["ProviderServer"]

WIRES = {"/v1/messages": ANTHROPIC, "/v1/chat/completions": OPENAI}
REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Site Overloaded"}
JOIN_SECONDS = 5.0
Body = Mapping[str, Any]


class ProviderServer:
    """A provider at ``url`` while it is entered, which answers from ``script`` after ``latency`` seconds.

    ``with ProviderServer(Script(["Hello."])) as server: Agent(anthropic_model(server)).run(…)``
    """

    def __init__(self, script: Responder, *, latency: float = 0.0, options: AnthropicOptions | None = None) -> None:
        self.script = script
        self.latency = latency
        self.options = options or AnthropicOptions()
        self._lock = threading.Lock()
        self._requests: list[Body] = []
        self._seen: list[Request] = []
        self._faults: list[Fault] = []
        self._failures: list[Exception] = []
        self._hangups = 0
        self._in_flight = 0
        self._peak = 0
        self._listener: _Listener | None = None

    def __enter__(self) -> Self:
        self._listener = _Listener(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.end()

    @property
    def url(self) -> str:
        """The base URL for Anthropic's clients; OpenAI's need ``url + "/v1"``."""
        if self._listener is None:
            raise RuntimeError("the provider is not running: enter it first, `with ProviderServer(…) as server:`")
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    @property
    def requests(self) -> list[Body]:
        """The body of every request, including rejected ones."""
        with self._lock:
            return list(self._requests)

    @property
    def seen(self) -> list[Request]:
        """Every valid request, as the script saw it."""
        with self._lock:
            return list(self._seen)

    @property
    def faults(self) -> list[Fault]:
        """Every 400 that was sent."""
        with self._lock:
            return list(self._faults)

    @property
    def failures(self) -> list[Exception]:
        """What the script raised; the client got a 500 for it."""
        with self._lock:
            return list(self._failures)

    @property
    def hangups(self) -> int:
        """The number of requests that their client gave up."""
        with self._lock:
            return self._hangups

    @property
    def peak(self) -> int:
        """The maximum number of simultaneous requests."""
        with self._lock:
            return self._peak

    @contextmanager
    def _under_way(self, body: Body) -> Iterator[None]:
        with self._lock:
            self._requests.append(body)
            self._in_flight += 1
            self._peak = max(self._peak, self._in_flight)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    def _fault(self, wire: Wire, body: Body) -> Fault | None:
        return anthropic_fault(body, options=self.options) if wire is ANTHROPIC else openai_fault(body)

    def _respond(self, request: Request) -> Reply | Failure | Drop:
        with self._lock:
            self._seen.append(request)
        try:
            return as_reply(self.script(request))
        except Exception as error:  # noqa: BLE001 - the script's error, recorded in `failures`
            with self._lock:
                self._failures.append(error)
            return Failure(500, f"the script raised {error!r}")

    def _drew(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def _hung_up(self) -> None:
        with self._lock:
            self._hangups += 1


class _Listener(TCPServer):
    """The socket, the thread that accepts, and the threads that answer."""

    request_queue_size = 512
    allow_reuse_address = True

    def __init__(self, provider: ProviderServer) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.provider = provider
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self.serve_forever, args=(0.02,), name="provider", daemon=True)
        self._accepting.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self._answer, args=(request, client_address), daemon=True)
        with self._lock:
            self._open[request] = thread
        thread.start()

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            with suppress(ConnectionError):
                self.finish_request(request, client_address)
        finally:
            with self._lock:
                del self._open[request]
            self.shutdown_request(request)

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        with self._lock:
            left = dict(self._open)
        for connection in left:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, and ends it for copies in forked children
        for thread in [self._accepting, *left.values()]:
            thread.join(JOIN_SECONDS)


class _HungUpError(ConnectionError):
    """The client closed the connection."""


class _Connection(BaseHTTPRequestHandler):
    """The handler of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has in the base
        """Write no log: everything is recorded."""

    def do_POST(self) -> None:
        """Answer one request."""
        text = self.rfile.read(int(self.headers.get("content-length", 0)))
        wire = WIRES.get(self.path.partition("?")[0])
        if wire is None:
            self._send(404, {"type": "error", "error": {"type": "not_found_error", "message": self.path}})
            return
        body = _parsed(text)
        if body is None:
            self._refuse(wire.unreadable("We could not parse the JSON body of your request."))
            return
        provider = self.server.provider
        try:
            with provider._under_way(body):
                self._answer(wire, body)
        except ConnectionError:
            provider._hung_up()
            self.close_connection = True

    def _answer(self, wire: Wire, body: Body) -> None:
        provider = self.server.provider
        fault = provider._fault(wire, body)
        if fault is not None:
            self._refuse(fault)
            return
        request = wire.read(body)
        reply = provider._respond(request)
        self._wait(provider.latency + reply.delay)
        if isinstance(reply, Drop):
            self.close_connection = True
        elif isinstance(reply, Failure):
            status, said = wire.failure(reply)
            self._send(status, said, {} if reply.retry_after is None else {"retry-after": f"{reply.retry_after:g}"})
        elif request.stream:
            self._stream(wire, request, reply)
        else:
            self._send(200, wire.whole(reply, request), is_cut=reply.cut is not None)

    def _refuse(self, fault: Fault) -> None:
        self.server.provider._drew(fault)
        self._send(fault.status, fault.body)

    def _send(self, status: int, body: Body, headers: Mapping[str, str] | None = None, *, is_cut: bool = False) -> None:
        name = new_id("req_")
        if body.get("type") == "error":
            body = {**body, "request_id": name}
        text = json.dumps(body).encode()
        head = self._head(status, name, {"content-type": "application/json", "content-length": str(len(text))})
        extra = "".join(f"{key}: {value}\r\n" for key, value in (headers or {}).items()).encode()
        self.wfile.write(head + extra + b"\r\n" + (text[: len(text) // 2] if is_cut else text))
        self.close_connection |= is_cut

    def _stream(self, wire: Wire, request: Request, reply: Reply) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
        self.wfile.write(self._head(200, new_id("req_"), headers | {"cache-control": "no-cache"}) + b"\r\n")
        for number, event in enumerate(wire.stream(reply, request)):
            if number == reply.cut:
                self.close_connection = True
                if reply.cut_by == "error":
                    self.wfile.write(_chunk(wire.broken()) + _chunk(b""))
                return
            self._wait(reply.pace)
            self.wfile.write(_chunk(event))
        self.wfile.write(_chunk(b""))

    def _head(self, status: int, name: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}", f"request-id: {name}", f"x-request-id: {name}"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n").encode()

    def _wait(self, seconds: float) -> None:
        """Wait for some time, unless the client hangs up."""
        if seconds <= 0:
            return
        waiting = select.poll()
        waiting.register(self.connection, select.POLLIN)
        if waiting.poll(seconds * 1000):
            # A client sends nothing before the response, so readable means that it closed the connection.
            raise _HungUpError


def _parsed(text: bytes) -> Body | None:
    """Return the JSON object in ``text``, if it is one."""
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
