"""Ports: which programs listen in the network of a branch, as the kernel's tables of sockets say.

The tables are those of the process that holds the network. The program that has a socket open is found by the
descriptors of the processes that this user may inspect; if these cannot be read, the program has no name.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["ListeningPort", "list_ports"]

_LISTENING = "0A"  # TCP_LISTEN of net/tcp_states.h
_ANY = {"00000000", "0" * 32}
_LOOPBACK4 = "7F"  # the last byte of a little-endian word: 127.0.0.0/8
_LOOPBACK6 = "0" * 24 + "01000000"
_MAX_TABLE = 4 << 20  # bytes: a sandbox may open as many sockets as it likes
_MAX_PORTS = 1000


@dataclass(frozen=True, slots=True, order=True)
class ListeningPort:
    """A TCP port on which a program inside listens: where to connect to, and the program with its process number."""

    port: int
    host: str
    program: str | None = None
    pid: int | None = None


def list_ports(holder_pid: int, *, with_programs: bool = True) -> list[ListeningPort]:
    """List the ports in the network namespace of a process, one entry each, sorted.

    Sockets that a process outside of the namespace holds, such as forkwise's own, are left out if ``with_programs``.
    Raises OSError if the process has ended.
    """
    found = _read_tables(holder_pid)
    if not with_programs:
        return sorted(ListeningPort(port, host) for port, (host, _) in found.items())
    space = os.readlink(f"/proc/{holder_pid}/ns/net")
    owners = _find_owners({inode for _, inode in found.values()}, space)
    if any(inode not in owners for _, inode in found.values()):  # closed meanwhile, or of a user whom we cannot inspect
        still_open = {inode for _, inode in _read_tables(holder_pid).values()}
        found = {port: socket for port, socket in found.items() if socket[1] in still_open}
    return sorted(
        ListeningPort(port, host, *owners.get(inode, (None, None))[:2])
        for port, (host, inode) in found.items()
        if inode not in owners or owners[inode][2]
    )


def _read_tables(holder_pid: int) -> dict[int, tuple[str, str]]:
    """Map the ports in the network of a process to the address to connect to and the inode of the socket."""
    found: dict[int, tuple[str, str]] = {}
    for name in ("tcp6", "tcp"):  # IPv4 last, which wins: most servers listen on it
        if name == "tcp6" and not os.path.exists("/proc/net/tcp6"):
            continue
        for port, host, inode in _read_table(f"/proc/{holder_pid}/net/{name}"):
            found[port] = (host, inode)
    return found


def _read_table(path: str) -> list[tuple[int, str, str]]:
    """Return the port, the address to connect to and the inode of each socket that listens on loopback or anywhere."""
    with open(path) as file:
        lines = file.read(_MAX_TABLE).splitlines()[1:]
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTENING:
            continue
        address, _, port = fields[1].rpartition(":")
        is_v4 = len(address) == 8
        if address in _ANY or (is_v4 and address.endswith(_LOOPBACK4)) or address == _LOOPBACK6:
            host = _format_v4(address) if is_v4 else "::1"
            found.append((int(port, 16), host, fields[9]))
    return found[:_MAX_PORTS]


def _format_v4(address: str) -> str:
    octets = bytes.fromhex(address)[::-1]
    return "127.0.0.1" if not any(octets) else ".".join(map(str, octets))


def _find_owners(inodes: set[str], space: str) -> dict[str, tuple[str, int, bool]]:
    """Map inodes to the program, its process number, and whether it is in the network ``space``."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, tuple[str, int, bool]] = {}
    for name in os.listdir("/proc") if wanted else ():
        if not name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            is_inside = os.readlink(f"/proc/{name}/ns/net") == space
            for fd in os.listdir(f"/proc/{name}/fd"):
                with suppress(OSError):
                    inode = wanted.get(os.readlink(f"/proc/{name}/fd/{fd}"))
                    if inode is not None and (inode not in found or is_inside):
                        found[inode] = (_read_program(name), int(name), is_inside)
    return found


def _read_program(pid: str) -> str:
    with open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().strip()
