"""Editors: which diff tool there is, and how it is started on the versions of a file."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Literal

from forkwise.concurrency import finish, run_in_thread
from forkwise.live.values import BranchStatus, FileChange

__all__ = [
    "FORKS_ROOT",
    "EditorDetector",
    "EditorKind",
    "ForkMaterializer",
    "Manifest",
    "directory_of",
    "git_difftool",
]


#: Where the directories of forks are, each by its fork's id.
FORKS_ROOT = Path(".forkwise/forks")

_MIRRORED = 0o444  # the mirror is to be looked at: an edit in it would go nowhere
_LONGEST_NAME = 100


def directory_of(label: str) -> str:
    """The name of a branch's directory: its label, with all that a file name should not hold written as ``%``-codes.

    >>> directory_of("approach_a"), directory_of("../../etc"), directory_of("a/b")
    ('approach_a', '%2E.%2F..%2Fetc', 'a%2Fb')
    """
    last = len(label) - 1
    plain = "".join(
        c if c.isalnum() or c in "_-+@" or (c in ". " and 0 < at < last) else _code(c) for at, c in enumerate(label)
    )
    if len(plain.encode()) > _LONGEST_NAME:
        digest = sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        plain = f"{plain.encode()[: _LONGEST_NAME - 13].decode('utf-8', 'ignore')}%{digest}"
    return plain or "%"


@dataclass
class ForkMaterializer:
    """Mirrors one fork below ``root``, which is made; `cleanup` removes it unless ``keep_artifacts`` is set.

    There are ``manifest.json``, ``parent/`` with what the parent had where a branch wrote first, and a directory below
    ``branches/`` for each branch by its label. Mirrored files are read-only.
    """

    root: Path
    fork_id: str
    keep_artifacts: bool = False
    _kept: dict[str, tuple[str, bool]] = field(default_factory=dict, init=False, repr=False)
    _made: list[Path] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.root = Path(self.root).absolute()
        self._made = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for directory in ("parent", "branches"):
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        self.update_manifest([])

    def manifest_path(self) -> Path:
        """Where the manifest is."""
        return self.root / "manifest.json"

    def parent_path(self, path: str) -> Path:
        """Where the parent's version of a path is."""
        return self.root / "parent" / _inside(path)

    def branch_path(self, branch_label: str, path: str) -> Path:
        """Where a branch's version of a path is."""
        return self.root / "branches" / directory_of(branch_label) / _inside(path)

    def snapshot_parent_path(self, path: str, content: bytes | None) -> None:
        """Keep what the parent has at a path (None: nothing). Only the first call for a path counts."""
        name = _inside(path)
        if name in self._kept:
            return
        self._kept[name] = (path, content is not None)
        if content is not None:
            self._write(self.parent_path(path), content)

    def pre_flush_snapshot(self) -> dict[str, bytes | None]:
        """What the parent had, by path, wherever a branch wrote."""
        return {
            path: self.parent_path(path).read_bytes() if was_there else None for path, was_there in self._kept.values()
        }

    def flush_change(self, branch_label: str, change: FileChange, content: bytes) -> None:
        """Mirror what a branch has written."""
        self._write(self.branch_path(branch_label, change.path), content)

    def flush_delete(self, branch_label: str, change: FileChange) -> None:
        """Mirror that a branch has deleted a path; directories that are empty then go with it."""
        target = self.branch_path(branch_label, change.path)
        self._clear(target)
        target.unlink(missing_ok=True)
        top = self.root / "branches" / directory_of(branch_label)
        for directory in target.parents:
            if directory == top or not _removed(directory):
                break

    def update_manifest(self, statuses: Iterable[BranchStatus]) -> None:
        """Write where the branches stand."""
        branches = [
            {
                "id": status.id,
                "label": status.label,
                "directory": directory_of(status.label),
                "state": status.state,
                "current_turn": status.current_turn,
                "error": status.error,
            }
            for status in statuses
        ]
        text = json.dumps({"fork_id": self.fork_id, "branches": branches}, indent=2)
        self._write(self.manifest_path(), f"{text}\n".encode(), mode=0o644)

    def cleanup(self) -> None:
        """Remove the fork's directory, and those above it that were made for it and are empty now."""
        if self.keep_artifacts:
            return
        with suppress(FileNotFoundError):
            shutil.rmtree(self.root)
        for directory in self._made[1:]:
            if not _removed(directory):
                break

    def _write(self, target: Path, content: bytes, mode: int = _MIRRORED) -> None:
        """Replace a file at once, so that nobody sees half of it."""
        self._clear(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=self.root, prefix=".writing-")
        try:
            with open(fd, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise

    def _clear(self, target: Path) -> None:
        """Remove what is in a file's way: a directory at its place, or a file or a symbolic link at one above it."""
        place = self.root
        for name in target.relative_to(self.root).parts[:-1]:
            place /= name
            if place.is_symlink() or place.is_file():
                place.unlink()
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)


