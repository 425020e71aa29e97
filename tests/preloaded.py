"""The ``forkwise`` command without its start-up: a program that behaves like it, and a server with its modules loaded.

Importing what a command needs takes up to 2 s of CPU time, and the tests run hundreds of commands. The program passes
its arguments, environment, working directory and standard streams to the server, which forks a process that runs the
real entry point. The program forwards signals to that process, which is killed if the program is, and ends as it ends.
Where the program cannot reach the server, as in a sandbox, it executes the real command.

Differences from the real command: the process is a child of the server, and has no controlling terminal.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["load_modules", "preloaded_command", "serve"]

_ROOT = str(Path(__file__).parents[1])
_PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys

connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect({address!r})
except OSError:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
mask = os.umask(0)
os.umask(mask)
environment = {{os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items()}}
request = json.dumps([sys.argv[1:], environment, mask]).encode()
pid = 0
forwarded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
ignored = [number for number in forwarded if signal.getsignal(number) is signal.SIG_IGN]
for number in set(forwarded).difference(ignored):
    signal.signal(number, lambda number, _: os.kill(pid, number))
socket.send_fds(connection, [len(request).to_bytes(8, "little")], [0, 1, 2, os.open(".", os.O_PATH)])
connection.sendall(request)
answer = connection.makefile("r")
pid = int(answer.readline())
signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
code = int(answer.readline() or 70)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def preloaded_command(*modules: str) -> Path:
    """Start the server of this process, unless it runs, and return the program, which is named ``forkwise``.

    ``modules`` are further ones to load, which only some commands need. Each choice of them has a server of its own.
    """
    directory = Path(tempfile.mkdtemp(prefix="forkwise-preloaded-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o755)
    address = str(directory / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    program = directory / "bin/forkwise"
    program.parent.mkdir()
    real = str(Path(sys.executable).with_name("forkwise"))
    program.write_text(_PROGRAM.format(python=sys.executable, address=address, real=real))
    program.chmod(0o755)
    call = f"serve({listener.fileno()}, {modules!r})"
    code = f"import sys; sys.path.append({_ROOT!r}); from tests.preloaded import serve; {call}"
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        env={**kept, "PYDANTIC_AI_NO_BANNER": "1"},
    )
    listener.close()  # clients queue until the server has loaded the modules
    atexit.register(_end, server)
    return program


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()


def serve(listener_fd: int, modules: Sequence[str] = ()) -> None:
    """Fork a process for each client, until standard input ends; the main function of the server."""
    load_modules(modules)
    listener = socket.socket(fileno=listener_fd)
    events = selectors.DefaultSelector()
    events.register(0, selectors.EVENT_READ)
    events.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj == 0:
                return
            if key.fileobj is listener:
                _start(listener, events)
            else:
                _finish(key, events)


def load_modules(modules: Sequence[str] = ()) -> None:
    """Import what commands need, and further modules."""
    import forkwise

    for name in forkwise.__all__:
        getattr(forkwise, name)
    usual = ("forkwise.cli", "forkwise.chat.session", "forkwise.chat.plain_ui", "rich.table", "rich.syntax")
    for name in (*usual, *modules):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _start(listener: socket.socket, events: selectors.BaseSelector) -> None:
    """Read a request and fork. The forked process leaves this function by ``SystemExit``, as a program ends."""
    client = listener.accept()[0]
    head, fds, _, _ = socket.recv_fds(client, 8, 4)
    request = client.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
    pid = os.fork()
    if pid == 0:
        events.close()
        client.close()
        listener.close()
        _run(json.loads(request), fds)
    for fd in fds:
        os.close(fd)
    client.sendall(f"{pid}\n".encode())
    pidfd = os.pidfd_open(pid)
    for ended in (pidfd, client):
        events.register(ended, selectors.EVENT_READ, (pid, pidfd, client))


def _finish(key: selectors.SelectorKey, events: selectors.BaseSelector) -> None:
    """Send the exit status of a process to its client, after killing it if the client has ended."""
    pid, pidfd, client = key.data
    if pidfd not in events.get_map():
        return  # both ended at once, and this is the second of the two
    if key.fileobj is client:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    events.unregister(pidfd)
    events.unregister(client)
    os.close(pidfd)
    with suppress(BrokenPipeError):
        client.sendall(f"{status}\n".encode())
    client.close()


def _run(request: Any, fds: list[int]) -> NoReturn:
    words, environment, mask = request
    os.fchdir(fds[3])
    for target, fd in enumerate(fds[:3]):
        os.dup2(fd, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # also the descriptors of other clients
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["forkwise", *words]
    sys.path.remove(_ROOT)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    from forkwise.cli import main

    main()
    raise SystemExit
