"""A git repository of the workspace while new contents of its files are worked out.

Nothing here changes the repository, except that git adds objects: contents, locks and sentences are collected in a
RepositoryMerge, which the journal of a commit or an undo carries out.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forkwise.errors import GitError
from forkwise.git.program import parse_settings
from forkwise.git.repository import Repository, find_repository
from forkwise.git.repository_change import SHA256_SIZE, RepositoryMerge, RepositorySide, identify

__all__ = [
    "RepositoryEdit",
    "check_format",
    "describe_reference",
    "drop_packed",
    "open_repository",
    "read_entries",
    "shorten_reference",
    "write_index",
]

_MOST_PATHSPECS = 500
_EXTENSIONS = {
    "noop": r".*",
    "objectformat": r"sha1|sha256",
    "refstorage": r"files",
    "worktreeconfig": r"true|false|1|0|yes|no|on|off",
    "partialclone": r".*",
    "preciousobjects": r"true|false|1|0|yes|no|on|off",
}


@dataclass(slots=True)
class RepositoryEdit:
    """A repository of the workspace and what is to be done in it; ``directory`` is relative to the workspace."""

    workspace: str
    directory: str
    repository: Repository
    merge: RepositoryMerge
    label: str

    @property
    def top(self) -> str:
        return self.directory.removesuffix("/.git").removesuffix(".git")

    def tell(self, sentence: str) -> None:
        self.merge.sentences.append(f"{self.top}: {sentence}" if self.top else sentence)

    def give_up(self, sentence: str) -> None:
        """Drop all changes to files of the repository, and add ``sentence``, which tells the user why."""
        for path in [path for path in self.merge.contents if path.startswith(f"{self.directory}/")]:
            del self.merge.contents[path]
        self.tell(sentence)

    def write(self, inside: str, content: bytes | None) -> None:
        """Replace the content of a file of the repository, under git's lock for it; None deletes the file."""
        path = f"{self.directory}/{inside}"
        self.merge.contents[path] = content
        self.merge.seen.setdefault(path, identify(f"{self.workspace}/{path}"))
        if not inside.startswith("logs/"):
            self.lock(inside)

    def lock(self, inside: str) -> None:
        lock = f"{self.directory}/{inside}.lock"
        if lock not in self.merge.locks:
            self.merge.locks.append(lock)

    def watch(self, inside: str) -> None:
        path = f"{self.directory}/{inside}"
        self.merge.seen.setdefault(path, identify(f"{self.workspace}/{path}"))

    def git(self, *words: str, stdin: bytes = b"", index: str | None = None) -> bytes:
        """Run git on the workspace's repository and return the output. Raises GitError if it fails."""
        done = self.run(*words, stdin=stdin, index=index)
        if done.returncode != 0:
            raise GitError(f"git {words[0]} failed: {os.fsdecode(done.stderr).strip()[:300]}")
        return done.stdout

    def run(self, *words: str, stdin: bytes = b"", index: str | None = None) -> subprocess.CompletedProcess[bytes]:
        return self.repository.run(
            *words, directory=self.repository.work_tree, stdin=stdin, index=index or f"{os.devnull}-none"
        )

    @property
    def is_sha256(self) -> bool:
        """Whether ids have 64 digits."""
        return RepositorySide(self.repository.git_directory).id_size == SHA256_SIZE

    @property
    def who(self) -> str:
        """The identity for lines of logs, in git's form."""
        name = re.sub(r"[\x00-\x1f<>]", "", self.repository.settings.get("user.name", "")) or "forkwise"
        email = re.sub(r"[\x00-\x20<>]", "", self.repository.settings.get("user.email", "")) or "forkwise@localhost"
        return f"{name} <{email}> {int(time.time())} {time.strftime('%z')}"


