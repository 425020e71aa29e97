"""Attempts to write or read files past the branch."""

from __future__ import annotations

from tests.sandbox.escapes.attempt import attempt

READ_ONLY = "every mount except the branch and private ones is read-only"

attempt(
    "absolute path", "write a file outside by its path", READ_ONLY, "want('written', write, precious)", control=True
)
attempt(
    "dot dot",
    "climb out of the workspace with ..",
    READ_ONLY,
    """
os.chdir(ws)
want("written", write, "../outside/precious")
want("written", write, ws + "/.." * 30 + precious)
""",
    control=True,
)
attempt(
    "create, remove, rename outside",
    "make, delete, truncate, move files and directories outside",
    READ_ONLY,
    """
want("created", os.close, os.open(outside + "/new", os.O_CREAT | os.O_RDWR) if os.access(outside, os.W_OK) else -1)
want("directory", os.mkdir, outside + "/newdir")
want("truncated", os.truncate, precious, 0)
want("moved out", os.rename, precious, ws + "/stolen")
want("moved in", os.rename, ws + "/a.txt", outside + "/given")
want("exchanged", lambda: syscall(316, -100, (ws + "/a.txt").encode(), -100, precious.encode(), 2))
want("removed", os.unlink, precious)
""",
)
for number, name in ((1, "proc 1 root"), (2, "proc self root")):
    where = "/proc/1" if number == 1 else "/proc/self"
    attempt(
        name,
        f"write through {where}/root and {where}/cwd",
        READ_ONLY + ("; the init process cannot be inspected" if number == 1 else ""),
        f"""
want("written", write, "{where}/root" + precious)
want("written", write, "{where}/cwd/../outside/precious")
for name in os.listdir("/proc"):
    if name.isdigit():
        want(name, write, f"/proc/{{name}}/root" + precious)
        if name == "1":
            want("inspected the init process", os.listdir, "/proc/1/root")
            want("its directory", os.listdir, "/proc/1/cwd")
            want("its program", os.readlink, "/proc/1/exe")
""",
    )
