"""Confinement: what a process in a branch gets to see and to use. A value; how it is enforced is elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache
from typing import Any, Literal

from forkwise.sandbox.limits import Limits

__all__ = ["CREDENTIALS", "Confinement", "Network"]

Network = Literal["host", "none", "private"]

#: Where credentials are kept. None of it is seen from inside, unless a path is listed as writable.
CREDENTIALS = (
    "~/.ssh",
    "~/.gnupg",
    "~/.aws",
    "~/.azure",
    "~/.config/gcloud",
    "~/.config/gh",
    "~/.config/op",
    "~/.docker",
    "~/.kube",
    "~/.netrc",
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.pypirc",
    "~/.npmrc",
    "~/.cargo/credentials.toml",
    "~/.password-store",
    "~/.local/share/keyrings",
    "~/.mozilla",
    "~/.config/google-chrome",
    "~/.config/chromium",
)

#: Names of variables that hold secrets, as shell patterns.
_SECRETS = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*API_KEY*", "*APIKEY*", "*CREDENTIAL*", "*PRIVATE_KEY*")
_AGENTS = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "AWS_*", "GOOGLE_*")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process gets. Start from a preset: ``Confinement.open()``, ``.standard()`` or ``.strict()``.

    Files: the workspace's path is the branch. With ``read_only`` the rest of the filesystem can only be read, except
    ``writable`` paths, and ``/tmp`` is the process's own; ``hidden`` paths are empty. forkwise's own state is not seen,
    but for what of it is ``readable``. Network: the ``host``'s, ``none``
    at all, or a ``private`` one: an own loopback, and a way out through ``pasta`` or ``slirp4netns`` where installed.
    Processes: nobody else's can be seen or signalled, and all of them end together.
    Where no namespaces can be had that is an error, unless ``landlock_instead`` is given: then Landlock keeps writes to
    the branch, which is seen at its own path and not at the workspace's, and nothing is hidden.
    Environment: the variables in ``passed`` (None: all) and those of ``given``; ``drops_secrets`` leaves out those that
    look like secrets.
    """

    name: str = "standard"
    read_only: bool = True
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = CREDENTIALS
    network: Network = "host"
    passed: tuple[str, ...] | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    drops_secrets: bool = False
    landlock_instead: bool = False
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def open(cls, **changes: Any) -> Confinement:
        """The branch at the workspace's path, and nothing else in the way; all processes still end together."""
        return replace(cls(name="open", read_only=False, hidden=()), **changes)

    @classmethod
    def standard(cls, **changes: Any) -> Confinement:
        """All can be read but credentials, nothing written but the branch and an own /tmp; the host's network."""
        return replace(cls(), **changes)

    @classmethod
    def strict(cls, **changes: Any) -> Confinement:
        """Like standard, with no network, no secrets in the environment, and fewer system calls."""
        return replace(cls(name="strict", network="none", drops_secrets=True), **changes)

    @classmethod
    def preset(cls, wanted: str | Confinement) -> Confinement:
        """A preset by its name; a confinement is itself."""
        if isinstance(wanted, Confinement):
            return wanted
        presets = {"open": cls.open, "standard": cls.standard, "strict": cls.strict}
        if wanted not in presets:
            raise ValueError(f"there is no confinement {wanted!r}; there are {', '.join(presets)}")
        return presets[wanted]()

    def environment(self, of: Mapping[str, str]) -> dict[str, str]:
        """The variables a process is started with, out of those of the caller.

        >>> Confinement.strict().environment({"HOME": "/root", "API_TOKEN": "x"})
        {'HOME': '/root'}
        """
        kept = {k: v for k, v in of.items() if self.passed is None or _matches(k, self.passed)}
        if self.drops_secrets:
            kept = {k: v for k, v in kept.items() if not _matches(k.upper(), _SECRETS + _AGENTS)}
        return {**kept, **self.given}

    def hidden_paths(self) -> list[str]:
        """The hidden paths that exist, without those that were made writable."""
        writable = {os.path.realpath(os.path.expanduser(p)) for p in self.writable}
        there = filter(os.path.exists, _expanded(self.hidden, os.environ.get("HOME")))
        return [p for p in map(os.path.realpath, there) if p not in writable]

    def writable_paths(self) -> list[str]:
        """The writable paths, each of which has to exist."""
        return [os.path.realpath(os.path.expanduser(p)) for p in self.writable]


@cache
def _expanded(paths: tuple[str, ...], _home: str | None) -> list[str]:
    """The paths with the home directory in them, which depends on a variable."""
    return [os.path.expanduser(path) for path in paths]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _any_of(patterns).match(name) is not None


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """All shell patterns as one expression: there are many variables, and every command asks about each."""
    return re.compile("|".join(map(translate, patterns)) if patterns else r"(?!)")
