"""Redaction: replace secrets in what is recorded about attempts, as text, as data, and in a stream.

Two kinds are recognized: values of variables whose names look like those of secrets, and tokens of common shapes. A
secret that is encoded, or split by other output, is not recognized.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

__all__ = ["MARK", "Redactor", "StreamRedactor", "add_secrets", "find_secrets", "process_redactor", "redact"]

MARK = "[redacted]"

_NAME = re.compile(
    r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|CREDENTIAL|PRIVATE_?KEY|_PAT\Z|_AUTH\Z)",
    re.IGNORECASE | re.DOTALL,
)
_OTHER_NAME = re.compile(r".*_(?:FILE|PATH|DIR|FD|ID|SOCK)\Z", re.IGNORECASE | re.DOTALL)
_MIN_VALUE = 8  # characters: shorter values are found in ordinary words
_MAX_VALUE = 4096
_MAX_HELD = 16 << 10  # bytes of a stream that wait for the end of a token
_URL_PASSWORD = re.compile(r"://[^/\s@]*?:([^/\s@]+)@")

#: The beginning of each shape and its expression. The beginning is searched first, which costs next to nothing.
_SHAPES = (
    ("sk-", r"sk-[A-Za-z0-9_-]{20,}"),
    ("sk_live_", r"sk_live_[A-Za-z0-9]{16,}"),
    ("rk_live_", r"rk_live_[A-Za-z0-9]{16,}"),
    ("ghp_", r"ghp_[A-Za-z0-9]{30,}"),
    ("gho_", r"gho_[A-Za-z0-9]{30,}"),
    ("ghu_", r"ghu_[A-Za-z0-9]{30,}"),
    ("ghs_", r"ghs_[A-Za-z0-9]{30,}"),
    ("ghr_", r"ghr_[A-Za-z0-9]{30,}"),
    ("github_pat_", r"github_pat_[A-Za-z0-9_]{22,}"),
    ("glpat-", r"glpat-[A-Za-z0-9_-]{20,}"),
    ("AKIA", r"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("ASIA", r"ASIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("AIza", r"AIza[A-Za-z0-9_-]{35}"),
    ("xox", r"xox[a-z]-[A-Za-z0-9-]{10,}"),
    ("xapp-", r"xapp-[A-Za-z0-9-]{10,}"),
    ("hf_", r"hf_[A-Za-z0-9]{30,}"),
    ("npm_", r"npm_[A-Za-z0-9]{36}"),
    ("pypi-", r"pypi-[A-Za-z0-9_-]{40,}"),
    ("eyJ", r"(?<![_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
)
_BEGIN = "-----BEGIN"
_HEADER = r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY-----"
_FOOTER = r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY-----"
_BODY = r"(?:[A-Za-z0-9+/=\s\\:,.]|-(?!-)){0,12000}"
_LINES = r"(?:(?:\s|\\[nr])*[A-Za-z0-9+/=]{40,100}(?![A-Za-z0-9+/=]))*"  # of a key that was cut off
_BOUNDARY = r"(?<![A-Za-z0-9])"
_TOKEN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
_BEGINNINGS = [*(beginning.encode() for beginning, _ in _SHAPES), _BEGIN.encode()]

# Compiled, and then cached by re, when the beginning of a secret is found: most commands find none.
_TEXT_SHAPES = [
    *((beginning, _BOUNDARY + shape) for beginning, shape in _SHAPES),
    (_BEGIN, rf"{_HEADER}(?:{_BODY}{_FOOTER}|{_LINES})"),
]
_BYTE_SHAPES = [(beginning.encode(), shape.encode()) for beginning, shape in _TEXT_SHAPES]
_OPEN_KEY = rf"-----BEGIN(?: [A-Z0-9 ]{{0,40}}-{{0,5}})?\Z|{_HEADER}{_BODY}(?:-[-A-Z0-9 ]{{0,60}})?\Z".encode()


def find_secrets(environment: Mapping[str, str]) -> frozenset[str]:
    """Find the values of variables that are secrets: by the name of the variable, or as the password in a URL.

    >>> sorted(find_secrets({"API_TOKEN": "0123456789", "HOME": "/root", "DB": "postgres://me:hunter2hunter2@db/x"}))
    ['0123456789', 'hunter2hunter2']
    """
    return frozenset().union(*(_find_in_variable(name, value) for name, value in environment.items()))


@lru_cache(maxsize=1024)  # a page or a table is redacted piece by piece, and the environment rarely changes
def _find_in_variable(name: str, value: str) -> frozenset[str]:
    found = set()
    if _NAME.match(name) and not _OTHER_NAME.match(name) and value[:1] not in ("/", "~"):
        found.add(value.strip())
    if "://" in value:
        found.update(_URL_PASSWORD.findall(value))
    return frozenset(one for one in found if _MIN_VALUE <= len(one) <= _MAX_VALUE)


class Redactor:
    """Replaces known secrets with a mark.

    >>> Redactor(["correct horse"]).redact("the password is correct horse, the key AKIAIOSFODNN7EXAMPLE")
    'the password is [redacted], the key [redacted]'
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        longest_first = sorted(set(secrets), key=len, reverse=True)
        self._secrets = [(text, text.encode(errors="surrogateescape")) for text in longest_first]

    def redact(self, text: str) -> str:
        """Return a text without its secrets."""
        for secret, _ in self._secrets:
            if secret in text:
                text = text.replace(secret, MARK)
        for beginning, shape in _TEXT_SHAPES:
            if beginning in text:
                text = re.sub(shape, MARK, text)
        return text

    def redact_values(self, content: bytes) -> bytes:
        """Return bytes without the values that are secrets; tokens of known shapes stay."""
        for _, secret in self._secrets:
            if secret in content:
                content = content.replace(secret, MARK.encode())
        return content

    def redact_bytes(self, content: bytes) -> bytes:
        """Return bytes without their secrets."""
        content = self.redact_values(content)
        for beginning, shape in _BYTE_SHAPES:
            if beginning in content:
                content = re.sub(shape, MARK.encode(), content)
        return content

    def redact_data(self, data: Any) -> Any:
        """Return a JSON value without the secrets in its texts. The keys of objects stay."""
        if isinstance(data, str):
            return self.redact(data)
        if isinstance(data, Mapping):
            return {key: self.redact_data(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.redact_data(value) for value in data]
        return data

    def find_open_end(self, content: bytes) -> int:
        """Return the position from which ``content`` may be the beginning of a secret; its length if there is none."""
        start = len(content)
        for _, secret in self._secrets:
            for length in range(min(len(secret) - 1, len(content)), 0, -1):
                if content.endswith(secret[:length]):
                    start = min(start, len(content) - length)
                    break
        run = len(content.rstrip(_TOKEN_BYTES))
        start = min(start, *(_find_token(content, run, beginning) for beginning in _BEGINNINGS))
        key = content.rfind(_BEGINNINGS[-1])
        if key >= 0 and re.compile(_OPEN_KEY).match(content, key):
            start = min(start, key)
        return max(start, len(content) - _MAX_HELD)


def _find_token(content: bytes, run: int, beginning: bytes) -> int:
    """Return where a token of one shape begins, whole or in part, at or after position ``run``; the end if nowhere."""
    end = len(content)
    found = content.find(beginning, run)
    while found >= 0:
        if found == run or not content[found - 1 : found].isalnum():
            return found
        found = content.find(beginning, found + 1)
    for length in range(min(len(beginning) - 1, end - run), 0, -1):
        at = end - length
        if content.endswith(beginning[:length]) and (at == run or not content[at - 1 : at].isalnum()):
            return at
    return end


class StreamRedactor:
    """Redacts a stream piece by piece: an end that may be the beginning of a secret waits for the next piece.

    >>> stream = StreamRedactor(Redactor())
    >>> stream.feed(b"key AKIAIOSF"), stream.feed(b"ODNN7EXAMPLE\\n"), stream.flush()
    (b'key ', b'[redacted]\\n', b'')
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece; return the output that can no longer become part of a secret."""
        # First the values: the end of one may be the beginning of another.
        content = self._redactor.redact_values(self._held + piece)
        start = self._redactor.find_open_end(content)
        self._held = content[start:]
        return self._redactor.redact_bytes(content[:start])

    def flush(self) -> bytes:
        """Return the rest at the end of the stream."""
        rest, self._held = self._held, b""
        return self._redactor.redact_bytes(rest)


_given: set[str] = set()


def add_secrets(environment: Mapping[str, str]) -> None:
    """Add the secrets among variables that this process passes to attempts in addition to its own environment."""
    _given.update(find_secrets(environment))


def process_redactor(*variables: Mapping[str, str]) -> Redactor:
    """Return the redactor for the secrets that attempts of this process may know, and those among ``variables``."""
    return _build_redactor(find_secrets(os.environ).union(_given, *map(find_secrets, variables)))


def redact(text: str) -> str:
    """Return a text without the secrets that this process knows."""
    return process_redactor().redact(text)


@lru_cache(maxsize=4)
def _build_redactor(secrets: frozenset[str]) -> Redactor:
    return Redactor(secrets)
