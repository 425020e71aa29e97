"""Agent paths: a coding agent's own directories (``~/.claude``), as each attempt sees them, and what returns from them.

An attempt changes a copy-on-write view of them. Two things return to the user's own directories: the session files of
the winner, and a login that an attempt refreshed, because the provider no longer accepts the previous one. An attempt
is not trusted: only regular files of its views are read, by descriptor and within limits, and only new or appended
session files and the named values of a login file are written.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import secrets
import stat
import struct
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from forkwise.errors import ForkwiseWarning
from forkwise.files.branch import Branch
from forkwise.files.path_view import (
    PathView,
    can_view_below,
    list_path_views,
    make_path_view,
    matches,
    paths_directory,
    set_path_views_aside,
)
from forkwise.files.store.overlayfs import is_whiteout
from forkwise.linux import fds
from forkwise.linux.file_write import replace_file
from forkwise.linux.trees import closing_fd, join, open_beneath, open_directory, open_root

__all__ = ["AgentPaths", "Login", "conclude_agent_paths", "create_missing", "take_logins"]

_FILE = "agent.json"
_PROJECT = "{project}"
_LARGEST_SESSION = 256 << 20
_MOST_SESSION_BYTES = 1 << 30
_MOST_SESSIONS = 1000
_MOST_ENTRIES = 50_000
_DEEPEST = 32
_MOST_REASONS = 5
_LARGEST_LOGIN = 1 << 20
_LONGEST_VALUE = 1 << 16
_LATEST_S = 2 * 366 * 86400.0  # a login that claims to be valid for longer is not believed
_MILLISECONDS = 1e11  # times from here on are in milliseconds
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_MOST = 1e18  # beyond any time in nanoseconds; NaN and infinity are refused too
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Login:
    """A JSON file with a login, and the values in it that a refresh changes.

    ``file`` is a path or a pattern. ``keys`` are paths of keys such as ``tokens.access_token``; a ``*`` is any one key.
    ``newest`` is the key of a time, a number or an ISO date, that grows with each refresh; without it the file's mtime
    counts.
    """

    file: str
    keys: tuple[str, ...]
    newest: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPaths:
    """The paths of an agent that are ``branched``, and the patterns of its ``sessions`` and its ``logins`` in them.

    ``{project}`` in the pattern of a session is the workspace's path with hyphens for all but letters and digits.
    ``databases`` are SQLite files with sessions: the winner's replaces the user's as a whole, if that has not changed
    since. ``before`` is recorded with the views of an attempt: the state of logins and databases when the views were
    created.
    """

    branched: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    logins: tuple[Login, ...] = ()
    databases: tuple[str, ...] = ()
    before: Mapping[str, list[Any]] = field(default_factory=dict, compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AgentPaths:
        """Build it from the JSON form of ``dataclasses.asdict``."""
        logins = (Login(one["file"], tuple(one["keys"]), one.get("newest")) for one in data.get("logins", ()))
        branched, sessions, databases = (tuple(data.get(key, ())) for key in ("branched", "sessions", "databases"))
        return cls(branched, sessions, tuple(logins), databases, dict(data.get("before", {})))

    def __add__(self, other: AgentPaths) -> AgentPaths:
        return AgentPaths(
            tuple(dict.fromkeys((*self.branched, *other.branched))),
            tuple(dict.fromkeys((*self.sessions, *other.sessions))),
            tuple(dict.fromkeys((*self.logins, *other.logins))),
            tuple(dict.fromkeys((*self.databases, *other.databases))),
        )

    def prepare(self, branch: Branch, paths: Sequence[str]) -> None:
        """Create the views of ``paths`` in the branch of an attempt, and record what may be taken from them later."""
        workspace = os.fspath(branch.workspace.path)
        paths = [path for path in paths if os.path.realpath(path) != workspace]
        for path in paths:
            make_path_view(
                branch, path, [p for s in self.sessions if (p := _relative_to(s.replace(_PROJECT, "*"), path))]
            )
            if os.path.realpath(path).startswith(f"{workspace}/"):
                warnings.warn(
                    f"{path} is inside the workspace and the agent's own: what attempts change there is not committed",
                    ForkwiseWarning,
                    stacklevel=2,
                )
        if paths:
            project = glob.escape(re.sub("[^A-Za-z0-9]", "-", workspace))
            recorded = AgentPaths(
                tuple(map(_expand, self.branched)),
                tuple(_expand(pattern).replace(_PROJECT, project) for pattern in self.sessions),
                tuple(replace(login, file=_expand(login.file)) for login in self.logins),
                tuple(map(_expand, self.databases)),
            )
            files = (*recorded.databases, *(login.file for login in recorded.logins))
            recorded = replace(recorded, before={file: _describe_file(file) for file in files})
            path = f"{paths_directory(branch.home)}/{_FILE}"
            replace_file(path, json.dumps(asdict(recorded)), beside=f"{path}.new")


def create_missing(branch: Branch, missing: Mapping[str, str], home: str | None) -> list[str]:
    """Return the missing directories that a sandbox can create in its view of ``home``; create the others, empty.

    ``missing`` are real paths by the paths that were given. A view needs a directory that exists, on the host or in the
    view around it.
    """
    inside = []
    for given, path in missing.items():
        if home is not None and can_view_below(branch, home, path):
            inside.append(given)
        else:
            with suppress(OSError):
                _create_directory(path)
    return inside


def _create_directory(path: str) -> list[str]:
    """Create a directory, following no links below one that exists. Return the new ones, deepest first."""
    top, new = path, []
    while not os.path.isdir(top):
        new.append(top)
        top = os.path.dirname(top)
    with closing_fd(open_root(top)) as root:
        os.close(_make_directories(root, os.path.relpath(path, top)))
    return new


@contextmanager
def _existing(path: str) -> Iterator[None]:
    """Create a directory for the block; afterwards remove the directories that are new and still empty."""
    new: list[str] = []
    with suppress(OSError):
        new = _create_directory(path)
    try:
        yield
    finally:
        with suppress(OSError):
            for directory in new:
                os.rmdir(directory)


def _expand(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _relative_to(pattern: str, directory: str) -> str | None:
    """Return a pattern relative to a directory; None if it is not below it."""
    expanded = _expand(pattern)
    return expanded[len(directory) + 1 :] if expanded.startswith(f"{directory}/") else None


def _load(directory: str) -> Iterator[tuple[PathView, AgentPaths]]:
    """Yield the path views in a directory with the agent's paths that were recorded with them."""
    for view in list_path_views(directory):
        try:
            with open(f"{os.path.dirname(view.home)}/{_FILE}") as file:
                yield view, AgentPaths.from_json(json.load(file))
        except FileNotFoundError:
            continue  # views that another caller of the sandbox made
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"{view.home} is damaged, and nothing is taken from it: {error}"
            warnings.warn(message, ForkwiseWarning, stacklevel=2)


