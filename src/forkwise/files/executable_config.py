"""Executable configuration: files of a delta that make programs on the user's machine run something by themselves.

Ordinary code does not count: a Makefile or a module runs when the user runs it. A git hook, an editor's task or a
Python start-up file runs without a request. docs/sandbox.md has the list for users.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from forkwise.errors import ExecutableConfigError, GitError
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.scan import Entry, Scan
    from forkwise.files.versions import Versions

__all__ = ["check_executable_config", "find_config_directory", "find_executable_config"]

_LARGEST = 1 << 20

#: Paths, in lower case, at any depth, and the program that runs them or runs what they name.
_FILES: tuple[tuple[str, str], ...] = (
    (r"\.envrc", "direnv"),
    (r"\.?mise(\.local)?\.toml|\.config/mise/config\.toml", "mise"),
    (r"\.vscode/(tasks|launch|settings|mcp)\.json|[^/]+\.code-workspace", "VS Code"),
    (r"\.zed/(tasks|settings|debug)\.json", "Zed"),
    (r"\.idea/(runconfigurations/.+|watchertasks\.xml|externaltools\.xml|workspace\.xml)", "JetBrains IDEs"),
    (r"\.run/[^/]+\.run\.xml", "JetBrains IDEs"),
    (r"\.devcontainer/.+|\.devcontainer\.json", "development containers"),
    (r"(__pycache__/)?(site|user)customize(/__init__)?(\.[^/]+)?\.(py|pyc|so)", "every Python that finds it"),
    (r"\.pre-commit-config\.ya?ml", "pre-commit"),
    (r"\.husky/.+", "husky"),
    (r"\.?lefthook(-local)?\.(ya?ml|toml|json)", "lefthook"),
    (r"\.npmrc", "npm"),
    (r"\.yarnrc(\.yml)?|\.yarn/(plugins|releases)/.+", "yarn"),
    (r"\.pnpmfile\.c?js", "pnpm"),
    (r"\.cargo/config(\.toml)?", "cargo"),
    (r"\.claude/(settings(\.local)?\.json|hooks/.+)|\.mcp\.json", "Claude Code"),
    (r"\.cursor/(mcp|hooks)\.json", "Cursor"),
    (r"\.gemini/settings\.json", "Gemini CLI"),
    (r"\.codex/(config\.toml|hooks\.json)", "Codex"),
    (r"\.?opencode\.jsonc?|\.opencode/.+", "opencode"),
    (r"\.forkwise/[^/]+\.toml", "forkwise"),
    (r"\.(exrc|vimrc|nvimrc|nvim\.lua)", "Vim"),
    (r"\.dir-locals(-2)?\.el", "Emacs"),
    (r"\.(gdbinit|lldbinit)", "debuggers"),
    (r"\.(bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|zlogin)", "shells"),
    (r"\.ssh/(config|rc|authorized_keys2?)", "ssh"),
    (r"\.config/(autostart|systemd/user)/.+", "the desktop session"),
    (r"\.gitconfig|\.config/git/config", "git"),
)
# A cheap test that every path with a label passes; in most deltas no path does, and nothing else has to run.
_CANDIDATE = re.compile(
    r"(?:^|/)(?:\.|(?:mise\.|lefthook|opencode\.|sitecustomize|usercustomize)|(?:config|head)$)|(?:^|/)(?:hooks|__pycache__)/|\.pth$|\.code-workspace$"
)

#: Directories with files that the list above names: a symlink in place of one could lead to any other files.
_DIRECTORIES = {
    *(
        ".vscode",
        ".zed",
        ".idea",
        ".run",
        ".devcontainer",
        ".husky",
        ".yarn",
        ".cargo",
        ".claude",
        ".cursor",
        ".gemini",
    ),
    *(".codex", ".opencode", ".forkwise", ".ssh", ".config"),
}

#: Directories of a repository that hold only data: a file called ``config`` in one is a branch of that name.
_GIT_DATA = {"refs", "logs", "objects", "lfs", "rr-cache"}
#: Lines of .pth files that installers write into every environment.
_PTH_KNOWN = re.compile(
    rb"import _virtualenv|import __editable___(\w+)_finder; __editable___\1_finder\.install\(\)|import os; var = "
    rb"'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '(local|stdlib)'\) == 'local'; enabled and "
    rb"__import__\('_distutils_hack'\)(\.add_shim\(\))?;? *"
)


def check_executable_config(branch: Branch, executors: dict[str, str]) -> None:
    """Raise ExecutableConfigError if a confined program wrote executable configuration."""
    if not executors or not branch.is_confined:
        return
    shown = join_first([f"{path} ({executor})" for path, executor in executors.items()], 5)
    raise ExecutableConfigError(
        f"{branch.branch_path} was not committed, nothing was changed: a confined program changed what your machine "
        f"will run: {shown}. Look at the diff, then commit with "
        "allow_executable_config=True (--allow-executable-config), or remove these files from the branch",
        branch=branch.name,
        executors=executors,
    )


def find_executable_config(
    branch: Branch, scan: Scan, open_versions: Callable[[], Versions], *, thorough: bool = True
) -> dict[str, str]:
    """Return the changed paths that are executable configuration, sorted, each with what will run or read it.

    Only files whose name can matter are read, so the cost depends on the size of the changes. A search that is not
    ``thorough`` leaves out files that only the repository's configuration names: included files, and hooks elsewhere.
    """
    included, hooks = _named_by_repository(branch) if thorough and scan.entries else ((), ())
    own = _find_own_directory(branch)
    directories = (*hooks, *own)
    candidates = [
        entry
        for entry in scan.entries
        if _CANDIDATE.search(entry.path.casefold())
        or included
        or (directories and _is_below(branch, entry.path, directories))
    ]
    if not candidates:
        return {}
    with open_versions() as versions:
        reader = _Reader(branch, versions, scan)
        found = {}
        for entry in sorted(candidates, key=lambda e: e.path):
            if _is_below(branch, entry.path, hooks) and entry.new is not None and not stat.S_ISDIR(entry.new.st_mode):
                executor: str | None = "git (core.hooksPath)"
            elif _is_below(branch, entry.path, own) and entry.new is not None and not stat.S_ISDIR(entry.new.st_mode):
                executor = "forkwise"
            elif os.path.join(branch.workspace.target, entry.path) in included:
                executor = reader.label_config(entry)
            else:
                executor = reader.label(entry)
            if executor:
                found[entry.path] = executor
        return found


def _named_by_repository(branch: Branch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files and the directories of hooks that the configuration of the workspace's repository names."""
    from forkwise.git.repository import locate_repository  # noqa: PLC0415 - rarely needed

    try:
        repository = locate_repository(branch.workspace.target)
    except GitError:
        return (), ()
    if repository is None:
        return (), ()
    linked = f"{repository.common_directory}/hooks"
    hooks = (os.path.realpath(linked),) if os.path.islink(linked) else ()
    with suppress(OSError), open(f"{repository.common_directory}/config", "rb") as file:
        content = file.read(_LARGEST)
        if re.search(rb"include|hookspath", content, re.IGNORECASE):
            from forkwise.git.configuration import list_included  # noqa: PLC0415 - rarely needed

            included, named = list_included(content, repository.common_directory, repository.work_tree)
            return included, (*named, *hooks)
    return (), hooks


