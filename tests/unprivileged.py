"""Programs run as a user without privileges.

Other users may not be able to read root's interpreter, sources and packages, so these are copied, with their bytecode:
each of many short programs would compile them again.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.need import need

__all__ = [
    "UNPRIVILEGED",
    "as_unprivileged",
    "interpreter",
    "readable_copy",
    "unprivileged_project",
    "with_fuse",
    "with_fuse_namespace",
]

#: The id of ``nobody``, which every system has and which owns no files.
UNPRIVILEGED = 65534

ROOT = Path(__file__).parents[1]

# Without udev a device node in /dev may be accessible only to root; this node is visible only to the command.
WITH_FUSE = """
mount --make-rprivate / &&
mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse &&
shift && exec "$@"
"""


@contextmanager
def readable_copy(packages: Sequence[str]) -> Iterator[Path]:
    """Create a world-readable directory with ``src`` and ``tests`` of this project, and packages in ``tools``."""
    need(os.geteuid() == 0, "only root can become another user")
    need(shutil.which("setpriv") is not None, "setpriv is not installed")
    with tempfile.TemporaryDirectory(prefix="forkwise-unprivileged-", dir="/tmp") as made:
        directory = Path(made)
        directory.chmod(0o755)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns(".*"))
        for name in packages:
            _copy_package(name, directory / "tools")
        subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
        yield directory


@contextmanager
def unprivileged_project(packages: Sequence[str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Create a home of the unprivileged user with a one-file project. Yield it and the environment to run forkwise."""
    with readable_copy(packages) as directory:
        home = directory / "home"
        (home / "project").mkdir(parents=True)
        (home / "project/a.txt").write_text("one\n")
        for path in (home, home / "project", home / "project/a.txt"):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        yield (
            home,
            {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{directory}/src:{directory}/tools",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(home),
            },
        )


def _copy_package(name: str, to: Path) -> None:
    to.mkdir(exist_ok=True)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if spec.origin is None:  # a namespace package
        for directory in spec.submodule_search_locations or ():
            shutil.copytree(directory, to / name, dirs_exist_ok=True)
        return
    origin = Path(spec.origin)
    if origin.name == "__init__.py":
        shutil.copytree(origin.parent, to / name)
    else:
        shutil.copy(origin, to)


def as_unprivileged(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command as the unprivileged user."""
    return ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", *command]


def with_fuse(command: Sequence[str], directory: Path) -> list[str]:
    """Return the command line that runs a command where every user may open ``/dev/fuse``, a node in ``directory``."""
    return ["unshare", "--mount", "sh", "-c", WITH_FUSE, "sh", str(directory), *command]


@contextmanager
def with_fuse_namespace(directory: Path) -> Iterator[tuple[list[str], int]]:
    """Keep a mount namespace like that of ``with_fuse``: mounts made by one command are seen by the next.

    Yield the words to put before a command, and the id of a process in the namespace. The command starts in ``/``.
    """
    command = with_fuse(["sh", "-c", "echo ready; exec cat"], directory)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt"], process.pid
        finally:
            process.stdin.close()


@cache
def interpreter() -> str:
    """Find a Python interpreter that the unprivileged user can run."""
    # It must be able to start itself again: setpriv's own exec still has root's access to root's home.
    again = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', '']).returncode)"
    check = f"import sys; assert sys.version_info >= (3, 11); {again}"
    for candidate in (sys.executable, "/usr/bin/python3"):
        if not shutil.which(candidate):
            continue
        if subprocess.run(as_unprivileged([candidate, "-c", check]), capture_output=True).returncode == 0:
            return candidate
    need(False, "no Python 3.11 interpreter that another user can run")
    raise AssertionError
