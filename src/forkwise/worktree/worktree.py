"""Worktree: an ordinary directory with a copy-on-write branch of a checkout, which git knows as a linked worktree.

Each has a directory in the state of the repository's main work tree, with its record and, if it is mounted, its layer.
The record is written first and says what there is to remove, so that the next call can finish or revert what a killed
process left: a worktree that was being added is removed, and an unfinished removal is finished.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from forkwise.errors import BranchError, BranchingError, BranchNotFoundError, ForkwiseWarning, GitError, StateError
from forkwise.files.store.document import check_text, check_time, check_type, damage_reported, read_document
from forkwise.files.store.state import StateDir, locate
from forkwise.files.store.trash import discard
from forkwise.git.linked_worktree import (
    check_branch_name,
    create_branch,
    delete_branch,
    find_nested_pointers,
    link_worktree,
    refresh_index,
    resolve_commit,
    unlink_worktree,
)
from forkwise.git.repository import (
    Repository,
    check_owner,
    find_repository,
    locate_repository,
    read_pointer,
    read_regular,
)
from forkwise.linux.file_write import replace_file
from forkwise.linux.trees import closing_fd, open_root, remove_tree
from forkwise.text.phrases import format_number, join_first
from forkwise.worktree.worktree_files import (
    VIEWS,
    choose_views,
    copy_files,
    is_mounted,
    make_layer,
    mount_files,
    unmount_files,
)

if TYPE_CHECKING:
    from forkwise.files.store.view import Site

__all__ = [
    "Worktree",
    "add_worktree",
    "default_path",
    "find_commits",
    "find_work",
    "find_worktree",
    "list_worktrees",
    "mount_worktree",
    "remove_worktree",
]

State = Literal["ready", "not mounted", "unknown to git", "gone"]
_Phase = Literal["adding", "ready", "removing"]

_FORMAT = 1
_RECORD = "worktree.json"
_MOUNTED = ("overlay", "fuse")
_MAX_COMPARED = 2000  # paths with uncommitted changes that are compared with the checkout's
_CHUNK = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Worktree:
    """A worktree as it was added: where it is, on which git branch it started, and how its files are made.

    ``source`` is the checkout that it is a copy of, ``git_directory`` its own directory in ``.git/worktrees``, and
    ``start`` the commit that its branch started at, empty if there was none.
    """

    name: str
    path: str
    branch: str
    start: str
    view: str
    source: str
    git_directory: str
    created: float
    phase: _Phase = "ready"
    has_made_directory: bool = True

    @property
    def is_mount(self) -> bool:
        """Whether its files are a mount, which does not survive a restart of the machine."""
        return self.view in _MOUNTED

    @property
    def state(self) -> State:
        """Whether it can be used; ``gone`` is a copy whose directory was removed by hand."""
        if not os.path.lexists(f"{self.git_directory}/gitdir"):
            return "unknown to git"
        if self.is_mount:
            return "ready" if is_mounted(self.path) else "not mounted"
        return "ready" if os.path.isdir(self.path) else "gone"


def default_path(directory: str | os.PathLike[str], name: str) -> str:
    """Return the path of a worktree that is named by a word: in a directory beside the repository's main work tree.

    Raises GitError if the name is not valid for a directory.
    """
    if not name or name.startswith((".", "-")) or "/" in name or _CONTROL.search(name) or len(os.fsencode(name)) > 200:
        raise GitError(
            f"{name!r} is not a name for a worktree: it must not be empty, start with a dot or a dash, or contain a "
            "slash or a control character; a path contains a slash"
        )
    return f"{_main_work_tree(_find_repository(directory))}.worktrees/{name}"


def add_worktree(
    directory: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    branch: str | None = None,
    start: str | None = None,
    view: str | None = None,
    clean: bool = False,
) -> Worktree:
    """Make a worktree at ``path`` of the checkout that ``directory`` is in, on a new git branch.

    ``branch`` defaults to the last part of the path, ``start`` to ``HEAD``. The files are those of the checkout, with
    ignored ones and with uncommitted changes; with ``start`` the tracked files are those of that commit, and with
    ``clean`` nothing uncommitted is taken over except ignored files. Raises GitError if the branch exists or the
    repository cannot be used, MountError if the view is not available, BranchError if the path cannot be used.
    """
    views = choose_views(view)
    repository = _find_repository(directory)
    target = _check_target(os.fspath(path), repository)
    branch = os.path.basename(target) if branch is None else branch
    check_branch_name(branch)
    commit = resolve_commit(repository, start)
    site = locate(_main_work_tree(repository))
    with _registered(site, repository, target, branch, commit or "") as (home, record, lock_fd):
        try:
            if commit is not None:
                create_branch(repository, branch, commit, record.name)
            record = _make(site, repository, home, record, views, lock_fd, is_copied=start is None and not clean)
            if start is not None or clean:
                _check_out(record, clean=clean)
            _save(home, replace(record, phase="ready"))
        except BaseException:
            _revert(home, record)
            raise
    return replace(record, phase="ready")


def list_worktrees(directory: str | os.PathLike[str]) -> list[Worktree]:
    """List the worktrees that forkwise made of the repository that ``directory`` is in, oldest first."""
    site = locate(_main_work_tree(_find_repository(directory)))
    return [record for _, record in _recovered(site)]


def find_worktree(directory: str | os.PathLike[str], name: str) -> Worktree:
    """Find a worktree by its name, its path or its git branch. Raises BranchNotFoundError if there is none."""
    found = list_worktrees(directory)
    path = os.path.realpath(os.path.dirname(os.path.abspath(name)) or "/") + "/" + os.path.basename(name.rstrip("/"))
    for matches in (
        [w for w in found if w.path in (path, os.path.abspath(name))],
        [w for w in found if w.name == name],
        [w for w in found if os.path.basename(w.path) == name or w.branch == name],
    ):
        if len(matches) == 1:
            return matches[0]
    raise BranchNotFoundError(
        f"there is no worktree {name!r} made by forkwise here; list them with forkwise worktree list", branch=name
    )


def mount_worktree(directory: str | os.PathLike[str], worktree: Worktree) -> None:
    """Mount a worktree again, for example after a restart; do nothing if it is mounted.

    Raises BranchError if its directory now has files of its own, which the mount would hide.
    """
    site = locate(_main_work_tree(_find_repository(directory)))
    with _owned(site, worktree) as home:
        _mount(site, home, worktree)


def _mount(site: Site, home: str, worktree: Worktree) -> None:
    if not worktree.is_mount or is_mounted(worktree.path):
        return
    os.makedirs(worktree.path, exist_ok=True)
    if os.listdir(worktree.path):
        raise BranchError(f"{worktree.path} is not mounted and has files of its own; move them away, then mount it")
    if not os.path.isdir(worktree.source):
        raise BranchError(
            f"{worktree.path} cannot be mounted: {worktree.source}, which it is a branch of, is not there; its own "
            f"files are in {home}/layer"
        )
    mount_files(worktree.view, site, worktree.source, home, worktree.path)


def find_work(worktree: Worktree) -> str:
    """Describe the uncommitted work that would be lost with a worktree; empty if there is none.

    A change that is also in the checkout is not lost. Ignored files do not count, as in ``git worktree remove``.
    """
    repository = find_repository(worktree.path)
    if repository is None or repository.git_directory != worktree.git_directory:
        raise GitError(f"{worktree.path} is no longer the worktree that forkwise made: its .git was changed")
    done = repository.run("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    if done.returncode != 0:
        raise GitError(f"git status failed in {worktree.path}: {' '.join(os.fsdecode(done.stderr).split())}")
    rows = [row for row in os.fsdecode(done.stdout).split("\0") if row]
    if len(rows) > _MAX_COMPARED:
        return f"{len(rows)} uncommitted changes"
    staged = [row[3:] for row in rows if row[0] not in " ?"]
    lost = {row[3:] for row in rows if not _is_same(f"{worktree.path}/{row[3:]}", f"{worktree.source}/{row[3:]}")}
    if staged:
        lost |= _find_staged(repository, worktree, staged)
    lost |= _find_unseen(repository, worktree)
    if not lost:
        return ""
    first = join_first([repr(path) for path in sorted(lost)], 3)
    return f"uncommitted changes of {format_number(len(lost), 'file')} ({first})"


def _find_unseen(repository: Repository, worktree: Worktree) -> set[str]:
    """Return the changed paths that git status leaves out.

    These are files whose index entries tell git not to look (``--assume-unchanged``, ``--skip-worktree``), and files of
    submodules, which have no repository of their own in a worktree.
    """
    done = repository.run("ls-files", "-v", "-s", "-z")
    found: set[str] = set()
    for row in os.fsdecode(done.stdout).split("\0"):
        facts, _, path = row.partition("\t")
        is_flagged = facts[:1].islower() or facts[:1] == "S"
        here, there = f"{worktree.path}/{path}", f"{worktree.source}/{path}"
        if facts[2:].startswith("160000 ") and os.path.isdir(here) and not os.path.islink(here):
            found |= {f"{path}/{inside}" for inside in _compare_directories(here, there)}
        elif is_flagged and _stat(here) is not None and not _is_same(here, there):
            found.add(path)
    return found


def _compare_directories(one: str, other: str) -> Iterator[str]:
    """Yield the paths below ``one`` that ``other`` lacks or has with other content; not the repository itself."""
    for directory, names, files in os.walk(one):
        inside = os.path.relpath(directory, one)
        names[:] = [name for name in names if not os.path.islink(f"{directory}/{name}")]
        if inside == ".":
            names[:], files = [n for n in names if n != ".git"], [n for n in files if n != ".git"]
        for name in files:
            path = name if inside == "." else f"{inside}/{name}"
            if not _is_same(f"{one}/{path}", f"{other}/{path}"):
                yield path


def find_commits(worktree: Worktree) -> int:
    """Return the number of commits of a worktree that are in no other branch, tag or remote branch."""
    repository = find_repository(worktree.path)
    if repository is None:
        return 0
    own = [] if repository.head is None else [f"--exclude={repository.head}"]
    words = ("rev-list", "--count", "HEAD", "--not", *own, "--branches", "--tags", "--remotes")
    done = repository.run(*(w.replace("--exclude=refs/heads/", "--exclude=") for w in words))
    return int(done.stdout) if done.returncode == 0 else 0


def remove_worktree(
    directory: str | os.PathLike[str], worktree: Worktree, *, force: bool = False, keeps_commits: bool = False
) -> bool:
    """Remove a worktree, and its branch if nothing was committed on it; return whether the branch was removed.

    Raises BranchError, and changes nothing, if there is work in it: uncommitted changes, or commits that are in no
    other branch. With ``keeps_commits`` such commits do not prevent it, because the branch stays. ``force`` removes the
    worktree anyway; commits on a branch stay then too.
    """
    repository = _find_repository(directory)
    site = locate(_main_work_tree(repository))
    with _owned(site, worktree) as home:
        for other in list_worktrees(directory):
            if other.source == worktree.path:
                raise BranchError(
                    f"{worktree.path} is what the worktree {other.path} is a branch of: remove that first"
                )
        started = time.time_ns()
        if not force:
            _refuse_work(site, home, worktree, keeps_commits)
        _save(home, replace(worktree, phase="removing"))
        try:
            if worktree.is_mount and is_mounted(worktree.path):
                unmount_files(worktree.view, worktree.path, lazily=force)
                if not force and _has_changed(f"{home}/layer", started):
                    _mount(site, home, worktree)
                    raise BranchError(f"{worktree.path} was written to meanwhile; try again")
        except BaseException:
            _save(home, worktree)
            raise
        return _finish_removal(home, worktree)


def _refuse_work(site: Site, home: str, worktree: Worktree, keeps_commits: bool) -> None:
    hint = f"commit it, or remove the worktree with: forkwise worktree remove --force {worktree.path}"
    match worktree.state:
        case "gone":
            return
        case "unknown to git":
            if worktree.is_mount and not _has_files(f"{home}/layer"):
                return
            raise BranchError(f"git no longer knows {worktree.path}, which still has files; copy them, or use --force")
        case "not mounted":
            _mount(site, home, worktree)
        case _:
            pass
    if work := find_work(worktree):
        raise BranchError(f"the worktree {worktree.path} has {work}; {hint}")
    repository = locate_repository(worktree.path)
    is_detached = repository is None or repository.head is None
    if (is_detached or not keeps_commits) and (count := find_commits(worktree)):
        commits = f"{format_number(count, 'commit')} that no other branch and no remote has"
        hint = "push or merge them, or use --force" + (
            ", which loses them" if is_detached else ", which keeps the branch"
        )
        raise BranchError(f"the worktree {worktree.path} has {commits}; {hint}")


# The repository, the target and the state


def _find_repository(directory: str | os.PathLike[str]) -> Repository:
    repository = locate_repository(directory)
    if repository is None:
        raise GitError(f"{os.path.abspath(directory)} is not in a git repository; create one with git init")
    check_owner(repository)
    return repository


def _main_work_tree(repository: Repository) -> str:
    """Return the main work tree, whose state holds all worktrees of a repository, wherever they are added from."""
    top, name = os.path.split(repository.common_directory)
    is_ordinary = name == ".git" and os.path.realpath(top) == top
    return top if is_ordinary and os.path.isdir(top) else repository.work_tree


def _check_target(path: str, repository: Repository) -> str:
    """Return the absolute path of a new worktree. Raises BranchError if it cannot be there."""
    if _CONTROL.search(path):
        raise BranchError(f"{path!r} contains a control character; choose another path")
    whole = os.path.abspath(path)
    target = f"{os.path.realpath(os.path.dirname(whole)).rstrip('/')}/{os.path.basename(whole)}"
    for top in (repository.work_tree, _main_work_tree(repository), repository.common_directory):
        if target == top or target.startswith(f"{top}/"):
            raise BranchError(
                f"a worktree cannot be inside the checkout that it is a branch of: {target} is in {top}; choose a path "
                "beside it, or give only a name"
            )
    is_free = not os.path.lexists(target) or (
        stat.S_ISDIR(os.lstat(target).st_mode) and not is_mounted(target) and not os.listdir(target)
    )
    if not is_free:
        raise BranchError(f"{target} exists already; choose another path, or remove it")
    return target


def _homes(site: Site) -> str:
    return f"{site.state}/worktrees"


@contextmanager
def _lock(path: str, *, waits: bool = True) -> Iterator[int]:
    """Hold a lock until the block ends or the process dies; yield its descriptor, or -1 if another process holds it.

    A child process that inherits the descriptor holds the lock as well, as long as it runs.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield -1
            return
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _registered(
    site: Site, repository: Repository, target: str, branch: str, commit: str
) -> Iterator[tuple[str, Worktree, int]]:
    """Reserve a name for a new worktree, and hold its lock while the block runs; yield the lock's descriptor last."""
    os.makedirs(_homes(site), mode=0o700, exist_ok=True)
    name, home = _reserve(site, repository, target)
    with _lock(f"{home}/lock") as lock_fd:
        record = Worktree(
            name,
            target,
            branch,
            commit,
            "",
            repository.work_tree,
            f"{repository.common_directory}/worktrees/{name}",
            time.time(),
            "adding",
            not os.path.lexists(target),
        )
        _save(home, record)
        os.rename(home, f"{_homes(site)}/{name}")
        yield f"{_homes(site)}/{name}", record, lock_fd


