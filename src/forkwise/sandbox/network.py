"""A way out of a private network: pasta or slirp4netns, whichever is installed, run beside the sandbox.

They carry outgoing connections and nothing else: no port of the host's loopback is reached, none is offered to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from forkwise.errors import NamespaceError
from forkwise.linux import fds

__all__ = ["Uplink", "way_out"]

# Its process number, which it writes once all is set up, is the shell's output. Then the shell waits for the leash.
_WATCH = """
exec 3>&1 >/dev/null
pasta --foreground --pid /proc/self/fd/3 "$@" &
exec 3>&-
read -r _
kill -9 "$!"
"""


def way_out() -> str | None:
    """The program that would connect a private network; None where there is none, and it has only its loopback."""
    return next((name for name in ("pasta", "slirp4netns") if shutil.which(name)), None)


class Uplink:
    """What connects one sandbox; it ends with the sandbox."""

    def __init__(self, pid: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._leash = -1
        program = way_out()
        if program == "pasta":
            self._start_pasta(pid)
        elif program == "slirp4netns":
            self._start_slirp(pid)

    def _start_pasta(self, pid: int) -> None:
        # Left alone it would stay for ever: a network namespace that it holds itself does not end. A shell ends it when
        # this process lets go of the leash, by dying if need be.
        who = ["--runas", f"{os.geteuid()}:{os.getegid()}"] if os.geteuid() == 0 else []
        shut = ["--no-map-gw", "-t", "none", "-u", "none", "-T", "none", "-U", "none"]
        held, self._leash = fds.pipe()
        try:
            with fds.fork_lock():  # it waits for the ends of pipes that it gives to others
                self._process = subprocess.Popen(
                    ["sh", "-c", _WATCH, "sh", *who, "--quiet", "--config-net", *shut, str(pid)],
                    stdin=held,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
        finally:
            fds.close(held)
        assert self._process.stdout is not None
        if not self._process.stdout.read(1).isdigit():
            fds.close(self._leash)
            self._leash = -1
            _, problem = self._process.communicate()
            raise NamespaceError(f"pasta could not connect a private network: {problem.decode(errors='replace')}")

    def _start_slirp(self, pid: int) -> None:
        ready, told = fds.pipe()
        held, self._leash = fds.pipe()
        command = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback"]
        command += [f"--ready-fd={told}", f"--exit-fd={held}", str(pid), "tap0"]
        try:
            with fds.fork_lock():
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[told, held],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            fds.close(told)
            if os.read(ready, 1) != b"1":
                _, problem = self._process.communicate()
                raise NamespaceError(
                    f"slirp4netns could not connect a private network: {problem.decode(errors='replace')}"
                )
        finally:
            fds.close(ready, held)

    def close(self) -> None:
        """End it."""
        if self._leash >= 0:
            fds.close(self._leash)
            self._leash = -1
        if self._process is not None:
            self._process.communicate()
            self._process = None
