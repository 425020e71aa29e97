"""Sandboxes: start, function call, memory of a hundred at once, and a build inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise import Branch, BranchContext
from forkwise.sandbox.run import spawn

__all__ = ["measure_sandbox"]

_AT_ONCE = 100
_MODULES = 2_000
_MOUNTS = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")


def measure_sandbox(scratch: Scratch) -> list[Line]:
    """Measure in a branch of the big tree; the build has a tree of its own."""
    branch = scratch.workspace(scratch.shared_tree(scratch.many)).branch("sandbox")
    try:
        return [_start(scratch, branch), _call(scratch, branch), _many(scratch, branch), _build(scratch)]
    finally:
        branch.abort()


def _start(scratch: Scratch, branch: Branch) -> Line:
    scratch.report("starting sandboxes")
    peers = {
        "bwrap": ["bwrap", "--unshare-all", *_MOUNTS, "true"],
        "unshare": ["unshare", "-Urmpf", "true"],
        "sandlock": ["sandlock", "run", "--", "true"],
    }
    contenders: dict[str, Contender] = {"ours": lambda: timed(lambda: branch.run(["true"], check=True))}
    contenders |= {name: _command(words) for name, words in peers.items() if shutil.which(words[0])}
    figures = play(contenders, scratch.rounds(60, 20), warm=5)
    line = Line(f"true, confined, in a branch of {scratch.many:,} files", figures["ours"], figures.get("bwrap"))
    line.peers = {name: figures.get(name) for name in ("unshare", "sandlock")}
    if line.floor is not None:
        line.below_floor(1.5)
    return line


def _command(words: list[str]) -> Contender:
    return lambda: timed(lambda: subprocess.run(words, check=True))


def _call(scratch: Scratch, branch: Branch) -> Line:
    scratch.report("calling functions in sandboxes")
    path = branch.path

    def context() -> None:
        with BranchContext(lambda _: 1, path) as running:
            running.wait()

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    figures = play({"ours": lambda: timed(context), "fork": lambda: timed(fork)}, scratch.rounds(60, 20), warm=5)
    line = Line("a function in BranchContext, start to result (floor: bare fork)", figures["ours"], figures["fork"])
    line.below_floor(3)
    return line


def _many(scratch: Scratch, branch: Branch) -> Line:
    scratch.report(f"starting {_AT_ONCE} sandboxes at once")
    before = _memory("self")
    null_fd = os.open(os.devnull, os.O_RDWR)
    try:
        running = [spawn(branch, ["sleep", "60"], (null_fd, null_fd, null_fd)) for _ in range(_AT_ONCE)]
        assert all(process.alive for process in running)
        here = (_memory("self") - before) / _AT_ONCE
        inside = sum(_memory(str(process.pid)) for process in running) / _AT_ONCE
        for process in running:
            process.close()
    finally:
        os.close(null_fd)
    line = Line(
        f"{_AT_ONCE} sandboxes at once: memory each, in this process and in its init", Figure((here + inside,), "B")
    )
    line.goals.append(Goal("< 2 MB each", here + inside, 2 << 20))
    return line


def _memory(process: str) -> int:
    """Return the private memory of a process in bytes."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private"))


def _build(scratch: Scratch) -> Line:
    scratch.report(f"compiling {_MODULES:,} modules")
    modules = 400 if scratch.quick else _MODULES
    root = scratch.make_directory("modules")
    for number in range(modules):
        with open(f"{root}/module{number}.py", "w") as file:
            file.write(
                f"class Thing{number}:\n" + "".join(f"    def m{n}(self):\n        return {n}\n" for n in range(40))
            )
    branch = scratch.workspace(root).branch("build")
    compile_all = [sys.executable, "-m", "compileall", "-q", "-f", root]

    def turn(action: Callable[[], object]) -> Contender:
        return lambda: timed(action)

    try:
        figures = play(
            {
                "ours": turn(lambda: branch.run(compile_all, check=True)),
                "outside": turn(lambda: subprocess.run(compile_all, check=True)),
            },
            scratch.rounds(7, 5),
        )
    finally:
        branch.abort()
    line = Line(f"python -m compileall of {modules:,} files inside", figures["ours"], figures["outside"])
    line.below_floor(1.15)
    return line
