"""The sending end of the evidence, for the programs beside it; see ``forkwise.testing.evidence`` for the records.

It runs in whatever Python the project has, and must not import forkwise. Records go into a FIFO: what was written
cannot be rewritten. The settings are taken out of the environment, so that child processes of the tests lack them.
"""

import json
import os
import zlib

_write, _getpid = os.write, os.getpid
_encode = json.JSONEncoder(ensure_ascii=True).encode
_VARIABLE = "FORKWISE_EVIDENCE"
_MAX_RECORD = 4000  # below PIPE_BUF, so that the records of several writers do not mix
_MAX_ID = 500
_MAX_MESSAGE = 1500

FAILED = ("failed", "error")


def open_channel():
    """Return the channel of this run; None in a runner that the tests themselves start."""
    return Channel(os.environ.pop(_VARIABLE)) if _VARIABLE in os.environ else None


class Channel:
    """Writes records, each with the token that only this run has."""

    def __init__(self, text):
        self._settings = text
        settings = json.loads(text)
        for name, value in settings["restored"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.token = settings["token"]
        self.suspects = frozenset(settings["suspects"])
        self._fd = os.open(settings["fifo"], os.O_WRONLY | os.O_CLOEXEC)
        self.send(kind="start")

    def send(self, **record):
        """Write a record."""
        line = _encode({"token": self.token, "process": _getpid(), **record})
        if len(line) > _MAX_RECORD:
            line = _encode({"token": self.token, "process": _getpid(), **record, "message": ""})
        _write(self._fd, line.encode() + b"\n")

    def send_test(self, name, outcome, message=""):
        """Write the outcome of a test."""
        shown = str(message)[-_MAX_MESSAGE:] if outcome in FAILED else ""
        self.send(kind="test", id=shorten(name), outcome=outcome, message=shown)

    def lend(self):
        """Put the settings back into the environment, for workers that are being started."""
        os.environ[_VARIABLE] = self._settings

    def withdraw(self):
        """Take the settings out of the environment."""
        os.environ.pop(_VARIABLE, None)


class Originals:
    """What a number of modules and classes contained when the run started."""

    def __init__(self, owners):
        self._contents = [(owner, name, value) for owner in owners for name, value in list(vars(owner).items())]

    def send_changes(self, channel):
        """Report the names that are bound to something else by now."""
        for owner, name, value in self._contents:
            if vars(owner).get(name) is not value:
                channel.send(kind="patched", name=f"{owner.__name__}.{name}")


def shorten(name):
    """Return a test's name, with a checksum in place of its end if it is very long."""
    if len(name) <= _MAX_ID:
        return name
    return f"{name[:_MAX_ID]}~{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
