"""Seccomp filters: sets of system calls to refuse in a sandbox, and the BPF program that refuses them.

``deny`` assembles a filter and has no side effect, ``install`` passes it to the kernel. No other module knows system
call numbers and BPF instructions.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Collection, Iterable

from forkwise.errors import NamespaceError

__all__ = [
    "ADMINISTRATION",
    "COMMON_SOCKETS",
    "INTERFACES",
    "KEYRINGS",
    "MOUNTS",
    "NAMESPACES",
    "STANDARD",
    "STRICT",
    "TRACING",
    "deny",
    "install",
]

# Numbers on x86_64 and aarch64; None if the architecture never had the call.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)

# The groups of refused calls, and why each is refused. A caller can take a group out of a set: ``STANDARD - MOUNTS``.
#
# | group          | set      | reason                                                                                |
# | -------------- | -------- | ------------------------------------------------------------------------------------- |
# | ADMINISTRATION | standard | acts on the machine and not on a branch: modules, kexec, clock, swap, quota, ports,   |
# |                |          | host name, kernel log; open_by_handle_at reaches files by number, past every mount    |
# | KEYRINGS       | standard | keyrings belong to a user or session, and no namespace separates them from the host's |
# | INTERFACES     | standard | large parts of the kernel that ordinary programs do not need; io_uring also performs  |
# |                |          | calls that this filter refuses, unseen by it, so it is refused with any other group   |
# | MOUNTS         | standard | a sandbox is confined by its mounts                                                   |
# | NAMESPACES     | strict   | a user namespace gives a process all capabilities inside it, and exposes the kernel   |
# |                |          | code behind them; but browsers need it for their own sandboxes, and it cannot unmount |
# |                |          | an inherited mount                                                                    |
# | TRACING        | strict   | a process reads and writes another's memory; debuggers need it, and a PID namespace   |
# |                |          | limits it to the sandbox                                                              |
#
# Allowed: memfd_create, seccomp and Landlock (they only restrict), name_to_handle_at (opens nothing), personality
# (changes only the process itself; sanitizers need it), chroot and mknod (need capabilities that a sandbox lacks).
ADMINISTRATION = frozenset(
    {
        "acct",
        "adjtimex",
        "clock_adjtime",
        "clock_settime",
        "delete_module",
        "finit_module",
        "init_module",
        "ioperm",
        "iopl",
        "kexec_file_load",
        "kexec_load",
        "lookup_dcookie",
        "nfsservctl",
        "open_by_handle_at",
        "quotactl",
        "quotactl_fd",
        "reboot",
        "setdomainname",
        "sethostname",
        "settimeofday",
        "swapoff",
        "swapon",
        "syslog",
        "vhangup",
    }
)
KEYRINGS = frozenset({"add_key", "keyctl", "request_key"})
INTERFACES = frozenset(
    {"bpf", "io_uring_enter", "io_uring_register", "io_uring_setup", "perf_event_open", "userfaultfd"}
)
MOUNTS = frozenset(
    {
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "mount",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "open_tree_attr",
        "pivot_root",
        "umount2",
    }
)
NAMESPACES = frozenset({"clone", "clone3", "setns", "unshare"})
TRACING = frozenset({"kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace"})
STANDARD = ADMINISTRATION | KEYRINGS | INTERFACES | MOUNTS
STRICT = STANDARD | NAMESPACES | TRACING

#: Unix, IPv4, IPv6, and netlink (for name lookups). Others are rare, expose much code, or (vsock) ignore namespaces.
COMMON_SOCKETS = frozenset({1, 2, 10, 16})
_AF_UNIX = 1

# Programs and libraries try these first and fall back on ENOSYS, as from a kernel that is too old for them.
_UNKNOWN_TO_OLD_KERNELS = frozenset({"clone3", "io_uring_enter", "io_uring_register", "io_uring_setup"})

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_NEW_NAMESPACES = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_TIME = 0x80  # for unshare(2) only: in clone(2) this bit is part of the exit signal's number

_LOAD, _RETURN, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_X32 = 0x40000000
_NO_CALL = 0xFFFFFFFF  # the number that a tracer sets to skip a call

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_FLAG_SPEC_ALLOW = 4

_Instruction = tuple[int, int, int, int]

_libc = ctypes.CDLL(None, use_errno=True)


def deny(
    names: Iterable[str],
    *,
    terminal_injection: bool = True,
    sockets_of: Collection[int] | None = None,
    machine: str | None = None,
) -> bytes:
    """Assemble a filter that refuses the named calls with EPERM, or ENOSYS if programs then fall back.

    ``clone`` and ``unshare`` are refused only if they request a namespace. ``terminal_injection`` refuses the ioctls
    that type into a terminal. ``sockets_of`` is the set of allowed address families (None: all); pairs of Unix sockets
    are always allowed, because they connect nothing else. A call with another architecture's numbers (i386, x32) kills
    the process.

    >>> len(deny({"ptrace"}, machine="x86_64")) % 8
    0
    """
    column = _column(machine)
    wanted = set(names)
    if unknown := sorted(wanted - _NUMBERS.keys()):
        raise ValueError(f"no number is known for the system calls {', '.join(unknown)}")
    code: list[_Instruction] = _guard(column)
    # Calls that depend on their arguments come first: the kernel caches the verdict on all others (Linux 5.11).
    for name, check in _argument_checks(wanted, terminal_injection, sockets_of).items():
        code += [(_IF_EQUAL, 0, len(check), _number(name, column)), *check]
    for name in sorted(wanted - {"clone", "unshare"}):
        if (number := _NUMBERS[name][column]) is not None:
            answer = errno.ENOSYS if name in _UNKNOWN_TO_OLD_KERNELS else errno.EPERM
            code += [(_IF_EQUAL, 0, 1, number), _refusal(answer)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Install a filter for this process and all it starts, for good, and set no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_program = _Program(len(program) // 8, ctypes.addressof(buffer))
    outcome = _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if outcome == 0:
        number = ctypes.c_long(_number("seccomp", _column(None)))
        # Without SPEC_ALLOW, kernels before 5.16 turn on speculation mitigations, which slow the process down.
        for flags in (_FLAG_SPEC_ALLOW, 0):
            outcome = _libc.syscall(number, _SET_MODE_FILTER, ctypes.c_uint(flags), ctypes.byref(filter_program))
            if outcome == 0:
                return
    reason = os.strerror(ctypes.get_errno())
    raise NamespaceError(
        f"no system call filter could be installed: {reason}; it needs a kernel with CONFIG_SECCOMP_FILTER, and inside "
        "a container a runtime that allows seccomp(2)"
    )


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def _column(machine: str | None) -> int:
    name = machine or os.uname().machine
    if name not in _MACHINES or sys.maxsize < 1 << 32:
        raise NamespaceError(
            f"there is no system call filter for {name} with {sys.maxsize.bit_length() + 1} bits, only for "
            f"{' and '.join(_MACHINES)} with 64: use one of these, or a confinement without a filter"
        )
    return _MACHINES.index(name)


def _number(name: str, column: int) -> int:
    number = _NUMBERS[name][column]
    assert number is not None  # used only for calls that every architecture has
    return number


def _guard(column: int) -> list[_Instruction]:
    """Kill a process that uses another architecture's call numbers, then load the number of the call."""
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCH[column]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if _MACHINES[column] == "x86_64":
        code += [(_IF_AT_LEAST, 0, 2, _X32), (_IF_EQUAL, 1, 0, _NO_CALL), (_RETURN, 0, 0, _KILL)]
    return code


