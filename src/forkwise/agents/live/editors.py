"""Editors: which diff tool there is, and how it is started on the versions of a file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

__all__ = ["EditorDetector", "EditorKind", "git_difftool"]

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
