"""Logins: the values of a login file that an attempt refreshed, taken over into the user's own file."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkwiseWarning
from forkwise.files.store.overlayfs import is_whiteout
from forkwise.fork.agent_paths.paths import Login, expand, load_recorded, relative_to
from forkwise.fork.agent_paths.replacement import (
    BLOCK,
    Replacement,
    SkippedError,
    make_directories,
    open_own,
    open_regular,
    stat_below,
)
from forkwise.linux import fds
from forkwise.linux.trees import closing_fd, join, open_root, stat_entry
from forkwise.sandbox.path_view import PathView, paths_directory

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = ["take_first_login", "take_logins"]

_LARGEST_LOGIN = 1 << 20
_LONGEST_VALUE = 1 << 16
_LATEST_S = 2 * 366 * 86400.0  # a login that claims to be valid for longer is not believed
_MILLISECONDS = 1e11  # times from here on are in milliseconds
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_MOST = 1e18  # beyond any time in nanoseconds; NaN and infinity are refused too


def take_logins(branch: Branch) -> None:
    """Take over the logins that an attempt refreshed, unless the user's are newer. Call it when the attempt is over."""
    for view, paths in load_recorded(paths_directory(branch.home)):
        for login in paths.logins:
            try:
                _take_login(view, login)
            except SkippedError as error:
                _warn_of_login(login, str(error))
            except OSError as error:
                _warn_of_login(login, error.strerror or str(error))


def _warn_of_login(login: Login, reason: str) -> None:
    warnings.warn(
        f"a login that an attempt changed was not taken over to {login.file}: {reason}. If the agent asks for it, log "
        "in again",
        ForkwiseWarning,
        stacklevel=3,
    )


def _take_login(view: PathView, login: Login) -> None:
    pattern = expand(login.file)
    if view.kind == "file":
        if pattern == view.given:
            _take_login_file(view, login, os.path.dirname(view.path), os.path.basename(view.path), "file")
        return
    relative = relative_to(pattern, view.given)
    if relative is None:
        return
    for path in sorted(glob.glob(relative, root_dir=view.path, include_hidden=True)):
        directory, _, name = path.rpartition("/")
        _take_login_file(view, login, join(view.path, directory) if directory else view.path, name, path)


def _take_login_file(view: PathView, login: Login, directory: str, name: str, path: str) -> None:
    """Take over one file: ``name`` in the user's ``directory``, which is ``path`` in the content of the view."""
    root = view.home if view.kind == "file" else view.content
    with closing_fd(open_root(root)) as layer:
        try:
            fd = open_regular(layer, path, _LARGEST_LOGIN)
        except FileNotFoundError:
            return  # the attempt did not change it
        except SkippedError:
            if (status := stat_below(layer, path)) is not None and is_whiteout(status):
                return  # it logged out, in its view only
            raise
        with closing_fd(fd):
            theirs, changed = _read(fd), os.fstat(fd).st_mtime
    with _locked_directory(directory) as parent:
        before = stat_entry(parent, name)
        if before is None:
            return  # the user logged out
        if not stat.S_ISREG(before.st_mode):
            raise SkippedError("it is not a regular file")
        with closing_fd(open_own(parent, name)) as own:
            ours = _read(own)
        if theirs == ours:
            return
        merged = _merge_login(ours, theirs, login, is_later=before.st_mtime < changed <= time.time())
        if merged is not None:
            with Replacement(parent, name, before) as new:
                new.write(merged)
                new.publish()


def take_first_login(view: PathView, login: Login, before: list[Any] | None) -> None:
    """Take over the winner's login if the user had none when the attempt began, and still has none."""
    path = None if view.kind == "file" or before != [None] * 3 else relative_to(expand(login.file), view.given)
    if path is None or re.search(r"[*?\[]", path):
        return
    try:
        with closing_fd(open_root(view.content)) as layer, closing_fd(open_root(view.path)) as target:
            try:
                fd = open_regular(layer, path, _LARGEST_LOGIN)
            except FileNotFoundError:
                return
            with closing_fd(fd):
                data = _read(fd)
            document = _parse(data, "the attempt's file")
            values = [_find(document, key) for bound in _bind(document, login) for key in bound.keys]
            if not any(isinstance(value, str) and _is_valid(value, value) for value in values):
                return  # it is not a login
            directory, _, name = path.rpartition("/")
            with closing_fd(make_directories(target, directory)) as parent:
                if stat_entry(parent, name) is None:
                    with Replacement(parent, name, None) as new:
                        new.write(data)
                        new.publish()
    except SkippedError as error:
        _warn_of_login(login, str(error))
    except OSError as error:
        _warn_of_login(login, error.strerror or str(error))


