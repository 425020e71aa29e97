"""Running a command in a branch: at the workspace's own path, confined, with its output captured or passed on."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forkwise.files.branch import Branch
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.launcher import start
from forkwise.sandbox.plan import plan_jail
from forkwise.sandbox.process import Finished, SandboxProcess

__all__ = ["arun", "run", "spawn"]

_BLOCK = 1 << 16


def run(
    branch: Branch,
    argv: Sequence[str],
    *,
    confinement: str | Confinement = "standard",
    timeout: float | None = None,
    input: bytes | str | None = None,
    capture: bool = True,
    text: bool = False,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    on_output: Callable[[str, bytes], None] | None = None,
    check: bool = False,
) -> Finished:
    """Run a command in a branch and wait for it; a timeout ends it and is told as such, not raised.

    ``on_output`` is called with ``"stdout"`` or ``"stderr"`` and each piece as it comes.
    """
    return _Run(branch, argv, confinement, timeout, capture or on_output is not None, cwd, env).finish(
        input, text, on_output if on_output else None, capture, check
    )


async def arun(branch: Branch, argv: Sequence[str], **options: Any) -> Finished:
    """The same for asyncio programs; cancelled, it ends the command with all descendants."""
    held: list[_Run] = []
    check = options.pop("check", False)

    def work() -> Finished:
        running = _Run(
            branch,
            argv,
            options.get("confinement", "standard"),
            options.get("timeout"),
            options.get("capture", True) or options.get("on_output") is not None,
            options.get("cwd"),
            options.get("env"),
        )
        held.append(running)
        return running.finish(
            options.get("input"),
            options.get("text", False),
            options.get("on_output"),
            options.get("capture", True),
            check,
        )

    job = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        for running in held:
            running.process.kill()
        await asyncio.wait([job])
        raise


def spawn(
    branch: Branch,
    argv: Sequence[str],
    fds: tuple[int, int, int],
    *,
    confinement: str | Confinement = "standard",
    timeout: float | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    terminal: bool = False,
) -> SandboxProcess:
    """Start a command in a branch on given descriptors, and come back at once."""
    if not argv:
        raise ValueError("there is no command to run")
    wanted = Confinement.preset(confinement)
    where = os.fspath(branch.workspace.path)
    environment = wanted.environment(os.environ if env is None else env)
    environment |= {"PWD": cwd or where, "FORKWISE_BRANCH": branch.branch_path}
    jail = plan_jail(where, os.fspath(branch.path), branch, wanted, environment)
    if cwd is not None:
        jail.cwd = os.path.join(where, cwd)
    wall = wanted.limits.wall if timeout is None else timeout
    status, told = os.pipe()
    try:
        request = {"argv": list(argv), "env": environment, "wall": wall, "terminal": terminal}
        pid, pidfd = start(jail, request, (*fds, told))
    except BaseException:
        os.close(status)
        raise
    finally:
        os.close(told)
    return SandboxProcess(pid, pidfd, status)


class _Run:
    """One command with pipes to it."""

    def __init__(
        self,
        branch: Branch,
        argv: Sequence[str],
        confinement: str | Confinement,
        timeout: float | None,
        captures: bool,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self.argv = list(argv)
        self.pipes: dict[str, int] = {}
        theirs = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) for _ in range(3)]
        try:
            self._connect(theirs, captures)
            given = (theirs[0], theirs[1], theirs[2])
            self.process = spawn(branch, argv, given, confinement=confinement, timeout=timeout, cwd=cwd, env=env)
        except BaseException:
            for fd in self.pipes.values():
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _connect(self, theirs: list[int], captures: bool) -> None:
        reading, self.pipes["stdin"] = os.pipe()
        os.dup2(reading, theirs[0], inheritable=False)
        os.close(reading)
        for number, name in ((1, "stdout"), (2, "stderr")):
            if captures:
                self.pipes[name], writing = os.pipe()
                os.dup2(writing, theirs[number], inheritable=False)
                os.close(writing)
            else:
                os.dup2(number, theirs[number], inheritable=False)

    def finish(
        self,
        input: bytes | str | None,
        text: bool,
        on_output: Callable[[str, bytes], None] | None,
        capture: bool,
        check: bool,
    ) -> Finished:
        """Feed it, drain it, wait for it."""
        fed = memoryview(input.encode() if isinstance(input, str) else input or b"")
        got: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        try:
            self._pump(fed, got, on_output, capture)
            self.process.wait()
            outputs = [b"".join(got[n]) if capture and n in self.pipes else None for n in ("stdout", "stderr")]
            shown = [o.decode(errors="surrogateescape") if text and o is not None else o for o in outputs]
            done = self.process.finished(self.argv, shown[0], shown[1])
        finally:
            self.process.close()
            for fd in self.pipes.values():
                os.close(fd)
        if check:
            done.check_returncode()
        return done

    def _pump(
        self,
        fed: memoryview,
        got: dict[str, list[bytes]],
        on_output: Callable[[str, bytes], None] | None,
        capture: bool,
    ) -> None:
        with selectors.DefaultSelector() as selector:
            for name in ("stdout", "stderr"):
                if name in self.pipes:
                    selector.register(self.pipes[name], selectors.EVENT_READ, name)
            if fed:
                os.set_blocking(self.pipes["stdin"], False)
                selector.register(self.pipes["stdin"], selectors.EVENT_WRITE, "stdin")
            else:
                os.close(self.pipes.pop("stdin"))
            selector.register(self.process, selectors.EVENT_READ, "gone")
            while selector.get_map():
                for key, _ in selector.select():
                    if key.data == "gone":
                        selector.unregister(self.process)
                        if "stdin" in self.pipes and self.pipes["stdin"] in selector.get_map():
                            selector.unregister(self.pipes["stdin"])
                    elif key.data == "stdin":
                        fed = self._feed(selector, fed)
                    elif not self._drain(key.data, got, on_output, capture):
                        selector.unregister(key.fd)

    def _feed(self, selector: selectors.BaseSelector, fed: memoryview) -> memoryview:
        fd = self.pipes["stdin"]
        try:
            fed = fed[os.write(fd, fed[:_BLOCK]) :]
        except BrokenPipeError:
            fed = fed[:0]
        if not fed:
            selector.unregister(fd)
            os.close(self.pipes.pop("stdin"))
        return fed

    def _drain(
        self, name: str, got: dict[str, list[bytes]], on_output: Callable[[str, bytes], None] | None, capture: bool
    ) -> bool:
        piece = os.read(self.pipes[name], _BLOCK)
        if piece and capture:
            got[name].append(piece)
        if piece and on_output is not None:
            on_output(name, piece)
        return bool(piece)


