"""RepositoryChange: what a branch did to a git repository of its workspace, apart from the files.

A path is part of a repository if a name in it is ``.git``, or if it is below the directory that ``GIT_DIR`` names in
the workspace. Only changed paths are looked at, so the cost depends on the changes. Nothing here runs git, and whatever
a branch wrote is data: it is bounded, matched against the form that git gives it, and otherwise left out.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forkwise.errors import GitError
from forkwise.text.phrases import format_number

if TYPE_CHECKING:
    from forkwise.files.store.scan import Entry
    from forkwise.files.versions import Versions

__all__ = [
    "LogLine",
    "ReferenceChange",
    "RepositoryChange",
    "RepositoryMerge",
    "RepositorySide",
    "find_repository_paths",
    "format_left_repositories",
    "is_data",
    "list_repositories",
    "parse_log",
    "read_head_commit",
    "read_index_entries",
    "read_repository_changes",
    "summarize_repositories",
]

_LARGEST = 64 << 20
_MOST_LINES = 10_000
#: Sizes and a flag of the entries of an index.
_INDEX_STAT_SIZE = 40
_SHA1_SIZE = 20
SHA256_SIZE = 32
_INDEX_EXTENDED = 0x4000
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SHA256 = re.compile(rb"^[ \t]*objectformat[ \t]*=[ \t]*\"?sha256", re.IGNORECASE | re.MULTILINE)
_NO_OBJECT = re.compile(r"0+\Z")
_REFERENCE = re.compile(r"refs/(?:[^\x00-\x20\x7f~^:?*\[\\/]+/)*[^\x00-\x20\x7f~^:?*\[\\/]+\Z")
_LOG_LINE = re.compile(
    r"([0-9a-f]{40,64}) ([0-9a-f]{40,64}) ([^\x00-\x1f\x7f]*? [0-9]{1,18} [+-][0-9]{4})(?:\t(.*))?\Z"
)
_HEAD = re.compile(r"ref: (refs/heads/\S+)\s*\Z")

#: What git keeps in a repository's directory besides configuration, hooks and lists of patterns.
_DATA_DIRECTORIES = {"refs", "logs", "objects", "rebase-merge", "rebase-apply", "sequencer", "worktrees", "reftable"}
_DATA_FILES = re.compile(
    r"HEAD|index|packed-refs|shallow|[A-Z]+_HEAD|(MERGE|SQUASH|TAG|COMMIT|NOTES)_[A-Z_]+|AUTO_MERGE|BISECT_[A-Z_]+|gc\.\w+"
    r"|sharedindex\.[0-9a-f]+|description|.*\.lock|.*~|index\..*|fsmonitor--daemon.*"
)
#: States of a command that is not finished, such as a merge with conflicts.
OPERATIONS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "BISECT_LOG")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log of a reference: the ids before and after, who and when, and the message."""

    old: str
    new: str
    who: str
    message: str

    def __str__(self) -> str:
        return f"{self.old} {self.new} {self.who}\t{self.message}\n"


@dataclass(frozen=True, slots=True)
class ReferenceChange:
    """A reference that a branch created (``old`` is None), moved or deleted (``new`` is None).

    ``commits`` counts the commits that its log says were made.
    """

    name: str
    old: str | None
    new: str | None
    commits: int = 0

    def __str__(self) -> str:
        kind, _, short = self.name.removeprefix("refs/").partition("/")
        what = {"heads": f"branch {short}", "tags": f"tag {short}"}.get(kind, self.name)
        if self.new is None:
            return f"{what} deleted"
        if self.commits:
            place = short if kind == "heads" else self.name
            return f"{format_number(self.commits, 'commit')} on {place}"
        return f"{what} {'created' if self.old is None else 'moved'}"


