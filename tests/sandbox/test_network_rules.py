"""What a proxy decides on bytes: which hosts are reached, how requests are read, which addresses names get."""

from __future__ import annotations

import socket
import struct

import pytest

from forkwise.sandbox.network.handshake import (
    LARGEST_HEAD,
    BadRequestError,
    format_refusal,
    parse_http,
    parse_socks,
)
from forkwise.sandbox.network.names import Names
from forkwise.sandbox.network.policy import HostPolicy, parse_address

LOOPBACK = [
    *("127.0.0.1", "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "0x7f000001", "127.255.255.254", "0", "0.0.0.0"),
    *("[::1]", "::1", "::", "0:0:0:0:0:0:0:1", "[::ffff:127.0.0.1]", "::ffff:7f00:1", "[::ffff:0x7f.1]"),
    *("::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "localhost", "LOCALHOST", "localhost.", "a.b.localhost"),
    *("ip6-localhost", "127.0.0.1.", "127.0.0.1..", "[::1%lo]"),
]
OTHERS = [
    *("169.254.169.254", "2852039166", "0xa9.0xfea9fe", "[::ffff:169.254.169.254]", "fe80::1", "[fe80::1%eth0]"),
    *("metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data", "100.100.100.200"),
    *("fd00:ec2::254", "224.0.0.1", "255.255.255.255", "ff02::1", "168.63.129.16"),
]
MALFORMED = ["", ".", "a b", "a\r\nb", "a/b", "a@b", "é.org", "a" * 254, "-", "[", "a:b", "::g", "*", "\0"]


@pytest.mark.parametrize("host", [*LOOPBACK, *OTHERS, *MALFORMED])
@pytest.mark.parametrize("allowed", [(), ("*",), ("*.*", "*")])
def test_the_host_and_metadata_are_denied_unless_named(host: str, allowed: tuple[str, ...]) -> None:
    decision = HostPolicy(allowed=allowed).check(host, 5432)
    assert not decision.is_allowed
    assert decision.reason
    if host in LOOPBACK and "%" not in host and "0x7f.1]" not in host:
        assert "--host-port 5432" in decision.reason


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "0x7f.1"])
def test_one_port_of_the_host_is_let_through(host: str) -> None:
    policy = HostPolicy(host_ports=(5432,))
    assert policy.check(host, 5432).host_port == 5432
    assert not policy.check(host, 5433).is_allowed
    assert not HostPolicy(host_ports=(5432,), denied=("127.*", "localhost", "::1")).check(host, 5432).is_allowed


def test_an_address_that_is_written_out_is_named() -> None:
    assert HostPolicy(allowed=("169.254.169.254",)).check("169.254.169.254", 80).is_allowed
    assert HostPolicy(allowed=("metadata.google.internal",)).check("metadata.google.internal", 80).is_allowed
    policy = HostPolicy(allowed=("evil.example",))
    assert policy.check("evil.example", 80).is_allowed
    for address in ("127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"):
        assert not policy.check_address(address).is_allowed, "a name leads where its owner wants"


def test_an_address_of_this_machine_is_denied() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return  # this machine has no address but its loopback
        own = probe.getsockname()[0]
    assert not HostPolicy().check_address(own).is_allowed
    assert HostPolicy(allowed=(own,)).check_address(own).is_allowed


def test_deny_wins_and_globs_match_whole_names_in_any_case() -> None:
    policy = HostPolicy(allowed=("*.example.org", "10.0.*"), denied=("bad.*",))
    allowed = [policy.check(h, 443).is_allowed for h in ("A.Example.ORG", "a.example.org.", "10.0.0.7", "0xa.7")]
    assert allowed == [True] * 4
    for host in ("example.org", "example.org.evil.com", "bad.example.org", "10.1.0.1", "xexample.org"):
        assert not policy.check(host, 443).is_allowed
    assert not policy.check("a.example.org", 0).is_allowed
    assert not policy.check("a.example.org", 70000).is_allowed


def test_names_are_no_addresses() -> None:
    assert [parse_address(text) for text in ("dead.beef", "a", "0x", "1.2.3.4.5", "example.org", "cafe", "")] == [
        None
    ] * 7


