"""The merge of what a branch did to a git repository into that repository as it is now, and its inverse.

A repository is never merged as plain files. Objects are only added: git reads the branch's objects through a shadow,
packs what is new, and checks every object of the pack as it does for one from the network. References, logs, ``HEAD``
and the index are worked out as contents of files, which the journal of the commit then exchanges with everything else.
A reference that both sides moved is merged if that is clean; otherwise the branch's commits get a reference of their
own. What the user committed or staged stays.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forkwise.errors import GitError
from forkwise.git.program import parse_settings, run_git
from forkwise.git.repository import Repository, find_repository
from forkwise.git.repository_change import (
    OPERATIONS,
    SHA256_SIZE,
    LogLine,
    RepositoryMerge,
    RepositorySide,
    build_side,
    find_repository_paths,
    identify,
    is_absent,
    is_data,
    list_new_lines,
    list_repositories,
)

if TYPE_CHECKING:
    from forkwise.files.store.scan import Entry
    from forkwise.files.versions import Versions

__all__ = ["merge_repositories", "revert_repositories"]

_UNPACK_LIMIT = 100
_MOST_PATHSPECS = 500
_MOST_TIPS = 5_000
_LARGEST_PACK = 4 << 30
_OBJECT = re.compile(r"objects/(?:[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]+\.(?:pack|idx))\Z")
_EXTENSIONS = {
    "noop": r".*",
    "objectformat": r"sha1|sha256",
    "refstorage": r"files",
    "worktreeconfig": r"true|false|1|0|yes|no|on|off",
    "partialclone": r".*",
    "preciousobjects": r"true|false|1|0|yes|no|on|off",
}


@dataclass(slots=True)
class _Place:
    """A repository of the workspace while it is merged: ``directory`` is that of the repository, relative to it."""

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

    def write(self, inside: str, content: bytes | None) -> None:
        """Give a file of the repository another content, under git's lock for it."""
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


def merge_repositories(
    workspace: str,
    entries: Iterable[Entry],
    open_versions: Callable[[], Versions],
    *,
    label: str,
    scratch: str,
    is_unchanged: Callable[[Entry], bool],
    conflicts: Iterable[str],
) -> RepositoryMerge:
    """Work out how to merge what a branch did to the repositories of a workspace; changes no file but adds objects.

    ``label`` names the branch's commits where they need a name. ``scratch`` is a directory on the filesystem of the
    branch's layer. ``is_unchanged`` says whether the workspace has not changed an entry since the fork, ``conflicts``
    are paths that both changed.
    """
    found = {entry.path: entry for entry in entries}
    merge = RepositoryMerge()
    paths = find_repository_paths(workspace, found)
    if not paths:
        return merge
    clashing = find_repository_paths(workspace, conflicts)
    with open_versions() as versions:
        for directory, inside in sorted(list_repositories(workspace, paths).items()):
            own = found.get(directory)
            if own is not None and own.old is None:
                continue  # a new repository, which is only files
            data = {path for path, name in inside.items() if not name or is_data(name) or path in clashing}
            merge.left |= data
            side = {name: found[path] for path, name in inside.items() if name}
            plain = sorted(p for p in inside if p in clashing and not is_data(inside[p]))
            _merge_one(workspace, directory, own, side, versions, merge, label, scratch, is_unchanged, plain)
    return merge


def _merge_one(
    workspace: str,
    directory: str,
    own: Entry | None,
    entries: Mapping[str, Entry],
    versions: Versions,
    merge: RepositoryMerge,
    label: str,
    scratch: str,
    is_unchanged: Callable[[Entry], bool],
    plain: Sequence[str],
) -> None:
    place = _Place(workspace, directory, Repository("", "", ""), merge, label)
    for path in plain:
        place.tell(f"{path} was changed in the workspace too; the workspace's version stays")
    if own is not None and (own.new is None or not stat.S_ISDIR(own.new.st_mode)):
        merge.left |= {f"{directory}/{name}" for name in entries}
        place.tell("the branch deleted or replaced the repository; the workspace's stays as it is")
        return
    if not any(is_data(name) for name in entries):
        return
    try:
        place.repository = _open(f"{workspace}/{directory}")
        ours = build_side(f"{workspace}/{directory}", entries, versions)
        _check_format(ours.read("config") or b"")
        _Merger(place, ours, entries, versions, scratch, is_unchanged).run()
    except (GitError, OSError) as error:
        for path in [path for path in merge.contents if path.startswith(f"{directory}/")]:
            del merge.contents[path]
        place.tell(f"what the branch did in the repository was left out: {error}")


