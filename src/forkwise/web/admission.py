"""Admission: which requests the page answers, and with which rights.

A link with a token opens the page; the browser then gets a cookie, which other sites cannot make it send. The server
answers only to its own host name, which prevents DNS rebinding, and a change needs a second token from one of the
server's own pages. A read-only link opens one fork, and cannot change anything.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["FORM_HEADER", "Admission", "Keys", "Visitor", "load_keys", "visitor_of"]

#: The header that carries the second token of a change.
FORM_HEADER = "x-forkwise-form"

_TOKEN = "token"
_SCOPE = re.compile(r"[a-z0-9-]{1,80}/[a-z0-9]{1,20}")
_KEY_SIZE = 32
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """The person behind a request. ``fork`` is the one that a read-only link shows; ``form`` is the second token."""

    can_write: bool
    fork: str | None
    form: str


class Keys:
    """The tokens of a server, derived from one secret, so that they survive a restart."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def derive(self, purpose: str) -> str:
        """Return the token for a purpose."""
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).hexdigest()[:40]

    @property
    def host_name(self) -> str:
        """The host name on the loopback interface: browsers send a cookie of one name to no other."""
        return f"forkwise-{self.derive('name')[:10]}.localhost"

    @property
    def link_token(self) -> str:
        """The token of the link that grants all rights."""
        return self.derive("link")

    def reader_token(self, fork: str) -> str:
        """Return the token of a link that only shows one fork, named ``workspace/fork``."""
        return f"{fork}~{self.derive(f'read {fork}')}"

    def exchange(self, token: str) -> str | None:
        """Return the cookie for a link's token; None if the token is invalid."""
        if _is_equal(token, self.link_token):
            return self.derive("cookie")
        fork = token.partition("~")[0]
        if _SCOPE.fullmatch(fork) and _is_equal(token, self.reader_token(fork)):
            return f"{fork}~{self.derive(f'cookie {fork}')}"
        return None

    def identify(self, cookie: str) -> Visitor | None:
        """Return the visitor that a cookie belongs to; None if the cookie is invalid."""
        form = self.derive(f"form {cookie}")
        if _is_equal(cookie, self.derive("cookie")):
            return Visitor(True, None, form)
        fork = cookie.partition("~")[0]
        if _SCOPE.fullmatch(fork) and _is_equal(cookie, f"{fork}~{self.derive(f'cookie {fork}')}"):
            return Visitor(False, fork, form)
        return None


def load_keys(path: str | os.PathLike[str], *, renew: bool = False) -> Keys:
    """Load the secret of a server from a file that only its user can read; create it if there is none."""
    if renew:
        with_name = f"{os.fspath(path)}.{secrets.token_hex(4)}"
        _create(with_name)
        os.rename(with_name, path)
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            try:
                _create(os.fspath(path))
            except FileExistsError:
                continue
            continue
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            found = file.read(_KEY_SIZE + 1)
        if len(found) != _KEY_SIZE or facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
            raise PermissionError(f"{os.fspath(path)} is not a key that only you can read: delete it and start again")
        return Keys(found)


def _create(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(secrets.token_bytes(_KEY_SIZE))


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def visitor_of(request: Request) -> Visitor:
    """Return the visitor of a request that was admitted."""
    found = request.scope["forkwise.visitor"]
    assert isinstance(found, Visitor)
    return found


class Admission:
    """ASGI middleware around the pages: it answers a request, or refuses it.

    ``hosts`` are the values of the header ``Host`` that name this server.
    """

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str], *, is_encrypted: bool) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)
        self._scheme = "https" if is_encrypted else "http"
        port = next(iter(self._hosts)).rpartition(":")[2]
        self._cookie = "__Host-forkwise" if is_encrypted else f"forkwise-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                message = {**message, "headers": headers.raw}
            await send(message)

        answer = self._admit(scope)
        await (self._app if answer is None else answer)(scope, receive, send_safely)

    def _admit(self, scope: Scope) -> Response | None:
        """Set the visitor of a request, or return the response that refuses it."""
        request = Request(scope)
        headers = request.headers
        if headers.getlist("host") != [headers.get("host", "")] or headers.get("host", "").lower() not in self._hosts:
            return _refuse(
                421, "This server does not answer to that name: open the address that forkwise serve printed."
            )
        if request.method not in ("GET", "HEAD", "POST"):
            return _refuse(405, "This server answers GET and POST.")
        if request.method != "POST" and _TOKEN in request.query_params and request.url.path == "/":
            return self._open(request.query_params[_TOKEN])
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _refuse(403, "Another site sent this request: open the address that forkwise serve printed.")
        if request.url.path.startswith("/assets/"):
            return None
        visitor = self._identify(headers)
        if visitor is None:
            return _refuse(401, "This page is not open in this browser: open the address that forkwise serve printed.")
        if visitor.fork is not None and not self._is_in_scope(request, visitor.fork):
            return _refuse(403, "This link shows one fork only.")
        if request.method == "POST":
            if not visitor.can_write:
                return _refuse(403, "This is a read-only link: it cannot change anything.")
            if not self._is_own_form(headers, visitor):
                return _refuse(403, "This request does not come from a page of this server: reload it and try again.")
        scope["forkwise.visitor"] = visitor
        return None

    def _open(self, token: str) -> Response:
        """Answer a link with a token: set the cookie, and return a page that leads to the first one.

        A redirect would not work: a browser that follows a link from another site sends no SameSite cookie after it.
        """
        cookie = self._keys.exchange(token)
        if cookie is None:
            return _refuse(403, "This link is not valid any more: open the address that forkwise serve printed.")
        fork = cookie.partition("~")[0] if "~" in cookie else ""
        target = f"/w/{fork}/" if fork else "/"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><title>forkwise</title>'
        answer = HTMLResponse(page)
        secure = self._scheme == "https"
        answer.set_cookie(self._cookie, cookie, httponly=True, samesite="strict", secure=secure, max_age=30 * 86400)
        return answer

    def _identify(self, headers: Headers) -> Visitor | None:
        for line in headers.getlist("cookie"):
            try:
                found = SimpleCookie(line).get(self._cookie)
            except CookieError:
                continue
            if found is not None and (visitor := self._keys.identify(found.value)) is not None:
                return visitor
        return None

    def _is_in_scope(self, request: Request, fork: str) -> bool:
        kind, _, rest = request.url.path.removeprefix("/").partition("/")
        return kind in ("w", "blind", "events") and f"{rest}/".startswith(f"{fork}/")

    def _is_own_form(self, headers: Headers, visitor: Visitor) -> bool:
        origin = urlsplit(headers.get("origin", ""))
        is_own = origin.scheme == self._scheme and origin.netloc.lower() in self._hosts
        return is_own and _is_equal(headers.get(FORM_HEADER, ""), visitor.form)


def _refuse(status: int, message: str) -> Response:
    return PlainTextResponse(f"{message}\n", status)
