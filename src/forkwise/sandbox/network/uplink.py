"""The uplink of a private network: pasta or slirp4netns, whichever is installed, run beside the sandbox.

They carry outgoing connections and nothing else: no port of the host's loopback is reachable, and none is forwarded.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from forkwise.errors import NamespaceError
from forkwise.linux import fds

__all__ = ["Uplink", "find_uplink_program"]

# pasta writes its process number to the shell's output once it is set up. The shell then waits for the end of stdin.
_PASTA_SCRIPT = """
exec 3>&1 >/dev/null
pasta --foreground --pid /proc/self/fd/3 "$@" &
exec 3>&-
read -r _
kill -9 "$!"
"""


def find_uplink_program() -> str | None:
    """Return the program that connects a private network, or None if none is installed."""
    return next((name for name in ("pasta", "slirp4netns") if shutil.which(name)), None)


class Uplink:
    """The process that connects one sandbox. It ends with the sandbox."""

    def __init__(self, pid: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_fd = -1
        program = find_uplink_program()
        if program == "pasta":
            self._start_pasta(pid)
        elif program == "slirp4netns":
            self._start_slirp(pid)
        else:
            raise NamespaceError(
                "the network 'private' needs pasta or slirp4netns, and neither is installed: install the package passt "
                "or slirp4netns, or use another network, on the command line --network proxy"
            )

    def _start_pasta(self, pid: int) -> None:
        # pasta would never exit: it holds the network namespace open itself. The shell kills it when the pipe on its
        # stdin is closed, which also happens when this process dies.
        user_options = ["--runas", f"{os.geteuid()}:{os.getegid()}"] if os.geteuid() == 0 else []
        isolation_options = ["--no-map-gw", "-t", "none", "-u", "none", "-T", "none", "-U", "none"]
        child_exit_fd, self._exit_fd = fds.pipe()
        try:
            with fds.fork_lock():  # Popen waits until all copies of its own descriptors are closed
                self._process = subprocess.Popen(
                    [
                        "sh",
                        "-c",
                        _PASTA_SCRIPT,
                        "sh",
                        *user_options,
                        "--quiet",
                        "--config-net",
                        *isolation_options,
                        str(pid),
                    ],
                    stdin=child_exit_fd,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
        finally:
            fds.close(child_exit_fd)
        assert self._process.stdout is not None
        if not self._process.stdout.read(1).isdigit():
            fds.close(self._exit_fd)
            self._exit_fd = -1
            _, problem = self._process.communicate()
            raise NamespaceError(f"pasta could not connect a private network: {problem.decode(errors='replace')}")

    def _start_slirp(self, pid: int) -> None:
        ready_fd, ready_writer_fd = fds.pipe()
        child_exit_fd, self._exit_fd = fds.pipe()
        command = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback"]
        command += [f"--ready-fd={ready_writer_fd}", f"--exit-fd={child_exit_fd}", str(pid), "tap0"]
        try:
            with fds.fork_lock():
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[ready_writer_fd, child_exit_fd],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            fds.close(ready_writer_fd)
            if os.read(ready_fd, 1) != b"1":
                _, problem = self._process.communicate()
                raise NamespaceError(
                    f"slirp4netns could not connect a private network: {problem.decode(errors='replace')}"
                )
        finally:
            fds.close(ready_fd, child_exit_fd)

    def close(self) -> None:
        """Stop it."""
        if self._exit_fd >= 0:
            fds.close(self._exit_fd)
            self._exit_fd = -1
        if self._process is not None:
            self._process.communicate()
            self._process = None
