"""A process as Docker's defaults leave it, without Docker: capabilities, system call filter, ``/proc`` and ``/sys``.

``in_container`` prefixes a command so that it runs in mount, PID, IPC and UTS namespaces of its own, with ``/sys``
and ``/proc/sys`` read-only, with parts of ``/proc`` masked, with Docker's fourteen default capabilities and under a
filter that refuses the system calls that Docker's default profile refuses to a process without ``CAP_SYS_ADMIN``.
Grants take parts of that away, as the options of ``docker run`` do.

Differences from Docker: the root is the host's and not an overlay of an image, the network is the host's, and the
process has ``no_new_privs`` (``--security-opt no-new-privileges``), which installing a filter requires.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from forkwise.linux.mountinfo import mounts
from forkwise.linux.seccomp import NAMESPACES, STANDARD, TRACING, deny, install
from forkwise.linux.syscalls import MS_BIND, MS_RDONLY, MS_REC, MS_REMOUNT, mount

__all__ = ["CAPABILITIES", "GRANTS", "in_container"]

#: What Docker leaves to root in a container.
CAPABILITIES = (
    "audit_write",
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "mknod",
    "net_bind_service",
    "net_raw",
    "setfcap",
    "setgid",
    "setpcap",
    "setuid",
    "sys_chroot",
)

#: ``--security-opt seccomp=unconfined``, ``--security-opt systempaths=unconfined``, ``--cap-add SYS_ADMIN``. The last
#: one also lifts the filter: Docker's profile allows mounts and namespaces to a process with that capability.
GRANTS = frozenset({"seccomp", "systempaths", "sys_admin"})

# ptrace and process_vm_* are allowed since Linux 4.8; the clock calls are for reading, setting needs CAP_SYS_TIME.
_ALLOWED = {"adjtimex", "clock_adjtime", "process_vm_readv", "process_vm_writev", "ptrace"}
_REFUSED = (STANDARD | NAMESPACES | TRACING) - _ALLOWED
_MASKED = ("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "scsi", "sched_debug", "timer_list")
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def in_container(command: Sequence[str], *, user: int = 0, grants: Collection[str] = ()) -> list[str]:
    """Return a command that runs ``command`` as ``user`` in an imitated container. It needs root to start."""
    assert GRANTS.issuperset(grants)
    namespaces = ["--mount", "--pid", "--ipc", "--uts", "--propagation=private"]
    outside = ["unshare", *namespaces, "--fork", "--kill-child", "--mount-proc"]
    root = Path(__file__).parents[2]
    enter = "import sys; sys.path[:0] = sys.argv[1:3]; from tests.sandbox.container import main; main(sys.argv[3:])"
    inside = [sys.executable, "-c", enter, str(root), str(root / "src"), str(user), ",".join(grants), *command]
    return [*outside, *inside]


def main(words: Sequence[str]) -> None:
    """Give up what a container does not have, then execute the command; runs as root in new namespaces."""
    user, grants, command = int(words[0]), set(filter(None, words[1].split(","))), list(words[2:])
    _make_read_only("/sys")
    if "systempaths" not in grants:
        _mask()
        for path in _READ_ONLY:
            _make_read_only(path)
    kept = [*CAPABILITIES, *(["sys_admin"] if "sys_admin" in grants else [])]
    setpriv = ["setpriv", "--inh-caps=-all", f"--bounding-set=-all,{','.join(f'+{name}' for name in kept)}"]
    if user:
        setpriv += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    if not grants & {"seccomp", "sys_admin"}:
        install(deny(_REFUSED, terminal_injection=False))
    os.execvp(setpriv[0], [*setpriv, *command])


def _mask() -> None:
    for path in filter(os.path.exists, (f"/proc/{name}" for name in _MASKED)):
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", MS_RDONLY, "size=4k")
        else:
            mount("/dev/null", path, None, MS_BIND)


def _make_read_only(path: str) -> None:
    if os.path.exists(path):
        mount(path, path, None, MS_BIND | MS_REC)
        for point in {found.point for found in mounts() if f"{found.point}/".startswith(f"{path}/")}:
            mount("none", point, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