@contextmanager
def conclude_agent_paths(branch: Branch) -> Iterator[None]:
    """Keep the session files of a winner, whose branch the block commits, and drop its views.

    The views of an inner winner become part of the attempt around it. If the block raises, the branch keeps them.
    """
    take_logins(branch)
    aside = set_path_views_aside(branch)
    if aside is None:
        yield
        return
    try:
        yield
    except BaseException:
        aside.restore()
        raise
    if isinstance(branch.parent, Branch):
        aside.add_to(branch.parent)
        return
    for view, paths in _load(aside.path):
        with nullcontext() if view.kind == "file" else _existing(view.path):
            _SessionCopy(view, paths.sessions).run()
            for database in paths.databases:
                _take_database(view, database, paths.before.get(database))
            for login in paths.logins:
                _take_first_login(view, login, paths.before.get(login.file))
    aside.discard()


# Sessions


class _SkippedError(Exception):
    """The file is not taken; the message says why."""


class _SessionCopy:
    """Copies the session files of one view to the directory that the view shows."""

    def __init__(self, view: PathView, patterns: Sequence[str]) -> None:
        self.view = view
        self.patterns = [p for pattern in patterns if (p := _relative_to(pattern, view.given))]
        self.copied = 0
        self.bytes_left = _MOST_SESSION_BYTES
        self.entries = 0
        self.reasons: list[str] = []

    def run(self) -> None:
        if self.view.kind == "file" or not self.patterns:
            return
        try:
            with closing_fd(open_root(self.view.content)) as source, closing_fd(open_root(self.view.path)) as target:
                for start in sorted({_fixed_part(pattern) for pattern in self.patterns}):
                    self._copy_below(source, target, start)
        except _SkippedError as error:
            self.reasons.append(str(error))
        except OSError as error:
            self.reasons.append(f"{error.filename or self.view.given}: {error.strerror}")
        if self.reasons:
            more = len(self.reasons) - _MOST_REASONS
            reasons = [*self.reasons[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])]
            message = f"sessions of the winner in {self.view.given} were not kept: {'; '.join(reasons)}"
            warnings.warn(message, ForkwiseWarning, stacklevel=3)

    def _copy_below(self, source: int, target: int, start: str) -> None:
        pending = [start]
        while pending:
            directory = pending.pop()
            try:
                with closing_fd(open_directory(source, directory)) as fd, os.scandir(fd) as entries:
                    found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in self._count(entries)]
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self.reasons.append(f"{directory!a}: {error.strerror}")
                continue
            for name, status in sorted(found, key=lambda pair: pair[0]):
                path = join(directory, name)
                if stat.S_ISDIR(status.st_mode):
                    if path.count("/") < _DEEPEST:
                        pending.append(path)
                elif any(matches(path, pattern) for pattern in self.patterns) and not is_whiteout(status):
                    self._try_copy(source, target, path)

    def _count(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            self.entries += 1
            if self.entries > _MOST_ENTRIES:
                raise _SkippedError(f"it has more than {_MOST_ENTRIES} files there")
            yield entry

    def _try_copy(self, source: int, target: int, path: str) -> None:
        if self.copied >= _MOST_SESSIONS:
            raise _SkippedError(f"they are more than {_MOST_SESSIONS} files")
        try:
            if not path.isprintable():
                raise _SkippedError("its name has control characters")
            self.bytes_left -= _copy_session(source, target, path, min(_LARGEST_SESSION, self.bytes_left))
            self.copied += 1
        except _SkippedError as error:
            self.reasons.append(f"{path!a}: {error}")
        except OSError as error:
            self.reasons.append(f"{path!a}: {error.strerror}")


def _fixed_part(pattern: str) -> str:
    """Return the directory in which all matches of a pattern are.

    >>> _fixed_part("projects/**/*.jsonl"), _fixed_part("*.log")
    ('projects', '')
    """
    fixed: list[str] = []
    for part in pattern.split("/")[:-1]:
        if re.search(r"[*?\[]", part):
            break
        fixed.append(part)
    return "/".join(fixed)


def _open_regular(root: int, path: str, largest: int) -> int:
    """Open a file of an attempt for reading; raise _SkippedError unless it is an ordinary one within the limit."""
    try:
        fd = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _SkippedError("it is a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise _SkippedError("it is not a regular file") from None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise _SkippedError("it is not a regular file with one name")
    if status.st_size > largest:
        os.close(fd)
        raise _SkippedError(f"it is larger than {largest >> 20} MiB")
    return fd


def _copy_session(source: int, target: int, path: str, largest: int) -> int:
    """Copy a session file that is new, or that continues the user's. Return its size; 0 if it is the same."""
    directory, _, name = path.rpartition("/")
    with (
        closing_fd(_open_regular(source, path, largest)) as fd,
        closing_fd(_make_directories(target, directory)) as parent,
    ):
        before = _stat_entry(parent, name)
        if before is not None and not _is_continued(parent, name, before, fd):
            return 0
        size = os.fstat(fd).st_size
        with _Replacement(parent, name, before) as new:
            new.copy(fd, size)
            new.publish()
    return size


def _make_directories(root: int, path: str) -> int:
    """Open a directory below ``root`` without following links; create what is missing."""
    here = open_directory(root, "")
    for name in filter(None, path.split("/")):
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=here)
                _inherit_owner(here, name)
            deeper = open_directory(here, name)
        finally:
            os.close(here)
        here = deeper
    return here


def _inherit_owner(directory: int, name: str) -> None:
    """Give a directory that root made in another user's home to that user."""
    owner = os.fstat(directory)
    if os.geteuid() == 0 and owner.st_uid:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)