def test_http_requests_are_rewritten_for_the_server() -> None:
    head = (
        b"POST http://user:pw@Example.org:8080/a?b#c HTTP/1.1\r\nHost: other.org\r\nProxy-Authorization: x\r\n"
        b"Connection: keep-alive, X-Own\r\nX-Own: 1\r\nContent-Length: 2\r\n\r\nhi"
    )
    target = parse_http(head)
    assert target is not None
    assert (target.kind, target.host, target.port) == ("http", "Example.org", 8080)
    assert target.forwarded == (
        b"POST /a?b HTTP/1.1\r\nHost: Example.org:8080\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    )
    assert parse_http(head[:40]) is None
    upgrade = parse_http(b"GET http://a.org HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert upgrade is not None
    assert b"Connection: Upgrade\r\nUpgrade: websocket" in upgrade.forwarded
    connect = parse_http(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\n\r\nmore")
    assert connect is not None
    assert (connect.host, connect.port, connect.forwarded) == ("2001:db8::1", 443, b"more")


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET https://a.org/ HTTP/1.1\r\n\r\n",
        b"GET http://a.org/ HTTP/2.0\r\n\r\n",
        b"GET  http://a.org/ HTTP/1.1\r\n\r\n",
        b"GET http://a.org/\tb HTTP/1.1\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\nHost: b\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nA: b\n\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nA: b\0\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"GET http://a.org:x/ HTTP/1.1\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\n\r\n",
        b"CONNECT a.org HTTP/1.1\r\n\r\n",
        b"CONNECT a.org:443:1 HTTP/1.1\r\n\r\n",
        b"CONNECT a.org:443/x HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01 hello\r\n\r\n",
        b"x" * (LARGEST_HEAD + 1),
    ],
)
def test_requests_that_can_be_read_in_two_ways_are_refused(request_text: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_http(request_text)


def test_socks_requests_are_read_in_any_pieces() -> None:
    whole = b"\x05\x01\x00" + b"\x05\x01\x00\x03\x0bexample.org\x01\xbb" + b"more"
    for size in range(len(whole) - 4):
        assert parse_socks(whole[:size])[1] is None
    greeting, target = parse_socks(whole)
    assert target is not None
    assert (greeting, target.host, target.port, target.forwarded) == (3, "example.org", 443, b"more")
    for bad in (
        b"\x05\x01\x02",
        b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x09\x00",
    ):
        with pytest.raises(BadRequestError):
            parse_socks(bad)
    assert format_refusal("socks", 403, "no")[:2] == b"\x05\x02"


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def test_each_name_gets_an_address_that_leads_back_to_it() -> None:
    names = Names()
    first, second = names.answer(query("Example.org")), names.answer(query("a.example.org"))
    assert first is not None
    assert second is not None
    assert names.answer(query("example.ORG")) is not None
    assert [names.find_name(socket.inet_ntoa(answer[-4:])) for answer in (first, second)] == [
        "example.org",
        "a.example.org",
    ]
    local = names.answer(query("x.localhost"))
    assert local is not None
    assert local[-4:] == socket.inet_aton("127.0.0.1")
    nothing = names.answer(query("example.org", kind=28))
    assert nothing is not None
    assert nothing[3] & 15 == 0, "no error, and no IPv6 address"
    assert struct.unpack(">H", nothing[6:8]) == (0,)
    reverse = names.answer(query("1.0.18.198.in-addr.arpa", kind=12))
    assert reverse is not None
    assert reverse[3] & 15 == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        query("a")[:-1],
        query("a")[:13],
        query("a b.org"),
        query("a")[:12] + b"\xc0\x0c\0\1\0\1",
        b"\xff" * 600,
    ],
)
def test_malformed_queries_get_an_error_or_nothing(data: bytes) -> None:
    answer = Names().answer(data)
    assert answer is None or answer[3] & 15


def test_a_flood_of_names_is_bounded() -> None:
    names = Names()
    assert sum(names.find_address(f"n{number}.org") is not None for number in range(70_000)) == 60_000
