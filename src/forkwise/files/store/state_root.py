"""Roots: the directories that hold the state directories of workspaces, and the rules for trusting one.

A record in a state directory makes forkwise move files as the user who runs it, so nobody else may be able to write
one. A root, and each state directory in it, is a directory of this user, not a symlink, and nobody else may write to
it. The directories above it belong to this user or to root, so that nobody else can put another one in its place.
"""

from __future__ import annotations

import functools
import grp
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from forkwise.linux.trees import mount_id

__all__ = [
    "find_problem",
    "find_root_problem",
    "find_state",
    "forget_roots",
    "is_own",
    "is_state_name",
    "is_state_path",
    "key_of",
    "list_known_roots",
    "list_roots",
    "remember_root",
    "same_mount",
    "user_roots",
]

_HIDDEN = ".forkwise-"
_LIST = ".roots"
_OVERFLOW_UID = 65534


def key_of(workspace: str) -> str:
    """Return the name of a workspace's state directory in a root."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(workspace))[:40]
    return f"{name or 'root'}-{hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]}"


def is_state_name(name: str) -> bool:
    """Return whether a name is reserved for forkwise's own directories next to or inside a workspace."""
    return name.startswith(".") and name.casefold().startswith(_HIDDEN)


def is_state_path(path: str) -> bool:
    """Return whether a path is, or is inside, a directory whose name is reserved."""
    return _HIDDEN in path.casefold() and any(map(is_state_name, path.split("/")))


def user_roots() -> list[str]:
    """List the roots in this user's own state directory.

    If the environment names a directory of another user, as under ``sudo`` with the caller's ``HOME``, the account's
    own directory follows in the list.
    """
    root = os.path.abspath(f"{os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state')}/forkwise")
    if os.stat(_existing(root)).st_uid == os.geteuid():
        return [root]
    return list(dict.fromkeys([root, *_account_roots(os.geteuid())]))


def list_roots(workspace: str) -> list[str]:
    """List the roots to consider for a workspace, best first.

    That is this user's state directory, if it is on the workspace's filesystem; a hidden directory next to the
    workspace or next to one of its parents; this user's state directory on another filesystem.
    """
    own = user_roots()
    roots = [root for root in own if same_mount(_existing(root), workspace)]
    parent = workspace
    while parent != "/":
        parent = os.path.dirname(parent)
        if not same_mount(parent, workspace):
            break
        roots.append(f"{parent.rstrip('/')}/{_HIDDEN}{os.geteuid()}")
    return [*roots, *(root for root in own if root not in roots)]


def find_root_problem(root: str, workspace: str) -> str | None:
    """Return why the state of a workspace must not be kept in a root; None if it may."""
    parent = os.path.realpath(os.path.dirname(root))
    real = f"{parent.rstrip('/')}/{os.path.basename(root)}"
    if f"{os.path.realpath(root)}/".startswith(f"{workspace.rstrip('/')}/") or _is_below(real, workspace):
        return "it is inside the workspace"
    if (problem := find_problem(real)) is not None:
        return problem
    above = list(_above(real))
    for directory in above:
        if (problem := _find_replaceable(directory)) is not None:
            return problem
    if os.path.basename(root).startswith(_HIDDEN):
        # A clone or a commit can bring such a directory along, so one found there proves nothing.
        for directory in above:
            if os.path.lexists(f"{directory}/.git"):
                return f"it is inside the git work tree {directory}"
            if _is_workspace(directory):
                return f"it is inside {directory}, which is a workspace itself"
    return None


def find_problem(path: str) -> str | None:
    """Return why a directory or file of the state must not be read; None if it is this user's alone, or missing."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user (uid {found.st_uid})"
    if found.st_mode & 0o022:
        return f"other users may write to {path}"
    return None if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) else f"{path} is a special file"


def is_own(path: str) -> bool:
    """Return whether a path exists, is not a symlink, and belongs to this user."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid()


def remember_root(root: str) -> None:
    """List a root in this user's state directory, so that ``gc`` can find it when its workspaces are gone."""
    own = user_roots()
    if root in own:
        return
    entry = f"{_LIST}/{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}"
    for directory in own:
        if os.path.lexists(f"{directory}/{entry}"):
            return
        if find_root_problem(directory, root) is None:
            with suppress(OSError):  # a user without a writable home has no list
                os.makedirs(f"{directory}/{_LIST}", mode=0o700, exist_ok=True)
                os.symlink(root, f"{directory}/{entry}")
                return


