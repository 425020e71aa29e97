"""The inverse of a merge of git repositories: an undo, or the undo of an undo."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from forkwise.errors import GitError
from forkwise.git.repository import Repository
from forkwise.git.repository_change import LogLine, RepositoryMerge, RepositorySide
from forkwise.git.repository_edit import (
    RepositoryEdit,
    describe_reference,
    drop_packed,
    open_repository,
    read_entries,
    shorten_reference,
    write_index,
)

__all__ = ["revert_repositories"]


def revert_repositories(workspace: str, done: Sequence[Mapping[str, Any]], verb: str, scratch: str) -> RepositoryMerge:
    """Work out how to take back what a commit did in repositories, or, for an undo, how to do it again.

    References and index entries are restored unless they changed since; then they stay, and a sentence names them.
    Objects stay. ``verb`` is the word for it in the logs.
    """
    merge = RepositoryMerge()
    for record in done:
        edit = RepositoryEdit(workspace, record["directory"], Repository("", "", ""), merge, record["label"])
        try:
            edit.repository = open_repository(f"{workspace}/{edit.directory}")
            _revert_one(edit, record, verb, scratch)
        except (GitError, OSError) as error:
            edit.give_up(f"the repository stays as it is: {error}")
    return merge


def _revert_one(edit: RepositoryEdit, record: Mapping[str, Any], verb: str, scratch: str) -> None:
    side = RepositorySide(edit.repository.git_directory)
    head = side.head
    rows, is_head_left = [], False
    logs: dict[str, list[LogLine]] = {}
    moved: dict[str, str | None] = {}
    checked_out = side.resolve(head) if head and head.startswith("refs/") else head
    after = checked_out
    for name, old, new in reversed(record["references"]):
        if name.startswith("file:"):
            rows.append([name, new, old])
            edit.write(name.removeprefix("file:"), None if old is None else old.encode())
            continue
        now = moved[name] if name in moved else side.head if name == "HEAD" else side.resolve(name)
        moved[name] = old if now == new else now
        if now != new:
            edit.tell(f"{describe_reference(name)} stays as it is: it was moved since")
            is_head_left = is_head_left or name in ("HEAD", head)
            continue
        rows.append([name, new, old])
        _write_reference(edit, side, name, old)
        edit.tell(
            f"{describe_reference(name)} {'removed' if old is None else 'is back at ' + shorten_reference(old)[:40]}"
        )
        first, last = (v if v and not v.startswith("refs/") else side.resolve(v) if v else None for v in (new, old))
        zero = "0" * len(first or last or "")
        line = LogLine(first or zero, last or zero, edit.who, f"forkwise: {verb} {edit.label}")
        if last is not None:
            logs.setdefault(name, []).append(line)
        if name == head:
            after = last
        elif name == "HEAD":
            after = next((r[2] for r in rows if r[0] == old), last)
    if after != checked_out and after is not None:
        zero = "0" * len(after)
        logs["HEAD"] = [LogLine(checked_out or zero, after, edit.who, f"forkwise: {verb} {edit.label}")]
    for name, lines in logs.items():
        before = side.read(f"logs/{name}")
        if before is not None:
            edit.write(f"logs/{name}", before + "".join(map(str, lines)).encode(errors="surrogateescape"))
    operation = record.get("operation", {"files": {}, "unmerged": []})
    for name, content in operation["files"].items():
        if side.read(name) == content.encode():
            edit.write(name, None)
    index = [] if is_head_left else _revert_index(edit, record["index"], operation["unmerged"], scratch)
    stashes = _revert_stashes(edit, side, record["stashes"])
    for name in ("HEAD", "packed-refs"):
        edit.watch(name)
    edit.lock("HEAD")
    edit.lock("index")
    edit.merge.done.append(
        {
            "directory": edit.directory,
            "label": edit.label,
            "references": rows,
            "index": index,
            "stashes": [{"drop": line} if isinstance(line, str) else line["drop"] for line in stashes],
        }
    )


def _write_reference(edit: RepositoryEdit, side: RepositorySide, name: str, value: str | None) -> None:
    if name == "HEAD":
        assert value is not None
        edit.write("HEAD", (f"ref: {value}\n" if value.startswith("refs/") else f"{value}\n").encode())
    elif value is not None:
        edit.write(name, f"{value}\n".encode())
    else:
        if side.read(name) is not None:
            edit.write(name, None)
        if name in side.packed:
            packed = edit.merge.contents.get(f"{edit.directory}/packed-refs") or side.read("packed-refs") or b""
            edit.write("packed-refs", drop_packed(packed, name))
        if side.read(f"logs/{name}") is not None:
            edit.write(f"logs/{name}", None)


def _revert_index(
    edit: RepositoryEdit, rows: Sequence[Sequence[Any]], unmerged: Sequence[Sequence[Any]], scratch: str
) -> list[list[Any]]:
    """Restore the entries that the index had before; return what an undo of this needs. Conflicts are not restored."""
    index = f"{edit.repository.git_directory}/index"
    if not (rows or unmerged) or not os.path.isfile(index):
        return []
    shadow = tempfile.mkdtemp(prefix="git-", dir=scratch)
    try:
        shutil.copyfile(index, f"{shadow}/index", follow_symlinks=False)
        now = read_entries(edit, f"{shadow}/index", [row[0] for row in (*rows, *unmerged)])
        back = [[path, new, old] for path, old, new in rows if now.get(path) == (None if new is None else tuple(new))]
        ended = [[path, None, old] for path, old in unmerged if path not in now]
        if back or ended:
            new_rows = {path: None if row is None else (row[0], row[1]) for path, _, row in (*back, *ended)}
            edit.write("index", write_index(edit, f"{shadow}/index", new_rows))
        return back
    finally:
        shutil.rmtree(shadow, ignore_errors=True)


def _revert_stashes(edit: RepositoryEdit, side: RepositorySide, lines: Sequence[Any]) -> list[Any]:
    """Take added stashes out of the stack, or put them back; others stay."""
    if not lines:
        return []
    now = [str(line) for line in side.log("refs/stash")]
    added = [line["drop"] for line in lines if not isinstance(line, str)]
    gone = [line for line in lines if isinstance(line, str)]
    left = [line for line in now if line not in gone] + [line for line in added if line not in now]
    if left == now:
        return []
    edit.write("logs/refs/stash", "".join(left).encode(errors="surrogateescape") if left else None)
    edit.write("refs/stash", f"{left[-1].split(' ')[1]}\n".encode() if left else None)
    if "refs/stash" in side.packed and not left:
        packed = edit.merge.contents.get(f"{edit.directory}/packed-refs") or side.read("packed-refs") or b""
        edit.write("packed-refs", drop_packed(packed, "refs/stash"))
    return [line for line in gone if line in now] + [{"drop": line} for line in added if line not in now]
