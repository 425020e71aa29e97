"""Sandboxes: starting one, calling a function in one, a hundred at once, and a build inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.rounds import Contender, play, timed
from forkwise import Branch, BranchContext
from forkwise.sandbox.run import spawn

__all__ = ["measure_sandbox"]

_AT_ONCE = 100
_MODULES = 2_000
_MOUNTS = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")


def measure_sandbox(ground: Ground) -> list[Line]:
    """All in branches of the big tree, but for the build, which has a tree of its own."""
    branch = ground.workspace(ground.planted(ground.many)).branch("sandbox")
    try:
        return [_start(ground, branch), _call(ground, branch), _many(ground, branch), _build(ground)]
    finally:
        branch.abort()


def _start(ground: Ground, branch: Branch) -> Line:
    ground.say("starting sandboxes")
    peers = {
        "bwrap": ["bwrap", "--unshare-all", *_MOUNTS, "true"],
        "unshare": ["unshare", "-Urmpf", "true"],
        "sandlock": ["sandlock", "run", "--", "true"],
    }
    contenders: dict[str, Contender] = {"ours": lambda: timed(lambda: branch.run(["true"], check=True))}
    contenders |= {name: _command(words) for name, words in peers.items() if shutil.which(words[0])}
    figures = play(contenders, ground.rounds(60, 20), warm=5)
    line = Line(f"true, confined, in a branch of {ground.many:,} files", figures["ours"], figures.get("bwrap"))
    line.peers = {name: figures.get(name) for name in ("unshare", "sandlock")}
    if line.floor is not None:
        line.below_floor(1.5)
    return line


def _command(words: list[str]) -> Contender:
    return lambda: timed(lambda: subprocess.run(words, check=True))


def _call(ground: Ground, branch: Branch) -> Line:
    ground.say("calling functions in sandboxes")
    path = branch.path

    def context() -> None:
        with BranchContext(lambda _: 1, path) as running:
            running.wait()

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    figures = play({"ours": lambda: timed(context), "fork": lambda: timed(fork)}, ground.rounds(60, 20), warm=5)
    line = Line("a function in BranchContext, start to result (floor: bare fork)", figures["ours"], figures["fork"])
    line.below_floor(3)
    return line


def _many(ground: Ground, branch: Branch) -> Line:
    ground.say(f"{_AT_ONCE} sandboxes at once")
    before = _memory("self")
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        running = [spawn(branch, ["sleep", "60"], (nothing, nothing, nothing)) for _ in range(_AT_ONCE)]
        assert all(process.alive for process in running)
        here = (_memory("self") - before) / _AT_ONCE
        inside = sum(_memory(str(process.pid)) for process in running) / _AT_ONCE
        for process in running:
            process.close()
    finally:
        os.close(nothing)
    line = Line(
        f"{_AT_ONCE} sandboxes at once: memory each, here and in its first process", Figure((here + inside,), "B")
    )
    line.goals.append(Goal("< 2 MB each", here + inside, 2 << 20))
    return line


def _memory(process: str) -> int:
    """The memory that a process shares with nobody."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private"))


def _build(ground: Ground) -> Line:
    ground.say(f"compiling {_MODULES:,} modules")
    modules = 400 if ground.quick else _MODULES
    root = ground.directory("modules")
    for number in range(modules):
        with open(f"{root}/module{number}.py", "w") as file:
            file.write(
                f"class Thing{number}:\n" + "".join(f"    def m{n}(self):\n        return {n}\n" for n in range(40))
            )
    branch = ground.workspace(root).branch("build")
    compile_all = [sys.executable, "-m", "compileall", "-q", "-f", root]

    def turn(action: Callable[[], object]) -> Contender:
        return lambda: timed(action)

    try:
        figures = play(
            {
                "ours": turn(lambda: branch.run(compile_all, check=True)),
                "outside": turn(lambda: subprocess.run(compile_all, check=True)),
            },
            ground.rounds(7, 5),
        )
    finally:
        branch.abort()
    line = Line(f"python -m compileall of {modules:,} files inside", figures["ours"], figures["outside"])
    line.below_floor(1.15)
    return line