def _open(directory: str) -> Repository:
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
            _check_format(file.read(1 << 20))
    except FileNotFoundError:
        pass
    if os.path.isdir(f"{directory}/reftable"):
        raise GitError("its references are stored as reftable, which forkwise does not merge")
    return found


def _check_format(content: bytes) -> None:
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


class _Merger:
    """The merge of one repository; ``ours`` is the branch's side, ``theirs`` the workspace's as it is now."""

    def __init__(
        self,
        place: _Place,
        ours: RepositorySide,
        entries: Mapping[str, Entry],
        versions: Versions,
        scratch: str,
        is_unchanged: Callable[[Entry], bool],
    ) -> None:
        self.place = place
        self.ours = ours
        self.theirs = RepositorySide(ours.directory)
        self.entries = entries
        self.versions = versions
        self.scratch = scratch
        self.is_unchanged = is_unchanged
        self.lines: dict[str, list[LogLine]] = {}
        self.references: list[list[str | None]] = []
        self.index: list[list[Any]] = []
        self.stashes: list[str] = []
        self.known: set[str] = set()
        self.shadow = ""

    def run(self) -> None:
        """Add objects, and note in ``place.merge`` what else is to be done."""
        self.shadow = tempfile.mkdtemp(prefix="git-", dir=self.scratch)
        try:
            self._link_objects(self.shadow)
            self._decide()
        finally:
            shutil.rmtree(self.shadow, ignore_errors=True)

    def _decide(self) -> None:
        place, ours, theirs = self.place, self.ours, self.theirs
        names = sorted(name for name in ours.names if name != "refs/stash")
        moved = {n: (theirs.resolve(n), ours.resolve(n)) for n in names if theirs.resolve(n) != ours.resolve(n)}
        head_line = ours.head if "HEAD" in self.entries and ours.head != theirs.head else None
        staged = self._list_staged() if "index" in self.entries else []
        new_lines = {n: list_new_lines(theirs.log(n), ours.log(n)) for n in {*names, "HEAD"}}
        stashes = self._list_stashes()
        if not (moved or head_line or staged or stashes or any(lines for lines, _ in new_lines.values())):
            return
        tips = [new for _, new in moved.values() if new]
        tips += [head_line] if head_line and not head_line.startswith("refs/") else []
        logged = [line.new for lines, _ in new_lines.values() for line in lines]
        self._transfer(tips, [*logged, *(line.new for line in stashes)], [row[1] for row in staged])
        blocked = self._find_operation()
        current = theirs.head
        before = theirs.resolve(current) if current and current.startswith("refs/") else current
        after = before
        kept_head = head_line is not None and (not new_lines["HEAD"][1] or blocked is not None)
        for name, (old, new) in moved.items():
            is_checked_out = name == current
            result = self._move(name, old, new, new_lines.get(name, ([], True)), blocked if is_checked_out else None)
            if is_checked_out:
                after = result
        if current is not None and not current.startswith("refs/") and head_line and not head_line.startswith("refs/"):
            after = self._move_detached(current, head_line, new_lines["HEAD"], blocked)
        elif head_line is not None and kept_head:
            self._keep_unreachable(new_lines["HEAD"][0])
            if after != before:
                self._log("HEAD", before, after, [])
            place.tell(f"{_short(head_line)} was checked out by the branch; HEAD stays, because it was moved meanwhile")
        elif head_line is not None:
            after = self._switch(head_line, new_lines["HEAD"][0])
        elif after != before:
            self._log("HEAD", before, after, new_lines["HEAD"][0])
        elif new_lines["HEAD"][0]:
            self._keep_unreachable(new_lines["HEAD"][0])
        self._add_stashes(stashes)
        self._finish_operation()
        self._write_index(before, after, staged)
        self._write_logs()
        if self.references or place.merge.contents:
            for name in ("HEAD", "packed-refs", *(n for n in moved)):
                place.watch(name)
            place.lock("HEAD")
            place.lock("index")
            place.merge.done.append(
                {
                    "directory": place.directory,
                    "label": place.label,
                    "references": self.references,
                    "index": self.index,
                    "stashes": self.stashes,
                }
            )

    # Objects

    def _transfer(self, tips: Sequence[str], logged: Sequence[str], blobs: Sequence[str]) -> None:
        """Add the objects that the branch's references, logs and index need; ``known`` are those that are there."""
        place = self.place
        wanted = list(dict.fromkeys([*tips, *blobs, *logged]))[:_MOST_TIPS]
        there = self._filter_known(wanted)
        missing = [one for one in wanted if one not in there]
        if missing:
            present = self._list_in(self.shadow, missing)
            found = [one for one in missing if one in present]
            if found and not self._pack(self.shadow, found):
                for one in found:
                    self._pack(self.shadow, [one])
            there |= self._filter_known(missing)
        self.known = there
        lost = [one for one in dict.fromkeys(tips) if one not in there]
        if lost:
            place.tell(f"objects of the branch are missing or damaged, and were not taken: {', '.join(lost[:3])}")

    def _filter_known(self, ids: Sequence[str]) -> set[str]:
        if not ids:
            return set()
        asked = "".join(f"{one}\n" for one in ids).encode()
        output = self.place.git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).decode()
        return {line.split()[0] for line in output.splitlines() if not line.endswith(" missing")}

    def _link_objects(self, shadow: str) -> None:
        os.makedirs(f"{shadow}/objects/pack")
        os.mkdir(f"{shadow}/refs")
        with open(f"{shadow}/HEAD", "w") as file:
            file.write("ref: refs/heads/none\n")
        facts = self.place.repository._facts()
        with open(f"{shadow}/config", "w") as file:
            for name in ("core.repositoryformatversion", "extensions.objectformat"):
                if name in facts:
                    section, _, key = name.partition(".")
                    file.write(f"[{section}]\n\t{key} = {facts[name]}\n")
        for inside, entry in self.entries.items():
            if entry.new is None or not stat.S_ISREG(entry.new.st_mode) or not _OBJECT.match(inside):
                continue
            target = f"{shadow}/{inside}"
            os.makedirs(os.path.dirname(target), exist_ok=True)
            self.versions.link(entry, target)

    def _run_in(self, shadow: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return run_git(
            words,
            shadow,
            git_directory=shadow,
            variables={
                "GIT_OBJECT_DIRECTORY": f"{shadow}/objects",
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{self.place.repository.common_directory}/objects",
            },
            stdin=stdin,
        )

    def _list_in(self, shadow: str, ids: Sequence[str]) -> set[str]:
        asked = "".join(f"{one}\n" for one in ids).encode()
        done = self._run_in(shadow, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked)
        return {line.split()[0] for line in done.stdout.decode().splitlines() if not line.endswith(" missing")}

    def _pack(self, shadow: str, ids: Sequence[str]) -> bool:
        """Pack what some objects need, and add it to the workspace's repository as git adds what it fetches."""
        has = self.place.git("for-each-ref", "--format=%(objectname)").decode().split()
        head = self.theirs.head
        has += [head] if head and not head.startswith("refs/") else []
        asked = "".join([*(f"{one}\n" for one in ids), *(f"^{one}\n" for one in dict.fromkeys(has))]).encode()
        prefix = f"{shadow}/new"
        done = self._run_in(shadow, "pack-objects", "--revs", "-q", prefix, stdin=asked)
        if done.returncode != 0:
            return False
        name = f"{prefix}-{done.stdout.decode().strip()}.pack"
        try:
            size = os.stat(name).st_size
            if size > _LARGEST_PACK:
                return False
            with open(name, "rb") as file:
                count = int.from_bytes(file.read(12)[8:12], "big")
                if not count:
                    return True
                file.seek(0)
                words = ("unpack-objects", "-q", "--strict") if count < _UNPACK_LIMIT else (
                    "index-pack", "--strict", "--stdin", "--fix-thin"
                )  # fmt: skip
                return self.place.run(*words, stdin=file.read()).returncode == 0
        finally:
            for ending in (".pack", ".idx", ".rev"):
                if os.path.exists(name.removesuffix(".pack") + ending):
                    os.unlink(name.removesuffix(".pack") + ending)

    # References

    def _move(
        self, name: str, old: str | None, new: str | None, log: tuple[list[LogLine], bool], blocked: str | None
    ) -> str | None:
        """Decide about one reference, and return what it will be."""
        lines, is_only_ours = log
        is_only_ours = (
            is_only_ours and lines[0].old == (old or "0" * len(lines[0].old)) if lines else self._is_unmoved(name)
        )
        if new is None:
            return self._delete(name, old, is_only_ours)
        if new not in self.known:
            return old
        if old is None:
            if clash := self._find_clash(name):
                self._keep(name, new, f"{clash} exists")
                return None
            self._set(name, None, new, lines)
            self.place.tell(f"{_describe(name)} created")
            return new
        behind, ahead = self._compare(old, new)
        is_forward = behind == 0
        if blocked is not None:
            self._keep(name, new, f"{blocked} is in progress in the workspace")
            return old
        if is_forward or (is_only_ours and name.startswith("refs/heads/")):
            self._set(name, old, new, lines)
            self.place.tell(
                f"{_format_commits(ahead)} on {_short(name)}"
                if is_forward
                else f"{_describe(name)} moved to {new[:10]}"
            )
            return new
        if ahead == 0:
            self._keep_unreachable(lines)
            return old
        if not name.startswith("refs/heads/"):
            self._keep(name, new, "it was moved in the workspace, or its commits would be lost")
            return old
        merged = self._merge_commits(name, old, new)
        if merged is None:
            self._keep(name, new, "both were changed and cannot be merged without conflicts")
            return old
        self._set(name, old, merged, lines, f"forkwise: merge {self.place.label}")
        self.place.tell(f"{_format_commits(ahead)} merged into {_short(name)}, which was moved meanwhile")
        return merged

    def _move_detached(self, old: str, new: str, log: tuple[list[LogLine], bool], blocked: str | None) -> str:
        lines, is_only_ours = log
        if new not in self.known:
            return old
        if blocked is None and (is_only_ours or self._is_ancestor(old, new)):
            target = new
        elif self._is_ancestor(new, old):
            self._keep_unreachable(lines)
            return old
        else:
            merged = None if blocked else self._merge_commits("HEAD", old, new)
            if merged is None:
                self._keep("HEAD", new, "both were changed and cannot be merged without conflicts")
                return old
            target = merged
        self.place.write("HEAD", f"{target}\n".encode())
        self.references.append(["HEAD", old, target])
        self._log("HEAD", old, target, lines)
        self.place.tell(f"HEAD moved to {target[:10]}")
        return target

    def _switch(self, head: str, lines: list[LogLine]) -> str | None:
        """Check out what the branch had checked out."""
        target = self.theirs.resolve(head) if head.startswith("refs/") else head
        moved = next((row[2] for row in self.references if row[0] == head), target)
        if not head.startswith("refs/") and head not in self.known:
            return self.theirs.head
        old = self.theirs.head or ""
        before = self.theirs.resolve(old) if old.startswith("refs/") else old
        content = f"ref: {head}\n" if head.startswith("refs/") else f"{head}\n"
        self.place.write("HEAD", content.encode())
        self.references.append(["HEAD", old, head])
        if moved is not None:
            self._log("HEAD", before, moved, lines)
        self.place.tell(f"{_short(head)} checked out")
        return moved

    def _delete(self, name: str, old: str | None, is_only_ours: bool) -> str | None:
        if old is None:
            return None
        others = self.place.git("for-each-ref", "--format=%(refname)", "--contains", old).decode().split()
        if name != self.theirs.head and is_only_ours and [one for one in others if one != name]:
            self._remove(name, old)
            self.place.tell(f"{_describe(name)} deleted")
            return None
        self.place.tell(
            f"{_describe(name)} was deleted by the branch and stays: its commits would be lost, or it moved"
        )
        return old

    def _remove(self, name: str, old: str) -> None:
        if self.theirs.read(name) is not None:
            self.place.write(name, None)
        if name in self.theirs.packed:
            self._unpack(name)
        self.references.append([name, old, None])

    def _unpack(self, name: str) -> None:
        content = self.place.merge.contents.get(f"{self.place.directory}/packed-refs") or self.theirs.read(
            "packed-refs"
        )
        self.place.write("packed-refs", drop_packed(content or b"", name))

    def _set(self, name: str, old: str | None, new: str, lines: list[LogLine], message: str = "") -> None:
        self.place.write(name, f"{new}\n".encode())
        self.references.append([name, old, new])
        self._log(name, old, new, lines, message)

    def _keep(self, name: str, tip: str, why: str) -> None:
        """Give commits of the branch that cannot go where they were a reference of their own."""
        short = name.removeprefix("refs/").removeprefix("heads/").removeprefix("tags/")
        base = f"refs/heads/forkwise/{self.place.label}"
        is_main = name in ("HEAD", self.theirs.head)
        wanted = base if is_main else f"refs/heads/forkwise/{self.place.label}-{short.replace('/', '-')}"
        taken = {str(row[0]) for row in self.references}
        free = next(
            candidate
            for n in range(1, 10_000)
            if (candidate := wanted if n == 1 else f"{wanted}-{n}") not in taken
            and self.theirs.resolve(candidate) in (None, tip)
            and not self._find_clash(candidate)
        )
        commit = self.place.run("rev-parse", "--verify", "--quiet", f"{tip}^{{commit}}")
        stays = f"{_describe(name)} stays as it is in the workspace: {why}"
        if commit.returncode == 0 and commit.stdout.decode().strip() == tip:
            self._set(free, None, tip, [], f"forkwise: kept of {self.place.label}")
            only = "commits that only the branch's log had are"
            self.place.tell(f"{stays}. The branch's is in {_short(free)}" if why else f"{only} in {_short(free)}")
        elif why:
            self.place.tell(stays)

    def _keep_unreachable(self, lines: list[LogLine]) -> None:
        """Give the commits that only the branch's log has a reference, unless something has them already."""
        new = [line.new for line in lines if line.new in self.known]
        for tip in dict.fromkeys(reversed(new)):
            if self.place.git("for-each-ref", "--count=1", "--contains", tip).strip():
                continue
            if any(row[2] and self._is_ancestor(tip, row[2]) for row in self.references if row[0] != "HEAD"):
                continue
            self._keep("refs/heads/log", tip, "")

    def _is_unmoved(self, name: str) -> bool:
        """Return whether the workspace has not written a reference since the fork, as far as that can be told."""
        found = [self.entries[path] for path in (name, "packed-refs") if path in self.entries]
        return bool(found) and all(entry.old is None or self.is_unchanged(entry) for entry in found)

    def _is_ancestor(self, one: str, other: str) -> bool:
        return self.place.run("merge-base", "--is-ancestor", one, other).returncode == 0

    def _compare(self, old: str, new: str) -> tuple[int, int]:
        """Return how many commits only the old and only the new one has; -1 if one of them is none."""
        done = self.place.run("rev-list", "--left-right", "--count", f"{old}...{new}")
        found = done.stdout.split()
        return (int(found[0]), int(found[1])) if done.returncode == 0 and len(found) == 2 else (-1, -1)

    def _find_clash(self, name: str) -> str | None:
        """Return a reference of the workspace that makes the name impossible: one is below the other."""
        found = self.place.git("for-each-ref", "--format=%(refname)", name).decode().split()
        below = [one for one in found if one != name]
        parts = name.split("/")
        above = ["/".join(parts[:n]) for n in range(3, len(parts))]
        taken = {str(row[0]) for row in self.references if row[2]}
        return next((one for one in [*below, *above] if one in below or one in taken or self.theirs.resolve(one)), None)

    def _merge_commits(self, name: str, old: str, new: str) -> str | None:
        done = self.place.run("merge-tree", "--write-tree", "--no-messages", old, new)
        if done.returncode != 0:
            return None
        tree = done.stdout.decode().split("\n")[0].strip("\0 ")
        message = f"Merge {self.place.label} into {_short(name)}\n"
        identity = self.place.who.rpartition(">")[0]
        who, _, email = identity.partition(" <")
        variables = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", who), ("EMAIL", email))
        }
        made = self.place.repository.run(
            *("commit-tree", tree, "-p", old, "-p", new),
            stdin=message.encode(),
            identity=variables,
        )
        return made.stdout.decode().strip() if made.returncode == 0 else None

    # Logs

    def _log(self, name: str, old: str | None, new: str | None, lines: Sequence[LogLine], message: str = "") -> None:
        """Add the branch's own lines, and one for what they do not explain."""
        zero = "0" * len(new or old or "")
        last, found = old or zero, self.lines.setdefault(name, [])
        for line in lines:
            if line.new in self.known and not is_absent(line.new):
                found.append(replace(line, old=last))
                last = line.new
        if last != (new or zero):
            found.append(LogLine(last, new or zero, self.place.who, message or f"forkwise: commit {self.place.label}"))

    def _write_logs(self) -> None:
        for name, lines in self.lines.items():
            has_log = self.theirs.read(f"logs/{name}") is not None
            if lines and (has_log or self.theirs.read("logs/HEAD") is not None):
                before = self.theirs.read(f"logs/{name}") or b""
                added = "".join(map(str, lines)).encode(errors="surrogateescape")
                self.place.write(f"logs/{name}", before + added)

    def _list_stashes(self) -> list[LogLine]:
        if "logs/refs/stash" not in self.entries:
            return []
        known = {line.new for line in self.theirs.log("refs/stash")}
        return [line for line in self.ours.log("refs/stash") if line.new not in known]

    def _add_stashes(self, stashes: Sequence[LogLine]) -> None:
        stashes = [line for line in stashes if line.new in self.known]
        if not stashes:
            return
        self.place.write("refs/stash", f"{stashes[-1].new}\n".encode())
        self._log("refs/stash", self.theirs.resolve("refs/stash"), stashes[-1].new, stashes)
        self.stashes = [str(line) for line in self.lines["refs/stash"]]
        self.place.tell(f"{len(stashes)} stash{'' if len(stashes) == 1 else 'es'} added")

    # Operations in progress

    def _find_operation(self) -> str | None:
        """Return the unfinished command in the workspace that the branch has not finished."""
        for name in OPERATIONS:
            if os.path.lexists(f"{self.theirs.directory}/{name}") and not self._is_finished(name):
                return {"MERGE_HEAD": "a merge", "BISECT_LOG": "a bisection"}.get(
                    name, f"a {name.split('-')[0].split('_')[0].lower()}"
                )
        return None

    def _is_finished(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.new is None and self.is_unchanged(entry)

    def _finish_operation(self) -> None:
        for name in ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE"):
            if self._is_finished(name):
                self.place.write(name, None)
                content = self.theirs.read(name)
                self.references.append([f"file:{name}", (content or b"").decode(errors="replace"), None])
        for name in OPERATIONS:
            entry = self.entries.get(name)
            if entry is not None and entry.new is not None:
                self.place.tell(f"the branch left an unfinished command behind ({name}), which was not taken over")

    # The index

    def _list_staged(self) -> list[tuple[str, str, str]]:
        """List what the branch's index has and its commit has not: mode, id and path; mode 0 for a deletion."""
        head = self.ours.head
        tip = self.ours.resolve(head) if head and head.startswith("refs/") else head
        content = self.ours.read("index")
        if content is None:
            return []
        with open(f"{self.shadow}/index", "wb") as file:
            file.write(content)
        for name in {*self.entries, *os.listdir(self.theirs.directory)}:
            if re.fullmatch(r"sharedindex\.[0-9a-f]+", name) and (shared := self.ours.read(name)) is not None:
                with open(f"{self.shadow}/{name}", "wb") as file:
                    file.write(shared)
        tip = tip or self._empty_tree()
        done = self._run_in(self.shadow, "diff-index", "--cached", "--no-renames", "-z", tip)
        return _parse_raw(done.stdout) if done.returncode == 0 else []

    def _write_index(self, before: str | None, after: str | None, staged: Sequence[tuple[str, str, str]]) -> None:
        """Give the paths that the branch committed or staged its entries; what the user staged stays staged."""
        place = self.place
        if self._find_operation() is not None:
            return
        base = before or self._empty_tree()
        index = f"{self.theirs.directory}/index"
        shadow = tempfile.mkdtemp(prefix="index-", dir=self.scratch)
        try:
            copy = f"{shadow}/index"
            if os.path.exists(index):
                shutil.copyfile(index, copy, follow_symlinks=False)
            own = {path: (mode, blob) for mode, blob, path in self._diff_index(base, copy)}
            rows: dict[str, tuple[str, str]] = {}
            if after is not None and after != before:
                output = place.git("diff-tree", "-r", "-z", "--no-renames", base, after)
                rows |= {path: (mode, blob) for mode, blob, path in _parse_raw(output) if path not in own}
            entry = self.entries.get("index")
            is_quiet = entry is not None and self.is_unchanged(entry)
            for mode, blob, path in staged:
                is_new = own.get(path) != (mode, blob) if is_quiet else path not in own
                if is_new and (mode == "000000" or blob in self.known):
                    rows[path] = (mode, blob)
            if not rows:
                return
            new = {path: None if mode == "000000" else (mode, blob) for path, (mode, blob) in rows.items()}
            old = read_entries(place, copy, rows)
            place.write("index", write_index(place, copy, new))
            self.index = [[path, old.get(path), new[path]] for path in rows]
            if staged:
                place.tell("index changed")
        finally:
            shutil.rmtree(shadow, ignore_errors=True)

    def _diff_index(self, tree: str, index: str) -> list[tuple[str, str, str]]:
        return _parse_raw(self.place.git("diff-index", "--cached", "--no-renames", "-z", tree, index=index))

    def _empty_tree(self) -> str:
        return self.place.git("hash-object", "-t", "tree", "-w", "--stdin").decode().strip()


def read_entries(place: _Place, index: str, paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return mode and id that an index has for some paths."""
    wanted = set(paths)
    few = [f":(literal){path}" for path in wanted] if len(wanted) <= _MOST_PATHSPECS else []
    output = os.fsdecode(place.git("ls-files", "-s", "-z", "--", *few, index=index))
    found = {}
    for row in output.split("\0"):
        facts, _, path = row.partition("\t")
        if path in wanted:
            mode, blob, stage = facts.split()
            if stage == "0":
                found[path] = (mode, blob)
    return found


def write_index(place: _Place, index: str, rows: Mapping[str, tuple[str, str] | None]) -> bytes:
    """Return the content of a copy of an index with other entries for some paths; None removes."""
    zero = "0" * (64 if place.is_sha256 else 40)
    text = "".join(f"0 {zero} 0\t{p}\0" if row is None else f"{row[0]} {row[1]} 0\t{p}\0" for p, row in rows.items())
    skipped = _list_skipped(place, index, rows)
    place.git("update-index", "-z", "--index-info", stdin=os.fsencode(text), index=index)
    if skipped:
        names = "".join(f"{path}\0" for path in skipped)
        place.git("update-index", "-z", "--skip-worktree", "--stdin", stdin=os.fsencode(names), index=index)
    with open(index, "rb") as file:
        return file.read()


def _list_skipped(place: _Place, index: str, rows: Mapping[str, tuple[str, str] | None]) -> list[str]:
    """List the paths that a sparse checkout has no file for."""
    if not os.path.isfile(f"{place.repository.git_directory}/info/sparse-checkout"):
        return []
    output = os.fsdecode(place.git("ls-files", "-t", "-z", index=index))
    return [row[2:] for row in output.split("\0") if row[:1] == "S" and rows.get(row[2:]) is not None]


def drop_packed(content: bytes, name: str) -> bytes:
    """Return packed references without one, and without the line on what its tag refers to."""
    lines, skipping = [], False
    for line in content.splitlines(keepends=True):
        if skipping and line.startswith(b"^"):
            continue
        skipping = line.rstrip(b"\n").partition(b" ")[2] == os.fsencode(name) and not line.startswith(b"#")
        if not skipping:
            lines.append(line)
    return b"".join(lines)


def _parse_raw(output: bytes) -> list[tuple[str, str, str]]:
    """Parse the raw format of diffs: new mode, new id and path of each."""
    fields = os.fsdecode(output).split("\0")[:-1]
    found = []
    for facts, path in zip(fields[::2], fields[1::2], strict=False):
        words = facts.split()
        if len(words) == 5 and words[4] != "U":
            found.append((words[1], words[3], path))
    return found


def _format_commits(count: int) -> str:
    return f"{count} commit{'' if count == 1 else 's'}"


def _short(name: str) -> str:
    return name.removeprefix("refs/heads/").removeprefix("refs/tags/")


def _describe(name: str) -> str:
    if name.startswith("refs/heads/"):
        return f"branch {_short(name)}"
    return f"tag {_short(name)}" if name.startswith("refs/tags/") else name


def revert_repositories(workspace: str, done: Sequence[Mapping[str, Any]], verb: str, scratch: str) -> RepositoryMerge:
    """Work out how to take back what a commit did in repositories, or, for an undo, how to do it again.

    References and entries of the index go back if nobody moved them since; otherwise they stay and are named. Objects
    stay. ``verb`` is what the logs call it.
    """
    merge = RepositoryMerge()
    for record in done:
        place = _Place(workspace, record["directory"], Repository("", "", ""), merge, record["label"])
        try:
            place.repository = _open(f"{workspace}/{place.directory}")
            _revert_one(place, record, verb, scratch)
        except (GitError, OSError) as error:
            for path in [path for path in merge.contents if path.startswith(f"{place.directory}/")]:
                del merge.contents[path]
            place.tell(f"the repository stays as it is: {error}")
    return merge


def _revert_one(place: _Place, record: Mapping[str, Any], verb: str, scratch: str) -> None:
    side = RepositorySide(place.repository.git_directory)
    head = side.head
    rows, is_head_left = [], False
    logs: dict[str, list[LogLine]] = {}
    moved: dict[str, str | None] = {}
    checked_out = side.resolve(head) if head and head.startswith("refs/") else head
    after = checked_out
    for name, old, new in reversed(record["references"]):
        if name.startswith("file:"):
            rows.append([name, new, old])
            place.write(name.removeprefix("file:"), None if old is None else old.encode())
            continue
        now = moved[name] if name in moved else side.head if name == "HEAD" else side.resolve(name)
        moved[name] = old if now == new else now
        if now != new:
            place.tell(f"{_describe(name)} stays as it is: it was moved since")
            is_head_left = is_head_left or name in ("HEAD", head)
            continue
        rows.append([name, new, old])
        _write_reference(place, side, name, old)
        place.tell(f"{_describe(name)} {'removed' if old is None else 'is back at ' + _short(old)[:40]}")
        first, last = (v if v and not v.startswith("refs/") else side.resolve(v) if v else None for v in (new, old))
        zero = "0" * len(first or last or "")
        line = LogLine(first or zero, last or zero, place.who, f"forkwise: {verb} {place.label}")
        if last is not None:
            logs.setdefault(name, []).append(line)
        if name == head:
            after = last
        elif name == "HEAD":
            after = next((r[2] for r in rows if r[0] == old), last)
    if after != checked_out and after is not None:
        zero = "0" * len(after)
        logs["HEAD"] = [LogLine(checked_out or zero, after, place.who, f"forkwise: {verb} {place.label}")]
    for name, lines in logs.items():
        before = side.read(f"logs/{name}")
        if before is not None:
            place.write(f"logs/{name}", before + "".join(map(str, lines)).encode(errors="surrogateescape"))
    index = [] if is_head_left else _revert_index(place, record["index"], scratch)
    stashes = _revert_stashes(place, side, record["stashes"])
    for name in ("HEAD", "packed-refs"):
        place.watch(name)
    place.lock("HEAD")
    place.lock("index")
    place.merge.done.append(
        {
            "directory": place.directory,
            "label": place.label,
            "references": rows,
            "index": index,
            "stashes": [{"drop": line} if isinstance(line, str) else line["drop"] for line in stashes],
        }
    )


def _write_reference(place: _Place, side: RepositorySide, name: str, value: str | None) -> None:
    if name == "HEAD":
        assert value is not None
        place.write("HEAD", (f"ref: {value}\n" if value.startswith("refs/") else f"{value}\n").encode())
    elif value is not None:
        place.write(name, f"{value}\n".encode())
    else:
        if side.read(name) is not None:
            place.write(name, None)
        if name in side.packed:
            packed = place.merge.contents.get(f"{place.directory}/packed-refs") or side.read("packed-refs") or b""
            place.write("packed-refs", drop_packed(packed, name))
        if side.read(f"logs/{name}") is not None:
            place.write(f"logs/{name}", None)


def _revert_index(place: _Place, rows: Sequence[Sequence[Any]], scratch: str) -> list[list[Any]]:
    index = f"{place.repository.git_directory}/index"
    if not rows or not os.path.isfile(index):
        return []
    shadow = tempfile.mkdtemp(prefix="git-", dir=scratch)
    try:
        shutil.copyfile(index, f"{shadow}/index", follow_symlinks=False)
        now = read_entries(place, f"{shadow}/index", [row[0] for row in rows])
        back = [[path, new, old] for path, old, new in rows if now.get(path) == (None if new is None else tuple(new))]
        if back:
            new_rows = {path: None if row is None else (row[0], row[1]) for path, _, row in back}
            place.write("index", write_index(place, f"{shadow}/index", new_rows))
        return back
    finally:
        shutil.rmtree(shadow, ignore_errors=True)


def _revert_stashes(place: _Place, side: RepositorySide, lines: Sequence[Any]) -> list[Any]:
    """Take added stashes out of the stack, or put them back; others stay."""
    if not lines:
        return []
    now = [str(line) for line in side.log("refs/stash")]
    added = [line["drop"] for line in lines if not isinstance(line, str)]
    gone = [line for line in lines if isinstance(line, str)]
    left = [line for line in now if line not in gone] + [line for line in added if line not in now]
    if left == now:
        return []
    place.write("logs/refs/stash", "".join(left).encode(errors="surrogateescape") if left else None)
    place.write("refs/stash", f"{left[-1].split(' ')[1]}\n".encode() if left else None)
    if "refs/stash" in side.packed and not left:
        packed = place.merge.contents.get(f"{place.directory}/packed-refs") or side.read("packed-refs") or b""
        place.write("packed-refs", drop_packed(packed, "refs/stash"))
    return [line for line in gone if line in now] + [{"drop": line} for line in added if line not in now]
