"""The git program. Every call of git by forkwise is made here.

A repository is untrusted: an attempt may have written its configuration, hooks and attributes, which can name programs.
So git never gets to see a repository's own directory. It gets a *shadow* of it: a temporary directory with a
configuration written here, and links to the references and the index. So filters, hooks, monitors and pagers of the
repository need not be switched off by name: git never reads their settings. System and global configuration and the
caller's ``GIT_*`` variables are left out as well; what the user's own configuration has to decide, such as who commits,
is read by ``read_user_settings`` and passed explicitly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache

from forkwise.errors import GitError

__all__ = [
    "parse_settings",
    "prepare_difftool",
    "read_user_settings",
    "run_git",
]

#: Environment variables that say where the user's own configuration is.
_OWN_CONFIGURATION = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_NO_REPOSITORY = os.devnull
_TIMEOUT_S = 120.0

_VARIABLES = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_PAGER": "cat",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C.UTF-8",
}

# A second line of defence: a shadow's configuration does not enable any of these.
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.sshCommand": "false",
    "core.askPass": "false",
    "core.attributesFile": os.devnull,
    "core.alternateRefsCommand": "false",
    "credential.helper": "",
    "commit.gpgSign": "false",
    "gpg.program": "false",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
}


def run_git(
    words: Sequence[str],
    directory: str | os.PathLike[str] = "/",
    *,
    git_directory: str | None = None,
    variables: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run git in ``directory`` on the shadow ``git_directory`` (None: on no repository), and return its output.

    ``variables`` and ``settings`` are added to those that keep git from running anything. Raises GitError if git is not
    installed or does not end.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {**_VARIABLES, "GIT_DIR": git_directory or _NO_REPOSITORY, **(variables or {})}
    options = [word for name, value in {**_SETTINGS, **(settings or {})}.items() for word in ("-c", f"{name}={value}")]
    return _run([_find_program(), "--no-pager", *options, *words], directory, environment, stdin)


def _run(
    words: Sequence[str], directory: str | os.PathLike[str], environment: Mapping[str, str], stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            words, cwd=directory, env=environment, input=stdin, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git did not end within {_TIMEOUT_S:.0f} s in {directory}") from error


def _find_program() -> str:
    """Return the absolute path of git. Raises GitError if it is not installed.

    Relative directories of ``PATH`` do not count: git is run inside workspaces, and such a directory could be in one.
    """
    path = os.pathsep.join(p for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(p))
    found = shutil.which("git", path=path)
    if found is None:
        raise GitError("git is not installed, or not in a directory of PATH")
    return found


def parse_settings(content: bytes) -> list[tuple[str, str]] | None:
    """Parse the content of a configuration file, includes not followed; None if git cannot parse it.

    Names are in lower case, except for the part between the dots, which may be anything.
    """
    found = _parse_content(content)
    return None if found is None else list(found)


@lru_cache(maxsize=16)
def _parse_content(content: bytes) -> tuple[tuple[str, str], ...] | None:
    done = run_git(["config", "--file", "-", "--no-includes", "--list", "-z"], stdin=content)
    return tuple(_split_settings(done.stdout)) if done.returncode == 0 else None


def read_user_settings(git_directory: str) -> list[tuple[str, str]]:
    """Return the settings of the user's own configuration, system before global, for a repository.

    The repository's own configuration is not read; its path is needed for conditional includes (``includeIf``).
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in _OWN_CONFIGURATION}
    environment |= {"GIT_DIR": git_directory, "GIT_PAGER": "cat", "LC_ALL": "C.UTF-8"}
    found: list[tuple[str, str]] = []
    for scope in ("--system", "--global"):
        if scope == "--system" and os.environ.get("GIT_CONFIG_NOSYSTEM", "") not in ("", "0", "false"):
            continue
        words = [_find_program(), "--no-pager", "config", scope, "--includes", "--list", "-z"]
        done = _run(words, "/", environment, b"")
        if done.returncode == 0:  # otherwise there is no such file
            found += _split_settings(done.stdout)
    return found


def _split_settings(output: bytes) -> list[tuple[str, str]]:
    rows = [row.partition("\n") for row in os.fsdecode(output).split("\0") if row]
    # A name without a value ("[core] bare") counts as true.
    return [(name, value if separator else "true") for name, separator, value in rows]


def prepare_difftool(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of a ``git difftool``, which the user asked for.

    Only the user's own configuration decides which tool git starts: git runs on no repository.
    """
    kept = (*_OWN_CONFIGURATION, "GIT_EDITOR", "GIT_PAGER", "GIT_TERMINAL_PROMPT")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in kept}
    return [_find_program(), *words[1:]], {**environment, "GIT_DIR": _NO_REPOSITORY}
