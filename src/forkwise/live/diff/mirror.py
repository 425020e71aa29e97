"""A mirror of a fork on disk, its manifest, and the diff tools that can open it.

`ForkMaterializer` writes read-only copies of the files that branches changed, so that a diff tool needs no access to
the branches themselves. `EditorDetector` finds a diff tool and starts it on them.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Literal

from forkwise.concurrency import finish, run_in_thread
from forkwise.files.gc import MIRRORS, OWNER_FILE
from forkwise.linux.file_write import replace_file
from forkwise.linux.process_id import ProcessId
from forkwise.live.values import BranchStatus, FileChange

__all__ = [
    "FORKS_ROOT",
    "EditorDetector",
    "EditorKind",
    "ForkMaterializer",
    "ManifestWriter",
    "directory_of",
    "git_difftool",
]


#: The parent of the mirror directories, which are named by fork id.
FORKS_ROOT = Path(MIRRORS)

_FILE_MODE = 0o444  # read-only, because an edit in the mirror would have no effect
_MAX_NAME = 100


def directory_of(label: str) -> str:
    """Return the name of a branch's directory: its label, with unsafe characters as ``%``-codes.

    >>> directory_of("approach_a"), directory_of("../../etc"), directory_of("a/b")
    ('approach_a', '%2E.%2F..%2Fetc', 'a%2Fb')
    """
    last = len(label) - 1
    plain = "".join(
        c if c.isalnum() or c in "_-+@" or (c in ". " and 0 < at < last) else _percent_encode(c)
        for at, c in enumerate(label)
    )
    if len(plain.encode()) > _MAX_NAME:
        digest = sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        plain = f"{plain.encode()[: _MAX_NAME - 13].decode('utf-8', 'ignore')}%{digest}"
    return plain or "%"


@dataclass
class ForkMaterializer:
    """A mirror of one fork in ``root``, which is created; `cleanup` removes it unless ``keep_artifacts`` is set.

    It has a ``manifest.json``, ``parent/`` with the parent's version of each changed path, saved before its first
    change, and a directory in ``branches/`` for each branch, named by its label. Mirrored files are read-only.
    """

    root: Path
    fork_id: str
    keep_artifacts: bool = False
    _parent_paths: dict[str, tuple[str, bool]] = field(default_factory=dict, init=False, repr=False)
    _created: list[Path] = field(default_factory=list, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _is_removed: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.root = Path(self.root).absolute()
        self._created = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for directory in ("parent", "branches"):
            os.makedirs(self.root / directory, exist_ok=True)
        if not self.manifest_path().exists():
            # Nothing reads the manifest yet: a plain write is enough, and it is faster, which counts for every fork.
            self.manifest_path().write_text(self._format_manifest([]))

    def set_owner(self) -> None:
        """Record this process in ``owner``, so that gc removes the mirror if the process is killed."""
        if not self.keep_artifacts:
            (self.root / OWNER_FILE).write_text(json.dumps(ProcessId.current().dump()))

    def manifest_path(self) -> Path:
        """Return the path of the manifest."""
        return self.root / "manifest.json"

    def parent_path(self, path: str) -> Path:
        """Return the location of the parent's version of a path."""
        return self.root / "parent" / _relative(path)

    def branch_path(self, branch_label: str, path: str) -> Path:
        """Return the location of a branch's version of a path."""
        return self.root / "branches" / directory_of(branch_label) / _relative(path)

    def snapshot_parent_path(self, path: str, content: bytes | None) -> None:
        """Save the parent's version of a path (None: no file). Only the first call for a path has an effect."""
        name = _relative(path)
        if name in self._parent_paths:
            return
        self._parent_paths[name] = (path, content is not None)
        if content is not None:
            self._write(self.parent_path(path), content)

    def pre_flush_snapshot(self) -> dict[str, bytes | None]:
        """Return the parent's versions of the changed paths; None for no file."""
        return {
            path: self.parent_path(path).read_bytes() if existed else None
            for path, existed in self._parent_paths.values()
        }

    def flush_change(self, branch_label: str, change: FileChange, content: bytes) -> None:
        """Mirror a file that a branch has written."""
        self._write(self.branch_path(branch_label, change.path), content)

    def flush_delete(self, branch_label: str, change: FileChange) -> None:
        """Mirror a deletion in a branch, and remove the directories that this empties."""
        target = self.branch_path(branch_label, change.path)
        self._clear(target)
        target.unlink(missing_ok=True)
        top = self.root / "branches" / directory_of(branch_label)
        for directory in target.parents:
            if directory == top or not _remove_if_empty(directory):
                break

    def update_manifest(self, statuses: Iterable[BranchStatus]) -> None:
        """Write the status of the branches."""
        self._write(self.manifest_path(), self._format_manifest(statuses).encode(), mode=0o644)

    def _format_manifest(self, statuses: Iterable[BranchStatus]) -> str:
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
        return json.dumps({"fork_id": self.fork_id, "branches": branches}, indent=2) + "\n"

    def cleanup(self) -> None:
        """Remove the mirror, and the directories above it that it created, if empty."""
        if self.keep_artifacts:
            return
        with self._lock:
            self._is_removed = True
            with suppress(FileNotFoundError):
                shutil.rmtree(self.root)
        for directory in self._created[1:]:
            if not _remove_if_empty(directory):
                break

    def _write(self, target: Path, content: bytes, mode: int = _FILE_MODE) -> None:
        """Replace a file atomically, so that no reader sees a partial one. After `cleanup`, do nothing."""
        with self._lock:
            if not self._is_removed:
                self._replace(target, content, mode)

    def _replace(self, target: Path, content: bytes, mode: int) -> None:
        self._clear(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content, mode=mode, beside=self.root / ".writing")

    def _clear(self, target: Path) -> None:
        """Remove a directory at the path of a file, and files or symbolic links at the paths of its parents."""
        directory = self.root
        for name in target.relative_to(self.root).parts[:-1]:
            directory /= name
            if directory.is_symlink() or directory.is_file():
                directory.unlink()
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)


