"""The command line for a user who may not mount: kernel overlays in a namespace of one's own.

The interpreter may be out of that user's reach, so each verb runs in a fork of this process that gave its rights away;
modules are loaded before that.
"""

from __future__ import annotations

import codecs
import ctypes
import importlib
import json
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import forkwise
from forkwise.app.cli import forkwise_command
from forkwise.files import namespace
from tests.need import need

SOMEBODY = 12345
PR_SET_DUMPABLE = 4


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that somebody without rights can reach and write to, with a project in it."""
    for module in pkgutil.walk_packages(forkwise.__path__, "forkwise."):
        importlib.import_module(module.name)
    codecs.lookup("ascii")
    root = Path(tempfile.mkdtemp(prefix="forkwise-unprivileged-", dir="/tmp"))
    (root / "project").mkdir()
    (root / "project" / "a.txt").write_text("one\n")
    if os.geteuid() == 0:
        for path in (root, root / "project", root / "project" / "a.txt"):
            os.chown(path, SOMEBODY, SOMEBODY)
    yield root
    shutil.rmtree(root)


@pytest.fixture
def somebody(place: Path) -> Callable[..., tuple[int, str, str]]:
    """Run one verb as that user: its exit code and what it said."""

    def somebody(*words: str) -> tuple[int, str, str]:
        code, out, err = in_child(lambda: invoke(place, words))
        return int(code), str(out), str(err)

    return somebody


def invoke(place: Path, words: tuple[str, ...]) -> tuple[int, str, str]:
    """Give all rights away and run the command line."""
    give_rights_away()
    os.environ |= {"FORKWISE_STATE": str(place / "state"), "HOME": str(place), "SHELL": "/bin/sh"}
    os.chdir(place / "project")
    result = CliRunner().invoke(forkwise_command, list(words))
    said = result.stderr or repr(result.exception)
    return result.exit_code, result.stdout, said


def give_rights_away() -> None:
    """Become somebody; without the last step /proc/self would still belong to root, as it does until the next exec."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
        os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def in_child(work: Callable[[], Any]) -> Any:
    """What a function gives when it is run in a child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = json.dumps(work())
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def available() -> bool:
    """Whether somebody without rights may make namespaces here."""

    def work() -> bool:
        give_rights_away()
        return namespace.available()

    return bool(in_child(work))


def test_a_branch_from_creation_to_undo(somebody: Callable[..., tuple[int, str, str]], place: Path) -> None:
    need(available(), "no user namespaces for unprivileged users")
    code, out, err = somebody("branch", "create", "try-1", "--json")
    assert code == 0, (out, err)
    made = json.loads(out)["branch"]
    assert (made["view"], made["path"]) == ("overlay", None)

    code, _, err = somebody("branch", "path", "try-1")
    assert code == 6
    assert "forkwise branch shell try-1" in err

    work = 'test "$FORKWISE_BRANCH" = /main/try-1 && echo uno > a.txt && mkdir sub && exit 5'
    assert somebody("branch", "shell", "try-1", "--", "sh", "-c", work)[0] == 5
    assert (place / "project/a.txt").read_text() == "one\n"

    assert somebody("branch", "create", "inner", "--from", "try-1")[1].endswith("shell /main/try-1/inner\n")
    assert somebody("branch", "shell", "try-1/inner", "--", "sh", "-c", "rm a.txt; echo b > b.txt")[0] == 0
    assert somebody("branch", "commit", "try-1/inner")[0] == 0
    assert "1 added, 0 changed, 1 deleted" in somebody("branch", "diff", "try-1", "--stat")[1].replace(
        "2 added", "1 added"
    )

    code, out, err = somebody("branch", "commit", "try-1")
    assert code == 0, (out, err)
    assert sorted(os.listdir(place / "project")) == ["b.txt", "sub"]
    assert somebody("undo")[0] == 0
    assert (place / "project/a.txt").read_text() == "one\n"
    assert os.listdir(place / "project") == ["a.txt"]


def test_a_view_that_everybody_sees_can_be_asked_for(
    somebody: Callable[..., tuple[int, str, str]], place: Path
) -> None:
    code, out, err = somebody("branch", "create", "plain", "--view", "copy")
    assert code == 0, (out, err)
    path = Path(out.splitlines()[1])
    assert (path / "a.txt").read_text() == "one\n"
    assert somebody("branch", "path", "plain")[1] == f"{path}\n"
    (path / "a.txt").write_text("uno\n")
    assert somebody("branch", "commit", "plain")[0] == 0
    assert (place / "project/a.txt").read_text() == "uno\n"


def test_doctor_says_both(somebody: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = somebody("doctor")
    assert code == 0, (out, err)
    assert "CAP_SYS_ADMIN" in out or "overlay   yes" in out
