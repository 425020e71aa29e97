"""Transports: messages as lines on standard input and output, or as HTTP requests on the loopback."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from forkwise.linux.file_write import write_all
from forkwise.mcp.protocol import MAX_MESSAGE, McpClient, McpServer

__all__ = ["ENDPOINT", "HttpTransport", "serve_stdio"]

ENDPOINT = "/mcp"
"""The path of the HTTP endpoint."""

_MAX_CLIENTS = 100
_MAX_CONNECTIONS = 256
_IDLE_S = 120.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def serve_stdio(server: McpServer) -> None:
    """Answer messages on standard input until it ends.

    Standard output carries only messages: anything else that this process or its children print goes to standard error.
    """
    output_fd = os.dup(1)
    os.set_inheritable(output_fd, False)
    os.dup2(2, 1)
    client, lock = McpClient(), threading.Lock()

    def send(message: dict[str, Any]) -> None:
        content = _encode(message) + b"\n"
        with lock:
            try:
                write_all(output_fd, content)
            except BrokenPipeError:
                client.cancel_all()  # the client is gone, and its input will end soon

    try:
        for line in _read_lines(sys.stdin.buffer):
            if line is None:
                text = f"the message is larger than {MAX_MESSAGE >> 20} MiB and was not read"
                send({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": text}})
            elif line.strip():
                server.receive(line, client, send)
    finally:
        client.cancel_all()
        server.close()


def _read_lines(stream: BinaryIO) -> Any:
    """Yield the lines of a stream; None for one that is too long, which is skipped."""
    while line := stream.readline(MAX_MESSAGE + 1):
        if len(line) <= MAX_MESSAGE or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(1 << 20)
        yield None


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class HttpTransport:
    """Streamable HTTP on the loopback, for clients that have the ``token``.

    A web page in a browser cannot use it: requests without the token are refused, and so are those from a page of
    another host, or to a name that is not this machine's.
    """

    def __init__(self, server: McpServer, token: str, port: int = 0) -> None:
        self._server = server
        self._token = token.encode()
        self._clients: dict[str, McpClient] = {}
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        transport = self

        class Handler(_Handler):
            owner = transport

        self._listener = _Listener(("127.0.0.1", port), Handler)
        self.port: int = self._listener.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}{ENDPOINT}"

    def serve(self) -> None:
        """Answer requests until ``close`` is called or a signal interrupts."""
        try:
            self._listener.serve_forever(poll_interval=0.5)
        finally:
            self._listener.server_close()
            for client in self._clients.values():
                client.cancel_all()
            self._server.close()

    def close(self) -> None:
        """End ``serve``."""
        self._listener.shutdown()

    def is_authorized(self, header: str) -> bool:
        """Return whether the Authorization header has the token."""
        scheme, _, token = header.partition(" ")
        given = token.strip().encode("utf-8", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self._token)

    def add_client(self) -> tuple[str, McpClient]:
        """Add a client; the oldest is forgotten if there are too many."""
        name, client = secrets.token_urlsafe(24), McpClient()
        with self._lock:
            while len(self._clients) >= _MAX_CLIENTS:
                self._clients.pop(next(iter(self._clients))).cancel_all()
            self._clients[name] = client
        return name, client

    def find_client(self, name: str) -> McpClient | None:
        """Return the client of a session."""
        with self._lock:
            return self._clients.get(name)

    def remove_client(self, name: str) -> None:
        """End a session."""
        with self._lock:
            client = self._clients.pop(name, None)
        if client is not None:
            client.cancel_all()

    def receive(self, message: Any, client: McpClient, send: Callable[[dict[str, Any]], None]) -> None:
        """Pass a message on to the server."""
        self._server.dispatch(message, client, send)

    def acquire(self) -> bool:
        """Reserve a connection; return False if there are too many."""
        return self._slots.acquire(blocking=False)

    def release(self) -> None:
        """Release a connection."""
        self._slots.release()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away; anything else is printed by the base class."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    owner: HttpTransport
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server_version = "forkwise"
    sys_version = ""

    def log_message(self, *_words: Any) -> None:
        """Print nothing."""

    def handle(self) -> None:
        if not self.owner.acquire():
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            super().handle()
        finally:
            self.owner.release()

    def do_POST(self) -> None:
        if not self._check():
            return
        content = self._read_body()
        if content is None:
            return
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            self._refuse(400, "the body is not JSON", -32700)
            return
        is_start = isinstance(message, dict) and message.get("method") == "initialize"
        name = self.headers.get("Mcp-Session-Id", "")
        client = None if is_start else self.owner.find_client(name)
        if is_start:
            name, client = self.owner.add_client()
        if client is None:
            text = "there is no such session: initialize again" if name else "the header Mcp-Session-Id is missing"
            self._refuse(404 if name else 400, text)
            return
        if not isinstance(message, dict) or "method" not in message or "id" not in message:
            self.owner.receive(message, client, lambda _message: None)
            self._reply(202, b"")
            return
        self._answer(message, client, name)

    def _answer(self, message: dict[str, Any], client: McpClient, session: str) -> None:
        """Answer a request: with one message or, for a call of a tool, a stream that ends with its result."""
        queue: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.owner.receive(message, client, queue.put)
        is_stream = message.get("method") == "tools/call" and "text/event-stream" in self.headers.get("Accept", "")
        if not is_stream:
            while "method" in (found := queue.get()):
                pass  # a notification, which this response has no place for
            self._reply(200, _encode(found), "application/json", session)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            found = queue.get()
            self.wfile.write(b"event: message\ndata: " + _encode(found) + b"\n\n")
            self.wfile.flush()
            if "method" not in found:
                return

    def do_DELETE(self) -> None:
        if self._check():
            self.owner.remove_client(self.headers.get("Mcp-Session-Id", ""))
            self._reply(204, b"")

    def do_GET(self) -> None:
        if self._check():
            self._refuse(405, "the server sends nothing of its own accord: use POST")

    def _check(self) -> bool:
        """Refuse a request unless it comes from this machine and has the token."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        origin = self.headers.get("Origin")
        if host not in _LOOPBACK or (origin is not None and urlsplit(origin).hostname not in _LOOPBACK):
            self._refuse(403, "only programs on this machine are served")
        elif not self.owner.is_authorized(self.headers.get("Authorization", "")):
            self._refuse(401, "the token is missing or wrong")
        elif urlsplit(self.path).path.rstrip("/") != ENDPOINT:
            self._refuse(404, f"the endpoint is {ENDPOINT}")
        else:
            return True
        return False

    def _read_body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in self.headers:
            self._refuse(411, "the request needs a Content-Length")
        elif int(length) > MAX_MESSAGE:
            self._refuse(413, f"the message is larger than {MAX_MESSAGE >> 20} MiB")
        else:
            return self.rfile.read(int(length))
        return None

    def _refuse(self, status: int, text: str, code: int = -32600) -> None:
        self.close_connection = True  # the rest of the connection may be a body that was not read
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}
        self._reply(status, _encode(body), "application/json")

    def _reply(self, status: int, body: bytes, kind: str = "", session: str = "") -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if kind:
            self.send_header("Content-Type", kind)
        if session:
            self.send_header("Mcp-Session-Id", session)
        if self.close_connection:
            self.send_header("Connection", "close")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
