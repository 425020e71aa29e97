"""`run_page`: the examples of a page in a process of their own, as a chosen user, in a mount namespace of its own.

In that namespace the workspace is at ``/mnt/workspace``, the path that the examples name, and sources and packages are
mounted where every user can read them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pydantic

from tests.need import need
from tests.unprivileged import UNPRIVILEGED, as_unprivileged, interpreter

__all__ = ["User", "run_page"]

User = Literal["root", "unprivileged"]

_ROOT = Path(__file__).parents[2]

_MOUNT = """
mount --make-rprivate / && mkdir "$2/mnt" && mount -t tmpfs -o mode=755 seeds "$2/mnt" && cd "$2/mnt" &&
mkdir workspace home src tests packages &&
mount --rbind "$1" workspace && mount --bind "$2" home && mount --bind "$3/src" src && mount --bind "$3/tests" tests &&
mount --bind "$4" packages && cd / && mount -n --move "$2/mnt" /mnt && { rmdir "$2/mnt" || :; } && shift 4 && exec "$@"
"""


def run_page(name: str, user: User, project: Path, home: Path) -> str:
    """Run the examples of a page in ``project`` and return what they print. ``home`` is an empty directory for state.

    Fails the test with the errors of the examples that failed.
    """
    is_root = os.geteuid() == 0
    need(is_root or user == "unprivileged", "only root can run as root")
    need(shutil.which("unshare") is not None and shutil.which("setpriv") is not None, "util-linux is not installed")
    packages = str(Path(pydantic.__file__).parents[1])
    wrap = ["sh", "-c", _MOUNT, "sh", str(project), str(home), str(_ROOT), packages]
    program = [sys.executable, "-m", "tests.seeds", name]
    if is_root:
        wrap = ["unshare", "--mount", *wrap]
        if user == "unprivileged":
            for directory in (project, home):
                os.chown(directory, UNPRIVILEGED, UNPRIVILEGED)
            program = as_unprivileged([interpreter(), *program[1:]])
    else:
        wrap = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", *wrap]
        program = ["setpriv", "--inh-caps=-all", "--ambient-caps=-all", *program]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/mnt/home",
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/mnt:/mnt/src:/mnt/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYDANTIC_AI_NO_BANNER": "1",
    }
    done = subprocess.run([*wrap, *program], cwd="/", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-10000:]
    return done.stdout
