"""Running things as a user with no privileges at all.

Root's own interpreter, sources and packages may lie where nobody else can read them, so that copies are made.
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
from pathlib import Path

from tests.need import need

__all__ = ["SOMEBODY", "as_somebody", "interpreter", "project_of_somebody", "readable_copy"]

#: A user every system has and who owns nothing.
SOMEBODY = 65534

ROOT = Path(__file__).parents[1]


@contextmanager
def readable_copy(packages: Sequence[str]) -> Iterator[Path]:
    """A directory anybody can read: ``src`` and ``tests`` of this project, and packages in ``tools``."""
    need(os.geteuid() == 0, "only root can become another user")
    need(shutil.which("setpriv") is not None, "setpriv is not installed")
    with tempfile.TemporaryDirectory(prefix="forkwise-somebody-", dir="/tmp") as made:
        room = Path(made)
        room.chmod(0o755)
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, room / name, ignore=ignore)
        for name in packages:
            _copy_package(name, room / "tools")
        subprocess.run(["chmod", "-R", "a+rX", str(room)], check=True)
        yield room


@contextmanager
def project_of_somebody(packages: Sequence[str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """The other user's home, with a project of one file, and the environment of programs that use this project's."""
    with readable_copy(packages) as room:
        home = room / "home"
        (home / "project").mkdir(parents=True)
        (home / "project/a.txt").write_text("one\n")
        for path in (home, home / "project", home / "project/a.txt"):
            os.chown(path, SOMEBODY, SOMEBODY)
        yield (
            home,
            {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{room}/src:{room}/tools",
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
            shutil.copytree(directory, to / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        return
    origin = Path(spec.origin)
    if origin.name == "__init__.py":
        shutil.copytree(origin.parent, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(origin, to)


def as_somebody(command: Sequence[str]) -> list[str]:
    """The same command, run by the other user."""
    return ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", *command]


def interpreter() -> str:
    """A Python that the other user may run."""
    # It has to be able to start itself: setpriv's own exec still has root's way into root's home.
    again = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', '']).returncode)"
    check = f"import sys; assert sys.version_info >= (3, 11); {again}"
    for candidate in (sys.executable, "/usr/bin/python3"):
        if not shutil.which(candidate):
            continue
        if subprocess.run(as_somebody([candidate, "-c", check]), capture_output=True).returncode == 0:
            return candidate
    need(False, "no interpreter of Python 3.11 that another user may run")
    raise AssertionError