def open_repository(directory: str) -> Repository:
    """Open the repository in a directory. Raises GitError if forkwise cannot work on its files."""
    if os.path.islink(directory) or not os.path.isdir(directory):
        raise GitError(f"{directory} is not a directory")
    top = os.path.dirname(directory)
    found = find_repository(top) if os.path.basename(directory) == ".git" else None
    if found is None or found.git_directory != directory:
        outer = find_repository(top)  # the identity of who commits
        settings = {} if outer is None else outer.settings
        found = Repository(directory, directory, directory, settings)
    for name in ("config", "HEAD", "index", "packed-refs", "objects", "refs", "logs"):
        if os.path.islink(f"{directory}/{name}"):
            raise GitError(f"{directory}/{name} is a symbolic link; forkwise follows none inside a git repository")
    try:
        with open(f"{directory}/config", "rb") as file:
            check_format(file.read(1 << 20))
    except FileNotFoundError:
        pass
    if os.path.isdir(f"{directory}/reftable"):
        raise GitError("its references are stored as reftable, which forkwise does not merge")
    return found


def check_format(content: bytes) -> None:
    """Raise GitError if a repository has a format that forkwise, or the installed git, does not know."""
    settings = parse_settings(content)
    if settings is None:
        raise GitError("git cannot parse its configuration")
    for name, value in settings:
        lower = name.lower()
        if lower == "core.repositoryformatversion" and value not in ("0", "1"):
            raise GitError(f"its repository format {value} is not known to the installed git")
        if lower.startswith("extensions."):
            pattern = _EXTENSIONS.get(lower.removeprefix("extensions."))
            if pattern is None or not re.fullmatch(pattern, value, re.IGNORECASE):
                raise GitError(f"its format has the extension {name}={value}, which forkwise does not merge")


def read_entries(edit: RepositoryEdit, index: str, paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the mode and the id that an index has for each of ``paths``."""
    wanted = set(paths)
    few = [f":(literal){path}" for path in wanted] if len(wanted) <= _MOST_PATHSPECS else []
    output = os.fsdecode(edit.git("ls-files", "-s", "-z", "--", *few, index=index))
    found = {}
    for row in output.split("\0"):
        facts, _, path = row.partition("\t")
        if path in wanted:
            mode, blob, stage = facts.split()
            if stage == "0":
                found[path] = (mode, blob)
    return found


def write_index(edit: RepositoryEdit, index: str, rows: Mapping[str, tuple[str, str] | None]) -> bytes:
    """Return the content of a copy of an index with ``rows`` as the entries of their paths; None removes an entry."""
    zero = "0" * (64 if edit.is_sha256 else 40)
    text = "".join(f"0 {zero} 0\t{p}\0" if row is None else f"{row[0]} {row[1]} 0\t{p}\0" for p, row in rows.items())
    skipped = _list_skipped(edit, index, rows)
    edit.git("update-index", "-z", "--index-info", stdin=os.fsencode(text), index=index)
    if skipped:
        names = "".join(f"{path}\0" for path in skipped)
        edit.git("update-index", "-z", "--skip-worktree", "--stdin", stdin=os.fsencode(names), index=index)
    with open(index, "rb") as file:
        return file.read()


def _list_skipped(edit: RepositoryEdit, index: str, rows: Mapping[str, tuple[str, str] | None]) -> list[str]:
    """List the paths that a sparse checkout has no file for."""
    if not os.path.isfile(f"{edit.repository.git_directory}/info/sparse-checkout"):
        return []
    output = os.fsdecode(edit.git("ls-files", "-t", "-z", index=index))
    return [row[2:] for row in output.split("\0") if row[:1] == "S" and rows.get(row[2:]) is not None]


def drop_packed(content: bytes, name: str) -> bytes:
    """Return packed references without ``name``, and without the line with the commit that a tag peels to."""
    lines, skipping = [], False
    for line in content.splitlines(keepends=True):
        if skipping and line.startswith(b"^"):
            continue
        skipping = line.rstrip(b"\n").partition(b" ")[2] == os.fsencode(name) and not line.startswith(b"#")
        if not skipping:
            lines.append(line)
    return b"".join(lines)


def shorten_reference(name: str) -> str:
    """Return a reference without ``refs/heads/`` or ``refs/tags/``."""
    return name.removeprefix("refs/heads/").removeprefix("refs/tags/")


def describe_reference(name: str) -> str:
    """Return a reference as a message names it: ``branch main``, ``tag v1``, or its full name."""
    if name.startswith("refs/heads/"):
        return f"branch {shorten_reference(name)}"
    return f"tag {shorten_reference(name)}" if name.startswith("refs/tags/") else name
