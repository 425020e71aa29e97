"""The merge of what a branch did to a git repository into that repository as it is now.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from forkwise.errors import GitError
from forkwise.git.program import run_git
from forkwise.git.repository import Repository
from forkwise.git.repository_change import (
    OPERATIONS,
    LogLine,
    RepositoryMerge,
    RepositorySide,
    build_side,
    find_repository_paths,
    is_absent,
    is_data,
    list_new_lines,
    list_repositories,
    parse_log,
)
from forkwise.git.repository_edit import (
    RepositoryEdit,
    check_format,
    describe_reference,
    drop_packed,
    open_repository,
    read_entries,
    shorten_reference,
    write_index,
)
from forkwise.text.phrases import format_number, join_first

if TYPE_CHECKING:
    from forkwise.files.store.scan import Entry
    from forkwise.files.versions import Versions

__all__ = ["keep_references", "merge_repositories"]

_UNPACK_LIMIT = 100
_MOST_TIPS = 5_000
_MOST_BASES = 20
_LARGEST_PACK = 4 << 30
_LONGEST_MESSAGE = 64 << 10
_OTHER_REFERENCES = ("refs/stash", "refs/bisect/", "refs/rewritten/", "refs/worktree/")  # a stack; per worktree
_SINGLE_OPERATIONS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
_REWRITES = ("rebase-merge", "rebase-apply", "sequencer", "BISECT_LOG")
_MESSAGES = ("MERGE_MSG", "MERGE_MODE")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_WORKTREE_HEAD = re.compile(r"(worktrees/([^/]+))/HEAD")
_OBJECT = re.compile(r"objects/(?:[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]+\.(?:pack|idx))\Z")


def merge_repositories(
    workspace: str,
    entries: Iterable[Entry],
    open_versions: Callable[[], Versions],
    *,
    label: str,
    scratch: str,
    is_unchanged: Callable[[Entry], bool],
    forked_ns: int | None,
    conflicts: Iterable[str],
) -> RepositoryMerge:
    """Work out how to merge what a branch did to the repositories of a workspace; changes no file but adds objects.

    ``label`` names the branch's commits where they need a name. ``scratch`` is a directory on the filesystem of the
    branch's layer. ``is_unchanged`` says whether the workspace left an entry unchanged since the fork, which was made
    at ``forked_ns`` (None: unknown); ``conflicts`` are paths that both changed.
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
            _merge_one(workspace, directory, own, side, versions, merge, label, scratch, is_unchanged, forked_ns, plain)
    return merge


def keep_references(
    workspace: str,
    entries: Iterable[Entry],
    open_versions: Callable[[], Versions],
    *,
    label: str,
    conflicts: Iterable[str],
    are_old_lost: bool,
) -> RepositoryMerge:
    """Keep the git commits that committing into another branch would leave without a reference, by giving them one.

    Such a commit takes a repository as plain files, so one value of a reference that both sides moved is lost: the
    parent's if ``are_old_lost``, else the branch's. ``conflicts`` are the paths that both changed.
    """
    found = {entry.path: entry for entry in entries}
    merge = RepositoryMerge()
    paths = find_repository_paths(workspace, [path for path in conflicts if path in found])
    if not paths:
        return merge
    with open_versions() as versions:
        for directory, inside in sorted(list_repositories(workspace, paths).items()):
            edit = RepositoryEdit(workspace, directory, Repository("", "", ""), merge, label)
            side = {name: found[path] for path, name in inside.items()}
            lost, left = RepositorySide(""), RepositorySide("")
            lost.changed = {n: partial(versions.old if are_old_lost else versions.new, e) for n, e in side.items()}
            left.changed = {n: partial(versions.new if are_old_lost else versions.old, e) for n, e in side.items()}
            for tip, name in _list_lost_tips(lost, left).items():
                merge.contents[f"{directory}/refs/heads/forkwise/{label}-{tip[:10]}"] = f"{tip}\n".encode()
                of_whom = "the parent's" if are_old_lost else "the branch's"
                edit.tell(f"{describe_reference(name)}: {of_whom} commits are in forkwise/{label}-{tip[:10]}")
    return merge