def _percent_encode(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _relative(path: str) -> str:
    """Make a path relative to the mirror; ``..`` cannot lead out of it."""
    name = posixpath.normpath(f"/{path}").lstrip("/")
    if not name:
        raise ValueError(f"{path!r} does not name a file")
    return name


def _remove_if_empty(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True


class ManifestWriter:
    """A background writer of a mirror's manifest. It combines updates that arrive during a write."""

    def __init__(self, mirror: ForkMaterializer, statuses: Callable[[], Sequence[BranchStatus]]) -> None:
        self._mirror = mirror
        self._statuses = statuses
        self._is_due = False
        self._write: asyncio.Future[None] | None = None

    def schedule(self) -> None:
        """Schedule a write of the current statuses."""
        self._is_due = True
        if self._write is None:
            self._start_write()

    async def close(self) -> None:
        """Write the final statuses, and wait until they are written."""
        self.schedule()
        while self._write is not None:
            await finish(self._write)
            await asyncio.sleep(0)  # for its callback

    def _start_write(self) -> None:
        # Not a task: branches may end, and schedule a write, while asyncio.run cancels tasks and awaits no new ones.
        self._is_due = False
        self._write = run_in_thread(self._update, list(self._statuses()))
        self._write.add_done_callback(self._continue)

    def _update(self, statuses: Sequence[BranchStatus]) -> None:
        with suppress(OSError):  # such as a full disk: the manifest is informational
            self._mirror.update_manifest(statuses)

    def _continue(self, _write: asyncio.Future[None]) -> None:
        self._write = None
        if self._is_due:
            self._start_write()


EditorKind = Literal["pycharm", "vscode", "tui", "custom"]

_PLACEHOLDER = re.compile(r"\{parent\}|(\{branches\})")


class EditorDetector:
    """The choice of a diff tool, and how to start it."""

    ENV_OVERRIDE: ClassVar[str] = "FORKWISE_DIFFTOOL"
    ENV_OVERRIDES: ClassVar[tuple[str, ...]] = (ENV_OVERRIDE, "PYDANTIC_DEEP_DIFFTOOL")

    @staticmethod
    def detect(env: Mapping[str, str] | None = None) -> EditorKind:
        """Return the first available of: the command in FORKWISE_DIFFTOOL, PyCharm, VS Code, the terminal UI."""
        env = os.environ if env is None else env
        if EditorDetector.custom_command(env):
            return "custom"
        path = env.get("PATH")
        if shutil.which("pycharm", path=path):
            return "pycharm"
        return "vscode" if shutil.which("code", path=path) else "tui"

    @staticmethod
    def custom_command(env: Mapping[str, str] | None = None) -> str | None:
        """Return the command set in the environment, if any."""
        env = os.environ if env is None else env
        return next((found for name in EditorDetector.ENV_OVERRIDES if (found := env.get(name, "").strip())), None)

    @staticmethod
    def commands(
        kind: EditorKind, parent: Path | None, branch_paths: Sequence[Path], *, custom_cmd: str | None = None
    ) -> list[list[str]]:
        """Return the commands to execute: one for PyCharm, one per branch for VS Code, none for the terminal UI.

        ``parent`` is None for a file that the parent does not have. ``custom_cmd`` is split into words, but not run by
        a shell, so that no file name is executed. ``{parent}`` and ``{branches}`` are replaced by paths; a word with
        ``{branches}`` is repeated for each branch.

        Raises ValueError if ``kind`` is ``custom`` and there is no command.

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
            # PyCharm shows three files side by side, with the base in the middle.
            order = [branches[0], base, branches[1]] if len(branches) == 2 else [base, *branches]
            return [["pycharm", "diff", *order]]
        if kind == "vscode":
            return [["code", "--diff", base, branch] for branch in branches]
        command = custom_cmd or EditorDetector.custom_command()
        if not command:
            raise ValueError(
                f"a custom diff tool needs a command: pass custom_cmd or set {EditorDetector.ENV_OVERRIDE}"
            )
        return [_expand(command, base, branches)]

    @staticmethod
    def invoke(
        kind: EditorKind, parent: Path | None, branch_paths: Sequence[Path], *, custom_cmd: str | None = None
    ) -> list[subprocess.Popen[bytes]]:
        """Start the diff tool without waiting for it; see `commands`."""
        return [
            subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
            for words in EditorDetector.commands(kind, parent, branch_paths, custom_cmd=custom_cmd)
        ]


def git_difftool(parent: Path, branch: Path, *, tool: str | None = None) -> list[str]:
    """Return the command that compares two files or directories in git's configured diff tool, or in ``tool``.

    >>> git_difftool(Path("/p/app.py"), Path("/b/app.py"), tool="vimdiff")
    ['git', 'difftool', '--no-prompt', '--tool=vimdiff', '--no-index', '--', '/p/app.py', '/b/app.py']
    """
    option = [f"--tool={tool}"] if tool else []
    return ["git", "difftool", "--no-prompt", *option, "--no-index", "--", str(parent), str(branch)]


def _expand(command: str, parent: str, branches: Sequence[str]) -> list[str]:
    def expand(word: str, branch: str) -> str:
        # In a single pass, so that a placeholder inside a path is not replaced.
        return _PLACEHOLDER.sub(lambda found: branch if found[1] else parent, word)

    return [
        expand(word, branch)
        for word in shlex.split(command)
        for branch in (branches if "{branches}" in word else branches[:1])
    ]
