"""Attempts on the kernel: its settings, its interfaces, and things that exist once per machine."""

from __future__ import annotations

from tests.sandbox.escapes.attempt import attempt

FILTER = "the filter refuses the call, and it needs a capability over the whole machine"

attempt(
    "kernel settings",
    "write /proc/sys: core_pattern, modprobe, hostname, and every other file there",
    "for root, who owns these files, they are bound read-only; other users lack the permissions",
    """
for path in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/hotplug", "vm/overcommit_memory",
             "fs/binfmt_misc/register", "net/ipv4/ip_forward", "kernel/sysrq", "user/max_user_namespaces"):
    want(path, os.open, f"/proc/sys/{path}", os.O_WRONLY)
for directory, _, names in os.walk("/proc/sys"):
    for name in names:
        if not os.lstat(f"{directory}/{name}").st_mode & 0o002:  # world-writable files need no rights
            want(f"{directory}/{name}", os.open, f"{directory}/{name}", os.O_WRONLY)
""",
)
attempt(
    "other files of /proc",
    "open sysrq-trigger, kcore, kmsg, mtrr, scsi, acpi and everything else in /proc that is not a process",
    "for root, who owns these files, they are bound read-only; reading some needs a capability over the whole machine",
    """
for directory, directories, names in os.walk("/proc"):
    if directory == "/proc":
        directories[:] = [d for d in directories if not d.isdigit() and d not in ("self", "thread-self", "sys")]
    for name in names:
        path = f"{directory}/{name}"
        # A file without write permission accepts no writes; world-writable files need no rights.
        if os.lstat(path).st_mode & 0o222 and not os.lstat(path).st_mode & 0o002:
            want(path, os.open, path, os.O_WRONLY | os.O_NONBLOCK)
for name in ("kcore", "kmsg", "vmcore"):
    want(name, os.open, f"/proc/{name}", os.O_RDONLY | os.O_NONBLOCK)
""",
)
attempt(
    "out-of-memory score",
    "lower its out-of-memory score, or raise its priority and limits",
    "each needs a capability over the whole machine",
    """
import resource
want("score", write, "/proc/self/oom_score_adj", "-1000")
want("nice", os.nice, -10)
want("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        want(("limit", kind), resource.setrlimit, kind, (hard + 1, hard + 1))
""",
)
attempt(
    "sysfs, debugfs, tracefs, bpffs",
    "open files in /sys for writing",
    "every mount there is read-only",
    """
count = 0
for place in ("kernel", "power", "module", "fs", "firmware", "class", "bus", "block"):
    for directory, directories, names in os.walk(f"/sys/{place}"):
        for name in names:
            count += 1
            if count < 6000:
                want(f"{directory}/{name}", os.open, f"{directory}/{name}", os.O_WRONLY | os.O_NONBLOCK)
        if count >= 6000:
            break
for path in ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf"):
    want(path, os.mkdir, path + "/escaped")
""",
)
attempt(
    "control groups",
    "write a release agent, leave the group, make groups, mount a hierarchy",
    "every mount of control groups is read-only, and none can be made",
    """
for directory, directories, names in os.walk("/sys/fs/cgroup"):
    for name in ("release_agent", "notify_on_release", "cgroup.procs", "tasks", "devices.allow", "memory.max"):
        if name in names:
            want(f"{directory}/{name}", os.open, f"{directory}/{name}", os.O_WRONLY)
    want(directory, os.mkdir, directory + "/escaped")
    if directory.count("/") > 5:
        directories.clear()
want("mount", mount, b"cgroup", b"/tmp", b"cgroup", 0, b"none,name=escaped")
""",
)
attempt(
    "keyrings",
    "read and write the kernel's keyrings of the user and the session",
    "the filter refuses the calls",
    """
for ring in (-1, -2, -3, -4, -5):
    want(ring, lambda: syscall(250, 0, ring, 1))
want("add", lambda: syscall(248, b"user", b"escaped", b"x", 1, -4))
want("request", lambda: syscall(249, b"user", b"forkwise-key", None, 0))
""",
)
attempt(
    "io_uring",
    "hand calls to the kernel through a ring, past the filter",
    "the filter returns ENOSYS",
    "want('ring', lambda: syscall(425, 4, ctypes.create_string_buffer(120)))",
)
attempt(
    "bpf, perf, userfaultfd",
    "load a program into the kernel, watch the machine, stall the kernel on page faults",
    "the filter refuses the calls",
    """
want("bpf", lambda: syscall(321, 0, ctypes.create_string_buffer(struct.pack("IIII", 1, 4, 4, 1) + bytes(112)), 128))
want("bpf program", lambda: syscall(321, 5, ctypes.create_string_buffer(128), 128))
want("perf", lambda: syscall(298, ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0) + bytes(96)), -1, 0, -1, 0))
want("userfaultfd", lambda: syscall(323, 1))
""",
)
attempt(
    "modules and kexec",
    "load or unload a kernel module, load another kernel, reboot",
    FILTER,
    """
want("init_module", lambda: syscall(175, b"", 0, b""))
want("finit_module", lambda: syscall(313, os.open("/bin/sh", os.O_RDONLY), b"", 0))
want("delete_module", lambda: syscall(176, b"no_such_module", 0))
want("kexec", lambda: syscall(246, 0, 0, None, 0))
want("reboot", lambda: syscall(169, 0xFEE1DEAD, 672274793, 0, 0))
for number, arguments in ((175, (b"", 0, b"")), (176, (b"no_such_module", 0)), (169, (0xFEE1DEAD, 672274793, 0, 0))):
    try:
        syscall(number, *arguments)
    except OSError as error:
        if error.errno != errno.EPERM:
            got((number, error))
""",
)
attempt(
    "clock and name",
    "set the machine's clock, time zone, host name and domain name",
    "the filter refuses the calls; names are its own",
    """
now = time.clock_gettime(time.CLOCK_REALTIME)
want("clock", time.clock_settime, time.CLOCK_REALTIME, now)
want("settimeofday", lambda: syscall(164, ctypes.create_string_buffer(struct.pack("qq", int(now), 0)), None))
want("adjtimex", lambda: syscall(159, ctypes.create_string_buffer(struct.pack("Ii", 0x8000, 0) + bytes(200))))
want("hostname", socket.sethostname, "escaped")
want("domain", lambda: syscall(171, b"escaped", 7))
""",
)
attempt(
    "swap, quotas, accounting",
    "swapon, swapoff, quotactl, acct, vhangup",
    FILTER,
    """
open(ws + "/swapfile", "wb").write(bytes(65536))
want("swapon", lambda: syscall(167, (ws + "/swapfile").encode(), 0))
want("swapoff", lambda: syscall(168, b"/dev/zram0"))
want("quotactl", lambda: syscall(179, 0x80000100 | 2 << 8, b"/dev/vda", 0, None))
want("acct", lambda: syscall(163, (ws + "/a.txt").encode()))
want("vhangup", lambda: syscall(153))
want("ioperm", lambda: syscall(173, 0x70, 1, 1))
want("iopl", lambda: syscall(172, 3))
""",
)
attempt(
    "kernel log",
    "read or clear the kernel's log",
    FILTER,
    """
buffer = ctypes.create_string_buffer(4096)
want("read", lambda: syscall(103, 3, buffer, 4096))
want("size", lambda: syscall(103, 10, None, 0))
""",
)
attempt(
    "calls by other numbers",
    "make forbidden calls by x32 numbers, which the filter might not know",
    "the filter kills a process that uses another architecture's call numbers",
    """
def call():
    libc.syscall(ctypes.c_long(0x40000000 | 165), b"none", b"/", None, ctypes.c_ulong(REMOUNT | BIND), None)
    got("still alive")
in_child(call)
""",
)
attempt(
    "core dump",
    "crash so that the kernel writes a file, or starts a program, on its behalf",
    "a dump is written to the branch or nowhere, because the kernel writes it with the process's own mounts and rights",
    """
import resource
attempt(resource.setrlimit, resource.RLIMIT_CORE, (1 << 20, 1 << 20))
def crash():
    attempt(os.chdir, outside)
    os.kill(os.getpid(), signal.SIGSEGV)
in_child(crash)
""",
)