def _code(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _inside(path: str) -> str:
    """A path as one below a directory: whatever way up it takes ends there."""
    name = posixpath.normpath(f"/{path}").lstrip("/")
    if not name:
        raise ValueError(f"{path!r} names no file")
    return name


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True


class Manifest:
    """Writes the manifest of a mirror whenever it is told that a branch stands elsewhere."""

    def __init__(self, mirror: ForkMaterializer, statuses: Callable[[], Sequence[BranchStatus]]) -> None:
        self._mirror = mirror
        self._statuses = statuses
        self._is_due = False
        self._writing: asyncio.Task[None] | None = None

    def note(self) -> None:
        """A branch stands elsewhere."""
        self._is_due = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write how it ended; nothing is written after that."""
        self.note()
        assert self._writing is not None
        await finish(self._writing)

    async def _write(self) -> None:
        while self._is_due:
            self._is_due = False
            with suppress(OSError):  # such as a full disk: it is only to be looked at
                await run_in_thread(self._mirror.update_manifest, list(self._statuses()))


EditorKind = Literal["pycharm", "vscode", "tui", "custom"]

_PLACEHOLDER = re.compile(r"\{parent\}|(\{branches\})")


class EditorDetector:
    """Finds the diff tool to use, and starts it."""

    ENV_OVERRIDE: ClassVar[str] = "FORKWISE_DIFFTOOL"
    ENV_OVERRIDES: ClassVar[tuple[str, ...]] = (ENV_OVERRIDE, "PYDANTIC_DEEP_DIFFTOOL")

    @staticmethod
    def detect(env: Mapping[str, str] | None = None) -> EditorKind:
        """The first there is: a command in FORKWISE_DIFFTOOL, PyCharm, VS Code, and else the terminal's own view."""
        env = os.environ if env is None else env
        if EditorDetector.custom_command(env):
            return "custom"
        path = env.get("PATH")
        if shutil.which("pycharm", path=path):
            return "pycharm"
        return "vscode" if shutil.which("code", path=path) else "tui"

    @staticmethod
    def custom_command(env: Mapping[str, str] | None = None) -> str | None:
        """The command that the environment asks for, if any."""
        env = os.environ if env is None else env
        return next((found for name in EditorDetector.ENV_OVERRIDES if (found := env.get(name, "").strip())), None)

    @staticmethod
    def commands(
        kind: EditorKind, parent: Path | None, branch_paths: Sequence[Path], *, custom_cmd: str | None = None
    ) -> list[list[str]]:
        """What is executed: for PyCharm one command, for VS Code one for each branch, for the terminal none.

        ``parent`` None is a file that the parent does not have. ``custom_cmd`` is split into words as a shell does it
        and not given to one, so that no file name is ever run: ``{parent}`` and ``{branches}`` become paths, a word
        with ``{branches}`` as many words as there are branches.

        >>> a, b, p = Path("/a"), Path("/b"), Path("/p")
        >>> EditorDetector.commands("pycharm", p, [a, b])
        [['pycharm', 'diff', '/a', '/p', '/b']]
        >>> EditorDetector.commands("custom", p, [a, b], custom_cmd="meld {parent} --diff={branches}")
        [['meld', '/p', '--diff=/a', '--diff=/b']]
        """
        base = os.devnull if parent is None else str(parent)
        branches = [str(path) for path in branch_paths]
        if kind == "tui" or not branches:
            return []
        if kind == "pycharm":
            # Of three, the one in the middle is the base.
            order = [branches[0], base, branches[1]] if len(branches) == 2 else [base, *branches]
            return [["pycharm", "diff", *order]]
        if kind == "vscode":
            return [["code", "--diff", base, branch] for branch in branches]
        command = custom_cmd or EditorDetector.custom_command()
        if not command:
            raise ValueError(
                f"no command was given for a custom diff tool, and {EditorDetector.ENV_OVERRIDE} is not set"
            )
        return [_filled(command, base, branches)]

    @staticmethod
    def invoke(
        kind: EditorKind, parent: Path | None, branch_paths: Sequence[Path], *, custom_cmd: str | None = None
    ) -> list[subprocess.Popen[bytes]]:
        """Start the diff tool, and do not wait for it; `commands` says what that is."""
        return [
            subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
            for words in EditorDetector.commands(kind, parent, branch_paths, custom_cmd=custom_cmd)
        ]


def git_difftool(parent: Path, branch: Path, *, tool: str | None = None) -> list[str]:
    """The command that shows two files, or two directories, in the tool that git is set up for, or in ``tool``.

    >>> git_difftool(Path("/p/app.py"), Path("/b/app.py"), tool="vimdiff")
    ['git', 'difftool', '--no-prompt', '--tool=vimdiff', '--no-index', '--', '/p/app.py', '/b/app.py']
    """
    chosen = [f"--tool={tool}"] if tool else []
    return ["git", "difftool", "--no-prompt", *chosen, "--no-index", "--", str(parent), str(branch)]


def _filled(command: str, parent: str, branches: Sequence[str]) -> list[str]:
    def filled(word: str, branch: str) -> str:
        # In one pass: what stands in a path is no placeholder.
        return _PLACEHOLDER.sub(lambda found: branch if found[1] else parent, word)

    return [
        filled(word, branch)
        for word in shlex.split(command)
        for branch in (branches if "{branches}" in word else branches[:1])
    ]