def _stat_entry(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_own(directory: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)


def _is_continued(parent: int, name: str, before: os.stat_result, fd: int) -> bool:
    """Return whether an attempt's file is longer than the user's and begins with it; False if both are the same."""
    if not stat.S_ISREG(before.st_mode):
        raise _SkippedError("what has that name now is not a regular file")
    after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        return False
    if after.st_size < before.st_size:
        raise _SkippedError("it is shorter than the session was")
    with closing_fd(_open_own(parent, name)) as own:
        offset = 0
        while offset < before.st_size:
            wanted = min(_BLOCK, before.st_size - offset)
            block = os.pread(own, wanted, offset)
            if not block or block != os.pread(fd, len(block), offset):
                raise _SkippedError("it does not begin with what the session was")
            offset += len(block)
    return after.st_size > before.st_size


# Databases

_WAL = "-wal"
_PENDING = (_WAL, "-journal")  # files with data that is not in the SQLite database itself yet
_SQLITE = b"SQLite format 3\0"
_LARGEST_WAL = 64 << 20
_WAL_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_WAL_FRAME = struct.Struct(">6I")  # page, pages of the database if it ends a transaction, two salts, two checksums
_WAL_MAGIC = {0x377F0682: "little", 0x377F0683: "big"}  # the byte order of the checksums


def _describe_file(path: str) -> list[Any]:
    """Describe a file of the user's, and what SQLite keeps beside a database, to find out whether it was changed."""
    described: list[Any] = []
    for suffix in ("", *_PENDING):
        try:
            found = os.lstat(path + suffix)
        except OSError:
            described.append(None)
        else:
            described.append([found.st_ino, found.st_size, found.st_mtime_ns])
    return described


def _take_database(view: PathView, database: str, before: list[Any] | None) -> None:
    """Replace the user's database with the winner's, if the winner changed it and nobody else did."""
    path = None if view.kind == "file" else _relative_to(database, view.given)
    if path is None:
        return
    try:
        with closing_fd(open_root(view.content)) as source, closing_fd(open_root(view.path)) as target:
            try:
                fd = _open_regular(source, path, _LARGEST_SESSION)
            except FileNotFoundError:
                return  # the winner did not change it
            with closing_fd(fd):
                log = _stat_below(source, path + _WAL)
                has_log = log is not None and log.st_size > 0 and not is_whiteout(log)
                if before is not None and before[0] and os.fstat(fd).st_mtime_ns == before[0][2] and not has_log:
                    return  # a copy of the user's
                _copy_database(source, fd, target, path, before == _describe_file(database))
    except (_SkippedError, OSError) as error:
        reason = str(error) if isinstance(error, _SkippedError) else error.strerror
        warnings.warn(
            f"the sessions of the winner in {database} were not kept: {reason}", ForkwiseWarning, stacklevel=3
        )


def _copy_database(source: int, fd: int, target: int, path: str, is_unchanged: bool) -> None:
    directory, _, name = path.rpartition("/")
    if not is_unchanged:
        raise _SkippedError("the user's was changed since the fork")
    if os.pread(fd, len(_SQLITE), 0) != _SQLITE:
        raise _SkippedError("it is not an SQLite database")
    left = {suffix: _stat_below(source, path + suffix) for suffix in _PENDING}
    pending = [suffix for suffix, found in left.items() if found and found.st_size and not is_whiteout(found)]
    if pending and pending != [_WAL]:
        raise _SkippedError(f"the agent did not close it, and part of it is in {name}{pending[-1]}")
    with closing_fd(_make_directories(target, directory)) as parent:
        for suffix in _PENDING:
            if (own := _stat_entry(parent, name + suffix)) is not None and own.st_size:
                raise _SkippedError(f"another process uses it: there is {name}{suffix}")
        with _Replacement(parent, name, _stat_entry(parent, name)) as new:
            new.copy(fd, os.fstat(fd).st_size)
            if pending:
                with closing_fd(_open_regular(source, path + _WAL, _LARGEST_WAL)) as wal:
                    _apply_wal(wal, new.fd)
            new.publish()


def _apply_wal(wal: int, database: int) -> None:
    """Write the transactions of a database's log into its file, as SQLite does when a program closes it.

    SQLite itself is not used on what an attempt wrote. As there, the log ends at the first frame whose checksum does
    not match; what follows the last complete transaction is left out. Raises _SkippedError if it is not a valid log.
    """
    header = os.pread(wal, _WAL_HEADER.size, 0)
    if len(header) < _WAL_HEADER.size:
        raise _SkippedError("its log is not complete")
    magic, _, size, _, *salts, first, second = _WAL_HEADER.unpack(header)
    order = _WAL_MAGIC.get(magic)
    sums = (0, 0) if order is None else _add_checksum((0, 0), header[:24], order)
    if order is None or sums != (first, second) or not 512 <= size <= 65536 or size & (size - 1):
        raise _SkippedError("its log is not one of SQLite")
    pages: dict[int, int] = {}  # where the last version of each page is
    new: dict[int, int] = {}
    at, count = _WAL_HEADER.size, 0
    while len(frame := os.pread(wal, _WAL_FRAME.size + size, at)) == _WAL_FRAME.size + size:
        page, pages_after, *frame_salts, first, second = _WAL_FRAME.unpack_from(frame)
        sums = _add_checksum(_add_checksum(sums, frame[:8], order), frame[_WAL_FRAME.size :], order)
        if frame_salts != salts or sums != (first, second) or not 0 < page <= _LARGEST_SESSION // size:
            break
        new[page] = at + _WAL_FRAME.size
        at += _WAL_FRAME.size + size
        if pages_after:
            pages |= new
            new.clear()
            count = pages_after
    if not count:
        return
    if count > _LARGEST_SESSION // size:
        raise _SkippedError(f"it is larger than {_LARGEST_SESSION >> 20} MiB")
    for page, offset in pages.items():
        if page <= count:
            os.pwrite(database, os.pread(wal, size, offset), (page - 1) * size)
    os.ftruncate(database, count * size)


def _add_checksum(sums: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return the checksums of a log with further bytes: a sum over pairs of words."""
    first, second = sums
    words = struct.unpack(f"{'<' if order == 'little' else '>'}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


class _Replacement:
    """A new file that atomically replaces an existing one, if there is one and nobody changed it meanwhile."""

    def __init__(self, directory: int, name: str, before: os.stat_result | None) -> None:
        self.directory = directory
        self.name = name
        self.before = before
        self.temporary: str | None = None
        self.fd = -1

    def __enter__(self) -> _Replacement:
        try:
            # A file without a name (O_TMPFILE) disappears after a kill. Not every filesystem supports it.
            self.fd = fds.track(
                lambda: os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.directory)
            )
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
            self.temporary = self._new_name()
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = fds.track(lambda: os.open(str(self.temporary), flags, 0o600, dir_fd=self.directory))
        owner = self.before or os.fstat(self.directory)
        if os.geteuid() == 0 and owner.st_uid:
            os.fchown(self.fd, owner.st_uid, owner.st_gid)
        return self

    def __exit__(self, *_: object) -> None:
        if self.temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(self.temporary, dir_fd=self.directory)
        fds.close(self.fd)

    def _new_name(self) -> str:
        return f".forkwise-{os.getpid()}-{secrets.token_hex(4)}"

    def copy(self, source: int, size: int) -> None:
        """Copy the first ``size`` bytes of an open file; raise _SkippedError if it has become shorter."""
        offset = 0
        while offset < size:
            block = os.pread(source, min(_BLOCK, size - offset), offset)
            if not block:
                raise _SkippedError("it was truncated while it was copied")
            self.write(block)
            offset += len(block)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]

    def publish(self) -> None:
        """Sync the file and give it its name; raise _SkippedError if the file that it replaces was changed."""
        os.fsync(self.fd)
        name = self.temporary
        if self.before is None:
            self._require_unchanged()
            self._link(self.name, name)
            return
        if name is None:
            name = self.temporary = self._new_name()
            os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self.directory, follow_symlinks=True)
        self._require_unchanged()
        os.rename(name, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self.temporary = None

    def _link(self, name: str, temporary: str | None) -> None:
        try:
            if temporary is None:
                os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self.directory, follow_symlinks=True)
            else:
                os.link(temporary, name, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
        except FileExistsError:
            raise _SkippedError("another process created a file of that name") from None

    def _require_unchanged(self) -> None:
        now = _stat_entry(self.directory, self.name)
        if _identify(now) != _identify(self.before):
            raise _SkippedError("another process changed the file of that name")


def _identify(status: os.stat_result | None) -> tuple[int, int, int, int] | None:
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


# Logins


def take_logins(branch: Branch) -> None:
    """Take over the logins that an attempt refreshed, unless the user's are newer. Call it when the attempt is over."""
    for view, paths in _load(paths_directory(branch.home)):
        for login in paths.logins:
            try:
                _take_login(view, login)
            except _SkippedError as error:
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
    pattern = _expand(login.file)
    if view.kind == "file":
        if pattern == view.given:
            _take_login_file(view, login, os.path.dirname(view.path), os.path.basename(view.path), "file")
        return
    relative = _relative_to(pattern, view.given)
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
            fd = _open_regular(layer, path, _LARGEST_LOGIN)
        except FileNotFoundError:
            return  # the attempt did not change it
        except _SkippedError:
            if (status := _stat_below(layer, path)) is not None and is_whiteout(status):
                return  # it logged out, in its view only
            raise
        with closing_fd(fd):
            theirs, changed = _read(fd), os.fstat(fd).st_mtime
    with _locked_directory(directory) as parent:
        before = _stat_entry(parent, name)
        if before is None:
            return  # the user logged out
        if not stat.S_ISREG(before.st_mode):
            raise _SkippedError("it is not a regular file")
        with closing_fd(_open_own(parent, name)) as own:
            ours = _read(own)
        if theirs == ours:
            return
        merged = _merge_login(ours, theirs, login, is_later=before.st_mtime < changed <= time.time())
        if merged is not None:
            with _Replacement(parent, name, before) as new:
                new.write(merged)
                new.publish()


def _take_first_login(view: PathView, login: Login, before: list[Any] | None) -> None:
    """Take over the winner's login if the user had none when the attempt began, and still has none."""
    path = None if view.kind == "file" or before != [None] * 3 else _relative_to(_expand(login.file), view.given)
    if path is None or re.search(r"[*?\[]", path):
        return
    try:
        with closing_fd(open_root(view.content)) as layer, closing_fd(open_root(view.path)) as target:
            try:
                fd = _open_regular(layer, path, _LARGEST_LOGIN)
            except FileNotFoundError:
                return
            with closing_fd(fd):
                data = _read(fd)
            document = _parse(data, "the attempt's file")
            values = [_find(document, key) for bound in _bind(document, login) for key in bound.keys]
            if not any(isinstance(value, str) and _is_valid(value, value) for value in values):
                return  # it is not a login
            directory, _, name = path.rpartition("/")
            with closing_fd(_make_directories(target, directory)) as parent:
                if _stat_entry(parent, name) is None:
                    with _Replacement(parent, name, None) as new:
                        new.write(data)
                        new.publish()
    except _SkippedError as error:
        _warn_of_login(login, str(error))
    except OSError as error:
        _warn_of_login(login, error.strerror or str(error))


def _stat_below(root: int, path: str) -> os.stat_result | None:
    with suppress(OSError), closing_fd(open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW)) as fd:
        return os.fstat(fd)
    return None


def _read(fd: int) -> bytes:
    data = b""
    while len(data) <= _LARGEST_LOGIN and (block := os.read(fd, _BLOCK)):
        data += block
    if len(data) > _LARGEST_LOGIN:
        raise _SkippedError(f"it is larger than {_LARGEST_LOGIN >> 20} MiB")
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
    without times. Raises _SkippedError if the attempt's file is not a valid login.
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
                raise _SkippedError(f"the value of {'.'.join(path)} is missing or not valid")
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
        raise _SkippedError(f"{subject} is not valid JSON") from None
    if not isinstance(document, dict):
        raise _SkippedError(f"{subject} is not a JSON object")
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
