"""The proxy of attempts behind another proxy: which connections go through it, how it is asked, and what it may do.

The upstream is a small proxy on this machine that leads every name to one server, so that no name has to exist.
"""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from forkwise import Confinement, NamespaceError
from forkwise.sandbox.network.gateway import open_network
from forkwise.sandbox.network.upstream import Upstream, UpstreamError, build_dialog, read_upstreams
from tests.sandbox.test_proxy import SERVER, exchange, serve

CONFINEMENT = Confinement.standard(network="proxy", denied_hosts=("denied.invalid",))
LOGIN = base64.b64encode(b"me:p w")


@dataclass
class UpstreamProxy:
    """A proxy that notes what it is asked, and connects to ``server`` whatever that is, or gives a fixed answer."""

    port: int
    server: int
    answer: bytes = b""
    asked: list[bytes] = field(default_factory=list)
    extra: bytes = b""

    def handle(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            first = client.recv(1)
            if first == b"\x05":
                self._handle_socks(client)
                return
            head = first
            while b"\r\n\r\n" not in head:
                head += client.recv(1)
            self.asked.append(head)
            if self.answer:
                client.sendall(self.answer)
            elif head.startswith(b"CONNECT "):
                client.sendall(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
                self._relay(client)
            else:
                length = re.search(rb"Content-Length: (\d+)", head)
                body = client.recv(int(length[1]), socket.MSG_WAITALL) if length else b""
                self._relay(client, head.replace(b"http://www.invalid", b"", 1) + body)
                client.shutdown(socket.SHUT_WR)
                self.extra += client.recv(9999)

    def _handle_socks(self, client: socket.socket) -> None:
        methods = client.recv(client.recv(1)[0])
        if 2 in methods:
            client.sendall(b"\x05\x02")
            self.asked.append(client.recv(512))
            client.sendall(b"\x01\x00")
        else:
            client.sendall(b"\x05\x00")
        self.asked.append(client.recv(512))
        client.sendall(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        self._relay(client)

    def _relay(self, client: socket.socket, first: bytes = b"") -> None:
        """Answer one request."""
        with socket.create_connection((SERVER, self.server)) as server:
            server.sendall(first or client.recv(9999))
            while piece := server.recv(9999):
                client.sendall(piece)


@contextmanager
def run_upstream(answer: bytes = b"") -> Iterator[UpstreamProxy]:
    with ExitStack() as stack:
        number = stack.enter_context(serve())
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        upstream = UpstreamProxy(listener.getsockname()[1], number, answer)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=upstream.handle, args=(listener.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        yield upstream
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def behind(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], confinement: Confinement = CONFINEMENT
) -> Iterator[Callable[[bytes], bytes]]:
    """Open a network in an environment that names a proxy. Return a function that sends a request from inside."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with open_network(confinement) as space:
        number = int(space.variables["http_proxy"].rpartition(":")[2])
        yield lambda request: exchange(space.connect(number, timeout=30), request)


def test_plain_http_goes_through_it_with_the_whole_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        run_upstream() as upstream,
        behind(monkeypatch, {"http_proxy": f"http://me:p%20w@127.0.0.1:{upstream.port}"}) as ask,
    ):
        answer = ask(b"GET http://www.invalid/a?b HTTP/1.1\r\nProxy-Authorization: Basic own\r\n\r\n")
        assert answer.endswith(b"GET /a?b www.invalid\n")
        head = upstream.asked[0]
        assert head.startswith(b"GET http://www.invalid/a?b HTTP/1.1\r\nProxy-Authorization: Basic " + LOGIN + b"\r\n")
        assert b"own" not in head
        assert b" 502 " in ask(b"CONNECT www.invalid:443 HTTP/1.1\r\n\r\n"), "http_proxy is for plain HTTP only"


def test_what_follows_a_request_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client could ask it for hosts that were never checked."""
    second = b"GET http://denied.invalid/ HTTP/1.1\r\n\r\n"
    with run_upstream() as upstream, behind(monkeypatch, {"ALL_PROXY": f"http://127.0.0.1:{upstream.port}"}) as ask:
        assert ask(b"GET http://www.invalid/a HTTP/1.1\r\n\r\n" + second).endswith(b"GET /a www.invalid\n")
        head = b"POST http://www.invalid/b HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
        assert ask(head + b"abc" + second).endswith(b"cba")
        assert ask(head + b"abc" * 100_000).endswith(b"cba")
        chunked = b"POST http://www.invalid/c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        ask(chunked + b"0\r\n\r\n" + second)
    assert [head.split()[0] for head in upstream.asked] == [b"GET", b"POST", b"POST", b"CONNECT"]
    assert upstream.extra == b""


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "ALL_PROXY"])
def test_a_tunnel_goes_through_it(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with run_upstream() as upstream, behind(monkeypatch, {variable: f"me:p%20w@127.0.0.1:{upstream.port}"}) as ask:
        answer = ask(b"CONNECT www.invalid:8443 HTTP/1.1\r\n\r\nGET /x HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n"), answer
        assert upstream.asked[0].startswith(b"CONNECT www.invalid:8443 HTTP/1.1\r\nHost: www.invalid:8443\r\n")
        assert LOGIN in upstream.asked[0]


def test_a_socks_proxy_gets_the_login_and_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        run_upstream() as upstream,
        behind(monkeypatch, {"ALL_PROXY": f"socks5h://me:p%20w@127.0.0.1:{upstream.port}"}) as ask,
    ):
        assert ask(b"GET http://www.invalid/s HTTP/1.1\r\n\r\n").endswith(b"GET /s www.invalid\n")
        assert upstream.asked == [b"\x01\x02me\x03p w", b"\x05\x01\x00\x03\x0bwww.invalid\x00\x50"]


def test_rules_apply_before_it_and_this_machine_is_never_reached_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    confinement = replace(CONFINEMENT, allowed_hosts=(SERVER, "*.invalid"))
    with (
        run_upstream() as upstream,
        behind(monkeypatch, {"ALL_PROXY": f"http://127.0.0.1:{upstream.port}"}, confinement) as ask,
    ):
        for host in ("denied.invalid", "www.other", "127.0.0.1", "localhost", "169.254.169.254", "2130706433"):
            assert b" 403 " in ask(f"CONNECT {host}:{upstream.port} HTTP/1.1\r\n\r\n".encode()), host
        assert ask(f"GET http://{SERVER}:{upstream.server}/d HTTP/1.1\r\n\r\n".encode()).endswith(b"\n")
        assert upstream.asked == []


def test_no_proxy_names_hosts_that_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        run_upstream() as upstream,
        behind(
            monkeypatch, {"ALL_PROXY": f"http://127.0.0.1:{upstream.port}", "NO_PROXY": "a.org, .direct.invalid"}
        ) as ask,
    ):
        assert b"cannot be resolved" in ask(b"GET http://www.direct.invalid/ HTTP/1.1\r\n\r\n")
        assert upstream.asked == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"it answered 407 Proxy Authentication Required"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", b"its answer is not HTTP"),
        (b"x" * 100_000, b"its answer is too long"),
        (b"HTTP/1.1 200", b"it closed the connection"),
    ],
)
def test_a_refusal_by_it_is_told(monkeypatch: pytest.MonkeyPatch, answer: bytes, problem: bytes) -> None:
    with (
        run_upstream(answer) as upstream,
        behind(monkeypatch, {"HTTPS_PROXY": f"http://u:secret@127.0.0.1:{upstream.port}"}) as ask,
    ):
        told = ask(b"CONNECT www.invalid:443 HTTP/1.1\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 502 ")
        assert problem in told
        assert b"secret" not in told