def find_config_directory() -> str:
    """Return the user's own configuration directory. A relative $XDG_CONFIG_HOME is ignored, as XDG requires."""
    return _build_config_directory(os.environ.get("XDG_CONFIG_HOME", ""), os.environ.get("HOME"))


@lru_cache(maxsize=8)
def _build_config_directory(given: str, _home: str | None) -> str:
    return os.path.join(given if os.path.isabs(given) else os.path.expanduser("~/.config"), "forkwise")


def _find_own_directory(branch: Branch) -> tuple[str, ...]:
    """Return the user's own configuration directory if the workspace contains it, as a home directory does."""
    own = _resolve(find_config_directory())
    return (own,) if own.startswith(f"{branch.workspace.target.rstrip('/')}/") else ()


def _resolve(path: str) -> str:
    """Return the real path of a directory, quickly if neither it nor a directory above it is a symlink."""
    try:
        found = os.stat(os.path.dirname(path))
    except OSError:
        return os.path.realpath(path)
    identity = found.st_dev, found.st_ino, found.st_ctime_ns
    if _without_symlinks.get(path) == identity:
        return path
    real = os.path.realpath(path)
    if real == path:
        _without_symlinks[path] = identity
    return real


#: Paths without symlinks, each with the identity and ctime of its parent directory, which differ if the path changed.
_without_symlinks: dict[str, tuple[int, int, int]] = {}


def _is_below(branch: Branch, path: str, directories: tuple[str, ...]) -> bool:
    return any(f"{os.path.join(branch.workspace.target, path)}/".startswith(f"{d}/") for d in directories)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(rf"(?:.*/)?(?:{pattern})"), executor) for pattern, executor in _FILES]


def _is_large(entry: Entry) -> bool:
    return entry.new is not None and entry.new.st_size > _LARGEST


