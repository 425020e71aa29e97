"""Heads of HTTP messages: what is read, and what is refused because two programs could read it in two ways."""

from __future__ import annotations

import pytest

from forkwise.preview.http_head import HeadError, parse_request, parse_response


def lines(*text: str) -> bytes:
    return ("\r\n".join(text) + "\r\n\r\n").encode("latin-1")


GET = "GET / HTTP/1.1"
POST = "POST / HTTP/1.1"


@pytest.mark.parametrize(
    "data",
    [
        lines(POST, "Content-Length: 1", "Transfer-Encoding: chunked"),
        lines(POST, "Content-Length: 1", "Content-Length: 2"),
        lines(POST, "Content-Length: 1", "Content-Length: 1"),
        lines(POST, "Content-Length: +1"),
        lines(POST, "Content-Length: 1, 1"),
        lines(POST, "Content-Length: "),
        lines(POST, "Content-Length: 0x10"),
        lines(POST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        lines(POST, "Transfer-Encoding: gzip, chunked"),
        lines(POST, "Transfer-Encoding: xchunked"),
        lines(POST, "Transfer-Encoding:\x0bchunked"),
        lines("POST / HTTP/1.0", "Transfer-Encoding: chunked"),
        lines(POST, "Content-Length : 1"),
        lines(POST, "Transfer-Encoding\t: chunked"),
        lines(GET, "A: b", " folded: c"),
        lines(GET, "A: b\nC: d"),
        lines(GET, "A: b\rC: d"),
        lines(GET, "A: \x00"),
        lines(GET, "no colon"),
        lines(GET, ": no name"),
        lines(GET, *(["A: b"] * 201)),
        lines("GET http://example.com/ HTTP/1.1"),
        lines("CONNECT example.com:443 HTTP/1.1"),
        lines("GET * HTTP/1.1"),
        lines("GET / HTTP/2.0"),
        lines("GET /a b HTTP/1.1"),
        lines("GET  / HTTP/1.1"),
        lines("GET /\x7f HTTP/1.1"),
        lines("GET / HTTP/1.1 "),
        lines(""),
        lines("\r\n" + GET),
    ],
)
def test_an_ambiguous_request_is_refused(data: bytes) -> None:
    with pytest.raises(HeadError):
        parse_request(data)


def test_a_request_is_written_as_it_was_read() -> None:
    data = lines("GET /a?b=%20c HTTP/1.1", "Host: x.localhost:1", "Accept: text/html;q=0.9,  */*", "X-Latin: \xe9")
    assert parse_request(data).dump() == data
    assert parse_request(lines(POST, "content-length: 12")).body_length == 12
    assert parse_request(lines(POST, "Transfer-Encoding: Chunked")).body_length is None
    with pytest.raises(HeadError, match="2 times"):
        parse_request(lines(GET, "Host: a", "Host: b")).get("host")


def test_fields_of_the_connection_are_removed() -> None:
    head = parse_request(
        lines(GET, "Connection: close, X-Secret, Host", "X-Secret: 1", "Keep-Alive: 5", "TE: trailers", "Host: h")
    )
    head.remove_hop_by_hop()
    assert head.fields == [("Host", "h")]


@pytest.mark.parametrize("first", ["HTTP/1.1 99 no", "HTTP/1.1 600 no", "HTTP/2 200", "ICY 200 OK", "HTTP/1.1 200\tOK"])
def test_a_malformed_response_is_refused(first: str) -> None:
    with pytest.raises(HeadError):
        parse_response(lines(first))
    assert parse_response(lines("HTTP/1.0 200")).dump() == b"HTTP/1.1 200 \r\n\r\n"