def _reserve(site: Site, repository: Repository, target: str) -> tuple[str, str]:
    """Create the directory in ``.git/worktrees`` under a free name; return the name and a new home for its record."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(target)).strip(".-")[:100] or "worktree"
    worktrees = f"{repository.common_directory}/worktrees"
    home = f"{_homes(site)}/.new-{os.getpid()}-{secrets.token_hex(4)}"
    with _lock(f"{_homes(site)}/lock"):
        list(_recover(site))
        if any(record.path == target for _, record in _read_all(site)):
            raise BranchError(f"{target} belongs to another worktree already; choose another path")
        os.makedirs(worktrees, exist_ok=True)
        for number in range(1, 10_000):
            name = stem if number == 1 else f"{stem}-{number}"
            directory = f"{worktrees}/{name}"
            if os.path.lexists(f"{_homes(site)}/{name}") or os.path.lexists(directory):
                continue
            os.mkdir(home, 0o700)
            with open(f"{home}/{_RECORD}", "w", encoding="ascii") as file:
                json.dump({"git_directory": directory}, file)  # recovery reads it if this process is killed
            with suppress(FileExistsError):  # git has made it meanwhile
                os.mkdir(directory)
                return name, home
            os.unlink(f"{home}/{_RECORD}")
            os.rmdir(home)
    raise BranchError(f"no name is left for a worktree {stem!r}; remove some of them")


@contextmanager
def _owned(site: Site, worktree: Worktree) -> Iterator[str]:
    """Hold the lock of an existing worktree for the block."""
    home = f"{_homes(site)}/{worktree.name}"
    with _lock(f"{home}/lock", waits=False) as lock_fd:
        if lock_fd < 0:
            raise BranchError(
                f"another process is adding, mounting or removing the worktree {worktree.path}; try again"
            )
        if not os.path.isdir(home):
            raise BranchNotFoundError(f"the worktree {worktree.path} was removed", branch=worktree.name)
        yield home


def _save(home: str, record: Worktree) -> None:
    path = f"{home}/{_RECORD}"
    replace_file(path, json.dumps({"format": _FORMAT, **asdict(record)}), beside=f"{path}.new")


def _load(home: str) -> Worktree:
    document, _ = read_document(f"{home}/{_RECORD}", newest=_FORMAT)
    with damage_reported(f"{home}/{_RECORD}"):
        record = Worktree(**document)
        for text in (record.name, record.branch, record.start, record.view):
            check_text(text, "text")
        for path in (record.path, record.source, record.git_directory):
            if not os.path.isabs(check_text(path, "path")) or _CONTROL.search(path):
                raise ValueError("a path in it is none")
        check_time(record.created, "time")
        check_type(record.has_made_directory, bool, "mark")
        if record.name != os.path.basename(home) or record.phase not in get_args(_Phase):
            raise ValueError("its name or its phase is invalid")
        if record.view not in ("", *VIEWS) or os.path.basename(record.git_directory) != record.name:
            raise ValueError("its view or its directory is invalid")
        return record


def _read_all(site: Site) -> Iterator[tuple[str, Worktree]]:
    try:
        names = sorted(name for name in os.listdir(_homes(site)) if not name.startswith(".") and name != "lock")
    except FileNotFoundError:
        return
    for name in names:
        home = f"{_homes(site)}/{name}"
        try:
            yield home, _load(home)
        except FileNotFoundError:
            continue
        except StateError as error:
            warnings.warn(f"the worktree {name!r} is left out: {error}", ForkwiseWarning, stacklevel=4)


def _recovered(site: Site) -> list[tuple[str, Worktree]]:
    """Finish what killed processes left, and return the worktrees, oldest first."""
    if not os.path.isdir(_homes(site)):
        return []
    with _lock(f"{_homes(site)}/lock"):
        return sorted(_recover(site), key=lambda pair: (pair[1].created, pair[1].name))


def _recover(site: Site) -> Iterator[tuple[str, Worktree]]:
    """Revert or finish what killed processes left; yield the rest. Called under the lock of all worktrees."""
    for name in os.listdir(_homes(site)):
        if name.startswith(".new-") and not os.path.exists(f"/proc/{name.split('-')[1]}"):
            _discard_reservation(site, f"{_homes(site)}/{name}")
    for home, record in list(_read_all(site)):
        if record.phase == "ready":
            if record.state == "unknown to git" and record.is_mount and not _has_files(f"{home}/layer"):
                with suppress(BranchingError, OSError), _lock(f"{home}/lock", waits=False) as lock_fd:
                    if lock_fd >= 0:  # git worktree remove has emptied it, and cannot remove a mount point
                        _unmount_any(record)
                        _finish_removal(home, record)
                        continue
            yield home, record
            continue
        with _lock(f"{home}/lock", waits=False) as lock_fd:
            if lock_fd < 0:
                continue  # its process is at work
            if record.phase == "adding":
                _revert(home, record)
            else:
                _unmount_any(record)
                _finish_removal(home, record)


def _discard_reservation(site: Site, home: str) -> None:
    """Remove a home that a killed process had not published, with its directory in ``.git/worktrees``."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        with open(f"{home}/{_RECORD}", encoding="ascii") as file:
            directory = json.load(file)["git_directory"]
        if isinstance(directory, str) and not os.listdir(directory):
            os.rmdir(directory)
    discard(StateDir(site.state, site.state), home)


