"""The sending end of the evidence, for the programs beside it; see ``forkwise.testing.evidence`` for the records.

It runs in whatever Python the project has, and must not import forkwise. Records go into a FIFO: what was written
cannot be rewritten. The settings are taken out of the environment, so that child processes of the tests lack them.
"""

import json
import os
import zlib

_write, _getpid = os.write, os.getpid
_Function, _Code = type(lambda: None), type((lambda: None).__code__)
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
        settings = json.loads(text)
        self._restored = {_VARIABLE: None, **settings["restored"]}
        self._lent = {_VARIABLE: text, **{name: os.environ.get(name) for name in settings["restored"]}}
        _set_variables(self._restored)
        self.token = settings["token"]
        self.suspects = frozenset(settings["suspects"])
        self._bodies = {}
        self._fd = os.open(settings["fifo"], os.O_WRONLY | os.O_CLOEXEC)
        self.send(kind="start")

    def send(self, _write=_write, _getpid=_getpid, _encode=_encode, **record):
        """Write a record. It uses functions bound as defaults, because tests can easily replace a module's names."""
        line = _encode({"token": self.token, "process": _getpid(), **record})
        if len(line) > _MAX_RECORD:
            line = _encode({"token": self.token, "process": _getpid(), **record, "message": ""})
        _write(self._fd, line.encode() + b"\n")

    def send_test(self, name, outcome, message=""):
        """Write the outcome of a test."""
        shown = str(message)[-_MAX_MESSAGE:] if outcome in FAILED else ""
        self.send(kind="test", id=shorten(name), outcome=outcome, message=shown)

    def send_body(self, name, function, path):
        """Write a checksum of the code that is about to run as a test, or has just run; again only if it changed.

        Code that is not from the test's own file, such as a decorator's, is only called ``other``.
        """
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        before, body = self._bodies.get(name, (None, None))
        if body is not None and code is before:
            return
        is_own = code is not None and os.path.realpath(code.co_filename) == os.path.realpath(path)
        found = f"{zlib.crc32(repr(_describe(code)).encode('utf-8', 'replace')):08x}" if is_own else "other"
        self._bodies[name] = code, found
        if found != body:
            self.send(kind="body", id=shorten(name), body=found)

    def lend(self):
        """Put the settings and the options back into the environment, for workers that are being started."""
        _set_variables(self._lent)

    def withdraw(self):
        """Take what was lent out of the environment."""
        _set_variables(self._restored)


def _set_variables(values):
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _describe(code):
    """Return what a code object does, as a value that is the same in every process."""
    constants = [_describe_constant(value) for value in code.co_consts]
    lines = code.co_firstlineno, code.co_flags, code.co_argcount
    return code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, lines, constants


def _describe_constant(value):
    if isinstance(value, frozenset):  # its order depends on the hashes of this process
        return sorted(map(repr, value))
    return _describe(value) if isinstance(value, _Code) else value


class Originals:
    """What a number of modules and classes contained when the run started, and the classes of those modules."""

    def __init__(self, owners):
        found = list(owners)
        for owner in owners:
            name = getattr(owner, "__name__", None)
            classes = [value for value in vars(owner).values() if isinstance(value, type)]
            found += [value for value in classes if value.__module__ == name and value not in found]
        contents = [(owner, name, value) for owner in found for name, value in list(vars(owner).items())]
        self._contents = [(owner, name, value, _find_code(value)) for owner, name, value in contents]

    def send_changes(self, channel, _send=Channel.send):
        """Report the names that are now bound to something else, and the functions whose code was replaced."""
        for owner, name, value, code in self._contents:
            if vars(owner).get(name) is not value or _find_code(value) != code:
                _send(channel, kind="patched", name=f"{owner.__name__}.{name}")


def _find_code(value):
    """Return the code and the defaults of a function, also of a class or static method; None for anything else."""
    function = getattr(value, "__func__", value)
    return (function.__code__, function.__defaults__) if isinstance(function, _Function) else None


def shorten(name):
    """Return a test's name, with a checksum in place of its end if it is very long."""
    if len(name) <= _MAX_ID:
        return name
    return f"{name[:_MAX_ID]}~{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
