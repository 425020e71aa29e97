"""Repositories: finding the one that a directory is in, and running git on a shadow of it (see ``program``)."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from forkwise.errors import GitError
from forkwise.git.program import parse_settings, read_user_settings, run_git
from forkwise.linux.scratch_directory import scratch_directory

__all__ = ["Repository", "check_owner", "find_repository", "locate_repository", "read_pointer", "read_regular"]

_LONGEST_POINTER = 4096
_HEAD = re.compile(r"(?:ref: (?P<ref>refs/heads/[^\x00-\x20\x7f]+)|(?P<id>[0-9a-f]{40,64}))\s*\Z")

#: Settings of a repository that say how it is stored and how files are compared. None of them names a program or path.
_FACTS = {
    "core.repositoryformatversion": r"[01]",
    "core.filemode": r"true|false",
    "core.symlinks": r"true|false",
    "core.ignorecase": r"true|false",
    "core.precomposeunicode": r"true|false",
    "core.autocrlf": r"true|false|input",
    "core.eol": r"lf|crlf|native",
    "core.sharedrepository": r"\w+",
    "extensions.objectformat": r"sha1|sha256",
    "extensions.refstorage": r"files|reftable",
    "user.name": r"[^\x00-\x1f]*",
    "user.email": r"[^\x00-\x1f]*",
    "user.useconfigonly": r"true|false",
}
_USER_FACTS = ("user.name", "user.email", "user.useconfigonly", "core.autocrlf", "core.eol", "core.excludesfile")
_LINKS = ("refs", "packed-refs", "shallow", "info", "reftable")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository: its work tree, its own directory, and the one that linked work trees have in common.

    ``settings`` say who commits, which files to ignore and how lines end, as the user's and the repository's
    configuration had them when the repository was found. ``signs`` is whether the user's own configuration asks for
    signed commits.
    """

    work_tree: str
    git_directory: str
    common_directory: str
    settings: Mapping[str, str] = field(default_factory=dict)
    signs: bool = False

    def run(
        self,
        *words: str,
        directory: str | os.PathLike[str] | None = None,
        index: str | None = None,
        stdin: bytes = b"",
        identity: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git in ``directory`` of the work tree, with another ``index`` if one is given.

        Raises GitError if the repository has links that git would follow out of it.
        """
        with self._shadow() as shadow:
            variables = {
                "GIT_WORK_TREE": self.work_tree,
                "GIT_OBJECT_DIRECTORY": _checked(f"{self.common_directory}/objects"),
                "GIT_INDEX_FILE": index or _checked(f"{self.git_directory}/index"),
                **(identity or {}),
            }
            before = Path(shadow, "HEAD").read_bytes()
            done = run_git(
                words,
                directory or self.work_tree,
                git_directory=shadow,
                variables=variables,
                settings=self.settings,
                stdin=stdin,
            )
            if (after := Path(shadow, "HEAD").read_bytes()) != before:
                self._move_head(before, after)
        return done

    def check_reference(self, name: str) -> None:
        """Raise GitError if a reference or its log is, or is below, a symbolic link: git would write through it."""
        for top, path in ((self.common_directory, name), (self.common_directory, f"logs/{name}")):
            for parent in [*Path(path).parents][-2::-1]:
                _checked(f"{top}/{parent}")
            _checked(f"{top}/{path}")

    @property
    def head(self) -> str | None:
        """The reference that ``HEAD`` names; None if it is detached."""
        found = _HEAD.match(read_pointer(f"{self.git_directory}/HEAD") or "")
        if found is None:
            raise GitError(f"{self.git_directory}/HEAD names neither a branch nor a commit")
        return found["ref"]

    def find_commit(self, revision: str = "HEAD") -> str | None:
        """Return the id of a commit; None if there is none."""
        done = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return done.stdout.decode("ascii").strip() if done.returncode == 0 else None

    @contextmanager
    def _shadow(self) -> Iterator[str]:
        with scratch_directory("git") as shadow:
            # Its HEAD is a copy, because git refuses one that is a symbolic link to anything but a reference.
            self.head  # noqa: B018 - raises GitError if it is neither kind
            Path(shadow, "HEAD").write_bytes(os.fsencode(read_pointer(f"{self.git_directory}/HEAD") or ""))
            for name in _LINKS:
                os.symlink(_checked(f"{self.common_directory}/{name}"), f"{shadow}/{name}")
            os.mkdir(f"{shadow}/logs")
            os.symlink(_checked(f"{self.git_directory}/logs/HEAD"), f"{shadow}/logs/HEAD")
            os.symlink(_checked(f"{self.common_directory}/logs/refs"), f"{shadow}/logs/refs")
            for name in os.listdir(self.git_directory):
                if name.startswith("sharedindex."):
                    os.symlink(_checked(f"{self.git_directory}/{name}"), f"{shadow}/{name}")
            lines = [_format(name, value) for name, value in self._facts().items() if not name.startswith("user.")]
            Path(shadow, "config").write_text("".join(lines), errors="surrogateescape")
            yield shadow

    def prepare_logs(self) -> None:
        """Create the directories of the logs of references, as git does before it writes the first entry."""
        for top in {self.git_directory, self.common_directory}:
            _checked(f"{top}/logs")
            os.makedirs(f"{top}/logs", exist_ok=True)
        _checked(f"{self.common_directory}/logs/refs")
        os.makedirs(f"{self.common_directory}/logs/refs", exist_ok=True)

    def _facts(self) -> dict[str, str]:
        try:
            content = read_regular(f"{self.common_directory}/config")
        except FileNotFoundError:
            content = b""
        found = parse_settings(content)
        if found is None:
            raise GitError(f"git cannot parse {self.common_directory}/config")
        return {n: v for n, v in found if n in _FACTS and re.fullmatch(_FACTS[n], v, re.IGNORECASE)}

    def _move_head(self, before: bytes, after: bytes) -> None:
        """Replace a detached ``HEAD`` as git does: through a lock file, and only if it is still ``before``."""
        path = f"{self.git_directory}/HEAD"
        try:
            fd = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise GitError(f"{path}.lock exists: another git process changes HEAD, or one crashed") from None
        try:
            with open(fd, "wb") as file:
                file.write(after)
            if os.fsencode(read_pointer(path) or "") != before:
                raise GitError(f"{path} was changed by another process")
            os.rename(f"{path}.lock", path)
        except BaseException:
            os.unlink(f"{path}.lock")
            raise


def find_repository(directory: str | os.PathLike[str]) -> Repository | None:
    """Find the repository that a directory is in, as git does, without running anything; None if it is in none.

    Only entries called ``.git`` count: a directory that merely looks like a bare repository does not. Raises GitError
    for a repository of another user that the user's own configuration does not list as safe.
    """
    found = locate_repository(directory)
    if found is None:
        return None
    check_owner(found)
    own = dict(read_user_settings(found.git_directory))
    settings = {name: own[name] for name in _USER_FACTS if name in own} | found._facts()
    return replace(
        found,
        settings={name: value for name, value in settings.items() if name in _USER_FACTS},
        signs=own.get("commit.gpgsign", "").lower() in ("true", "yes", "on", "1"),
    )


def locate_repository(directory: str | os.PathLike[str]) -> Repository | None:
    """Find the repository that a directory is in, without its settings; it may belong to another user."""
    path = os.path.realpath(directory)
    device = os.stat(path).st_dev
    while os.stat(path).st_dev == device:
        if (found := _repository_at(path)) is not None:
            return found
        if path == "/":
            return None
        path = os.path.dirname(path)
    return None


def _repository_at(path: str) -> Repository | None:
    try:
        entry = os.lstat(f"{path}/.git")
    except OSError:
        return None
    if stat.S_ISDIR(entry.st_mode):
        git_directory = f"{path}/.git"
    elif stat.S_ISREG(entry.st_mode):
        target = (read_pointer(f"{path}/.git") or "").removeprefix("gitdir: ").rstrip("\n")
        git_directory = os.path.normpath(os.path.join(path, target))
    else:
        raise GitError(f"{path}/.git is neither a directory nor a file; forkwise follows no link to a repository")
    if not os.path.isfile(f"{git_directory}/HEAD"):
        return None
    common = (read_pointer(f"{git_directory}/commondir") or ".").rstrip("\n")
    return Repository(path, git_directory, os.path.normpath(os.path.join(git_directory, common)))


def check_owner(repository: Repository) -> None:
    """Raise GitError if it belongs to another user, as git does (``safe.directory``)."""
    users = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdigit():
        users.add(int(os.environ["SUDO_UID"]))
    places = {repository.work_tree, repository.git_directory, repository.common_directory}
    if all(os.stat(place).st_uid in users for place in places):
        return
    safe = [value for name, value in read_user_settings(os.devnull) if name == "safe.directory"]
    safe = safe[len(safe) - safe[::-1].index("") :] if "" in safe else safe  # an empty value clears the list
    if "*" in safe or repository.work_tree in safe:
        return
    raise GitError(
        f"the git repository {repository.work_tree} belongs to another user; if you trust it, run "
        f"git config --global --add safe.directory {repository.work_tree}"
    )


def read_pointer(path: str) -> str | None:
    """Read a small file that holds a path or a reference; None if there is no such file."""
    try:
        return os.fsdecode(read_regular(path)[:_LONGEST_POINTER])
    except FileNotFoundError:
        return None


def read_regular(path: str) -> bytes:
    """Read a regular file of a repository. Raises GitError if it is a link or anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise GitError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise GitError(f"{path} is not a regular file")
    with open(fd, "rb") as file:
        return file.read()


def _checked(path: str) -> str:
    """Return a path inside a repository. Raises GitError if it is a symbolic link, which an attempt may have made."""
    if os.path.islink(path):
        raise GitError(f"{path} is a symbolic link; forkwise follows none inside a git repository")
    return path


def _format(name: str, value: str) -> str:
    section, _, key = name.rpartition(".")
    return f'[{section}]\n\t{key} = "{value}"\n'
