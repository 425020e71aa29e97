"""Attempts on processes outside, on the sandbox's own init process, and on what it reports to the parent."""

from __future__ import annotations

from tests.sandbox.escapes.attempt import attempt

OWN = "its own PID namespace: no process outside has a number in it"
FIRST = "the init process is not dumpable and holds capabilities that no other process in the sandbox has"

attempt(
    "signal the parent",
    "kill the parent, a process of the same user, and all processes",
    OWN,
    """
for pid in (world["parent"], world["victim"], -world["parent"], -world["victim"]):
    want(pid, os.kill, pid, signal.SIGKILL)
    want(pid, os.kill, pid, 0)
for pid in (world["parent"], world["victim"]):
    want(("queue", pid), lambda: syscall(129, pid, 10, ctypes.create_string_buffer(128)))
    want(("pidfd", pid), os.pidfd_open, pid)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt(os.kill, -1, signal.SIGTERM)
""",
)
attempt(
    "signal the process group",
    "kill the process group it was started in, which may be the parent's: kill(0) ignores PID namespaces",
    "a session of its own",
    """
if os.getsid(0) == 0 or os.getpgid(0) == 0:
    got("the session or the group is one of the outside")
pid = os.fork()
if pid == 0:
    os.kill(0, signal.SIGKILL)
os.waitpid(pid, 0)
""",
    endings=("signal",),
)
attempt(
    "ptrace",
    "attach to the parent, to a process of the same user, to the init process",
    OWN + "; " + FIRST,
    """
for pid in (world["parent"], world["victim"], 1):
    for request in (16, 0x4206):
        want((pid, request), lambda: syscall(101, request, pid, 0, 0))
""",
)
attempt(
    "memory of others",
    "read and write /proc/<pid>/mem, process_vm_readv and _writev, pidfd_getfd",
    OWN + "; " + FIRST,
    """
for pid in (world["parent"], world["victim"], 1):
    want((pid, "mem"), os.open, f"/proc/{pid}/mem", os.O_RDWR)
    want((pid, "maps"), read, f"/proc/{pid}/maps")
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_uint64 * 2)(world["address"], 8)
    want((pid, "readv"), lambda: syscall(310, pid, vector, 1, remote, 1, 0))
    want((pid, "writev"), lambda: syscall(311, pid, vector, 1, remote, 1, 0))
    for fd in range(16):
        want((pid, "getfd", fd), lambda: syscall(438, os.pidfd_open(pid), fd, 0))
""",
)
attempt(
    "secrets of the init process",
    "read the parent's environment and arguments from the sandbox's init process",
    FIRST + "; the forkserver is started with none of the parent's variables",
    """
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "auxv", "stack", "syscall", "io"):
        if int(pid) not in (os.getpid(), os.getppid()) or pid == "1":
            try:
                if world["token"].encode() in read(f"/proc/{pid}/{name}"):
                    got((pid, name))
                elif name == "environ" and read(f"/proc/{pid}/{name}"):
                    got((pid, name))
            except OSError:
                pass
""",
)
attempt(
    "secrets in the environment",
    "read tokens and the address of the ssh agent from its own environment",
    "strict passes on only a short list of variables, and none that looks like a secret",
    """
for name, value in os.environ.items():
    if world["token"] in value or name == "SSH_AUTH_SOCK":
        got(name)
if world["token"].encode() in read("/proc/self/environ"):
    got("environ")
""",
    under=("strict",),
)
attempt(
    "signals to the init process",
    "kill, stop and interrupt the sandbox's init process, so that a process survives or a false outcome is reported",
    "the kernel drops signals from a PID namespace's own processes to its init, which ends only with all others",
    """
for number in range(1, 65):
    if number not in (32, 33):
        for _ in range(3):
            attempt(os.kill, 1, number)
time.sleep(0)
""",
)
attempt(
    "forged outcome",
    "write a forged outcome where the parent reads it, or read the answer of others",
    "the descriptor is closed before the command starts, and the init process cannot be inspected",
    """
forged = b'{"cause":"exit","code":77,"wall":0,"cpu":0,"memory":0}\\n'
for fd in range(3, 4096):
    try:
        os.write(fd, forged)
        got(fd)
    except OSError:
        pass
for fd in range(64):
    want(fd, lambda: os.write(os.open(f"/proc/1/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), forged))
os.write(1, forged)
os.write(2, forged)
""",
)
attempt(
    "zombie flood",
    "leave thousands of orphans to be reaped, so that the command's end is never noticed",
    "the init process checks for the command's end between two reaps",
    """
for _ in range(300):
    if os.fork() == 0:
        for _ in range(6):
            if os.fork() == 0:
                os._exit(0)
        os._exit(0)
os._exit(0) if not print("TRIED", flush=True) else None
""",
)
attempt(
    "fork storm against the clock",
    "keep the init process busy reaping so that a timeout is never noticed",
    "it checks the clock between two reaps",
    """
print("TRIED", flush=True)
def storm():
    while True:
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.wait()
for _ in range(3):
    if os.fork() == 0:
        storm()
signal.pause()
""",
    endings=("timeout",),
    options={"timeout": 0.7},
)
attempt(
    "outlive the sandbox",
    "setsid, double fork, ignored signals, a stopped process, a process that forks for ever",
    "all end with the init process of their PID namespace",
    """
if os.fork() == 0:
    os.setsid()
    for number in range(1, 32):
        attempt(signal.signal, number, signal.SIG_IGN)
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", world["marker"]])
    os.kill(os.getpid(), signal.SIGSTOP)
""",
    then="no survivors",
)
attempt(
    "memory of a deleted program",
    "run a program from memory (memfd), from which no file remains, and write outside from there",
    "harmless: the confinement belongs to the process, not to the program's file",
    """
fd = os.memfd_create("program")
os.write(fd, open("/bin/sh", "rb").read())
in_child(lambda: os.execve(f"/proc/self/fd/{fd}", ["sh", "-c", f"echo escaped > {precious} && echo GOT written"], {}) )
""",
)
attempt(
    "terminal injection",
    "type commands into the parent's terminal with TIOCSTI and TIOCLINUX, after making it the controlling terminal",
    "the filter refuses both calls, and a new session has no terminal",
    """
for _ in range(2):
    for fd in (0, 1, 2):
        for character in b"touch /escaped\\n":
            want(("TIOCSTI", fd), fcntl.ioctl, fd, 0x5412, bytes([character]))
        want(("TIOCSTI high bits", fd), lambda: syscall(16, fd, 0x5412 | 1 << 32, b"x"))
        want(("TIOCLINUX", fd), fcntl.ioctl, fd, 0x541C, b"\\x03")
    if os.fork():
        os.wait()
        break
    attempt(os.setsid)
    attempt(fcntl.ioctl, 0, 0x540E, 1)
    want("/dev/tty", lambda: fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x"))
""",
    then="terminal",
)