def _list_lost_tips(lost: RepositorySide, left: RepositorySide) -> dict[str, str]:
    """Return the commits that references and stashes of only one side have, each with its name there."""
    names = [name for name in lost.changed if name.startswith("refs/")]
    names += [*(lost.packed.keys() | left.packed.keys())] if "packed-refs" in lost.changed else []
    pairs = [(name, lost.resolve(name), left.resolve(name)) for name in names]
    pairs += [("HEAD", lost.head, left.head)] if "HEAD" in lost.changed else []
    found = {one: name for name, one, other in pairs if one and one != other and not one.startswith("refs/")}
    if "logs/refs/stash" in lost.changed:
        kept = {line.new for line in left.log("refs/stash")}
        found |= {line.new: "refs/stash" for line in lost.log("refs/stash") if line.new not in kept}
    return found


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
    forked_ns: int | None,
    plain: Sequence[str],
) -> None:
    edit = RepositoryEdit(workspace, directory, Repository("", "", ""), merge, label)
    for path in plain:
        edit.tell(f"{path} was changed in the workspace too; the workspace's version stays")
    if own is not None and (own.new is None or not stat.S_ISDIR(own.new.st_mode)):
        merge.left |= {f"{directory}/{name}" for name in entries}
        edit.tell("the branch deleted or replaced the repository; the workspace's stays as it is")
        return
    if not any(is_data(name) for name in entries):
        return
    try:
        edit.repository = open_repository(f"{workspace}/{directory}")
        ours = build_side(f"{workspace}/{directory}", entries, versions)
        check_format(ours.read("config") or b"")
        _Merger(edit, ours, entries, versions, scratch, is_unchanged, forked_ns).run()
    except (GitError, OSError) as error:
        edit.give_up(f"what the branch did in the repository was left out: {error}")


@dataclass(slots=True)
class _Operation:
    """A command that the branch began and did not finish.

    ``files`` are the contents of the files in which git records it, ``commits`` the ones these name, ``unmerged`` the
    mode, id, stage and path of each entry with conflicts. A rewrite is a rebase, a bisection or a sequence of several
    picks: those have a list of commands to run, which is never taken over.
    """

    files: dict[str, str] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    unmerged: list[tuple[str, str, str, str]] = field(default_factory=list)
    is_rewrite: bool = False