attempt(
    "inherited descriptors",
    "use descriptors of directories and files that were left open",
    "the forkserver closes all but the standard three before the command starts",
    """
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and attempt(os.stat, f"/proc/self/fd/{name}"):
        if os.readlink(f"/proc/self/fd/{name}") != f"/proc/{os.getpid()}/fd":
            got(os.readlink(f"/proc/self/fd/{name}"))
""",
)
attempt(
    "standard descriptors",
    "change mode, owner and times through the standard descriptors, or reach other files from them",
    "an empty stdin is the sandbox's own /dev/null, on a read-only mount; outputs are pipes",
    """
if stat.S_ISCHR(os.fstat(0).st_mode):
    for path in (0, "/proc/self/fd/0"):
        want("mode", os.chmod, path, 0o600)
        want("owner", os.chown, path, 12345, 12345)
        want("times", os.utime, path, (1, 1))
for fd in (0, 1, 2):
    want("climbed", write, f"/proc/self/fd/{fd}/../precious")
    attempt(os.chmod, fd, 0)
""",
    by="root",
)
attempt(
    "device nodes' modes",
    "chmod and chown the device nodes in /dev, which are the host's",
    "each is bound read-only",
    """
for name in ("null", "zero", "full", "random", "urandom", "tty"):
    want(name, os.chmod, f"/dev/{name}", 0o600)
    want(name, os.chown, f"/dev/{name}", 12345, 12345)
    want(name, os.utime, f"/dev/{name}", (1, 1))
    attempt(os.unlink, f"/dev/{name}")
""",
    by="root",
)
attempt(
    "modes, owners, times, attributes",
    "chmod, chown, utime and setxattr on a file outside",
    READ_ONLY,
    """
want("mode", os.chmod, precious, 0o777)
want("owner", os.chown, precious, os.getuid(), os.getgid())
want("times", os.utime, precious, (1, 1))
want("attribute", os.setxattr, precious, "user.escaped", b"1")
want("flags", lambda: fcntl.ioctl(os.open(precious, os.O_RDONLY), 0x40086602, struct.pack("l", 0x40)))
want("through a descriptor", lambda: os.fchmod(os.open(precious, os.O_RDONLY), 0o777))
""",
    control=True,
)
attempt(
    "symbolic link for the commit",
    "plant symbolic links to paths outside, then have the parent commit them",
    "a commit resolves paths inside the workspace and follows no link",
    """
os.symlink(outside, ws + "/link")
want("through it", write, ws + "/link/precious")
os.unlink(ws + "/sub/b.txt")
os.rmdir(ws + "/sub")
os.symlink(outside, ws + "/sub")
os.symlink(precious, ws + "/precious")
os.unlink(ws + "/a.txt")
os.symlink(precious, ws + "/a.txt")
os.symlink("/etc", ws + "/etc")
want("hosts", write, ws + "/etc/hostname")
""",
    then="commit",
)
attempt(
    "hard link for the commit",
    "hard-link a file outside into the branch and change it there",
    "a hard link cannot cross mounts, and the branch is a mount of its own",
    """
want("linked", os.link, precious, ws + "/hard")
held = f"/proc/self/fd/{os.open(precious, os.O_RDONLY)}"
want("linked by descriptor", lambda: os.link(held, ws + "/hard2", follow_symlinks=True))
want("linked back", os.link, ws + "/a.txt", outside + "/back")
""",
    then="commit",
)
attempt(
    "left for the parent to execute",
    "leave git hooks, .pth files, sitecustomize, shadowing modules and a preload library, then have the parent commit",
    "the parent executes, imports and unpickles nothing from a branch",
    """
mark = f"import os; open({outside + '/executed'!r}, 'w')"
for name in ("sitecustomize", "usercustomize", "conftest", "json", "stat", "forkwise", "setup"):
    open(f"{ws}/{name}.py", "w").write(mark)
open(ws + "/evil.pth", "w").write(mark)
os.makedirs(ws + "/.git/hooks")
for name in ("post-commit", "pre-commit", "post-checkout", "fsmonitor"):
    open(f"{ws}/.git/hooks/{name}", "w").write(f"#!/bin/sh\\ntouch {outside}/executed\\n")
    os.chmod(f"{ws}/.git/hooks/{name}", 0o755)
configuration = f"[core]\\n fsmonitor = touch {outside}/executed\\n hooksPath = {ws}/.git/hooks\\n"
open(ws + "/.git/config", "w").write(configuration)
open(ws + "/.git/HEAD", "w").write("ref: refs/heads/main\\n")
os.makedirs(ws + "/.git/objects"); os.makedirs(ws + "/.git/refs")
open(ws + "/ld.so.preload", "wb").write(b"\\x7fELF")
for name in ("git", "mount", "fusermount3", "python3"):
    open(f"{ws}/{name}", "w").write(f"#!/bin/sh\\ntouch {outside}/executed\\n")
    os.chmod(f"{ws}/{name}", 0o755)
""",
    then="commit",
)
attempt(
    "the workspace itself",
    "unmount or move the branch",
    "a process inside may not unmount, and a mount point cannot be moved or removed",
    """
want("renamed", os.rename, ws, ws + "-moved")
want("removed", os.rmdir, ws)
want("moved into itself", os.rename, os.path.dirname(ws), outside + "/all")
want("unmounted", lambda: libc.umount2(ws.encode(), DETACH) and os.stat("/nowhere"))
want("parent", write, os.path.dirname(ws) + "/outside/precious")
""",
)
attempt(
    "overlay marks",
    "set overlayfs's own attributes in the branch, to redirect its lookups",
    "overlayfs separates its own attributes from those of the files in it, and a redirect stays within its layers",
    """
os.makedirs(ws + "/sub/new", exist_ok=True)
for name in ("user.overlay.redirect", "user.overlay.opaque", "user.overlay.metacopy", "user.overlay.whiteout",
             "trusted.overlay.redirect"):
    for value in (b"/../../outside", b"y"):
        attempt(os.setxattr, ws + "/sub", name, value)
        attempt(os.setxattr, ws + "/a.txt", name, value)
want("redirected", os.stat, ws + "/sub/precious")
want_secret(ws + "/sub/precious")
attempt(os.mknod, ws + "/whiteout", 0o600 | stat.S_IFCHR, os.makedev(0, 0))
""",
    then="commit",
)
attempt(
    "state directory",
    "read and write forkwise's own state: records, history, the layers of siblings",
    "the state directory is covered",
    """
for path in (world["state"], world["state"] + "/branches", world["sibling"], os.path.dirname(world["state"])):
    if attempt(os.listdir, path) and set(os.listdir(path)) - {os.path.basename(world["state"])}:
        got(os.listdir(path))
want_secret(world["sibling"] + "/layer/key")
want_secret(world["sibling"] + "/view/key")
want("written", write, world["state"] + "/lock")
want("made", os.mkdir, world["state"] + "/branches/forged")
want("made in sibling", os.mkdir, world["sibling"] + "/layer/new")
""",
)
attempt(
    "home directory",
    "change, move, delete and replace files and directories of the home directory",
    "it is a copy-on-write view that belongs to the branch",
    """
home = world["home"]
for path in (home + "/.config/tool/settings", home + "/.bashrc", home + "/.cache/tool"):
    attempt(os.makedirs, os.path.dirname(path), exist_ok=True)
    attempt(lambda: open(path, "w").close())
attempt(os.rename, home + "/.config/tool", home + "/moved")
attempt(os.link, home + "/.config/tool/settings", home + "/link")
attempt(os.chmod, home, 0o777)
attempt(os.setxattr, home, "user.mark", b"x")
attempt(os.unlink, home + "/.config/tool/settings")
attempt(os.symlink, outside, home + "/.config/tool/settings")
want("written through a link", write, home + "/.config/tool/settings/precious")
want("moved the directory", os.rename, home, home + "-moved")
want("device", os.mknod, home + "/node", 0o600 | stat.S_IFCHR, os.makedev(1, 1))
""",
)
attempt(
    "secrets in the home directory",
    "read what is hidden there by moving, linking or deleting it, and by the marks of overlayfs",
    "the covers lie on top of the view, and overlayfs lets no program set its marks",
    """
home = world["home"]
for name in (".keys", ".token"):
    path = f"{home}/{name}"
    attempt(os.link, path, path + "-linked")
    attempt(os.rename, path, path + "-moved")
    attempt(os.unlink, path)
    attempt(os.rmdir, path)
    for prefix in ("user", "trusted"):
        for mark, value in (("opaque", b"y"), ("redirect", b"/" + name.encode()), ("metacopy", b""), ("origin", b"x")):
            attempt(os.mkdir, path + "-marked")
            attempt(os.setxattr, path + "-marked", f"{prefix}.overlay.{mark}", value)
            attempt(os.setxattr, home, f"{prefix}.overlay.{mark}", value)
for directory, _, names in os.walk(home):
    for name in names:
        want_secret(os.path.join(directory, name))
for root in ("/proc/self/root", "/proc/self/cwd" + "/.." * 20, "/proc/thread-self/root"):
    for name in ("/.keys/key", "/.token", "/.keys-marked/key", "/.keys-moved/key"):
        want_secret(root + home + name)
""",
)
attempt(
    "paths named by mountinfo",
    "take the paths of layers and of the real workspace from /proc/self/mountinfo and open them",
    "those paths are covered or read-only inside",
    """
for line in open("/proc/self/mountinfo", errors="surrogateescape"):
    root, point = line.split()[3:5]
    options = line.split(" - ")[1].split()[2]
    for option in options.split(","):
        key, _, value = option.partition("=")
        if key in ("upperdir", "workdir", "lowerdir"):
            for path in value.split(":"):
                if not path.startswith(os.path.dirname(world["base"]) + "/"):
                    continue  # of an unrelated workspace
                want((key, path), os.mkdir, path + "/escaped-directory") if path not in (ws, world["home"]) else None
                if key != "lowerdir":
                    want((key, path), os.listdir, path)
    if point not in (ws, world["cache"], world["home"], "/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/pts", "/proc"):
        if "ro" not in line.split()[5].split(","):
            got(("a writable mount", point))
""",
)
attempt(
    "descriptors of other processes",
    "open the entries of /proc/*/fd and /proc/*/map_files of all processes",
    "only the sandbox's own processes are visible, and its init process cannot be inspected",
    """
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    for kind in ("fd", "map_files", "ns"):
        try:
            names = os.listdir(f"/proc/{pid}/{kind}")
        except OSError:
            continue
        for name in names:
            want((pid, kind, name), os.readlink, f"/proc/{pid}/{kind}/{name}")
""",
)
attempt(
    "hidden directory",
    "read a hidden directory: by path, .., links, /proc, a hard link, a copy, another name",
    "an empty directory covers it",
    """
want_secret(secret + "/key")
want_secret(ws + "/../secret/key")
want_secret("/proc/self/root" + secret + "/key")
want_secret("/proc/1/root" + secret + "/key")
want_secret(ws + "/to-secret/key")
os.symlink(secret + "/key", ws + "/link")
want_secret(ws + "/link")
want("hard link", os.link, secret + "/key", ws + "/key")
want("moved", os.rename, secret, ws + "/moved")
if attempt(os.chdir, secret):
    want_secret("key")
    want_secret("../secret/key")
    want_secret("./../../" + os.path.basename(world["base"]) + "/secret/key")
want("unmounted", lambda: libc.umount2(secret.encode(), DETACH) and os.stat("/nowhere"))
want_secret(secret + "/key")
""",
    control=True,
)
attempt(
    "hidden file",
    "read a hidden file, directly and through a link",
    "the null device covers it",
    """
want_secret(world["hidden_file"])
want_secret(ws + "/to-hidden-file")
want("linked", os.link, world["hidden_file"], ws + "/linked")
want_secret(ws + "/linked")
attempt(os.unlink, world["hidden_file"])
want_secret(world["hidden_file"])
""",
    control=True,
)
attempt(
    "hidden inside the workspace",
    "read a hidden path inside the workspace, and so in the branch",
    "covers are mounted on top of the branch",
    """
want_secret(ws + "/credentials/key")
os.symlink("credentials", ws + "/other")
want_secret(ws + "/other/key")
attempt(os.rename, ws + "/credentials", ws + "/moved")
want_secret(ws + "/moved/key")
want_secret(ws + "/credentials/key")
""",
    control=True,
)
attempt(
    "hidden inside something writable",
    "move or replace the cover of a hidden path in a writable directory",
    "a mount point cannot be moved, removed or replaced",
    """
cache = world["cache"]
before = os.stat(cache).st_mtime_ns
want_secret(cache + "/keys/key")
attempt(os.rename, cache + "/keys", cache + "/moved")
want_secret(cache + "/moved/key")
attempt(os.rmdir, cache + "/keys")
os.mkdir(cache + "/new")
attempt(lambda: syscall(316, -100, (cache + "/keys").encode(), -100, (cache + "/new").encode(), 2))
want_secret(cache + "/new/key")
want_secret(cache + "/keys/key")
attempt(os.rmdir, cache + "/new")
os.utime(cache, ns=(0, before))
""",
    control=True,
)
attempt(
    "file handles",
    "open hidden files and files outside by handle, without a path (open_by_handle_at)",
    "the call is refused, and needs a capability over the whole machine",
    """
for number, handle in world["handles"].items():
    raw = bytes.fromhex(handle)
    held = struct.pack("Ii", len(raw) - 4, struct.unpack("i", raw[:4])[0]) + raw[4:]
    for place in ("/", ws, outside):
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        for flags in (os.O_RDONLY, os.O_RDWR):
            try:
                opened = syscall(304, fd, ctypes.create_string_buffer(held, len(held)), flags)
            except OSError:
                continue
            got((number, place, os.read(opened, 100)))
""",
)
attempt(
    "fifo of the host",
    "write into a FIFO that a process outside reads, which a read-only mount does not forbid",
    "Landlock: only paths in the branch can be opened for writing",
    """
want("sent", lambda: os.write(os.open(world["fifo"], os.O_WRONLY | os.O_NONBLOCK), b"escaped"))
""",
    control=True,
)
attempt(
    "shared memory",
    "reach the host's System V segments, POSIX shared memory and message queues",
    "an IPC namespace and a /dev/shm of its own",
    """
libc.shmget.restype = ctypes.c_int
identifier = libc.shmget(world["shm_key"], 4096, 0o666)
if identifier >= 0:
    got(("segment", identifier))
want("file", read, world["shm_file"])
want("posix", lambda: os.stat("/dev/shm/" + os.path.basename(world["shm_file"])))
want("queues", lambda: os.listdir("/dev/mqueue"))
""",
)
attempt(
    "temporary files of the host",
    "read and write the host's /tmp and /var/tmp",
    "the sandbox has its own, new and empty",
    """
for path in world["temporaries"]:
    want_secret(path)
    attempt(os.unlink, path)
    attempt(lambda: open(path, "w").write("forged"))
""",
)