def list_known_roots() -> list[str]:
    """List all roots of this user: from the environment, from the state directory, and those remembered."""
    given = os.environ.get("FORKWISE_STATE")
    found = [os.path.abspath(given)] if given else []
    for directory in user_roots():
        found.append(directory)
        if find_problem(f"{directory}/{_LIST}") is None:
            with suppress(OSError):
                found += [os.readlink(f"{directory}/{_LIST}/{n}") for n in sorted(os.listdir(f"{directory}/{_LIST}"))]
    return [root for root in dict.fromkeys(found) if os.path.isabs(root)]


def forget_roots() -> None:
    """Remove roots that no longer exist from the list in this user's state directory."""
    for directory in user_roots():
        if find_problem(f"{directory}/{_LIST}") is None:
            with suppress(OSError):
                for name in os.listdir(f"{directory}/{_LIST}"):
                    if not os.path.exists(f"{directory}/{_LIST}/{name}"):  # a dangling symlink
                        os.unlink(f"{directory}/{_LIST}/{name}")


def find_state(workspace: str) -> str | None:
    """Return the state directory that a workspace has; None if it has none that can be trusted. Creates nothing.

    ``workspace`` is its real path.
    """
    given = os.environ.get("FORKWISE_STATE")
    for root in [os.path.abspath(given)] if given else list_roots(workspace):
        path = f"{root}/{key_of(workspace)}"
        if os.path.isdir(path) and find_root_problem(root, workspace) is None and find_problem(path) is None:
            return path
    return None


def _is_workspace(directory: str) -> bool:
    """Return whether a directory has a state directory of this user."""
    beside = (f"{above.rstrip('/')}/{_HIDDEN}{os.geteuid()}" for above in _above(directory))
    return any(os.path.isdir(f"{root}/{key_of(directory)}") for root in (*user_roots(), *beside))


def _is_below(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _above(path: str) -> Iterator[str]:
    """Yield the directories above an absolute path, nearest first."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _find_replaceable(directory: str) -> str | None:
    """Return why another user could replace what is in a directory; None if nobody can, or if it does not exist."""
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    if found.st_uid not in (os.geteuid(), 0) and not (found.st_uid == _OVERFLOW_UID and _is_user_unknown()):
        return f"{directory} belongs to another user (uid {found.st_uid})"
    if found.st_mode & stat.S_ISVTX:
        return None  # entries can be renamed and removed by their owners only
    is_open = found.st_mode & 0o002 or (
        found.st_mode & 0o020 and (not _is_private_group(found.st_gid) or _has_access_list(directory))
    )
    return f"other users may write to {directory}" if is_open else None


def _has_access_list(directory: str) -> bool:
    """Return whether an ACL may grant other users access; the mode's group bits are then its mask."""
    try:
        return "system.posix_acl_access" in os.listxattr(directory)
    except OSError:
        return False


@lru_cache(maxsize=4)
def _account_roots(user: int) -> list[str]:
    try:
        return [f"{pwd.getpwuid(user).pw_dir}/.local/state/forkwise"]
    except KeyError:
        return []


@lru_cache(maxsize=64)
def _is_private_group(gid: int) -> bool:
    """Return whether a group has this user as its only member, as distributions set it up for each account."""
    if gid == 0:
        return True  # its members are as powerful as root
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


@functools.cache
def _is_user_unknown() -> bool:
    """Return whether this user namespace lacks some users, and shows them as the overflow user."""
    try:
        with open("/proc/self/uid_map") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def same_mount(first: str, second: str) -> bool:
    """Return whether a file can be renamed from one directory to the other: same device, same mount."""
    try:
        one, two = os.stat(first), os.stat(second)
        if one.st_dev != two.st_dev:
            return False
        return _is_same_mount(first, second, one.st_dev, one.st_ino, two.st_ino)
    except OSError:
        return False


@lru_cache(maxsize=256)
def _is_same_mount(first: str, second: str, *_identities: int) -> bool:
    """Compare the mounts of two paths; cached as long as both paths lead to the same directories."""
    return _mount_of(first) == _mount_of(second)


def _mount_of(path: str) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return mount_id(fd)
    finally:
        os.close(fd)
