"""The program of the stand-in: ``mount --base BASE [--storage DIRECTORY] MOUNTPOINT`` and ``unmount``.

This module and its server must not need pytest.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_POLL_S = 0.005
_SERVER = Path(__file__).with_name("server.py")


def main() -> int:
    parser = argparse.ArgumentParser(prog="branchfs")
    parser.add_argument("--build", choices=("ioctl", "text"), default="ioctl")
    parser.add_argument("--default-storage", type=Path, required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("mount", "unmount"):
        command = commands.add_parser(name)
        command.add_argument("--storage", type=Path)
        command.add_argument("mountpoint", type=Path)
        if name == "mount":
            command.add_argument("--base", type=Path, required=True)
    options = parser.parse_args()
    storage = (options.storage or options.default_storage).absolute()
    if options.command == "mount":
        return _mount(options.base.absolute(), storage, options.mountpoint.absolute(), options.build)
    return _unmount(storage, options.mountpoint.absolute())


def _mount(base: Path, storage: Path, mountpoint: Path, build: str) -> int:
    if not base.is_dir():
        print(f"no such base: {base}", file=sys.stderr)
        return 1
    storage.mkdir(parents=True, exist_ok=True)
    mountpoint.mkdir(parents=True, exist_ok=True)
    # One server serves a storage: a second mount of it shows the base of the first.
    first = storage / "base"
    if first.exists():
        base = Path(first.read_text())
    else:
        first.write_text(str(base))
    server = os.fork()
    if server == 0:
        _serve(base, storage, mountpoint, build)
    while not os.path.ismount(mountpoint):
        if os.waitpid(server, os.WNOHANG) != (0, 0):
            print((storage / "log").read_text(), file=sys.stderr)
            return 1
        time.sleep(_POLL_S)
    (storage / f"pid-{mountpoint.name}").write_text(str(server))
    return 0


def _serve(base: Path, storage: Path, mountpoint: Path, build: str) -> NoReturn:
    """Serve a mount in the background until it is unmounted."""
    try:
        os.setsid()
        log = os.open(storage / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir("/")
        runpy.run_path(str(_SERVER))["serve"](str(base), str(storage), str(mountpoint), build)
    except BaseException:  # noqa: BLE001 - the child of a fork must not return
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _unmount(storage: Path, mountpoint: Path) -> int:
    done = subprocess.run(["fusermount3", "-u", str(mountpoint)])
    if done.returncode != 0:
        return done.returncode
    pid = storage / f"pid-{mountpoint.name}"
    with suppress(FileNotFoundError, ProcessLookupError):
        # It would exit by itself, but not while a mount namespace made meanwhile has a copy of the mount.
        if os.fsencode(mountpoint) in Path("/proc", pid.read_text(), "cmdline").read_bytes():
            os.kill(int(pid.read_text()), signal.SIGKILL)
    pid.unlink()
    if not list(storage.glob("pid-*")):
        (storage / "base").unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
