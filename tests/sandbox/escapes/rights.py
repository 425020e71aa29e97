"""Attempts to change mounts, enter or make namespaces, or gain rights."""

from __future__ import annotations

from tests.sandbox.escapes.attempt import attempt

NO_MOUNT = "no capability to mount, and a filter that refuses the calls"

attempt(
    "mount",
    "mount a tmpfs, a bind of a writable directory, the disk, a new /proc and a new sysfs",
    NO_MOUNT,
    """
for name in ("tmpfs", "proc", "sysfs", "devtmpfs", "cgroup", "cgroup2", "debugfs", "overlay", "bpf", "mqueue"):
    want(name, mount, name.encode(), b"/tmp", name.encode())
want("bind", mount, outside.encode(), b"/tmp", None, BIND)
for name in ("vda", "sda", "nvme0n1p1"):
    want(name, mount, f"/dev/{name}".encode(), b"/tmp", b"ext4")
""",
)
attempt(
    "remount writable",
    "make the root, the directory outside, or /proc writable again",
    NO_MOUNT,
    """
for place in (b"/", outside.encode(), b"/proc", b"/sys", b"/usr", b"/dev/null"):
    want(place, mount, b"none", place, None, REMOUNT | BIND)
    want(place, mount, b"none", place, None, REMOUNT)
    want(place, set_writable, place)
want("written", write, precious)
""",
)
attempt(
    "unmount",
    "unmount the covers of hidden paths",
    NO_MOUNT,
    """
for place in (ws, secret, "/tmp", "/var/tmp", "/dev", "/run", "/proc", "/"):
    for flags in (0, DETACH):
        if libc.umount2(place.encode(), flags) == 0:
            got(place)
""",
)
attempt(
    "pivot_root",
    "change the root of the mount namespace",
    NO_MOUNT,
    """
os.makedirs("/tmp/new/old")
want("pivoted", lambda: syscall(155, b"/tmp/new", b"/tmp/new/old"))
want("pivoted in place", lambda: syscall(155, b".", b"."))
""",
)
attempt(
    "chroot",
    "chroot and climb out of it by a descriptor, the old way",
    "no capability to chroot, and the sandbox is not a chroot",
    """
def climb():
    fd = os.open("/", os.O_RDONLY)
    os.mkdir("/tmp/jail")
    os.chroot("/tmp/jail")
    got("chroot")
    os.fchdir(fd)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    write(precious)
    got("written")
in_child(lambda: attempt(climb))
""",
)
attempt(
    "new mount calls",
    "fsopen, fsmount, open_tree, move_mount, mount_setattr, fspick",
    NO_MOUNT,
    """
want("fsopen", lambda: syscall(430, b"tmpfs", 0))
want("open_tree", lambda: syscall(428, -100, b"/", 1 | 0x8000))
want("open_tree of a hidden place", lambda: syscall(428, -100, secret.encode(), 1))
want("fspick", lambda: syscall(433, -100, b"/", 0))
want("move_mount", lambda: syscall(429, -100, outside.encode(), -100, b"/tmp", 0))
want("mount_setattr", set_writable, b"/")
""",
)
attempt(
    "nested user namespace, remount",
    "become root of a new user namespace and make mounts writable there",
    "mounts in a nested namespace are locked as they are; the filter refuses the calls; strict refuses namespaces",
    """
def inside():
    nested()
    for place in (b"/", outside.encode()):
        want(place, mount, b"none", place, None, REMOUNT | BIND)
        want(place, set_writable, place)
    want("written", write, precious)
in_child(lambda: attempt(inside))
""",
)
attempt(
    "nested user namespace, mount",
    "become root of a new user namespace, unmount covers and mount others",
    "the filter still applies and refuses the calls; strict refuses namespaces",
    """
def inside():
    nested(0x10000000 | 0x00020000 | 0x20000000)
    for place in (secret, ws, "/tmp", "/dev", "/proc"):
        want(place, lambda: libc.umount2(place.encode(), DETACH) and os.stat("/nowhere"))
    want("tmpfs", mount, b"tmpfs", b"/tmp", b"tmpfs")
    want("bind", mount, b"/", b"/tmp", None, BIND)
    in_child(lambda: want("proc", mount, b"proc", b"/proc", b"proc"))
    want_secret(secret + "/key")
code = in_child(lambda: attempt(inside))
""",
)
attempt(
    "nested user namespace, rights",
    "use the capabilities of a new user namespace on files: chroot, chown, mknod, override of modes",
    "those capabilities apply only to what the new namespace owns, and mounts stay read-only",
    """
def inside():
    nested(0x10000000)
    want("written", write, precious)
    want("owner", os.chown, precious, 0, 0)
    want("disk", os.mknod, "/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
    if attempt(os.chroot, outside):
        want("written", write, "/precious")
in_child(lambda: attempt(inside))
""",
)
attempt(
    "setns",
    "enter the namespaces of the first process, of the parent, or by any descriptor",
    "neither can be inspected, no process outside is visible, no such descriptor is left open",
    """
for pid in ("1", str(world["parent"]), str(os.getppid())):
    for kind in ("mnt", "user", "pid", "net", "ipc", "uts", "cgroup"):
        def enter():
            fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            own = os.stat(f"/proc/self/ns/{kind}")
            if os.fstat(fd).st_ino != own.st_ino:
                got(("descriptor", pid, kind))
            if libc.setns(fd, 0) == 0 and kind != "ipc":
                got((pid, kind))
        attempt(enter)
for pid in (1, world["parent"]):
    attempt(lambda: libc.setns(os.pidfd_open(pid), 0x00020000) or got("by pidfd"))
# NS_GET_PARENT and NS_GET_USERNS lead up the tree
for kind, request in (("user", 0xB702), ("pid", 0xB702), ("user", 0xB701), ("mnt", 0xB701)):
    def climb():
        fd = fcntl.ioctl(os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), request)
        if libc.setns(fd, 0) == 0:
            got(("climbed", kind))
    attempt(climb)
""",
)
attempt(
    "set-uid file made inside",
    "make a set-uid and set-gid copy of a program and run it to gain another user's rights",
    "no_new_privs: executing a program grants nothing",
    """
import shutil
shutil.copy("/bin/cat", ws + "/tool")
attempt(os.chown, ws + "/tool", 0, 0)
os.chmod(ws + "/tool", 0o6755)
def run():
    attempt(os.setresgid, 12345, 12345, 12345)
    attempt(os.setresuid, 12345, 12345, 12345)
    user = os.geteuid()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(writer, 1)
        os.execv(ws + "/tool", [ws + "/tool", "/proc/self/status"])
    os.close(writer)
    status = os.read(reader, 65536).decode()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()
    if int(uids[2]) != user:
        got(uids)
    if "NoNewPrivs:\\t1" not in status:
        got("new privileges are possible")
in_child(run)
""",
)
attempt(
    "set-uid program of the host",
    "run su, mount, passwd, newuidmap and sudo to gain root's rights",
    "no_new_privs, and nosuid on every mount",
    """
import shutil
for name in ("su", "mount", "passwd", "newuidmap", "sudo", "fusermount3", "chsh", "pkexec"):
    path = shutil.which(name)
    if path is None:
        continue
    if not os.statvfs(path).f_flag & os.ST_NOSUID:
        got(("suid would count", path))
text = open("/proc/self/status").read()
if "NoNewPrivs:\\t1" not in text:
    got("new privileges are possible")
""",
)
attempt(
    "capabilities",
    "hold, regain or give to a file a capability that reaches beyond files",
    "all except those over files are dropped for good, from every set",
    """
text = open("/proc/self/status").read()
sets = {l.split(":")[0]: int(l.split()[1], 16) for l in text.splitlines() if l.startswith("Cap")}
allowed = 0b11111011  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID
for name, value in sets.items():
    if value & ~allowed:
        got((name, hex(value)))
granted = bytes.fromhex("0100000200ffffffff000000000000000000000000")
want("file capabilities", os.setxattr, ws + "/a.txt", "security.capability", granted)
for number in range(41):
    if not allowed >> number & 1 and libc.prctl(47, 2, number, 0, 0) == 0:
        got(("ambient", number))
want("trusted attribute", os.setxattr, ws + "/a.txt", "trusted.escaped", b"1")
want("immutable", lambda: fcntl.ioctl(os.open(ws + "/a.txt", os.O_RDONLY), 0x40086602, struct.pack("l", 0x10)))
""",
)
attempt(
    "device nodes made inside",
    "make nodes for the disk, memory and the kernel log with mknod",
    "making them needs a capability over the whole machine; nodev on every mount",
    """
for place in (ws, "/tmp", "/dev", "/dev/shm"):
    for kind, major, minor in ((0o060000, 254, 0), (0o060000, 8, 0), (0o020000, 1, 1), (0o020000, 1, 11)):
        want((place, major, minor), os.mknod, f"{place}/node-{major}-{minor}", 0o666 | kind, os.makedev(major, minor))
""",
)
attempt(
    "devices of the host",
    "open disks, memory, the kernel log, loop control, KVM, FUSE, network tunnels in /dev",
    "a /dev of its own with seven harmless devices",
    """
usual = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx"}
for name in set(os.listdir("/dev")) - usual:
    got(name)
for name in ("vda", "sda", "mem", "kmem", "port", "kmsg", "loop-control", "loop0", "kvm", "fuse", "net/tun", "vsock",
             "vhost-net", "userfaultfd", "mapper/control", "uinput", "console", "tty0", "tty1", "hwrng", "cpu/0/msr"):
    for flags in (os.O_RDONLY, os.O_RDWR):
        want(name, os.open, f"/dev/{name}", flags | os.O_NONBLOCK)
""",
)
attempt(
    "device node elsewhere",
    "open a device node outside /dev, as in a container's files, which a read-only mount does not forbid",
    "nodev on every mount",
    """
for flags in (os.O_RDONLY, os.O_WRONLY):
    want("kernel log", os.open, world["node"], flags | os.O_NONBLOCK)
    want("in the branch", os.open, ws + "/node", flags | os.O_NONBLOCK)
""",
    by="root",
    control=True,
)
attempt(
    "another user",
    "become another user of the host, and use that user's rights",
    "an unprivileged user's namespace maps no other user; root's does not change what is mounted",
    """
def become():
    os.setgroups([])
    os.setresgid(12345, 12345, 12345)
    os.setresuid(12345, 12345, 12345)
    want("written", write, precious)
    want_secret(secret + "/key")
in_child(lambda: attempt(become))
""",
)
