"""The address of a server in a branch: a host name below ``localhost``, and the token that opens it.

The name consists of the branch's name, as far as a host name allows, and the port inside: ``k3f9ab-2--3000.localhost``
is port 3000 of attempt ``k3f9ab.2``. For browsers, each name is an origin of its own, and each has its own token, so
that a page of one attempt cannot open another's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

__all__ = ["DOMAIN", "TokenBook", "build_label", "format_address", "parse_host", "split_label"]

DOMAIN = "localhost"
_ATTEMPT = re.compile(r"[a-z][a-z0-9]{5}-[1-9][0-9]{0,5}")
_PLAIN = re.compile(r"[a-z](?:-?[a-z0-9]){0,15}")
_LABEL = re.compile(r"([a-z](?:-?[a-z0-9]){1,39})(?:--([1-9][0-9]{0,4}))?")


def build_label(branch_path: str, created: str) -> str:
    """Build the host name of a branch, without domain and port, from its path and its creation time.

    For an attempt, it is the name of its branch. Other names are reused over time, so they get a hash: what a browser
    keeps of one branch, such as a service worker, must never serve another.

    >>> build_label("/main/k3f9ab-2", "")
    'k3f9ab-2'
    >>> build_label("/main/try-1", "2026-01-02"), build_label("/main/Try_1", "2026-01-02")
    ('try-1-f6aaea', 'branch-056e333e4fe9')
    """
    parent, _, name = branch_path.rpartition("/")
    if parent.count("/") == 1 and _ATTEMPT.fullmatch(name):
        return name
    digest = hashlib.sha256(f"{branch_path} {created}".encode("utf-8", "surrogateescape")).hexdigest()
    is_plain = parent.count("/") == 1 and _PLAIN.fullmatch(name)
    return f"{name}-{digest[:6]}" if is_plain else f"branch-{digest[:12]}"


def split_label(label: str) -> tuple[str, int | None] | None:
    """Split a host name into the branch's part and the port, which may be None; return None for any other name."""
    found = _LABEL.fullmatch(label)
    if found is None:
        return None
    port = None if found[2] is None else int(found[2])
    return None if port is not None and port > 65535 else (found[1], port)


def parse_host(host: str, listening_port: int) -> str | None:
    """Return the label in a ``Host`` header; None if it names a host or port that is not the listener's.

    A page elsewhere whose name was made to resolve to this machine (DNS rebinding) has its own name in that header.
    """
    name, _, port = host.lower().partition(":")
    if port != str(listening_port) and (port or listening_port != 80):
        return None
    label, _, domain = name.partition(".")
    return label if domain == DOMAIN and split_label(label) is not None else None


def format_address(label: str, listening_port: int, target: str = "/") -> str:
    """Return the URL of a label."""
    return f"http://{label}.{DOMAIN}:{listening_port}{target}"


class TokenBook:
    """The tokens of one listener, one for each label and purpose. They are derived from a key, not stored."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, purpose: str, label: str) -> str:
        """Return the token of a label for a purpose: ``url`` or ``cookie``."""
        return hmac.new(self._key, f"{purpose} {label}".encode(), hashlib.sha256).hexdigest()[:40]

    def check(self, purpose: str, label: str, given: str) -> bool:
        """Compare a token in constant time."""
        return hmac.compare_digest(self.make(purpose, label).encode(), given.encode("utf-8", "replace"))