def test_one_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    with behind(monkeypatch, {"HTTPS_PROXY": f"http://127.0.0.1:{number}"}) as ask:
        told = ask(b"CONNECT www.invalid:443 HTTP/1.1\r\n\r\n")
        assert f"the upstream proxy 127.0.0.1:{number} cannot be reached: Connection refused".encode() in told


@pytest.mark.parametrize("value", ["https://proxy:443", "ftp://u:secret@a", "http://", "http://a:99999", "http://a\tb"])
def test_one_that_cannot_be_used_is_an_error_without_its_password(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(NamespaceError, match="the variable HTTPS_PROXY names") as raised:
        open_network(CONFINEMENT)
    assert "secret" not in str(raised.value)


def test_variables_are_read_as_curl_reads_them() -> None:
    found = read_upstreams({"HTTP_PROXY": "upper:1", "http_proxy": "lower:2", "ALL_PROXY": "socks5://rest"})
    assert found.find("http", "a.org", 80) == Upstream("http", "lower", 2)
    assert found.find("connect", "a.org", 443) == Upstream("socks5", "rest", 1080)
    exempt = read_upstreams({"all_proxy": "p:1", "no_proxy": "10.0.0.0/8,[::1],b.org:8080,*.c.org d.org"})
    direct = [("10.9.9.9", 1), ("::1", 1), ("[::1]", 1), ("b.org", 8080), ("x.c.org", 1), ("D.org.", 1), ("e.d.org", 1)]
    assert [exempt.find("connect", *one) for one in direct] == [None] * len(direct)
    proxied = [("11.0.0.1", 1), ("b.org", 80), ("ac.org", 1), ("bd.org", 1)]
    assert None not in [exempt.find("connect", *one) for one in proxied]
    assert read_upstreams({"all_proxy": "p:1", "NO_PROXY": "*"}).find("connect", "a.org", 1) is None
    assert read_upstreams({"HTTP_PROXY": " "}).find("http", "a.org", 80) is None


@pytest.mark.parametrize("size", [1, 3, 999])
def test_answers_in_any_pieces_and_with_early_data(size: int) -> None:
    socks = Upstream("socks5", "p", 1, "me", "word")
    for upstream, answer in (
        (Upstream("http", "p", 1), b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"),
        (socks, b"\x05\x02\x01\x00\x05\x00\x00\x03\x04host\x00\x50"),
        (socks, b"\x05\x00\x05\x00\x00\x04" + bytes(18)),
    ):
        dialog = build_dialog(upstream, "a.org", 443, "192.0.2.1")
        pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
        pieces[-1] += b"early"
        assert [dialog.receive(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert dialog.rest == b"early"
    for answer in (
        b"\x05\xff",
        b"\x05\x02\x01\x01",
        b"\x05\x00\x05\x02\x00\x01\x00",
        b"\x04\x00",
        b"\x05\x00\x05\x00\x00\x09\0",
    ):
        with pytest.raises(UpstreamError):
            build_dialog(socks, "a.org", 443, None).receive(answer)