# Making and removing


def _make(
    site: Site,
    repository: Repository,
    home: str,
    record: Worktree,
    views: tuple[str, ...],
    lock_fd: int,
    *,
    is_copied: bool,
) -> Worktree:
    """Make the files of a worktree with the first of ``views`` that works, and register it with git."""
    pointer = f"gitdir: {record.git_directory}\n"
    nested = list(find_nested_pointers(repository))
    link_worktree(
        repository,
        record.git_directory,
        record.path,
        branch=record.branch,
        lock_reason=f"a mount made by forkwise: remove it with forkwise worktree remove {record.path}",
        copies_index=is_copied,
    )
    os.makedirs(os.path.dirname(record.path), exist_ok=True)
    failures: list[BranchingError] = []
    for view in views:
        record = replace(record, view=view)
        _save(home, record)
        try:
            if record.is_mount:
                if not os.path.isdir(f"{home}/layer"):
                    make_layer(repository.work_tree, home)
                    _write_pointer(f"{home}/layer/.git", pointer)
                if record.has_made_directory and not os.path.isdir(record.path):
                    os.mkdir(record.path)
                mount_files(view, site, repository.work_tree, home, record.path)
            else:
                copy = _copy_path(record)
                copy_files(view, repository.work_tree, copy, lock_fd)
                _write_pointer(f"{copy}/.git", pointer)
                os.rename(copy, record.path)
        except BranchingError as error:
            failures.append(error)
            if len(views) == 1:
                raise
            _remove_copy(record)
            continue
        break
    else:
        raise failures[0]
    for path in nested:
        with suppress(FileNotFoundError):
            os.unlink(f"{record.path}/{path}")
    if not record.is_mount:
        if is_copied:
            refresh_index(f"{record.git_directory}/index", repository.work_tree, record.path)
        os.unlink(f"{record.git_directory}/locked")  # git itself can remove and prune a plain directory
    return record