@dataclass(frozen=True, slots=True)
class RepositoryChange:
    """What a branch did to one repository; ``path`` is its work tree relative to the workspace, empty at the top.

    ``head`` is the branch or the commit that it checked out. ``is_new`` says that the workspace has no such repository.

    >>> str(RepositoryChange(references=(ReferenceChange("refs/heads/main", "a", "b", 2),), index=True))
    '2 commits on main, index changed'
    """

    path: str = ""
    references: tuple[ReferenceChange, ...] = ()
    head: str | None = None
    index: bool = False
    configuration: bool = False
    stashes: int = 0
    is_new: bool = False
    problem: str = ""

    def __str__(self) -> str:
        parts = ["new repository"] if self.is_new else []
        parts += [str(reference) for reference in self.references]
        parts += [f"{self.head} checked out"] if self.head else []
        parts += [format_number(self.stashes, "stash")] if self.stashes else []
        parts += ["index changed"] if self.index else []
        parts += ["configuration changed"] if self.configuration else []
        parts += [self.problem] if self.problem else []
        return f"{self.path}: {', '.join(parts)}" if self.path else ", ".join(parts)

    def __bool__(self) -> bool:
        return bool(
            self.references
            or self.head
            or self.index
            or self.configuration
            or self.stashes
            or self.is_new
            or self.problem
        )


def summarize_repositories(changes: Iterable[RepositoryChange]) -> str:
    """Return what a branch did to all repositories in a few words, for a column, without any name the branch chose.

    >>> moved = ReferenceChange("refs/heads/main", "a", "b", 2), ReferenceChange("refs/tags/v1", None, "b")
    >>> summarize_repositories([RepositoryChange(references=moved, index=True)])
    '2 commits, 1 tag'
    """
    found = list(changes)
    references = [reference for change in found for reference in change.references]
    quiet = [reference.name for reference in references if not reference.commits]
    counts = {
        "commit": sum(reference.commits for reference in references),
        "branch": sum(name.startswith("refs/heads/") for name in quiet),
        "tag": sum(name.startswith("refs/tags/") for name in quiet),
        "stash": sum(change.stashes for change in found),
        "new repo": sum(change.is_new for change in found),
        "problem": sum(bool(change.problem) for change in found),
    }
    parts = [format_number(n, word) for word, n in counts.items() if n]
    parts += ["configuration"] if any(change.configuration for change in found) else []
    parts += ["HEAD"] if not parts and any(change.head for change in found) else []
    parts += ["index"] if not parts and any(change.index for change in found) else []
    return ", ".join(parts) or ("references" if references else "")


Identity = tuple[int, int, int, int] | None


@dataclass(slots=True)
class RepositoryMerge:
    """What a commit or an undo has to do in the repositories of a workspace.

    ``left`` are changed paths that must not be applied as files. ``contents`` are the new contents of files, by the
    path relative to the workspace; None deletes. ``seen`` has the identities of the files that this was worked out
    from, ``locks`` the lock files that keep git from changing them. ``sentences`` are for the user, and ``done`` is the
    record that ``revert_repositories`` needs, as JSON values.
    """

    left: set[str] = field(default_factory=set)
    contents: dict[str, bytes | None] = field(default_factory=dict)
    seen: dict[str, Identity] = field(default_factory=dict)
    locks: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)

    def is_current(self, workspace: str) -> bool:
        """Return whether the files that this was worked out from are unchanged."""
        return all(identify(f"{workspace}/{path}") == found for path, found in self.seen.items())