class _Reader:
    """Labels single entries of a scan; reads both versions where the content matters."""

    def __init__(self, branch: Branch, versions: Versions, scan: Scan) -> None:
        self._workspace = branch.workspace.target
        self._versions = versions
        self._entries = {entry.path: entry for entry in scan.entries}
        self._branch = branch

    def label(self, entry: Entry) -> str | None:
        """Return what runs an entry, or None."""
        parts = entry.path.casefold().split("/")
        for at, part in enumerate(parts):
            if part == ".git" and (found := self._label_in_git(entry, parts[at + 1 :])):
                return found
        if ".git" in parts:
            return None
        name = parts[-1]
        if entry.new is None or stat.S_ISDIR(entry.new.st_mode):
            return None
        if name == ".gitattributes":
            return self._label_attributes(entry)
        if name.endswith(".pth"):
            return self._label_pth(entry)
        if name in ("config", "head") and (found := self._label_bare(entry)):
            return found
        path = entry.path.casefold()
        if stat.S_ISLNK(entry.new.st_mode) and name in _DIRECTORIES:
            return f"a link in the place of the configuration directory {name}"
        if "hooks" in parts[:-1] and not name.endswith(".sample"):
            at = parts.index("hooks")
            above = "".join(f"{part}/" for part in entry.path.split("/")[:at])
            if all(self._is_there(f"{above}{other}") for other in ("HEAD", "objects", "refs")):
                return f"git (hook {name} of a bare repository)"
        return next((executor for pattern, executor in _patterns() if pattern.fullmatch(path)), None)

    def label_config(self, entry: Entry) -> str | None:
        """Return the label of a configuration file of git: None if only harmless keys changed."""
        from forkwise.git.configuration import find_keys  # noqa: PLC0415 - rarely needed

        if entry.new is not None and not stat.S_ISREG(entry.new.st_mode):
            return None if stat.S_ISDIR(entry.new.st_mode) else "git (a link instead of its configuration)"
        keys = None if _is_large(entry) else find_keys(self._old(entry), self._new(entry), entry.path)
        if keys is None:
            return "git (a configuration that cannot be checked)"
        return f"git ({join_first(keys, 3)})" if keys else None

    def _label_in_git(self, entry: Entry, rest: list[str]) -> str | None:
        """Label an entry of a repository's own directory; ``rest`` is its path in there, empty for ``.git`` itself."""
        from forkwise.git.configuration import is_ordinary_pointer  # noqa: PLC0415 - rarely needed

        new = entry.new
        if new is not None and stat.S_ISLNK(new.st_mode):
            return "git (a link in its directory)"
        if not rest:
            if new is None or stat.S_ISDIR(new.st_mode):
                return None
            is_ordinary = is_ordinary_pointer(self._new(entry), entry.path, self._workspace)
            return None if is_ordinary else "git (a pointer to another repository)"
        if rest[0] in _GIT_DATA or (new is not None and stat.S_ISDIR(new.st_mode)):
            return None
        if rest[-1] in ("config", "config.worktree"):
            return self.label_config(entry)
        if "hooks" in rest[:-1]:
            return None if rest[-1].endswith(".sample") else f"git (hook {rest[-1]})"
        if new is None:
            return None
        if rest[-1] == "commondir":
            is_work_tree = rest[0] == "worktrees" and self._new(entry).strip() == b"../.."
            return None if is_work_tree else "git (a pointer to another repository)"
        return self._label_attributes(entry) if rest[-2:] == ["info", "attributes"] else None

    def _label_attributes(self, entry: Entry) -> str | None:
        from forkwise.git.configuration import find_attributes  # noqa: PLC0415 - rarely needed

        if _is_large(entry):
            return "git (attributes that cannot be checked)"
        drivers = find_attributes(self._old(entry), self._new(entry))
        return f"git ({join_first(drivers, 3)})" if drivers else None

    def _label_pth(self, entry: Entry) -> str | None:
        """Label a .pth file with lines that Python executes; others only name directories, or are models of PyTorch."""
        if _is_large(entry):
            is_read = re.search(r"(^|/)(site|dist)-packages/", entry.path)
            return "every Python that finds it" if is_read else None
        lines = set(self._new(entry).replace(b"\r", b"\n").split(b"\n")) - set(self._old(entry).split(b"\n"))
        runs = any(line.startswith((b"import ", b"import\t")) and not _PTH_KNOWN.fullmatch(line) for line in lines)
        return "every Python that finds it" if runs else None

    def _label_bare(self, entry: Entry) -> str | None:
        """Label an entry that completes a bare repository, which git finds anywhere, if its configuration runs code."""
        from forkwise.git.configuration import find_keys  # noqa: PLC0415 - rarely needed

        prefix = f"{entry.directory}/" if entry.directory else ""
        if not all(self._is_there(f"{prefix}{name}") for name in ("HEAD", "config", "objects", "refs")):
            return None
        for content in self._contents(f"{prefix}config"):
            keys = find_keys(b"", content, f"{prefix}config")
            if keys or keys is None:
                return f"git (a bare repository with {', '.join(keys or ['a configuration that cannot be checked'])})"
        return None

    def _is_there(self, path: str) -> bool:
        """Return whether the branch shows an entry at ``path``."""
        if (entry := self._entries.get(path)) is not None:
            return entry.new is not None
        return any(True for _ in self._contents(path)) or any(
            os.path.lexists(f"{lower}/{path}") for lower in (self._branch.target, *self._branch.parent.lowers)
        )

    def _contents(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file that the branch changed or that its parent has."""
        if (entry := self._entries.get(path)) is not None:
            yield self._new(entry)
            return
        for lower in self._branch.parent.lowers:
            with suppress(OSError):
                fd = os.open(f"{lower}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(fd, "rb") as file:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        yield file.read(_LARGEST)
                        return

    def _new(self, entry: Entry) -> bytes:
        found = entry.new
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return b""
        return self._versions.new(entry)

    def _old(self, entry: Entry) -> bytes:
        found = entry.old
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return b""
        return self._versions.old(entry)