def _write_pointer(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        file.write(os.fsencode(text))


def _check_out(record: Worktree, *, clean: bool) -> None:
    """Set the tracked files, and with ``clean`` the untracked ones, to what the commit of the worktree has."""
    repository = find_repository(record.path)
    assert repository is not None
    if record.start:
        _refuse_filters(repository, record)
        done = repository.run("read-tree", "--reset", "-u", record.start, directory=record.path)
        if done.returncode != 0:
            raise GitError(f"git could not check out {record.start[:10]}: {os.fsdecode(done.stderr).strip()}")
    if clean:
        done = repository.run("clean", "--quiet", "-f", "-d", directory=record.path)
        if done.returncode != 0:
            raise GitError(f"git clean failed in {record.path}: {os.fsdecode(done.stderr).strip()}")


def _refuse_filters(repository: Repository, record: Worktree) -> None:
    """Copy the checkout's index for ``read-tree``, and raise GitError if git would filter a file that it writes."""
    source = locate_repository(record.source)
    assert source is not None
    with suppress(FileNotFoundError):
        content = read_regular(f"{source.git_directory}/index")
        with open(f"{repository.git_directory}/index", "wb") as file:
            file.write(content)
    changed = repository.run("diff-index", "-z", "--name-only", "--no-renames", record.start, directory=record.path)
    asked = repository.run("check-attr", "-z", "--stdin", "filter", directory=record.path, stdin=changed.stdout)
    found = os.fsdecode(asked.stdout).split("\0")
    for path, value in zip(found[::3], found[2::3], strict=False):
        if value not in ("unspecified", "unset", ""):
            raise GitError(
                f"git filters {path} through {value!r} (.gitattributes), which forkwise does not run: add the worktree "
                "without --from and --clean, and check out with git in it"
            )


def _copy_path(record: Worktree) -> str:
    """Return where files are copied to first, so that the worktree appears complete."""
    return f"{os.path.dirname(record.path)}/.{record.name}.forkwise-copy"


def _remove_copy(record: Worktree) -> None:
    if record.view not in ("", *_MOUNTED):
        _remove_directory(_copy_path(record))


def _remove_directory(path: str) -> None:
    above, name = os.path.split(path)
    with suppress(FileNotFoundError), closing_fd(open_root(above)) as parent:
        remove_tree(parent, name)


def _unmount_any(record: Worktree) -> None:
    if record.is_mount and is_mounted(record.path):
        unmount_files(record.view, record.path, lazily=True)


def _revert(home: str, record: Worktree) -> None:
    """Remove everything that exists so far of a worktree that was being added."""
    with suppress(FileNotFoundError, StateError):
        record = _load(home)  # the view that was tried last
    _unmount_any(record)
    _remove_copy(record)
    if not record.is_mount and record.view and _is_own(record):
        _remove_directory(record.path)
    _remove_rest(home, record)


def _is_own(record: Worktree) -> bool:
    """Return whether the directory at the path of a worktree is that worktree."""
    with suppress(OSError, GitError):
        return read_pointer(f"{record.path}/.git") == f"gitdir: {record.git_directory}\n"
    return False


def _finish_removal(home: str, record: Worktree) -> bool:
    """Remove what is left of a worktree that is not mounted any more; return whether its branch was removed."""
    if not record.is_mount and _is_own(record):
        os.rename(record.path, _copy_path(record))
    _remove_copy(record)  # also if a killed process had renamed it
    return _remove_rest(home, record)


def _remove_rest(home: str, record: Worktree) -> bool:
    if record.has_made_directory:
        with suppress(OSError):  # it is not empty, so it holds files of the user
            os.rmdir(record.path)
        with suppress(OSError):
            if os.path.dirname(record.path).endswith(".worktrees"):
                os.rmdir(os.path.dirname(record.path))
    is_removed = False
    repository = _repository_of(record)
    if _holds(record):
        unlink_worktree(record.git_directory)
    if repository is not None and record.start:
        with suppress(GitError):
            is_removed = delete_branch(repository, record.branch, record.start, record.name)
    state = os.path.dirname(os.path.dirname(home))
    discard(StateDir(state, state), home)
    return is_removed


def _holds(record: Worktree) -> bool:
    """Return whether the directory in ``.git/worktrees`` is this worktree's, and not a later one of the same name."""
    pointer = read_pointer(f"{record.git_directory}/gitdir")
    return pointer is None or pointer.rstrip("\n") == f"{record.path}/.git"


def _repository_of(record: Worktree) -> Repository | None:
    common = os.path.dirname(os.path.dirname(record.git_directory))
    for directory in (record.source, os.path.dirname(common)):
        with suppress(OSError, GitError):
            found = locate_repository(directory)
            if found is not None and found.common_directory == common:
                return found
    return None


# Work that would be lost


def _find_staged(repository: Repository, worktree: Worktree, paths: list[str]) -> set[str]:
    """Return the staged paths that are not staged in the checkout too."""
    source = locate_repository(worktree.source)
    own = _read_staged(repository, paths)
    other = {} if source is None else _read_staged(source, paths)
    return {path for path in paths if own.get(path) != other.get(path)}


def _read_staged(repository: Repository, paths: list[str]) -> dict[str, str]:
    done = repository.run("--literal-pathspecs", "ls-files", "--stage", "-z", "--", *paths)
    rows = [row.partition("\t") for row in os.fsdecode(done.stdout).split("\0") if row]
    return {path: facts for facts, _, path in rows}


def _is_same(one: str, other: str) -> bool:
    """Return whether two paths have the same type, mode and content, or both are missing."""
    first, second = _stat(one), _stat(other)
    if first is None or second is None:
        return first is second
    if first.st_mode != second.st_mode or (first.st_size != second.st_size and not stat.S_ISDIR(first.st_mode)):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    if not stat.S_ISREG(first.st_mode):
        return stat.S_ISDIR(first.st_mode)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(one, flags), "rb") as a, open(os.open(other, flags), "rb") as b:
        while (chunk := a.read(_CHUNK)) == b.read(_CHUNK):
            if not chunk:
                return True
    return False


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _walk(layer: str) -> Iterator[tuple[str, os.stat_result]]:
    pending = [layer]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                yield entry.path, found
                if stat.S_ISDIR(found.st_mode):
                    pending.append(entry.path)


def _has_files(layer: str) -> bool:
    """Return whether a layer has files other than ``.git``; whiteouts do not count."""
    return any(
        stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        for path, found in _walk(layer)
        if path != f"{layer}/.git"
    )


def _has_changed(layer: str, since: int) -> bool:
    """Return whether something in a layer was changed after a time."""
    return any(found.st_ctime_ns > since and not stat.S_ISDIR(found.st_mode) for _, found in _walk(layer))
