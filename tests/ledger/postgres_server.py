"""A real PostgreSQL server for tests, in a temporary directory, reached through a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.need import need

__all__ = ["PostgresServer"]


class PostgresServer:
    """A server with an empty database, until ``close``. It can be stopped and started again meanwhile.

    With ``size`` its files are in a filesystem of that size, such as ``100m``, which only root can mount.
    """

    def __init__(self, size: str | None = None) -> None:
        found = [
            *Path("/usr/lib/postgresql").glob("*/bin/postgres"),
            *map(Path, filter(None, [shutil.which("postgres")])),
        ]
        need(bool(found), "PostgreSQL is not installed")
        need(size is None or os.geteuid() == 0, "only root mounts a small filesystem")
        self._programs = found[0].parent
        self.directory = Path(tempfile.mkdtemp(prefix="forkwise-pg-"))
        self._is_mounted = size is not None
        if size is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.directory], check=True)
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
        self.url = f"postgresql:///postgres?host={self.directory}&user=postgres"
        create = ["initdb", "-D", f"{self.directory}/data", "-A", "trust", "-U", "postgres", "--no-sync"]
        self._run(*create, *(["--wal-segsize=1"] if size else []))
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["-D", f"{self.directory}/data", "-k", str(self.directory), "-c", "listen_addresses="]
        command = self._own(["postgres", *options, "-c", "fsync=off"])
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ask = [str(self._programs / "pg_isready"), "-q", "-h", str(self.directory)]
        while subprocess.run(ask, check=False).returncode != 0:
            assert self._server.poll() is None

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it at once, or kill it."""
        assert self._server is not None
        if self._server.poll() is None:
            self._server.send_signal(number)
        self._server.wait()

    def close(self) -> None:
        """Stop it, and remove its files."""
        if self._server is not None and self._server.poll() is None:
            self.stop()
        if self._is_mounted:
            subprocess.run(["umount", self.directory], check=True)
        shutil.rmtree(self.directory)

    def _run(self, *command: str) -> None:
        subprocess.run(self._own(command), check=True, stdout=subprocess.DEVNULL)

    def _own(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs as the owner of the data: PostgreSQL refuses to run as root."""
        switch = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return [*switch, str(self._programs / command[0]), *command[1:]]