def identify(path: str) -> Identity:
    """Return a value that differs for another file, and after a change of the same file; None if there is no file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def find_repository_paths(workspace: str, paths: Iterable[str]) -> set[str]:
    """Return the ``paths``, relative to a workspace, that are part of a repository.

    A directory of the workspace that is called .git but is not a repository to git does not count.
    """
    own = _find_named(workspace)
    is_plain: dict[str, bool] = {}
    found = set()
    for path in paths:
        names = path.split("/") if ".git" in path else []
        if ".git" in names:
            directory = "/".join(names[: names.index(".git") + 1])
            if directory not in is_plain:
                is_plain[directory] = _is_plain_directory(f"{workspace}/{directory}")
            if not is_plain[directory]:
                found.add(path)
        elif own and f"{path}/".startswith(f"{own}/"):
            found.add(path)
    return found


def _is_plain_directory(path: str) -> bool:
    """Return whether a directory lacks the entries by which git recognizes a repository."""
    return os.path.isdir(path) and not all(os.path.lexists(f"{path}/{name}") for name in ("HEAD", "objects", "refs"))


def _find_named(workspace: str) -> str | None:
    """Return the path of the repository that GIT_DIR names, if that is inside the workspace and not called .git."""
    given = os.environ.get("GIT_DIR")
    if not given:
        return None
    found = os.path.relpath(os.path.realpath(given), os.path.realpath(workspace))
    return None if found == "." or found.split("/")[0] == ".." or ".git" in found.split("/") else found


def list_repositories(workspace: str, paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group paths of repositories by the repository's directory; map each to its path inside that directory.

    The repository of a submodule is a directory of its own, below ``.git/modules``.
    """
    own = _find_named(workspace)
    found: dict[str, dict[str, str]] = {}
    for path in paths:
        names = path.split("/")
        if ".git" in names:
            at = names.index(".git") + 1
        elif own and f"{path}/".startswith(f"{own}/"):
            at = own.count("/") + 1
        else:
            continue
        at = _enter_modules(workspace, names, at)
        found.setdefault("/".join(names[:at]), {})[path] = "/".join(names[at:])
    return found


def _enter_modules(workspace: str, names: list[str], at: int) -> int:
    while at < len(names) and names[at] == "modules":
        for end in range(at + 2, len(names) + 1):
            if os.path.isfile(f"{workspace}/{'/'.join(names[:end])}/HEAD"):
                at = end
                break
        else:
            return at
    return at


def is_data(inside: str) -> bool:
    """Return whether a path inside a repository's directory is data of git's own: neither configuration nor a hook."""
    first, _, rest = inside.partition("/")
    return first in _DATA_DIRECTORIES if rest else first in _DATA_DIRECTORIES or bool(_DATA_FILES.fullmatch(first))


@dataclass(slots=True)
class RepositorySide:
    """One version of a repository's references and logs, read as data: a branch's over the workspace's.

    ``directory`` is the workspace's repository. ``changed`` maps each path inside it that the branch changed to a
    function that reads the new content, or to None if the branch deleted it.
    """

    directory: str
    changed: Mapping[str, Callable[[], bytes] | None] = field(default_factory=dict)
    _packed: dict[str, str] | None = None

    def read(self, inside: str) -> bytes | None:
        """Return the content of a file; None if there is none, or if it is not a regular file of reasonable size."""
        if inside in self.changed:
            read = self.changed[inside]
            return None if read is None else read()
        if any(f"{above}/".startswith(f"{path}/") for path in self._removed() for above in (inside,)):
            return None
        return _read_file(f"{self.directory}/{inside}")

    def _removed(self) -> list[str]:
        return [path for path, read in self.changed.items() if read is None and not path.startswith("objects")]

    @property
    def id_size(self) -> int:
        """The length of an id in bytes."""
        return SHA256_SIZE if _SHA256.search(_read_file(f"{self.directory}/config") or b"") else _SHA1_SIZE

    @property
    def packed(self) -> dict[str, str]:
        """The packed references."""
        if self._packed is None:
            self._packed = _parse_packed(self.read("packed-refs") or b"")
        return self._packed

    def resolve(self, name: str) -> str | None:
        """Return the id that a reference points to; None if there is no such reference or it is symbolic."""
        content = (self.read(name) or b"").decode(errors="replace").strip()
        return content if _ID.fullmatch(content) else None if content else self.packed.get(name)

    @property
    def head(self) -> str | None:
        """The reference or the id in ``HEAD``."""
        text = (self.read("HEAD") or b"").decode(errors="replace").strip()
        match = _HEAD.fullmatch(text)
        if match is not None:
            return match[1] if _is_name(match[1]) else None
        return text if _ID.fullmatch(text) else None

    def log(self, name: str) -> list[LogLine]:
        """Return the log of a reference."""
        return parse_log(self.read(f"logs/{name}") or b"")

    @property
    def names(self) -> set[str]:
        """The references that the branch may have changed."""
        found = {path for path in self.changed if path.startswith("refs/") and _is_name(path)}
        found |= {path.removeprefix("logs/") for path in self.changed if path.startswith("logs/refs/")}
        if "packed-refs" in self.changed:
            before = _parse_packed(_read_file(f"{self.directory}/packed-refs") or b"")
            found |= {name for name, _ in before.items() ^ self.packed.items()}
        return {name for name in found if _is_name(name)}