class _Merger:
    """The merge of one repository; ``ours`` is the branch's side, ``theirs`` the workspace's as it is now."""

    def __init__(
        self,
        edit: RepositoryEdit,
        ours: RepositorySide,
        entries: Mapping[str, Entry],
        versions: Versions,
        scratch: str,
        is_unchanged: Callable[[Entry], bool],
        forked_ns: int | None,
    ) -> None:
        self.edit = edit
        self.ours = ours
        self.theirs = RepositorySide(ours.directory)
        self.entries = entries
        self.versions = versions
        self.scratch = scratch
        self.is_unchanged = is_unchanged
        self.forked_ns = forked_ns
        self.lines: dict[str, list[LogLine]] = {}
        self.references: list[list[str | None]] = []
        self.index: list[list[Any]] = []
        self.stashes: list[str] = []
        self.unmerged: list[list[Any]] = []
        self.known: set[str] = set()
        self.shadow = ""

    def run(self) -> None:
        """Add objects, and note in ``edit.merge`` what else is to be done."""
        self.shadow = tempfile.mkdtemp(prefix="git-", dir=self.scratch)
        try:
            self._link_objects(self.shadow)
            self._decide()
        finally:
            shutil.rmtree(self.shadow, ignore_errors=True)

    def _decide(self) -> None:
        edit, ours, theirs = self.edit, self.ours, self.theirs
        names = sorted(name for name in ours.names if not name.startswith(_OTHER_REFERENCES))
        moved = {n: (theirs.resolve(n), ours.resolve(n)) for n in names if theirs.resolve(n) != ours.resolve(n)}
        head_line = ours.head if "HEAD" in self.entries and ours.head != theirs.head else None
        staged = self._list_staged() if "index" in self.entries else []
        new_lines = {n: list_new_lines(theirs.log(n), ours.log(n)) for n in {*names, "HEAD"}}
        stashes = self._list_stashes()
        operation, worktrees = self._read_operation(), self._list_worktrees()
        logs = [lines for lines, _ in new_lines.values() if lines]
        if not any((moved, head_line, staged, stashes, operation.files, operation.is_rewrite, worktrees, logs)):
            return
        tips = [new for _, new in moved.values() if new]
        tips += [head_line] if head_line and not head_line.startswith("refs/") else []
        logged = [line.new for lines in (*logs, stashes) for line in lines]
        logged += [*operation.commits, *(tip for found in worktrees.values() for tip in found)]
        self._transfer(tips, logged, [row[1] for row in (*staged, *operation.unmerged)])
        blocked = self._find_operation()
        current = theirs.head
        before = theirs.resolve(current) if current and current.startswith("refs/") else current
        after = before
        stays = operation.is_rewrite or blocked is not None or not new_lines["HEAD"][1]
        for name, (old, new) in moved.items():
            is_checked_out = name == current
            result = self._move(name, old, new, new_lines.get(name, ([], True)), blocked if is_checked_out else None)
            if is_checked_out:
                after = result
        are_detached = all(head and not head.startswith("refs/") for head in (current, head_line))
        if current and head_line and are_detached and not operation.is_rewrite:
            after = self._move_detached(current, head_line, new_lines["HEAD"], blocked)
        elif head_line is not None and stays:
            self._keep_unreachable(new_lines["HEAD"][0])
            if after != before:
                self._log("HEAD", before, after, [])
            why = "the branch did not finish what it began" if operation.is_rewrite else "it was moved meanwhile"
            edit.tell(f"{shorten_reference(head_line)} was checked out by the branch; HEAD stays, because {why}")
        elif head_line is not None:
            after = self._switch(head_line, new_lines["HEAD"][0])
        elif after != before:
            self._log("HEAD", before, after, new_lines["HEAD"][0])
        elif new_lines["HEAD"][0]:
            self._keep_unreachable(new_lines["HEAD"][0])
        self._add_stashes(stashes)
        self._keep_worktrees(worktrees)
        self._finish_operation()
        head = current if head_line is None or (stays and not are_detached) or operation.is_rewrite else head_line
        is_taken = self._can_take(operation, head, after, blocked)
        if is_taken:
            self._take_operation(operation)
        else:
            self._keep_tips(operation.commits, "commits of an unfinished command of the branch")
        self._write_index(before, after, staged, operation.unmerged if is_taken else ())
        self._write_logs()
        if self.references or edit.merge.contents:
            for name in ("HEAD", "packed-refs", *(n for n in moved)):
                edit.watch(name)
            edit.lock("HEAD")
            edit.lock("index")
            edit.merge.done.append(
                {
                    "directory": edit.directory,
                    "label": edit.label,
                    "references": self.references,
                    "index": self.index,
                    "stashes": self.stashes,
                    **({"operation": {"files": operation.files, "unmerged": self.unmerged}} if is_taken else {}),
                }
            )

    # Objects

    def _transfer(self, tips: Sequence[str], logged: Sequence[str], blobs: Sequence[str]) -> None:
        """Add the objects that the branch's references, logs and index need and the workspace's repository lacks."""
        edit = self.edit
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
            entry = self.entries.get("shallow")
            is_shallow = entry is not None and entry.new is not None
            why = "belong to a shallow fetch, which has to be repeated here" if is_shallow else "are missing or damaged"
            edit.tell(f"objects of the branch {why}, and were not taken: {join_first(lost, 3)}")

    def _filter_known(self, ids: Sequence[str]) -> set[str]:
        if not ids:
            return set()
        asked = "".join(f"{one}\n" for one in ids).encode()
        output = self.edit.git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).decode()
        return {line.split()[0] for line in output.splitlines() if not line.endswith(" missing")}

    def _link_objects(self, shadow: str) -> None:
        os.makedirs(f"{shadow}/objects/pack")
        os.mkdir(f"{shadow}/refs")
        with open(f"{shadow}/HEAD", "w") as file:
            file.write("ref: refs/heads/none\n")
        facts = self.edit.repository._facts()
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
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{self.edit.repository.common_directory}/objects",
            },
            stdin=stdin,
        )

    def _list_in(self, shadow: str, ids: Sequence[str]) -> set[str]:
        asked = "".join(f"{one}\n" for one in ids).encode()
        done = self._run_in(shadow, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked)
        return {line.split()[0] for line in done.stdout.decode().splitlines() if not line.endswith(" missing")}

    def _pack(self, shadow: str, ids: Sequence[str]) -> bool:
        """Pack what some objects need, and add it to the workspace's repository as git adds what it fetches."""
        has = self.edit.git("for-each-ref", "--format=%(objectname)").decode().split()
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
                return self.edit.run(*words, stdin=file.read()).returncode == 0
        finally:
            for ending in (".pack", ".idx", ".rev"):
                if os.path.exists(name.removesuffix(".pack") + ending):
                    os.unlink(name.removesuffix(".pack") + ending)

    # References

    def _move(
        self, name: str, old: str | None, new: str | None, log: tuple[list[LogLine], bool], blocked: str | None
    ) -> str | None:
        """Decide where one reference points after the merge, and return that id."""
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
            self.edit.tell(f"{describe_reference(name)} created")
            return new
        behind, ahead = self._compare(old, new)
        is_forward = behind == 0
        # The branch sees what the user commits after the fork, so it may have reset or amended those commits.
        is_only_ours = is_only_ours and (is_forward or not self._list_lines_since_fork(name))
        if blocked is not None:
            self._keep(name, new, f"{blocked} is in progress in the workspace")
            return old
        if is_forward or (is_only_ours and name.startswith("refs/heads/")):
            self._set(name, old, new, lines)
            self.edit.tell(
                f"{format_number(ahead, 'commit')} on {shorten_reference(name)}"
                if is_forward
                else f"{describe_reference(name)} moved to {new[:10]}"
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
        self._set(name, old, merged, lines, f"forkwise: merge {self.edit.label}")
        self.edit.tell(
            f"{format_number(ahead, 'commit')} merged into {shorten_reference(name)}, which was moved meanwhile"
        )
        return merged

    def _move_detached(self, old: str, new: str, log: tuple[list[LogLine], bool], blocked: str | None) -> str:
        lines, is_only_ours = log
        if new not in self.known:
            return old
        is_only_ours = is_only_ours and not self._list_lines_since_fork("HEAD")
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
        self.edit.write("HEAD", f"{target}\n".encode())
        self.references.append(["HEAD", old, target])
        self._log("HEAD", old, target, lines)
        self.edit.tell(f"HEAD moved to {target[:10]}")
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
        self.edit.write("HEAD", content.encode())
        self.references.append(["HEAD", old, head])
        if moved is not None:
            self._log("HEAD", before, moved, lines)
        self.edit.tell(f"{shorten_reference(head)} checked out")
        return moved

    def _delete(self, name: str, old: str | None, is_only_ours: bool) -> str | None:
        if old is None:
            return None
        others = self.edit.git("for-each-ref", "--format=%(refname)", "--contains", old).decode().split()
        if name != self.theirs.head and is_only_ours and [one for one in others if one != name]:
            self._remove(name, old)
            self.edit.tell(f"{describe_reference(name)} deleted")
            return None
        self.edit.tell(
            f"{describe_reference(name)} was deleted by the branch and stays: its commits would be lost, or it moved"
        )
        return old

    def _remove(self, name: str, old: str) -> None:
        if self.theirs.read(name) is not None:
            self.edit.write(name, None)
        if name in self.theirs.packed:
            self._unpack(name)
        self.references.append([name, old, None])

    def _unpack(self, name: str) -> None:
        content = self.edit.merge.contents.get(f"{self.edit.directory}/packed-refs") or self.theirs.read("packed-refs")
        self.edit.write("packed-refs", drop_packed(content or b"", name))

    def _set(self, name: str, old: str | None, new: str, lines: list[LogLine], message: str = "") -> None:
        self.edit.write(name, f"{new}\n".encode())
        self.references.append([name, old, new])
        self._log(name, old, new, lines, message)

    def _keep(self, name: str, tip: str, why: str, noun: str = "") -> None:
        """Create a new reference for commits of the branch that cannot stay under the name they had."""
        short = name.removeprefix("refs/").removeprefix("heads/").removeprefix("tags/")
        base = f"refs/heads/forkwise/{self.edit.label}"
        is_main = name in ("HEAD", self.theirs.head)
        wanted = base if is_main else f"refs/heads/forkwise/{self.edit.label}-{short.replace('/', '-')}"
        taken = {str(row[0]) for row in self.references}
        free = next(
            candidate
            for n in range(1, 10_000)
            if (candidate := wanted if n == 1 else f"{wanted}-{n}") not in taken
            and self.theirs.resolve(candidate) in (None, tip)
            and not self._find_clash(candidate)
        )
        commit = self.edit.run("rev-parse", "--verify", "--quiet", f"{tip}^{{commit}}")
        stays = f"{describe_reference(name)} stays as it is in the workspace: {why}"
        if commit.returncode == 0 and commit.stdout.decode().strip() == tip:
            self._set(free, None, tip, [], f"forkwise: kept of {self.edit.label}")
            self.edit.tell(
                f"{stays}. The branch's is in {shorten_reference(free)}"
                if why
                else f"{noun} are in {shorten_reference(free)}"
            )
        elif why:
            self.edit.tell(stays)

    def _keep_unreachable(self, lines: list[LogLine]) -> None:
        """Create a reference for commits that are only in the branch's log, unless another one contains them."""
        self._keep_tips([line.new for line in reversed(lines)], "commits that only the branch's log had")

    def _keep_tips(self, tips: Iterable[str], noun: str) -> None:
        for tip in dict.fromkeys(one for one in tips if one in self.known):
            if self.edit.git("for-each-ref", "--count=1", "--contains", tip).strip():
                continue
            if any(row[2] and self._is_ancestor(tip, row[2]) for row in self.references if row[0] != "HEAD"):
                continue
            self._keep("refs/heads/log", tip, "", noun)

    def _is_unmoved(self, name: str) -> bool:
        """Return whether the workspace has not written a reference since the fork, as far as its files show."""
        found = [self.entries[path] for path in (name, "packed-refs") if path in self.entries]
        return bool(found) and all(entry.old is None or self.is_unchanged(entry) for entry in found)

    def _list_lines_since_fork(self, name: str) -> list[LogLine]:
        """List what the workspace added to a log since one second before the fork: git's logs count whole seconds."""
        lines = self.theirs.log(name)
        if self.forked_ns is None or not lines:
            return lines
        if os.lstat(f"{self.theirs.directory}/logs/{name}").st_ctime_ns < self.forked_ns:
            return []
        return [line for line in lines if _read_time(line) >= self.forked_ns // 1_000_000_000]

    def _is_ancestor(self, one: str, other: str) -> bool:
        return self.edit.run("merge-base", "--is-ancestor", one, other).returncode == 0

    def _compare(self, old: str, new: str) -> tuple[int, int]:
        """Count the commits that only the old and only the new one contains; -1 if one of them is not a commit."""
        done = self.edit.run("rev-list", "--left-right", "--count", f"{old}...{new}")
        found = done.stdout.split()
        return (int(found[0]), int(found[1])) if done.returncode == 0 and len(found) == 2 else (-1, -1)

    def _find_clash(self, name: str) -> str | None:
        """Return a reference of the workspace that conflicts with the name, because one is a directory of the other."""
        found = self.edit.git("for-each-ref", "--format=%(refname)", name).decode().split()
        below = [one for one in found if one != name]
        parts = name.split("/")
        above = ["/".join(parts[:n]) for n in range(3, len(parts))]
        taken = {str(row[0]) for row in self.references if row[2]}
        return next((one for one in [*below, *above] if one in below or one in taken or self.theirs.resolve(one)), None)

    def _merge_commits(self, name: str, old: str, new: str) -> str | None:
        done = self.edit.run("merge-tree", "--write-tree", "--no-messages", old, new)
        if done.returncode != 0:
            return None
        tree = done.stdout.decode().split("\n")[0].strip("\0 ")
        message = f"Merge {self.edit.label} into {shorten_reference(name)}\n"
        identity = self.edit.who.rpartition(">")[0]
        who, _, email = identity.partition(" <")
        variables = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", who), ("EMAIL", email))
        }
        made = self.edit.repository.run(
            *("commit-tree", tree, "-p", old, "-p", new),
            stdin=message.encode(),
            identity=variables,
        )
        return made.stdout.decode().strip() if made.returncode == 0 else None

    # Logs

    def _log(self, name: str, old: str | None, new: str | None, lines: Sequence[LogLine], message: str = "") -> None:
        """Add the branch's own lines to a log, and one more if they do not lead to the new value."""
        zero = "0" * len(new or old or "")
        last, found = old or zero, self.lines.setdefault(name, [])
        for line in lines:
            if line.new in self.known and not is_absent(line.new):
                found.append(replace(line, old=last))
                last = line.new
        if last != (new or zero):
            found.append(LogLine(last, new or zero, self.edit.who, message or f"forkwise: commit {self.edit.label}"))

    def _write_logs(self) -> None:
        for name, lines in self.lines.items():
            has_log = self.theirs.read(f"logs/{name}") is not None
            if lines and (has_log or self.theirs.read("logs/HEAD") is not None):
                before = self.theirs.read(f"logs/{name}") or b""
                added = "".join(map(str, lines)).encode(errors="surrogateescape")
                self.edit.write(f"logs/{name}", before + added)

    def _list_stashes(self) -> list[LogLine]:
        if "logs/refs/stash" not in self.entries:
            return []
        known = {line.new for line in self.theirs.log("refs/stash")}
        return [line for line in self.ours.log("refs/stash") if line.new not in known]

    def _add_stashes(self, stashes: Sequence[LogLine]) -> None:
        stashes = [line for line in stashes if line.new in self.known]
        if not stashes:
            return
        self.edit.write("refs/stash", f"{stashes[-1].new}\n".encode())
        self._log("refs/stash", self.theirs.resolve("refs/stash"), stashes[-1].new, stashes)
        self.stashes = [str(line) for line in self.lines["refs/stash"]]
        self.edit.tell(f"{format_number(len(stashes), 'stash')} added")

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
                self.edit.write(name, None)
                content = self.theirs.read(name)
                self.references.append([f"file:{name}", (content or b"").decode(errors="replace"), None])

    def _read_operation(self) -> _Operation:
        """Read what the branch began and did not finish."""
        found = _Operation(is_rewrite=any(self._is_new(name) for name in _REWRITES))
        for name in _SINGLE_OPERATIONS:
            ids = (self.ours.read(name) or b"").decode(errors="replace").split() if self._is_new(name) else []
            if ids and all(_COMMIT_ID.fullmatch(one) for one in ids):
                found.commits += ids
                found.files[name] = "".join(f"{one}\n" for one in ids)
        for name in _MESSAGES if found.files else ():
            content = self.ours.read(name) if self._is_new(name) else None
            if content is not None and len(content) <= _LONGEST_MESSAGE:
                found.files[name] = content.decode(errors="replace")
        if found.files and "index" in self.entries:
            done = self._run_in(self.shadow, "ls-files", "-u", "-z")
            rows = os.fsdecode(done.stdout).split("\0")[:-1] if done.returncode == 0 else []
            for facts, _, path in (row.partition("\t") for row in rows):
                mode, blob, stage = facts.split()
                found.unmerged.append((mode, blob, stage, path))
        return found

    def _is_new(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.new is not None

    def _can_take(self, operation: _Operation, head: str | None, after: str | None, blocked: str | None) -> bool:
        """Return whether an unfinished command of the branch can continue in the workspace; if not, tell the user."""
        left = [name for name in (*_SINGLE_OPERATIONS, *_REWRITES) if self._is_new(name)]
        if not left:
            return False
        own = self.ours.head
        tip = self.ours.resolve(own) if own and own.startswith("refs/") else own
        entry = self.entries.get("index")
        needed = [*operation.commits, *(row[1] for row in operation.unmerged)]
        if (
            operation.files
            and not operation.is_rewrite
            and blocked is None
            and (head, after) == (own, tip)
            and entry is not None
            and self.is_unchanged(entry)
            and all(one in self.known for one in needed)
        ):
            return True
        self.edit.tell(f"the branch left an unfinished command behind ({left[0]}), which was not taken over")
        return False

    def _take_operation(self, operation: _Operation) -> None:
        for name, content in operation.files.items():
            self.edit.write(name, content.encode())
        verb = next(iter(operation.files)).removesuffix("_HEAD").lower().replace("_", "-")
        self.edit.tell(
            f"the branch's unfinished {verb} was taken over: git {verb} --continue finishes it, git {verb} --abort "
            "gives it up"
        )

    # Linked worktrees

    def _list_worktrees(self) -> dict[str, list[str]]:
        """List the linked worktrees in which the branch worked, and the commits of their logs, newest first."""
        found: dict[str, list[str]] = {}
        for inside in self.entries:
            match = _WORKTREE_HEAD.fullmatch(inside)
            if match is not None and self._is_new(inside):
                head = (self.ours.read(inside) or b"").decode(errors="replace").strip()
                logged = [line.new for line in reversed(parse_log(self.ours.read(f"{match[1]}/logs/HEAD") or b""))]
                found[match[2]] = [head, *logged] if _COMMIT_ID.fullmatch(head) else logged
        return found

    def _keep_worktrees(self, worktrees: Mapping[str, list[str]]) -> None:
        for name, tips in worktrees.items():
            self._keep_tips(tips, f"commits of the branch's worktree {name}")
            self.edit.tell(
                f"the branch's worktree {name} was not taken over, but its commits were; git worktree add makes another"
            )

    # The index

    def _list_staged(self) -> list[tuple[str, str, str]]:
        """List what the branch staged but did not commit: mode, id and path; the mode is 0 for a deletion."""
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
        staged: dict[str, tuple[str, str, str]] | None = None
        for base in self._list_bases(tip):
            done = self._run_in(self.shadow, "diff-index", "--cached", "--no-renames", "-z", base)
            rows = {row[2]: row for row in (_parse_raw(done.stdout) if done.returncode == 0 else [])}
            staged = rows if staged is None else {path: row for path, row in staged.items() if path in rows}
            if not staged:
                return []
        return [*(staged or {}).values()]

    def _list_bases(self, tip: str | None) -> list[str]:
        """List the commits that the branch's index may be based on.

        The branch reads a reference that it did not write from the workspace, and sees it move there, so its index may
        be older or newer than that move. What the index has in common with any of these commits is not staged.
        """
        head = self.ours.head or "HEAD"
        name = head if head.startswith("refs/") else "HEAD"
        found = [tip or self._empty_tree()]
        if name in self.entries:
            return found
        lines = self._list_lines_since_fork("HEAD")
        found += [one for line in reversed(lines[-_MOST_BASES:]) for one in (line.new, line.old)]
        found += [lines[0].old] if lines else []
        return [self._empty_tree() if is_absent(one) else one for one in dict.fromkeys(found)]

    def _write_index(
        self,
        before: str | None,
        after: str | None,
        staged: Sequence[tuple[str, str, str]],
        unmerged: Sequence[tuple[str, str, str, str]],
    ) -> None:
        """Take over the entries of paths that the branch committed or staged; what the user staged stays staged."""
        edit = self.edit
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
                output = edit.git("diff-tree", "-r", "-z", "--no-renames", base, after)
                rows |= {path: (mode, blob) for mode, blob, path in _parse_raw(output) if path not in own}
            entry = self.entries.get("index")
            is_quiet = entry is not None and self.is_unchanged(entry)
            for mode, blob, path in staged:
                is_new = own.get(path) != (mode, blob) if is_quiet else path not in own
                if is_new and (mode == "000000" or blob in self.known):
                    rows[path] = (mode, blob)
            if not rows and not unmerged:
                return
            conflicting = dict.fromkeys(path for *_, path in unmerged)
            rows = {path: row for path, row in rows.items() if path not in conflicting}
            new = {path: None if mode == "000000" else (mode, blob) for path, (mode, blob) in rows.items()}
            old = read_entries(edit, copy, [*rows, *conflicting])
            content = write_index(edit, copy, {**new, **dict.fromkeys(conflicting)})
            if unmerged:
                text = "".join(f"{mode} {blob} {stage}\t{path}\0" for mode, blob, stage, path in unmerged)
                edit.git("update-index", "-z", "--index-info", stdin=os.fsencode(text), index=copy)
                with open(copy, "rb") as file:
                    content = file.read()
            edit.write("index", content)
            self.unmerged = [[path, old.get(path)] for path in conflicting]
            self.index = [[path, old.get(path), new[path]] for path in rows]
            if staged:
                edit.tell("index changed")
        finally:
            shutil.rmtree(shadow, ignore_errors=True)

    def _diff_index(self, tree: str, index: str) -> list[tuple[str, str, str]]:
        return _parse_raw(self.edit.git("diff-index", "--cached", "--no-renames", "-z", tree, index=index))

    def _empty_tree(self) -> str:
        return self.edit.git("hash-object", "-t", "tree", "-w", "--stdin").decode().strip()


def _parse_raw(output: bytes) -> list[tuple[str, str, str]]:
    """Parse the raw format of diffs: new mode, new id and path of each."""
    fields = os.fsdecode(output).split("\0")[:-1]
    found = []
    for facts, path in zip(fields[::2], fields[1::2], strict=False):
        words = facts.split()
        if len(words) == 5 and words[4] != "U":
            found.append((words[1], words[3], path))
    return found


def _read_time(line: LogLine) -> int:
    return int(line.who.rpartition(" ")[0].rpartition(" ")[2])