def _read(fd: int) -> bytes:
    data = b""
    while len(data) <= _LARGEST_LOGIN and (block := os.read(fd, BLOCK)):
        data += block
    if len(data) > _LARGEST_LOGIN:
        raise SkippedError(f"it is larger than {_LARGEST_LOGIN >> 20} MiB")
    return data


@contextmanager
def _locked_directory(path: str) -> Iterator[int]:
    """Open a directory of the user's and hold a lock on it against other processes that take over a login."""
    fd = fds.track(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        fds.close(fd)


def _merge_login(ours: bytes, theirs: bytes, login: Login, *, is_later: bool) -> bytes | None:
    """Return the user's login file with an attempt's newer values; None if the attempt has no newer login.

    Everything but the values of ``login.keys`` stays the user's. Each of these values in the user's file must be in the
    attempt's file too, of the same type and not empty. ``is_later`` says that the attempt's file is newer, for logins
    without times. Raises SkippedError if the attempt's file is not a valid login.
    """
    document = _parse(ours, "the user's file")
    offered = _parse(theirs, "the attempt's file")
    is_changed = False
    for bound in _bind(document, login):
        pairs = [(path, _find(document, path), _find(offered, path)) for path in bound.keys]
        pairs = [pair for pair in pairs if pair[1] is not None]
        if all(own == new for _, own, new in pairs):
            continue
        for path, own, new in pairs:
            if not _is_valid(own, new):
                raise SkippedError(f"the value of {'.'.join(path)} is missing or not valid")
        if bound.newest is None:
            is_newer = is_later
        else:
            is_newer = _is_newer(_find(document, bound.newest), _find(offered, bound.newest))
        if is_newer:
            for path, _, new in pairs:
                _set(document, path, new)
            is_changed = True
    if not is_changed:
        return None
    indent = 2 if b"\n" in ours.strip() else None
    text = json.dumps(document, indent=indent, ensure_ascii=False, separators=None if indent else (",", ":"))
    return text.encode() + (b"\n" if ours.endswith(b"\n") else b"")


def _parse(data: bytes, subject: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise SkippedError(f"{subject} is not valid JSON") from None
    if not isinstance(document, dict):
        raise SkippedError(f"{subject} is not a JSON object")
    return document


@dataclass(frozen=True, slots=True)
class _BoundLogin:
    """The paths of one login in a document, with a name for each ``*``."""

    keys: tuple[tuple[str, ...], ...]
    newest: tuple[str, ...] | None


def _bind(document: dict[str, Any], login: Login) -> Iterator[_BoundLogin]:
    """Yield the logins of a document: one for each combination of names that its patterns match."""
    names_found: dict[tuple[str, ...], None] = {}
    for pattern in login.keys:
        names_found |= dict.fromkeys(_match_names(document, pattern.split(".")))
    for names in names_found:
        keys = tuple(_fill_in(pattern, names) for pattern in login.keys)
        yield _BoundLogin(keys, None if login.newest is None else _fill_in(login.newest, names))


def _match_names(value: Any, pattern: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names that each ``*`` of a pattern can stand for."""
    if not pattern:
        yield ()
        return
    if not isinstance(value, dict):
        return
    for name in value if pattern[0] == "*" else [pattern[0]]:
        if name in value:
            bound = (name,) if pattern[0] == "*" else ()
            yield from ((*bound, *rest) for rest in _match_names(value[name], pattern[1:]))


def _fill_in(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    left = list(names)
    return tuple(left.pop(0) if part == "*" and left else part for part in pattern.split("."))


def _find(document: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(document, dict) or name not in document:
            return None
        document = document[name]
    return document


def _set(document: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        document = document[name]
    document[path[-1]] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def _is_valid(own: Any, new: Any) -> bool:
    if isinstance(own, str):
        return isinstance(new, str) and len(new) <= _LONGEST_VALUE and bool(_PRINTABLE.fullmatch(new))
    return _is_number(own) and _is_number(new) and new > 0


def _is_newer(own: Any, new: Any) -> bool:
    """Compare two times. One implausibly far in the future does not count as newer: no later time could replace it."""
    ours, theirs = _to_seconds(own), _to_seconds(new)
    return ours is not None and theirs is not None and ours < theirs < time.time() + _LATEST_S


def _to_seconds(value: Any) -> float | None:
    if _is_number(value):
        return float(value) / 1000 if value >= _MILLISECONDS else float(value)
    if not isinstance(value, str):
        return None
    # Rust writes nanoseconds, of which fromisoformat takes six digits before Python 3.11.
    with suppress(ValueError, OverflowError):
        found = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return None
