"""What an attempt changed, kept in the ledger after its branch is gone.

``<ledger>/changes/<attempt>.z`` is a stream of zlib: a line of JSON that lists the changed paths, then the contents of
the text files before and after, one after the other. Both versions are kept, so that two attempts can be compared too.
The size for one attempt is bounded, and the document says what was left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from forkwise.errors import LedgerError
from forkwise.files.store.changes import Change, ChangeKind, Delta, EntryType
from forkwise.files.versions import ChangedFiles, read_changes
from forkwise.git.repository_change import ReferenceChange, RepositoryChange
from forkwise.ledger.records import attempt_file
from forkwise.linux.file_write import replace_file
from forkwise.text.diff import FileDiff, FileVersion, is_text
from forkwise.text.phrases import format_number
from forkwise.text.redaction import process_redactor

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = ["StoredChanges", "load_changes", "remove_changes", "save_changes"]

_FORMAT = 1
_MAX_FILES = 2000  # with content
_MAX_CONTENT = 8 << 20  # bytes before and after together
_MAX_FILE = 1 << 20  # bytes of one version
_MAX_LISTED = 5000  # changed paths
_MAX_DOCUMENT = 64 << 20  # bytes after decompression; twice what can be written
_KINDS, _TYPES = get_args(ChangeKind), get_args(EntryType)


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """What an attempt changed: its delta, and both versions of each changed file and symbolic link.

    A file that is binary or large, or comes after the first ones of a large delta, has no content. ``unlisted`` is the
    number of changed paths that are not even in the delta. ``is_redacted`` says that secrets in the contents were
    replaced, so that a diff of them may not apply.
    """

    delta: Delta
    files: tuple[FileDiff, ...]
    unlisted: int = 0
    is_redacted: bool = False

    @property
    def without_content(self) -> tuple[str, ...]:
        """The paths with a version whose content was left out; binary files are not among them."""
        return tuple(
            file.path
            for file in self.files
            if any(side is not None and side.content is None and side.digest is None for side in (file.old, file.new))
        )

    @property
    def left_out(self) -> str:
        """What is not stored, in words; empty if all is."""
        parts = []
        if contents := len(self.without_content):
            parts.append(f"the content of {format_number(contents, 'file')}")
        if self.unlisted:
            parts.append(f"the names of {self.unlisted} further changed paths")
        return " and ".join(parts)


def save_changes(directory: str | os.PathLike[str], attempt: str, branch: Branch) -> int:
    """Keep what an attempt changed in its branch, without known secrets; return the number of changed files.

    The branch is scanned once, and the merge bases of its files are recorded as well. If the disk is full, nothing is
    kept.
    """
    found = read_changes(branch, listed=_MAX_LISTED, files=_MAX_FILES, size=_MAX_CONTENT, file_size=_MAX_FILE)
    content = _encode(found)
    path = attempt_file(directory, attempt, "changes", "z")
    with suppress(OSError):  # such as a full disk, which must not fail the attempt
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, content, beside=path.with_suffix(".new"))
    return found.total


def load_changes(directory: str | os.PathLike[str], attempt: str) -> StoredChanges | None:
    """Return the stored changes of an attempt; None if there are none. Raises LedgerError if they are damaged."""
    try:
        packed = attempt_file(directory, attempt, "changes", "z").read_bytes()
    except FileNotFoundError:
        return None
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, _MAX_DOCUMENT)
        if not unpacking.eof:
            raise ValueError("it is incomplete or too large")
        return _decode(content)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, zlib.error) as error:
        raise LedgerError(f"the stored changes of {attempt} are damaged: {error}", subject=attempt) from error


def remove_changes(directory: str | os.PathLike[str], attempt: str) -> None:
    """Delete the stored changes of an attempt."""
    attempt_file(directory, attempt, "changes", "z").unlink(missing_ok=True)


def _encode(found: ChangedFiles) -> bytes:
    is_redacted = False
    contents: list[bytes] = []

    def pack(side: FileVersion | None) -> list[Any] | None:
        nonlocal is_redacted
        if side is None:
            return None
        if side.content is None:
            return [side.mode, side.size, None, None]
        digest = hashlib.sha256(side.content).hexdigest()
        if not is_text(side.content):
            return [side.mode, len(side.content), digest, None]
        clean = process_redactor().redact_bytes(side.content)
        is_redacted = is_redacted or clean != side.content
        contents.append(clean)
        return [side.mode, len(side.content), digest, len(clean)]

    document = {
        "format": _FORMAT,
        "changes": [[c.path, c.kind, c.type, c.size, c.mode, c.executor, c.files] for c in found.delta],
        "files": [[file.path, pack(file.old), pack(file.new)] for file in found.files],
        "repository": [asdict(change) for change in found.delta.repository],
        "unlisted": found.unlisted,
        "is_redacted": is_redacted,
    }
    return zlib.compress(b"".join([json.dumps(document).encode(), b"\n", *contents]))


def _decode(content: bytes) -> StoredChanges:
    head, newline, rest = content.partition(b"\n")
    document = json.loads(head)
    if not newline or not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("it has an unknown format")
    changes = tuple(_load_change(*row) for row in document["changes"])
    files = tuple(_load_files(document["files"], rest))
    unlisted = document["unlisted"]
    if type(unlisted) is not int or unlisted < 0:
        raise ValueError("its number of further paths is not a number")
    repository = tuple(_load_repository(**row) for row in document.get("repository", ()))
    return StoredChanges(Delta(changes, repository), files, unlisted, document["is_redacted"] is True)


def _load_change(path: Any, kind: Any, type_: Any, size: Any, mode: Any, executor: Any, files: Any = 0) -> Change:
    if kind not in _KINDS or type_ not in _TYPES or not (type(size) is type(mode) is type(files) is int):
        raise ValueError("a change in it is invalid")
    if not (isinstance(path, str) and isinstance(executor, str)):
        raise ValueError("a path in it is invalid")
    return Change(path, kind, type_, size, mode, executor, files)


def _load_repository(references: Any, **fields: Any) -> RepositoryChange:
    found = RepositoryChange(references=tuple(ReferenceChange(**row) for row in references), **fields)
    for reference in found.references:
        if not (type(reference.name) is str and type(reference.commits) is int):
            raise ValueError("a reference in it is invalid")
    if not (type(found.path) is type(found.problem) is str and type(found.stashes) is int):
        raise ValueError("a repository in it is invalid")
    return found


def _load_files(rows: Any, rest: bytes) -> Iterator[FileDiff]:
    start = 0
    for path, *sides in rows:
        if not isinstance(path, str) or len(sides) != 2:
            raise ValueError("a file in it is invalid")
        versions: list[FileVersion | None] = []
        for side in sides:
            if side is None:
                versions.append(None)
                continue
            mode, size, digest, length = side
            if type(mode) is not int or not isinstance(digest, str | None) or type(size) not in (int, type(None)):
                raise ValueError("a version in it is invalid")
            version = FileVersion(mode, None, size, digest)
            if length is not None:
                if type(length) is not int or not 0 <= length <= len(rest) - start:
                    raise ValueError("a content in it is incomplete")
                version = replace(version, content=rest[start : start + length])
                start += length
            versions.append(version)
        yield FileDiff(path, *versions)
