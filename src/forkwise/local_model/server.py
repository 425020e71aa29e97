"""The server of the local model: started by whoever needs it first, shared by all of this process, stopped by the last.

Processes do not share one. The weights are mapped from the page cache, so that a second server costs half a second and
its own working memory, and nobody has to find, trust or outlive anybody else's.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from forkwise.errors import LocalModelError
from forkwise.local_model.weights import weights

__all__ = ["CONTEXT", "MODEL", "Server", "leave", "take"]

MODEL = "SmolLM2-135M-Instruct"
CONTEXT = 4096
"""How many tokens a prompt and its answer have together."""

START_SECONDS = 60.0

_SERVING = Path(__file__).with_name("serve.py")


@dataclass(frozen=True, slots=True, eq=False)
class Server:
    """A server that runs, or that ran: ``is_alive`` tells."""

    process: subprocess.Popen[bytes]
    address: str
    key: str = field(repr=False)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it at once: it has nothing to lose."""
        self.process.kill()
        self.process.wait()


# Reentrant, because a user that is collected as garbage leaves from within whatever runs at that moment.
_lock = threading.RLock()
_users: set[Hashable] = set()
_server: Server | None = None


def take(user: Hashable) -> Server:
    """The server, for a user that will ``leave``. It is started where none runs, or none any more."""
    global _server
    with _lock:
        _users.add(user)
        if _server is None or not _server.is_alive:
            try:
                _server = _start()
            except BaseException:
                _users.discard(user)
                raise
        return _server


def leave(user: Hashable) -> None:
    """Need the server no longer. With the last user it is stopped."""
    global _server
    with _lock:
        _users.discard(user)
        if not _users and _server is not None:
            _server.stop()
            _server = None


def _forget() -> None:
    """In a forked child: the server is the parent's, and so are its users."""
    global _lock, _server
    _lock = threading.RLock()
    if _server is not None:
        _server.process.returncode = 0  # nobody here can wait for it
        _server = None
    _users.clear()


os.register_at_fork(after_in_child=_forget)


def _start() -> Server:
    key = secrets.token_urlsafe()
    settings = {
        "parent": os.getpid(),
        "weights": str(weights()),
        "name": MODEL,
        "context": CONTEXT,
        "key": key,
    }
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_SERVING)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # the terminal's Ctrl-C is for its users
        )
        address = ""
        try:
            address = _address(process, json.dumps(settings).encode())
        finally:
            if not address:
                process.kill()
                process.wait()
        if not address:
            raise LocalModelError(
                "the server of the local model did not start",
                reason=_last_line(said),
                remedy="to have its weights checked, run: forkwise model fetch",
            )
    return Server(process, address, key)


def _address(process: subprocess.Popen[bytes], settings: bytes) -> str:
    """Where the process listens, once it does; nothing where it ended, or took too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as asked, process.stdout as answer:
        try:
            asked.write(settings)
            asked.close()
        except BrokenPipeError:
            return ""
        waiting = select.poll()
        waiting.register(answer, select.POLLIN)
        return answer.read().decode() if waiting.poll(START_SECONDS * 1000) else ""


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"it said nothing for {START_SECONDS:.0f} s")
