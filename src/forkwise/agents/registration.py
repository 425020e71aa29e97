"""Registration: add forkwise's MCP server to the configuration of other agents, and remove it again.

A change is planned first, as a list of edits that can be shown, and then made. The user's own text stays as it is,
comments included: what is inserted is remembered in the user's configuration directory, and exactly that is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import forkwise
from forkwise.errors import ConfigError
from forkwise.files.executable_config import find_config_directory
from forkwise.linux.file_write import replace_file
from forkwise.text.jsonc import add_member, find_value, remove_member

__all__ = ["CLIENTS", "FileEdit", "Registration", "Scope", "apply_registration", "plan_install", "plan_uninstall"]

#: For all projects of the user, or for one project.
Scope = Literal["user", "project"]

_RECORD = "installed.json"
_MAX_FILE = 16 << 20
_NAME = "forkwise"
_PLUGIN = {
    ".claude-plugin/plugin.json": "plugin.json",
    ".claude-plugin/marketplace.json": "marketplace.json",
    "hooks/hooks.json": "hooks.json",
    "skills/forkwise/SKILL.md": "SKILL.md",
    "commands/best-of.md": "best-of.md",
    "commands/forks.md": "forks.md",
    "commands/undo.md": "undo.md",
}
_COMMANDS = ("best-of.md", "forks.md", "undo.md")  # a plugin's own are called /forkwise:best-of and so on
_TOML_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file before and after; None if it does not exist."""

    path: Path
    old: str | None
    new: str | None


@dataclass(slots=True)
class Registration:
    """Edits of files, and what is remembered about them. ``notes`` say what was left as it is, and why."""

    client: str
    scope: Scope
    root: Path
    edits: list[FileEdit] = field(default_factory=list)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Target:
    """A member of a configuration file: where it is, and what it is."""

    path: Path
    keys: tuple[str, ...]
    value: Any
    is_toml: bool = False


def _find_command(scope: Scope) -> str:
    """Return how a client starts forkwise: by name if PATH has it, and always by name in a project's files."""
    if scope == "project" or shutil.which("forkwise") is not None:
        return "forkwise"
    beside = os.path.join(os.path.dirname(sys.executable), "forkwise")
    return beside if os.access(beside, os.X_OK) else "forkwise"