def _is_name(name: str) -> bool:
    return (
        bool(_REFERENCE.match(name))
        and ".." not in name
        and "@{" not in name
        and not any(part.startswith(".") or part.endswith((".lock", ".")) for part in name.split("/"))
    )


def _parse_packed(content: bytes) -> dict[str, str]:
    found = {}
    for line in content.decode(errors="surrogateescape").splitlines():
        identifier, _, name = line.partition(" ")
        if _ID.fullmatch(identifier) and _is_name(name):
            found[name] = identifier
    return found


def parse_log(content: bytes) -> list[LogLine]:
    """Parse the log of a reference; lines that git would not have written are left out."""
    lines = content.decode(errors="surrogateescape").split("\n")[-_MOST_LINES - 1 :]
    found = (match for line in lines if (match := _LOG_LINE.match(line)) is not None)
    return [LogLine(match[1], match[2], match[3], match[4] or "") for match in found]


def _read_file(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > _LARGEST:
            raise GitError(f"{path} is larger than {_LARGEST >> 20} MiB")
        return file.read()


def read_head_commit(workspace: str) -> str | None:
    """Return the commit that a workspace has checked out, without running git; None if its files do not say.

    That is so if there is no commit yet, or if the repository is elsewhere, as for a linked worktree.
    """
    side = RepositorySide(f"{workspace}/.git")
    try:
        head = side.head
        if head is None or not head.startswith("refs/"):
            return head
        if content := side.read(head):
            identifier = content.decode(errors="replace").strip()
        else:
            # There may be very many packed references: they are searched, not parsed.
            before, found, _ = (side.read("packed-refs") or b"").partition(f" {head}\n".encode())
            identifier = before.rpartition(b"\n")[2].decode(errors="replace") if found else ""
    except (GitError, OSError):
        return None
    return identifier if _ID.fullmatch(identifier) else None


def build_side(directory: str, entries: Mapping[str, Entry], versions: Versions) -> RepositorySide:
    """Return a branch's version of a repository; the keys of ``entries`` are paths inside its ``directory``."""

    def reader(entry: Entry) -> Callable[[], bytes] | None:
        new = entry.new
        if new is None or not stat.S_ISREG(new.st_mode):
            return None
        if new.st_size > _LARGEST and not entry.path.rpartition("/")[2].startswith("pack-"):
            raise GitError(f"{entry.path} of the branch is larger than {_LARGEST >> 20} MiB")
        return lambda: versions.new(entry)

    return RepositorySide(
        directory,
        {
            inside: reader(entry)
            for inside, entry in entries.items()
            if entry.new is None or not stat.S_ISDIR(entry.new.st_mode)
        },
    )


def list_new_lines(theirs: list[LogLine], ours: list[LogLine]) -> tuple[list[LogLine], bool]:
    """Return the lines that a branch added to a log, and whether the workspace has added none of its own since then."""
    common = 0
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            break
        common += 1
    return ours[common:], common == len(theirs)


def read_repository_changes(
    workspace: str, found: Iterable[Entry], open_versions: Callable[[], Versions]
) -> tuple[RepositoryChange, ...]:
    """Return what a branch did to each repository of its workspace, as far as that shows without running git."""
    entries = {entry.path: entry for entry in found}
    paths = find_repository_paths(workspace, entries)
    if not paths:
        return ()
    with open_versions() as versions:
        return tuple(_read_changes(workspace, entries, paths, versions))


def _read_changes(
    workspace: str, entries: Mapping[str, Entry], paths: set[str], versions: Versions
) -> Iterator[RepositoryChange]:
    for directory, inside in sorted(list_repositories(workspace, paths).items()):
        top = directory.removesuffix("/.git").removesuffix(".git")
        own = entries.get(directory)
        if own is not None and own.old is None:
            yield RepositoryChange(top, is_new=True)
            continue
        if own is not None and own.new is None:
            yield RepositoryChange(top, problem="repository deleted")
            continue
        try:
            found = _compare(
                top, f"{workspace}/{directory}", {i: entries[path] for path, i in inside.items()}, versions
            )
        except (GitError, OSError) as error:
            found = RepositoryChange(top, problem=f"cannot be read: {error}")
        if found:
            yield found


def _compare(top: str, directory: str, inside: Mapping[str, Entry], versions: Versions) -> RepositoryChange:
    ours, theirs = build_side(directory, inside, versions), RepositorySide(directory)
    references = []
    for name in sorted(ours.names - {"refs/stash"}):
        old, new = theirs.resolve(name), ours.resolve(name)
        lines, _ = list_new_lines(theirs.log(name), ours.log(name))
        if old != new and (new is None or lines or f"logs/{name}" not in ours.changed):
            commits = sum(1 for line in lines if line.message.startswith(("commit:", "commit (", "cherry-pick:")))
            amended = sum(1 for line in lines if line.message.startswith("commit (amend)"))
            references.append(ReferenceChange(name, old, new, max(commits - amended, 1 if commits else 0)))
    head = ours.head if "HEAD" in inside and ours.head != theirs.head else None
    stashes = len({line.new for line in ours.log("refs/stash")} - {line.new for line in theirs.log("refs/stash")})
    plain = [path for path, entry in inside.items() if path and not is_data(path) and not entry.is_directory]
    return RepositoryChange(
        top,
        tuple(references),
        head.removeprefix("refs/heads/") if head else None,
        "index" in inside and _is_index_changed(ours, theirs),
        bool(plain),
        stashes,
    )


def _is_index_changed(ours: RepositorySide, theirs: RepositorySide) -> bool:
    """Return whether an index lists different content; ``git status`` rewrites it too, only to record file times."""
    before, after = (read_index_entries(side.read("index") or b"", theirs.id_size) for side in (theirs, ours))
    return before is None or after is None or before != after


def read_index_entries(content: bytes, id_size: int = _SHA1_SIZE) -> list[bytes] | None:
    """Return mode, id, stage and path of each entry as one value; None if the file is not in the expected form.

    That is: version 2 or 3, with ids of ``id_size`` bytes and not split into two files. An empty file has no entries.

    >>> read_index_entries(b""), read_index_entries(b"something else")
    ([], None)
    """
    if not content:
        return []
    if content[:4] != b"DIRC" or len(content) < 12:
        return None
    version, count = struct.unpack_from(">II", content, 4)
    if version not in (2, 3) or count > len(content) // 62:
        return None
    entries, at = [], 12
    for _ in range(count):
        fixed = at + _INDEX_STAT_SIZE + id_size
        flags = int.from_bytes(content[fixed : fixed + 2], "big")
        start = fixed + (4 if version == 3 and flags & _INDEX_EXTENDED else 2)
        end = content.find(b"\0", start)
        if end < 0:
            return None
        mode = content[at + 24 : at + 28]
        entries.append(mode + content[at + _INDEX_STAT_SIZE : fixed] + bytes([flags >> 12 & 3]) + content[start:end])
        at += (end - at) // 8 * 8 + 8
    # Part of a split index is in another file, which the extension "link" names.
    return None if content[at : at + 4] == b"link" else entries


def format_left_repositories(changes: Mapping[str, Sequence[RepositoryChange]]) -> list[str]:
    """Return one sentence for each attempt whose work in git repositories is not part of a combination."""
    return [
        f"the commits of {name} are not taken, because a combination takes files: {'; '.join(map(str, found))}"
        if any(reference.commits for change in found for reference in change.references)
        else f"the git work of {name} is not taken, because a combination takes files: {'; '.join(map(str, found))}"
        for name, found in changes.items()
    ]


def is_absent(identifier: str | None) -> bool:
    """Return whether an id means that there is no object."""
    return identifier is None or bool(_NO_OBJECT.match(identifier))
