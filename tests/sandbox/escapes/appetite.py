"""Attempts to use up the machine, under limits."""

from __future__ import annotations

from tests.sandbox.escapes.attempt import attempt

MB = 1 << 20

attempt(
    "fork bomb",
    "fork for ever",
    "the limit on processes (control group, or RLIMIT_NPROC in a user namespace)",
    """
print("TRIED", flush=True)
made = 0
try:
    while made < 400:
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError:
    pass
if made > 40:
    got(made)
""",
    limits={"processes": 30},
    options={"timeout": 20},
)
attempt(
    "memory",
    "take more memory than allowed",
    "the limit on memory (control group, or RLIMIT_AS)",
    """
print("TRIED", flush=True)
held = []
try:
    for _ in range(100):
        held.append(bytearray(os.urandom(1 << 20)) * 4)
except MemoryError:
    os._exit(0)
got(len(held))
""",
    limits={"memory": 150 * MB},
    endings=("exit", "out of memory", "signal"),
)
attempt(
    "memory through temporary files",
    "fill /tmp, /var/tmp and /dev/shm, which are memory",
    "each is no larger than the memory limit, and a control group counts them",
    """
print("TRIED", flush=True)
written = 0
block = bytes(1 << 20)
for place in ("/tmp", "/var/tmp", "/dev/shm"):
    if os.path.isdir(place):
        with open(place + "/fill", "wb") as file:
            try:
                for _ in range(600):
                    file.write(block)
                    file.flush()
                    written += 1
            except OSError:
                pass
if written > 3 * 160:
    got(written)
""",
    limits={"memory": 150 * MB},
    endings=("exit", "out of memory", "signal"),
)
attempt(
    "disk",
    "fill the disk through the branch",
    "the limit on the layer's size, watched from outside",
    """
print("TRIED", flush=True)
block = os.urandom(1 << 20)
number = 0
while number < 2000:
    with open(f"{ws}/fill-{number}", "wb") as file:
        file.write(block)
    number += 1
got(number)
""",
    limits={"disk": 16 * MB},
    endings=("killed",),
    options={"timeout": 60},
)
attempt(
    "disk, out of sight",
    "fill the disk below a path that is longer than the kernel accepts",
    "the supervisor continues from a directory descriptor when a path gets long",
    """
print("TRIED", flush=True)
for _ in range(30):
    try:
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    except OSError as error:  # fuse-overlayfs itself refuses paths beyond PATH_MAX
        if error.errno != errno.ENAMETOOLONG:
            raise
        os.chdir("..")
        break
block = os.urandom(1 << 20)
for number in range(2000):
    with open(f"fill-{number}", "wb") as file:
        file.write(block)
got(number)
""",
    limits={"disk": 16 * MB},
    endings=("killed",),
    options={"timeout": 60},
)
attempt(
    "one large file",
    "write one large file, also by seeking and by fallocate",
    "the limit on file size (RLIMIT_FSIZE)",
    """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open(ws + "/large", os.O_CREAT | os.O_RDWR)
want("written", lambda: os.pwrite(fd, b"x", 64 << 20))
want("truncated", os.ftruncate, fd, 64 << 20)
want("allocated", os.posix_fallocate, fd, 0, 64 << 20)
""",
    limits={"file_size": 8 * MB},
)
attempt(
    "processor",
    "burn CPU in many processes, ignoring SIGXCPU",
    "the limit on CPU seconds (control group, or RLIMIT_CPU, whose hard limit kills)",
    """
print("TRIED", flush=True)
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True:
    pass
""",
    limits={"cpu": 0.5},
    endings=("killed", "signal"),
    options={"timeout": 60},
)
attempt(
    "limits raised",
    "raise the limits it was given",
    "raising a hard limit needs a capability, and control groups are read-only",
    """
import resource
for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_CPU):
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        want(kind, resource.setrlimit, kind, (hard + 1, hard + 1))
        want(kind, resource.setrlimit, kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    limits={"file_size": 8 * MB, "cpu": 50, "memory": 1000 * MB},
)
