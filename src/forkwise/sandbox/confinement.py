"""Confinement: what a process in a branch may see and use, as a value. jail_plan.py turns it into a jail."""

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

#: Paths of credentials. They are hidden from a sandbox, unless a path is listed as writable.
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
    """What a process may see and use. Start from a preset: ``Confinement.open()``, ``.standard()`` or ``.strict()``.

    Files: the workspace's path is the branch. With ``read_only`` the rest of the filesystem is read-only, except
    ``writable`` paths, and ``/tmp`` is the process's own; ``hidden`` paths are empty. forkwise's own state is hidden,
    except ``readable`` paths in it.

    Network: the ``host``'s, ``none`` at all, or a ``private`` one: its own loopback, and an uplink through ``pasta`` or
    ``slirp4netns`` if one is installed.

    Processes: a process sees and signals only those of its sandbox, and all of them end together.

    Environment: the variables in ``passed`` (None: all) and those of ``given``; ``drops_secrets`` leaves out those that
    look like secrets.

    If namespaces are not available, or mounts in them are refused, that is an error, unless ``landlock_instead`` is
    set: then Landlock confines writes to the branch, which is visible at its own path and not at the workspace's, and
    nothing is hidden.
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
        """Return a preset with the branch at the workspace's path and no restrictions.

        All processes still end together.
        """
        return replace(cls(name="open", read_only=False, hidden=()), **changes)

    @classmethod
    def standard(cls, **changes: Any) -> Confinement:
        """Return a preset with everything readable but credentials, nothing writable but the branch and an own /tmp."""
        return replace(cls(), **changes)

    @classmethod
    def strict(cls, **changes: Any) -> Confinement:
        """Return a preset like standard, with no network, no secrets in the environment, and fewer system calls."""
        return replace(cls(name="strict", network="none", drops_secrets=True), **changes)

    @classmethod
    def preset(cls, wanted: str | Confinement) -> Confinement:
        """Return a preset by its name; a Confinement is returned as it is."""
        if isinstance(wanted, Confinement):
            return wanted
        presets = {"open": cls.open, "standard": cls.standard, "strict": cls.strict}
        if wanted not in presets:
            raise ValueError(f"there is no confinement {wanted!r}: choose one of {', '.join(presets)}")
        return presets[wanted]()

    def environment(self, of: Mapping[str, str]) -> dict[str, str]:
        """Return the variables a process is started with, out of those of the caller.

        >>> Confinement.strict().environment({"HOME": "/root", "API_TOKEN": "x"})
        {'HOME': '/root'}
        """
        kept = {k: v for k, v in of.items() if self.passed is None or _matches(k, self.passed)}
        if self.drops_secrets:
            kept = {k: v for k, v in kept.items() if not _matches(k.upper(), _SECRETS + _AGENTS)}
        return {**kept, **self.given}

    def hidden_paths(self) -> list[str]:
        """Return the hidden paths that exist and were not made writable."""
        writable = {os.path.realpath(os.path.expanduser(p)) for p in self.writable}
        there = filter(os.path.exists, _expand_paths(self.hidden, os.environ.get("HOME")))
        return [p for p in map(os.path.realpath, there) if p not in writable]

    def writable_paths(self) -> list[str]:
        """Return the writable paths, each of which must exist."""
        return [os.path.realpath(os.path.expanduser(p)) for p in self.writable]


@cache
def _expand_paths(paths: tuple[str, ...], _home: str | None) -> list[str]:
    """Expand ``~`` in the paths. The home directory is part of the cache's key."""
    return [os.path.expanduser(path) for path in paths]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _compile_patterns(patterns).match(name) is not None


@cache
def _compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile shell patterns into one expression: every command matches every variable."""
    return re.compile("|".join(map(translate, patterns)) if patterns else r"(?!)")
