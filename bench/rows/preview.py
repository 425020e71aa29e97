"""A request through the listener of ``forkwise open``, beside the same request inside the branch's network."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import IO

from bench.line import Line
from bench.rounds import Contender, play
from bench.scratch import Scratch
from forkwise import Workspace
from forkwise.preview.target import find_target
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.sandbox.run import spawn

__all__ = ["measure_preview"]

_REQUESTS = 1_000
_BATCH = 50
_CLIENT = """
import http.client, sys, time
port, fields = int(sys.argv[1]), dict(zip(sys.argv[2::2], sys.argv[3::2]))
def ask():
    client = http.client.HTTPConnection("127.0.0.1", port)
    client.request("GET", "/a.txt", headers=fields)
    answer = client.getresponse()
    assert answer.status == 200 and answer.read() == b"one\\n", answer.status
    client.close()
for line in sys.stdin:
    started = time.perf_counter()
    for _ in range(int(line)):
        ask()
    print(time.perf_counter() - started, flush=True)
"""
_LISTENER = """
import sys
from forkwise import Workspace
from forkwise.preview.listener import PreviewListener
from forkwise.preview.target import TargetBook
with PreviewListener(TargetBook(Workspace(sys.argv[1])).connect) as listener:
    print(listener.port, listener.make_token(sys.argv[2]), flush=True)
    sys.stdin.read()
"""


def measure_preview(scratch: Scratch) -> list[Line]:
    """Measure against Python's own web server, with a connection for each request."""
    scratch.report("asking a server in a branch")
    root = scratch.make_directory("served")
    with open(f"{root}/a.txt", "w") as file:
        file.write("one\n")
    workspace = scratch.workspace(root)
    with ExitStack() as stack:
        figures = play(_start(workspace, stack), scratch.rounds(_REQUESTS // _BATCH, 6), warm=2)
    name = f"a request through the listener of forkwise open, {_BATCH} in a row (floor: inside the branch's network)"
    line = Line(name, figures["ours"], figures["inside"])
    line.below_floor(2)
    return [line]


def _start(workspace: Workspace, stack: ExitStack) -> dict[str, Contender]:
    branch = workspace.branch("served", on_success=None, on_error=None)
    stack.callback(branch.abort)
    space = stack.enter_context(NetworkSpace())
    space.register(branch)
    null_fd = os.open(os.devnull, os.O_RDWR)
    stack.callback(os.close, null_fd)
    server = [sys.executable, "-m", "http.server", "3000"]
    stack.callback(spawn(branch, server, (null_fd, null_fd, null_fd), space=space).close)
    target = find_target(branch)
    while not target.list_ports(with_programs=False):
        assert target.is_running
    label = f"{target.label}--3000"
    listener = _open([sys.executable, "-c", _LISTENER, str(workspace.path), label], stack)
    port, token = listener.read().split()
    fields = ("Host", f"{label}.localhost:{port}", "Forkwise-Token", token)
    outside = _open([sys.executable, "-c", _CLIENT, port, *fields], stack)
    inner_read, inner_write, outer_read, outer_write = *os.pipe(), *os.pipe()
    client = [sys.executable, "-c", _CLIENT, "3000", *fields]
    stack.callback(spawn(branch, client, (inner_read, outer_write, 2), space=space).close)
    os.close(inner_read)
    os.close(outer_write)
    opened = open(inner_write, "w"), open(outer_read)  # noqa: SIM115 - the stack closes them
    for one in opened:
        stack.enter_context(one)
    inside = _Pipes(*opened)
    return {"ours": outside.ask, "inside": inside.ask}


class _Pipes:
    """A program that answers each line by a line."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout

    def read(self) -> str:
        return self._stdout.readline()

    def ask(self) -> float:
        self._stdin.write(f"{_BATCH}\n")
        self._stdin.flush()
        return float(self.read())


def _open(command: list[str], stack: ExitStack) -> _Pipes:
    program = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert program.stdin is not None
    assert program.stdout is not None
    return _Pipes(program.stdin, program.stdout)