def _argument_checks(
    wanted: set[str], terminal_injection: bool, sockets_of: Collection[int] | None
) -> dict[str, list[_Instruction]]:
    """Build, for each call that depends on its arguments, code that checks them and always returns."""
    checks = {}
    if terminal_injection:
        checks["ioctl"] = _refuse_if([(_IF_EQUAL, value) for value in (_TIOCSTI, _TIOCLINUX)], argument=1)
    if "clone" in wanted:
        checks["clone"] = _refuse_if([(_IF_ANY_BIT, _NEW_NAMESPACES)])
    if "unshare" in wanted:
        checks["unshare"] = _refuse_if([(_IF_ANY_BIT, _NEW_NAMESPACES | _NEW_TIME)])
    if sockets_of is not None:
        refusal = _refusal(errno.EAFNOSUPPORT)
        checks["socket"] = _allow_only(sockets_of, refusal)
        checks["socketpair"] = _allow_only({*sockets_of, _AF_UNIX}, refusal)
    return checks


def _refuse_if(tests: list[tuple[int, int]], argument: int = 0) -> list[_Instruction]:
    """Refuse the call if one of the tests of the argument is true, else allow it."""
    code = [_argument(argument)]
    for test, value in tests:
        code += [(test, 0, 1, value), _refusal(errno.EPERM)]
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _allow_only(values: Collection[int], refusal: _Instruction) -> list[_Instruction]:
    """Allow the call if its first argument is one of the values, else refuse it."""
    code = [_argument(0)]
    for value in sorted(values):
        code += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*code, refusal]


def _argument(index: int) -> _Instruction:
    """Load the low 32 bits of an argument: the kernel ignores the others in the calls that are checked here."""
    return _LOAD, 0, 0, _ARGUMENTS + 8 * index


def _refusal(number: int) -> _Instruction:
    return _RETURN, 0, 0, _ERRNO | number
