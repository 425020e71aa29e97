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

__all__ = ["UNPRIVILEGED", "as_unprivileged", "interpreter", "readable_copy", "unprivileged_project"]

#: The id of ``nobody``, which every system has and which owns no files.
UNPRIVILEGED = 65534

ROOT = Path(__file__).parents[1]


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
