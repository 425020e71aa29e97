"""The preview listener, in front of real servers on the loopback: who may pass, and that everything passes as it is."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forkwise.preview import listener as listener_module
from forkwise.preview.listener import PreviewListener, TargetError

LABEL = "k3f9ab-2--3000"


class Server(BaseHTTPRequestHandler):
    """Answers with what it got, and speaks a WebSocket that echoes bytes."""

    protocol_version = "HTTP/1.1"
    released = threading.Event()
    left = threading.Event()

    def do_GET(self) -> None:
        if self.headers.get("Upgrade") == "websocket":
            self._echo()
        elif self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: 1\n\n")
            self.released.wait(30)
            self.wfile.write(b"data: 2\n\n")
            assert self.connection.recv(1) == b""
            self.left.set()
        else:
            self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline() != b"\r\n":
                pass
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        text = f"{self.requestline}\n{self.headers}".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Set-Cookie", "own=1")
        self.send_header("Set-Cookie", f"{self.headers['Host'].partition(':')[2]}-is-not-it=1")
        self.send_header("Alt-Svc", 'h2="evil.example:443"')
        self.send_header("Keep-Alive", "timeout=5")
        self.end_headers()
        self.wfile.write(text)

    def _echo(self) -> None:
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.end_headers()
        while piece := self.connection.recv(4096):
            self.connection.sendall(piece.upper())
        self.connection.sendall(b"end")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Server.released, Server.left = threading.Event(), threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as opened:
        opened.daemon_threads = True
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield opened
        Server.released.set()
        opened.shutdown()
        thread.join()


@pytest.fixture
def listener(server: ThreadingHTTPServer) -> Iterator[PreviewListener]:
    def connect(label: str, port: int | None) -> socket.socket:
        if label != "k3f9ab-2" or port not in (None, 3000):
            raise TargetError(f"nothing runs in {label} <b>", 404)
        return socket.create_connection(server.server_address[:2])

    with PreviewListener(connect, port=None) as opened:
        yield opened


def send(listener: PreviewListener, data: bytes) -> bytes:
    """Send bytes as they are, and return the whole answer."""
    with socket.create_connection(("127.0.0.1", listener.port), 30) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b""))


def request(listener: PreviewListener, *lines: str, token: bool = True, first: str = "GET / HTTP/1.1") -> bytes:
    own = [first, *lines]
    if not any(line.startswith("Host:") for line in lines):
        own.append(f"Host: {LABEL}.localhost:{listener.port}")
    if token:
        own.append(f"Forkwise-Token: {listener.make_token(LABEL)}")
    return ("\r\n".join(own) + "\r\n\r\n").encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_the_token_in_the_url_becomes_a_cookie_that_the_server_never_sees(listener: PreviewListener) -> None:
    url = listener.format_url(LABEL)
    target = url.partition(str(listener.port))[2]
    answer = send(listener, request(listener, token=False, first=f"GET /a{target[1:]}&x=1 HTTP/1.1")).decode()
    assert answer.startswith("HTTP/1.1 303 ")
    assert f"\r\nLocation: http://{LABEL}.localhost:{listener.port}/a?x=1\r\n" in answer
    cookie = answer.partition("Set-Cookie: ")[2].partition("\r\n")[0]
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert listener.make_token(LABEL) not in answer
    pair = cookie.partition(";")[0]
    answer = send(listener, request(listener, f"Cookie: a=b; {pair}; c=d", token=False)).decode()
    assert answer.startswith("HTTP/1.1 200 ")
    assert "Cookie: a=b; c=d" in answer
    assert pair.partition("=")[2] not in answer
    assert "\r\nSet-Cookie: own=1" in answer
    other = send(listener, request(listener, f"Cookie: {pair}", f"Host: k3f9ab-3--3000.localhost:{listener.port}"))
    assert status(other) == 403  # of another attempt


def test_a_link_on_a_page_sets_the_cookie_by_a_page_of_this_origin(listener: PreviewListener) -> None:
    target = listener.format_url(LABEL).partition(str(listener.port))[2]
    data = request(listener, "Sec-Fetch-Site: cross-site", token=False, first=f"GET {target}&x=%22%3E HTTP/1.1")
    answer = send(listener, data).decode()
    assert (status(answer.encode()), "Set-Cookie: forkwise-preview" in answer) == (200, True)
    assert f'content="0; url=http://{LABEL}.localhost:{listener.port}/?x=%22%3E">' in answer


def test_a_client_has_a_limited_time_for_its_head(listener: PreviewListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_HEAD_TIMEOUT_S", 0.05)
    with socket.create_connection(("127.0.0.1", listener.port), 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert status(client.recv(4096)) == 408


def test_the_server_sees_the_request_without_what_is_about_the_connection(listener: PreviewListener) -> None:
    answer = send(
        listener, request(listener, "Connection: keep-alive, X-Mine", "X-Mine: 1", "X-Forwarded-Host: evil", "A: b")
    ).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert "Forkwise-Token" not in body
    assert "X-Mine" not in body
    assert f"X-Forwarded-Host: {LABEL}.localhost:{listener.port}" in body
    assert "evil" not in body
    assert ("A: b" in body, "Connection: close" in body) == (True, True)
    assert ("Alt-Svc" in head, "Keep-Alive" in head, "Connection: close" in head) == (False, False, True)


OTHER_HOSTS = (
    "evil.example:{}",
    "localhost:{}",
    "127.0.0.1:{}",
    "[::1]:{}",
    "",
    "a.b.localhost:{}",
    f"{LABEL}.localhost:1",
    f"{LABEL}.localhost",
    f"{LABEL}.localhost.evil.example:{{}}",
    f"{LABEL}@evil.localhost:{{}}",
    f"{LABEL}--1.localhost:{{}}",
)


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_another_host_is_refused(listener: PreviewListener, host: str) -> None:
    assert status(send(listener, request(listener, f"Host: {host.format(listener.port)}"))) == 403


def test_without_its_token_a_request_is_refused_with_the_remedy(listener: PreviewListener) -> None:
    answer = send(listener, request(listener, token=False))
    assert status(answer) == 403
    assert b"forkwise open" in answer
    for bad in ("0" * 40, listener.make_token("k3f9ab-3--3000"), "\xe9"):
        assert status(send(listener, request(listener, f"Forkwise-Token: {bad}", token=False))) == 403
        first = f"GET /?forkwise-token={bad.encode('latin-1').hex()} HTTP/1.1"
        assert status(send(listener, request(listener, token=False, first=first))) == 403
    assert status(send(listener, request(listener, f"Forkwise-Token: {'0' * 40}"))) == 400  # two of them


def test_a_page_of_another_origin_can_neither_post_nor_open_a_websocket(listener: PreviewListener) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket")
    for origin in ("http://evil.example", "null", f"http://k3f9ab-3--3000.localhost:{listener.port}"):
        post = request(listener, f"Origin: {origin}", "Content-Length: 0", first="POST / HTTP/1.1")
        assert status(send(listener, post)) == 403
        assert status(send(listener, request(listener, f"Origin: {origin}", *upgrade))) == 403
    own = request(
        listener, f"Origin: http://{LABEL}.localhost:{listener.port}", "Content-Length: 0", first="POST / HTTP/1.1"
    )
    assert status(send(listener, own)) == 200


def test_what_follows_a_request_is_not_taken_for_another_one(listener: PreviewListener) -> None:
    second = request(listener, first="GET /second HTTP/1.1", token=False)
    assert b"/second" not in send(listener, request(listener) + second)
    sized = request(listener, "Content-Length: 2", first="POST / HTTP/1.1")
    assert send(listener, sized + b"ab" + second).endswith(b"\n\nab")
    chunked = request(listener, "Transfer-Encoding: chunked", first="POST / HTTP/1.1")
    assert send(listener, chunked + b"2;x=y\r\nab\r\n1\r\nc\r\n0\r\nTrailer: 1\r\n\r\n" + second).endswith(b"\n\nabc")
    for lengths in (("Content-Length: 2", "Transfer-Encoding: chunked"), ("Content-Length: 2", "Content-Length: 3")):
        assert status(send(listener, request(listener, *lengths, first="POST / HTTP/1.1") + b"0\r\n\r\n")) == 400
    assert status(send(listener, request(listener, *(f"A{i}: {'x' * 1000}" for i in range(70))))) == 431
    assert status(send(listener, request(listener, first="GET http://evil.example/ HTTP/1.1"))) == 400


def test_a_large_body_passes_in_both_directions(listener: PreviewListener) -> None:
    body = bytes(range(256)) * 8192
    client = http.client.HTTPConnection("127.0.0.1", listener.port)
    host = f"{LABEL}.localhost:{listener.port}"
    fields = {"Host": host, "Forkwise-Token": listener.make_token(LABEL), "Expect": "100-continue"}
    client.request("POST", "/", body=(body[i : i + 100_000] for i in range(0, len(body), 100_000)), headers=fields)
    answer = client.getresponse()
    assert (answer.status, answer.read().endswith(body)) == (200, True)
    client.close()


def test_an_event_stream_passes_event_by_event_and_ends_with_its_reader(listener: PreviewListener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), 30) as client:
        client.sendall(request(listener, first="GET /events HTTP/1.1"))
        seen = b""
        while b"data: 1\n\n" not in seen:
            seen += client.recv(4096)
        Server.released.set()
        while b"data: 2\n\n" not in seen:
            seen += client.recv(4096)
        assert not Server.left.is_set()
    assert Server.left.wait(30), "the server sees that its reader is gone"


def test_a_websocket_passes_in_both_directions(listener: PreviewListener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), 30) as client:
        own = f"Origin: http://{LABEL}.localhost:{listener.port}"
        client.sendall(request(listener, "Connection: keep-alive, Upgrade", "Upgrade: websocket", own) + b"early ")
        answer = b""
        while not answer.endswith(b"EARLY "):
            answer += client.recv(4096)
        assert (status(answer), b"\r\nUpgrade: websocket\r\n" in answer) == (101, True)
        client.sendall(b"later")
        assert client.recv(5) == b"LATER"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(9) == b"end"
        assert client.recv(9) == b""


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no http\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000,
    ],
)
def test_an_invalid_answer_is_reported(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inside:

        def answer_once() -> None:
            with inside.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        with PreviewListener(lambda *_: socket.create_connection(inside.getsockname())) as opened:
            said = send(opened, request(opened))
        thread.join()
    assert (status(said), b"gave no valid answer" in said) == (502, True)


def test_interim_answers_pass_and_the_listeners_own_cookie_cannot_be_set() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inside,
        PreviewListener(lambda *_: socket.create_connection(inside.getsockname())) as opened,
    ):
        own = f"Set-Cookie: forkwise-preview-{opened.port}=forged; Path=/\r\n".encode()
        own += b"Set-Cookie: a=1; DOMAIN=localhost; Path=/\r\n"
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"

        def answer_once() -> None:
            with inside.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(interim + b"HTTP/1.1 200 OK\r\n" + own + b"\r\nok")

        thread = threading.Thread(target=answer_once)
        thread.start()
        said = send(opened, request(opened))
        thread.join()
    assert said == interim + b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/\r\nConnection: close\r\n\r\nok"


def test_an_unknown_branch_is_named_without_markup(listener: PreviewListener) -> None:
    label = "k3f9ab-9--1"
    data = request(
        listener,
        f"Host: {label}.localhost:{listener.port}",
        f"Forkwise-Token: {listener.make_token(label)}",
        token=False,
    )
    answer = send(listener, data)
    assert (status(answer), b"nothing runs in k3f9ab-9 &lt;b&gt;" in answer) == (404, True)


def test_only_the_loopback_is_listened_on_and_a_taken_port_is_an_error(listener: PreviewListener) -> None:
    with pytest.raises(OSError, match="in use"):
        PreviewListener(lambda *_: socket.socket(), port=listener.port)
    with PreviewListener(lambda *_: socket.socket()) as other:
        assert other.port != listener.port
    with open("/proc/net/tcp") as file:
        found = [line.split()[1] for line in file if f":{listener.port:04X} " in line.split()[1] + " "]
    assert set(found) == {f"0100007F:{listener.port:04X}"}


def test_connections_are_limited(listener: PreviewListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_MAX_CONNECTIONS", 2)
    with PreviewListener(lambda *_: socket.socket()) as opened:
        clients = [socket.create_connection(("127.0.0.1", opened.port), 30) for _ in range(2)]
        assert status(send(opened, b"")) == 503
        for client in clients:
            client.close()
