"""The server of the local model: started by its first user in this process, stopped with its last.

Processes do not share a server. The weights are mapped from the page cache, so a second server costs only half a second
and its own working memory, and no process has to find, trust or outlive another's server.
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

__all__ = ["CONTEXT", "MODEL", "ModelServer", "acquire", "release"]

MODEL = "SmolLM2-135M-Instruct"
CONTEXT = 4096
"""The maximum number of tokens of a prompt and its response together."""

START_SECONDS = 60.0

_SCRIPT = Path(__file__).with_name("serve.py")


@dataclass(frozen=True, slots=True, eq=False)
class ModelServer:
    """A server process; it may have ended."""

    process: subprocess.Popen[bytes]
    address: str
    key: str = field(repr=False)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Kill the process, which has no state to save."""
        self.process.kill()
        self.process.wait()


# Reentrant, because the garbage collector may call ``release`` in a thread that holds the lock.
_lock = threading.RLock()
_users: set[Hashable] = set()
_server: ModelServer | None = None


def acquire(user: Hashable) -> ModelServer:
    """Return the server for a user that will ``release`` it. Start it if it does not run."""
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


def release(user: Hashable) -> None:
    """Remove a user of the server. Stop the server if that was the last."""
    global _server
    with _lock:
        _users.discard(user)
        if not _users and _server is not None:
            _server.stop()
            _server = None


def _forget() -> None:
    """Forget the server and its users in a forked child: they are the parent's."""
    global _lock, _server
    _lock = threading.RLock()
    if _server is not None:
        _server.process.returncode = 0  # not our child process, so Popen must not wait for it
        _server = None
    _users.clear()


os.register_at_fork(after_in_child=_forget)


def _start() -> ModelServer:
    key = secrets.token_urlsafe()
    settings = {
        "parent": os.getpid(),
        "weights": str(weights()),
        "name": MODEL,
        "context": CONTEXT,
        "key": key,
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal must reach only its users
        )
        address = ""
        try:
            address = _wait_for_address(process, json.dumps(settings).encode())
        finally:
            if not address:
                process.kill()
                process.wait()
        if not address:
            raise LocalModelError(
                "the server of the local model did not start",
                reason=_last_line(log),
                remedy="to check its weights, run: forkwise model fetch",
            )
    return ModelServer(process, address, key)


def _wait_for_address(process: subprocess.Popen[bytes], settings: bytes) -> str:
    """Send the settings and return the server's address, or "" if the process ended or took too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as stdin, process.stdout as stdout:
        try:
            stdin.write(settings)
            stdin.close()
        except BrokenPipeError:
            return ""
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        return stdout.read().decode() if poll.poll(START_SECONDS * 1000) else ""


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"no output within {START_SECONDS:.0f} s")
