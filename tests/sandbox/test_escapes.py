"""No attempt escapes: each is run in every confinement that must stop it, as root and as an unprivileged user.

One process for each of the two users runs all attempts and reports the results; the tests here check them. For root,
the other user's are integration tests.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise.linux.namespace import available
from tests.need import need
from tests.sandbox.escapes import page
from tests.sandbox.escapes.attempt import ATTEMPTS, BOTH, Attempt

# The first test of a user waits until all attempts were run, on a busy machine for several minutes.
pytestmark = pytest.mark.timeout(1800)

NOBODY = 65534
ROOT = Path(__file__).parents[2]
# Some attempts need rights that only root has.
USERS = {a.name: ("root",) if a.by == "root" else ("root", "nobody") for a in ATTEMPTS.values()}
CASES = [(a, under, user) for a in ATTEMPTS.values() for under in a.under for user in USERS[a.name]]
CONTROLS = [(a, user) for a in ATTEMPTS.values() if a.control for user in USERS[a.name]]
FUNCTIONS = [(a, u, who) for a, u, who in CASES if u in BOTH and a.is_function()]
Results = dict[str, dict[str, Any]]

# Without udev a device node may be accessible to root only: make the usual one for this run alone.
WRAP = """
mount --make-rprivate / && mknod -m 666 "$1/tun" c 10 200 &&
{ test ! -e /dev/net/tun || mount --bind "$1/tun" /dev/net/tun; } && shift && exec "$@"
"""


@pytest.fixture(scope="module")
def results() -> Callable[[str], Results]:
    """Return the results of all attempts of a user; they are run at the first call."""
    need(os.uname().machine == "x86_64", "the attempts know the system calls of x86_64 by their numbers")
    need(available(), "user namespaces are forbidden here")

    @functools.cache
    def by(user: str) -> Results | str:
        try:
            if (user == "root") == (os.geteuid() == 0):
                return _run([sys.executable], [str(ROOT / "src"), str(ROOT)], own=os.geteuid())
            return _as_nobody()
        except AssertionError as error:  # reported by every test, and not run again for each
            return str(error)

    def ask(user: str) -> Results:
        need(user == "nobody" or os.geteuid() == 0, "only root can try as root")
        need(_home() != "", "the home directory is in /tmp or /var/tmp, which a sandbox hides: nothing to reach")
        outcome = by(user)
        assert not isinstance(outcome, str), outcome
        return outcome

    return ask


def _home() -> str:
    """Return a directory for the files outside, or "" if there is none.

    It must not be in a directory for temporary files: a sandbox has its own, so there would be nothing to reach.
    """
    home = "/var" if os.geteuid() == 0 else os.path.realpath(Path.home())
    return "" if f"{home}/".startswith(("/tmp/", "/var/tmp/", "/dev/shm/")) else home


def _run(interpreter: list[str], path: list[str], own: int) -> Results:
    base = Path(tempfile.mkdtemp(prefix="forkwise-escapes-", dir=_home()))
    try:
        os.chown(base, own, own)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(base),  # until the world has one
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [*interpreter, "-m", "tests.sandbox.escapes.drive", str(base)]
        done = subprocess.run(command, cwd=path[-1], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        result: Results = json.loads(done.stdout.splitlines()[-1])
        return result
    finally:
        shutil.rmtree(base)


def _as_nobody() -> Results:
    """Copy the interpreter, the sources and their imports to a directory that another user can read."""
    need(shutil.which("setpriv") is not None, "setpriv is not installed")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    check = ["-c", "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(sys.executable, os.X_OK))"]
    candidates = (sys.executable, "/usr/bin/python3")
    found = [c for c in candidates if subprocess.run([*become, c, *check], capture_output=True).returncode == 0]
    need(bool(found), "no interpreter that another user may run")
    room = Path(tempfile.mkdtemp(prefix="forkwise-escapes-", dir="/var"))
    try:
        ignore = shutil.ignore_patterns(".*")
        shutil.copytree(ROOT / "src", room / "src", ignore=ignore)
        shutil.copytree(ROOT / "tests", room / "tests", ignore=ignore)
        for name in ("rapidfuzz", "pydantic_core", "typing_extensions"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            origin = Path(spec.origin)
            if origin.name == "__init__.py":
                shutil.copytree(origin.parent, room / "tools" / name, ignore=ignore)
            else:
                shutil.copy(origin, room / "tools")
        subprocess.run(["chmod", "-R", "a+rX", str(room)], check=True)
        wrap = ["unshare", "--mount", "sh", "-c", WRAP, "sh", str(room)]
        return _run([*wrap, *become, found[0]], [str(room / d) for d in ("src", "tools", "")], own=NOBODY)
    finally:
        shutil.rmtree(room)


@pytest.mark.parametrize(
    ("attempt", "under", "user"), CASES, ids=[f"{a.name}-{under}-{who}" for a, under, who in CASES]
)
def test_it_is_stopped_or_harmless(results: Callable[[str], Results], attempt: Attempt, under: str, user: str) -> None:
    outcome = results(user)[f"{attempt.name}|{under}"]
    assert outcome["problems"] == [], outcome["said"]


@pytest.mark.parametrize(
    ("attempt", "under", "user"), FUNCTIONS, ids=[f"{a.name}-{under}-{who}" for a, under, who in FUNCTIONS]
)
def test_as_a_function_it_is_stopped_or_harmless(
    results: Callable[[str], Results], attempt: Attempt, under: str, user: str
) -> None:
    outcome = results(user)[f"{attempt.name}|{under}|function"]
    assert outcome["problems"] == [], outcome["said"]


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("under", BOTH)
def test_after_all_functions_the_world_is_as_before(results: Callable[[str], Results], under: str, user: str) -> None:
    assert results(user)[f"the world|{under}|function"]["problems"] == []


@pytest.mark.parametrize(("attempt", "user"), CONTROLS, ids=[f"{a.name}-{who}" for a, who in CONTROLS])
def test_without_a_sandbox_it_is_seen_to_succeed(
    results: Callable[[str], Results], attempt: Attempt, user: str
) -> None:
    outcome = results(user)[f"{attempt.name}|control"]
    assert "GOT" in outcome["said"]


def test_the_table_is_long_enough_and_every_row_says_what_stops_it() -> None:
    assert len(ATTEMPTS) >= 40
    assert all(a.tries and a.stopped_by and "|" not in a.tries + a.stopped_by for a in ATTEMPTS.values())


def test_the_page_lists_all_attempts() -> None:
    written = page.PAGE.read_text()
    assert page.updated(written) == written, "run python -m tests.sandbox.escapes.page"