def _home(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    return Path(given) if os.path.isabs(given) else Path(os.path.expanduser(default))


def _list_claude(scope: Scope, root: Path, options: Sequence[str]) -> list[_Target]:
    server = {"type": "stdio", **_plain_server(scope, options)}
    if scope == "project":
        servers, folder, place = root / ".mcp.json", root / ".claude", f"./.claude/{_NAME}"
    else:
        moved = os.environ.get("CLAUDE_CONFIG_DIR", "")
        folder = _home("CLAUDE_CONFIG_DIR", "~/.claude")
        servers = folder / ".claude.json" if os.path.isabs(moved) else Path(os.path.expanduser("~/.claude.json"))
        place = str(folder / _NAME)
    source = {"source": {"source": "directory", "path": place}}
    settings = folder / "settings.json"
    return [
        _Target(servers, ("mcpServers", _NAME), server),
        _Target(settings, ("extraKnownMarketplaces", _NAME), source),
        _Target(settings, ("enabledPlugins", f"{_NAME}@{_NAME}"), True),
    ]


def _list_codex(scope: Scope, root: Path, options: Sequence[str]) -> list[_Target]:
    folder = root / ".codex" if scope == "project" else _home("CODEX_HOME", "~/.codex")
    value = _plain_server(scope, options) | {"tool_timeout_sec": _TOML_TIMEOUT_S}
    if scope == "user":
        value["required"] = True  # otherwise codex exec asks the model before the server has started
    return [_Target(folder / "config.toml", ("mcp_servers", _NAME), value, is_toml=True)]


def _list_plain(file: str, scope: Scope, root: Path, options: Sequence[str]) -> list[_Target]:
    """List the one file of a client that has the same name in a project as in the home directory."""
    folder = root if scope == "project" else Path(os.path.expanduser("~"))
    return [_Target(folder / file, ("mcpServers", _NAME), _plain_server(scope, options))]


def _list_vscode(scope: Scope, root: Path, options: Sequence[str]) -> list[_Target]:
    config = _home("XDG_CONFIG_HOME", "~/.config")
    folder = root / ".vscode" if scope == "project" else config / "Code/User"
    return [_Target(folder / "mcp.json", ("servers", _NAME), {"type": "stdio", **_plain_server(scope, options)})]


def _list_opencode(scope: Scope, root: Path, options: Sequence[str]) -> list[_Target]:
    folder = root if scope == "project" else _home("XDG_CONFIG_HOME", "~/.config") / "opencode"
    with_comments = folder / "opencode.jsonc"
    file = with_comments if with_comments.exists() else folder / "opencode.json"
    value = {"type": "local", "command": [_find_command(scope), "mcp", *options], "enabled": True}
    return [_Target(file, ("mcp", _NAME), value)]


def _plain_server(scope: Scope, options: Sequence[str]) -> dict[str, Any]:
    return {"command": _find_command(scope), "args": ["mcp", *options]}


CLIENTS: Mapping[str, Callable[[Scope, Path, Sequence[str]], list[_Target]]] = {
    "claude": _list_claude,
    "codex": _list_codex,
    "gemini": partial(_list_plain, ".gemini/settings.json"),
    "cursor": partial(_list_plain, ".cursor/mcp.json"),
    "vscode": _list_vscode,
    "opencode": _list_opencode,
}
"""The agents that forkwise can be registered with, by name."""


def plan_install(client: str, scope: Scope, root: Path, options: Sequence[str] = ()) -> Registration:
    """Plan the registration with an agent; no edits if it is complete. Raises ConfigError if a file cannot take it.

    ``options`` are those of ``forkwise mcp``.
    """
    root = Path(os.path.realpath(root))
    change = Registration(client, scope, root)
    known = _load_entries(client, scope, root)
    texts = _Texts(scope, root)
    for target in CLIENTS[client](scope, root, options):
        key = _entry_key(target)
        current = _find_current(texts.read(target.path), target)
        if current == target.value:
            if key in known:
                change.entries[key] = known[key]
            continue
        if current is not None and key not in known:
            where = ".".join(target.keys)
            raise ConfigError(
                f"{target.path} has another {where} already: remove it, and install again", path=str(target.path)
            )
        if current is not None:  # an older registration of forkwise's own
            texts.write(target.path, _remove(texts.read(target.path) or "", target, known[key]))
        had = texts.read(target.path)
        new, inserted = _insert(had, target)
        change.entries[key] = {
            "inserted": inserted,
            "before": known.get(key, {}).get("before", texts.find_blank(target.path)),
        }
        texts.write(target.path, new)
    if client == "claude":
        for path, content in _list_plugin(scope, root):
            texts.read(path)
            texts.write(path, content)
            change.entries[f"{path}"] = {"plugin": True}
        for path, content in _list_commands(scope, root):
            _plan_command(path, content, known, texts, change)
    change.edits = texts.list_edits()
    return change


def _plan_command(
    path: Path, content: str, known: Mapping[str, Mapping[str, Any]], texts: _Texts, change: Registration
) -> None:
    """Plan a command under its plain name, unless the user has one of that name."""
    found = texts.read(path)
    if found is None or found == known.get(str(path), {}).get("inserted"):
        texts.write(path, content)
        change.entries[str(path)] = {"inserted": content}
    else:
        change.notes.append(f"{path} is your own, and stays: forkwise's is /{_NAME}:{path.stem}")


def plan_uninstall(client: str, scope: Scope, root: Path) -> Registration:
    """Plan the removal of what ``plan_install`` added; no edits if there is nothing. Raises ConfigError."""
    root = Path(os.path.realpath(root))
    change = Registration(client, scope, root)
    known = _load_entries(client, scope, root)
    texts = _Texts(scope, root)
    for target in reversed(CLIENTS[client](scope, root, ())):
        text, key = texts.read(target.path), _entry_key(target)
        if text is None:
            continue
        current = _find_current(text, target)
        if current is None:
            continue
        if key not in known and current != target.value:
            change.notes.append(f"{target.path}: {'.'.join(target.keys)} is not forkwise's own, and stays")
            continue
        left = _remove(text, target, known.get(key, {}))
        before = known.get(key, {}).get("before", False)
        is_empty = left.strip() in ("", "{}")
        texts.write(target.path, before if is_empty and (before is None or isinstance(before, str)) else left)
    if client == "claude":
        for path, content in _list_plugin(scope, root):
            found = texts.read(path)
            if found == content or (found is not None and path.name == "plugin.json"):
                texts.write(path, None)
            elif found is not None:
                change.notes.append(f"{path} was changed since, and stays")
        for path, _ in _list_commands(scope, root):
            found = texts.read(path)
            if found is not None and found == known.get(str(path), {}).get("inserted"):
                texts.write(path, None)
            elif found is not None and str(path) in known:
                change.notes.append(f"{path} was changed since, and stays")
    change.edits = texts.list_edits()
    return change


def apply_registration(change: Registration) -> None:
    """Make the edits, each file at once, and remember what was inserted. Raises ConfigError."""
    for edit in change.edits:
        try:
            _apply(edit, change)
        except OSError as error:
            raise ConfigError(f"{edit.path} cannot be changed: {error.strerror}", path=str(edit.path)) from error
    _save_entries(change)


class _Texts:
    """The files that a change reads and writes, in memory."""

    def __init__(self, scope: Scope, root: Path) -> None:
        self._scope = scope
        self._root = root
        self._old: dict[Path, str | None] = {}
        self._new: dict[Path, str | None] = {}

    def read(self, path: Path) -> str | None:
        if path not in self._new:
            self._old[path] = self._new[path] = _read_text(path, self._root if self._scope == "project" else None)
        return self._new[path]

    def write(self, path: Path, text: str | None) -> None:
        self._new[path] = text

    def find_blank(self, path: Path) -> str | Literal[False] | None:
        """Return the old text of a file that was blank, or None if there was no file; False if it had content."""
        old = self._old[path]
        return False if old is not None and old.strip() else old

    def list_edits(self) -> list[FileEdit]:
        return [FileEdit(path, old, self._new[path]) for path, old in self._old.items() if old != self._new[path]]


def _read_text(path: Path, root: Path | None) -> str | None:
    """Return the content of a file, None if there is none. In a project, no link may lead out of it."""
    try:
        real = os.path.realpath(path)
        if root is not None and not real.startswith(f"{root}/"):
            raise ConfigError(f"{path} leads out of {root} through a link: nothing is written there", path=str(path))
        fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{path} is not a regular file", path=str(path))
        content = file.read(_MAX_FILE + 1)
    try:
        if len(content) > _MAX_FILE:
            raise ConfigError(f"{path} is larger than {_MAX_FILE >> 20} MiB", path=str(path))
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", path=str(path)) from None


def _find_current(text: str | None, target: _Target) -> Any:
    """Return the value of a target in a text; None if there is none. Raises ConfigError if the text cannot be read."""
    if text is None or not text.strip():
        return None
    try:
        if not target.is_toml:
            return find_value(text, target.keys)
        found: Any = tomllib.loads(text)
        for key in target.keys:
            found = found.get(key) if isinstance(found, dict) else None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{target.path} cannot be edited: {error}", path=str(target.path)) from None
    return found


def _insert(text: str | None, target: _Target) -> tuple[str, str]:
    """Return a text with the value of a target, and what was inserted."""
    if not target.is_toml:
        try:
            return add_member(text if text and text.strip() else "{}\n", target.keys, target.value)
        except ValueError as error:
            raise ConfigError(f"{target.path} cannot be edited: {error}", path=str(target.path)) from None
    lines = [f"{name} = {json.dumps(value)}" for name, value in target.value.items()]
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    inserted = f"{gap}[{'.'.join(target.keys)}]\n" + "\n".join(lines) + "\n"
    new = (text or "") + inserted
    if _find_current(new, target) != target.value:  # raises if it is no longer TOML
        raise ConfigError(f"{target.path} cannot be edited: {target.keys[0]} has another form", path=str(target.path))
    return new, inserted


def _remove(text: str, target: _Target, entry: Mapping[str, Any]) -> str:
    """Return a text without a target; if the inserted text is still there, exactly that is removed."""
    inserted = entry.get("inserted")
    if isinstance(inserted, str) and inserted and text.count(inserted) == 1:
        left = text.replace(inserted, "")
        with suppress(ConfigError):
            if _find_current(left, target) is None and (target.is_toml or _is_strict(left) >= _is_strict(text)):
                return left
    if not target.is_toml:
        left = remove_member(text, target.keys)
        is_own = isinstance(inserted, str) and json.dumps(target.keys[0]) in inserted
        return remove_member(left, target.keys[:1]) if is_own and find_value(left, target.keys[:1]) == {} else left
    import tomlkit  # noqa: PLC0415 (it takes longer to load than the rest)

    document: Any = tomlkit.parse(text)
    table = document[target.keys[0]]
    del table[target.keys[1]]
    if not table:
        del document[target.keys[0]]
    return tomlkit.dumps(document)


def _is_strict(text: str) -> bool:
    """Return whether a text is JSON without comments and trailing commas, as most programs require."""
    try:
        json.loads(text or "{}")
    except (ValueError, RecursionError):
        return False
    return True


def _find_claude_folder(scope: Scope, root: Path) -> Path:
    return root / ".claude" if scope == "project" else _home("CLAUDE_CONFIG_DIR", "~/.claude")


def _list_commands(scope: Scope, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the commands for Claude Code under their plain names, with their content."""
    for name in _COMMANDS:
        content = (files("forkwise.agents") / "claude_plugin" / name).read_text(encoding="utf-8")
        yield _find_claude_folder(scope, root) / "commands" / name, content


def _list_plugin(scope: Scope, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the plugin for Claude Code, with their content."""
    folder = _find_claude_folder(scope, root)
    source = files("forkwise.agents") / "claude_plugin"
    for path, name in _PLUGIN.items():
        content = (source / name).read_text(encoding="utf-8")
        if name == "hooks.json":
            content = content.replace("forkwise worktree", f"{_find_command(scope)} worktree")
        yield folder / _NAME / path, content.replace("VERSION", forkwise.__version__)


def _apply(edit: FileEdit, change: Registration) -> None:
    path = Path(os.path.realpath(edit.path))
    if _read_text(edit.path, change.root if change.scope == "project" else None) != edit.old:
        raise ConfigError(f"{edit.path} was changed meanwhile: try again", path=str(edit.path))
    if edit.new is None:
        path.unlink()
        _remove_empty_parents(path.parent, change)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, edit.new, mode=None, is_synced=True)


def _remove_empty_parents(directory: Path, change: Registration) -> None:
    """Remove directories that are empty, up to the project or the home directory."""
    stops = {change.root, Path(os.path.expanduser("~")), Path(os.path.realpath(os.path.expanduser("~")))}
    stops |= {_home("XDG_CONFIG_HOME", "~/.config"), _home("CODEX_HOME", "~/.codex")}
    with suppress(OSError):
        while directory not in stops:
            directory.rmdir()
            directory = directory.parent


# What is remembered


def _entry_key(target: _Target) -> str:
    return f"{target.path}:{'.'.join(target.keys)}"


def _record_path() -> Path:
    return Path(find_config_directory(), _RECORD)


def _record_name(client: str, scope: Scope, root: Path) -> str:
    return client if scope == "user" else f"{client}:{root}"


def _load_all() -> dict[str, Any]:
    text = _read_text(_record_path(), None)
    with suppress(ValueError, RecursionError):
        document = json.loads(text or "{}")
        if isinstance(document, dict):
            return document
    return {}


def _load_entries(client: str, scope: Scope, root: Path) -> dict[str, dict[str, Any]]:
    found = _load_all().get(_record_name(client, scope, root))
    if not isinstance(found, dict):
        return {}
    return {key: entry for key, entry in found.items() if isinstance(entry, dict)}


def _save_entries(change: Registration) -> None:
    record = _load_all()
    name = _record_name(change.client, change.scope, change.root)
    kept = {key: entry for key, entry in change.entries.items() if "plugin" not in entry}
    if kept == record.get(name, {}):
        return
    record = {key: value for key, value in record.items() if key != name} | ({name: kept} if kept else {})
    path = _record_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(record, indent=2))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", path=str(path)) from error
