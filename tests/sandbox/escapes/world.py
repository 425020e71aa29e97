"""The world outside that attempts aim at: files, secrets, sockets, processes. It notices every touch."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import secrets
import select
import shutil
import socket
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from forkwise.linux.syscalls import file_handle

__all__ = ["World"]

TOKEN = "token-3141592653589793"  # also in the environment of the process that runs the attempts
KEY = "the-secret-key"
_KERNEL_LOG = os.makedev(1, 11)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SETTINGS = ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/overcommit_memory")
_libc = ctypes.CDLL(None, use_errno=True)


class World:
    """The world in ``base``, which must not be in a directory for temporary files: a sandbox hides those anyway."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.name = f"forkwise-escape-{os.getpid()}-{secrets.token_hex(4)}"
        self.servers: list[socket.socket] = []
        self.temporaries: list[Path] = []
        (base / "outside").mkdir(parents=True)
        (base / "outside/precious").write_text("precious\n")
        for place in ("secret", "cache/keys"):
            (base / place).mkdir(parents=True)
            (base / place / "key").write_text(KEY)
        (base / "hidden-file").write_text(KEY)
        (base / "home/.keys").mkdir(parents=True)
        (base / "home/.keys/key").write_text(KEY)
        (base / "home/.token").write_text(KEY)
        (base / "home/.config/tool").mkdir(parents=True)
        (base / "home/.config/tool/settings").write_text("mine\n")
        self.workspace = self.make_workspace("project")
        os.mkfifo(base / "outside/fifo")
        self.fifo = os.open(base / "outside/fifo", os.O_RDONLY | os.O_NONBLOCK)
        self._make_temporaries()
        self._listen()
        if os.geteuid() == 0:
            os.mknod(base / "outside/node", 0o666 | stat.S_IFCHR, _KERNEL_LOG)
        self.victim = subprocess.Popen(["sleep", "100000"], stdin=subprocess.DEVNULL)
        self.marker = str(900000 + secrets.randbelow(90000))

    def make_workspace(self, name: str) -> Path:
        """Make a small project beside the directory outside, with links to hidden paths."""
        project = self.base / name
        (project / "sub").mkdir(parents=True)
        (project / "credentials").mkdir()
        (project / "credentials/key").write_text(KEY)
        (project / "a.txt").write_text("one\n")
        (project / "sub/b.txt").write_text("two\n")
        (project / "to-secret").symlink_to(self.base / "secret")
        (project / "to-hidden-file").symlink_to(self.base / "hidden-file")
        return project

    def hidden(self, workspace: Path) -> tuple[str, ...]:
        """Return the paths that a confinement must hide."""
        names = (self.base / "secret", self.base / "hidden-file", workspace / "credentials", self.base / "cache/keys")
        return tuple(map(str, (*names, self.base / "home/.keys", self.base / "home/.token")))

    def knowledge(self, workspace: Path, state: str, sibling: str) -> str:
        """Return what an attempt knows: every name and number."""
        return json.dumps(
            {
                "base": str(self.base),
                "workspace": str(workspace),
                "outside": str(self.base / "outside"),
                "precious": str(self.base / "outside/precious"),
                "secret": str(self.base / "secret"),
                "hidden_file": str(self.base / "hidden-file"),
                "cache": str(self.base / "cache"),
                "home": str(self.base / "home"),
                "key": KEY,
                "token": TOKEN,
                "state": state,
                "sibling": sibling,
                "fifo": str(self.base / "outside/fifo"),
                "node": str(self.base / "outside/node"),
                "parent": os.getpid(),
                "victim": self.victim.pid,
                "address": 0x400000,
                "marker": self.marker,
                "abstract": self.name,
                "sockets": [str(self.base / "outside/socket"), str(self.base / "deep/down/socket")],
                "agents": [str(p) for p in self.temporaries if p.is_socket()],
                "temporaries": [str(p) for p in self.temporaries if p.is_file()],
                "port": self.port,
                "udp": self.udp,
                "shm_key": self.shm_key,
                "shm_file": f"/dev/shm/{self.name}",
                "handles": self._handles(),
            }
        )

    def snapshot(self, *, without: str = "") -> dict[str, Any]:
        """Return everything that must be the same afterwards."""
        seen: dict[str, Any] = {}
        for top in ("outside", "secret", "cache", "home", "project", "hidden-file"):
            if top != without:
                seen |= _tree(self.base / top)
        for name in _DEVICES:
            found = os.stat(f"/dev/{name}")
            seen[f"/dev/{name}"] = (found.st_mode, found.st_uid, found.st_gid, found.st_rdev)
        for path in self.temporaries:
            seen[str(path)] = path.read_text() if path.is_file() else path.is_socket()
        for name in _SETTINGS:
            with suppress(OSError):
                seen[name] = Path("/proc/sys", name).read_text()
        seen["hostname"] = socket.gethostname()
        seen["victim"] = self.victim.poll()
        seen["reached"] = self._look()
        seen["swap"] = Path("/proc/swaps").read_text()
        return seen

    def mend(self, before: dict[str, Any]) -> None:
        """Repair what the whole machine needs, if an attempt on it was not stopped."""
        if os.geteuid() == 0:
            for name in _DEVICES:
                mode, user, group, _ = before[f"/dev/{name}"]
                os.chown(f"/dev/{name}", user, group)
                os.chmod(f"/dev/{name}", stat.S_IMODE(mode))
            for name in _SETTINGS:
                if name in before and before[name] != Path("/proc/sys", name).read_text():
                    Path("/proc/sys", name).write_text(before[name])

    def survivors(self) -> list[str]:
        """Return the processes that an attempt left behind."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                line = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
                if self.marker.encode() in line:
                    found.append(pid)
        return found

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for server in self.servers:
            server.close()
        os.close(self.fifo)
        for path in self.temporaries:
            path.unlink(missing_ok=True)
        _libc.shmctl(self.shm, 0, None)  # IPC_RMID
        shutil.rmtree(self.base)

    def _make_temporaries(self) -> None:
        for place in ("/tmp", "/var/tmp"):
            path = Path(place, self.name)
            path.write_text(KEY)
            self.temporaries.append(path)
        path = Path("/dev/shm", self.name)
        path.write_text(KEY)
        self.temporaries.append(path)
        self.shm_key = 0x50000000 | secrets.randbits(24)
        self.shm = int(_libc.shmget(self.shm_key, 4096, 0o1666))
        assert self.shm >= 0

    def _listen(self) -> None:
        (self.base / "deep/down").mkdir(parents=True)
        agents = [Path("/tmp") / f"{self.name}.sock"]
        if os.geteuid() == 0:
            agents.append(Path("/run") / f"{self.name}.sock")
        self.temporaries += agents
        addresses = [
            f"\0{self.name}",
            f"{self.base}/outside/socket",
            f"{self.base}/deep/down/socket",
            *map(str, agents),
        ]
        for address in addresses:
            server = socket.socket(socket.AF_UNIX)
            server.bind(address)
            server.listen()
            self.servers.append(server)
        datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with suppress(OSError):  # one abstract name has one socket
            datagrams.bind(f"\0{self.name}")
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = tcp.getsockname()[1]
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        self.udp = udp.getsockname()[1]
        self.servers += [tcp, udp, datagrams]

    def _look(self) -> list[str]:
        """Return the accesses since the last call: a connection, a datagram or bytes in the FIFO."""
        found = []
        for server in select.select(self.servers, [], [], 0)[0]:
            found.append(repr(server.getsockname()))
            server.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    server.recv(100) if server.type == socket.SOCK_DGRAM else server.accept()[0].close()
        with suppress(BlockingIOError):
            if sent := os.read(self.fifo, 100):
                found.append(f"fifo: {sent!r}")
        return found

    def _handles(self) -> dict[str, str]:
        """Return file handles as open_by_handle_at takes them: the kind, then the handle."""
        handles = {}
        for name in ("outside/precious", "secret/key", "outside", "hidden-file"):
            path = self.base / name
            fd = os.open(path.parent, os.O_RDONLY)
            if (handle := file_handle(fd, path.name)) is not None:
                handles[name] = (1).to_bytes(4, "little").hex() + handle.hex()  # 1: inode and generation
            os.close(fd)
        return handles


def _tree(top: Path) -> dict[str, Any]:
    seen = {}
    for path in [top, *sorted(top.rglob("*"))] if os.path.lexists(top) else []:
        found = path.lstat()
        what: tuple[Any, ...] = (found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_mtime_ns)
        if stat.S_ISREG(found.st_mode):
            what += (hashlib.sha256(path.read_bytes()).hexdigest(), tuple(os.listxattr(path)))
        elif stat.S_ISLNK(found.st_mode):
            what += (os.readlink(path),)
        seen[str(path)] = what
    return seen
