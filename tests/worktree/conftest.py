"""A small repository with everything that a worktree takes over, in a directory of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise.linux.mountinfo import mounts
from forkwise.linux.syscalls import MNT_DETACH, umount2

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the state and the user's configuration of git in the test's own directory."""
    (tmp_path / "gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """Create a repository with tracked, ignored, untracked and changed files; unmount its worktrees afterwards."""
    root = tmp_path / "checkout"
    make_checkout(root)
    yield root
    for entry in reversed(mounts()):
        if entry.point.startswith(f"{tmp_path}/"):
            umount2(entry.point, MNT_DETACH)


def make_checkout(root: Path) -> None:
    root.mkdir()
    run_git(root, "init", "--quiet")
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"{name}\n")
    (root / "link").symlink_to("a.txt")
    (root / ".gitignore").write_text("node_modules\n*.log\n")
    run_git(root, "add", ".")
    run_git(root, "commit", "--quiet", "-m", "first")
    (root / "node_modules/m").mkdir(parents=True)
    (root / "node_modules/m/index.js").write_text("module\n")


def run_git(directory: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def git(checkout: Path) -> Git:
    """Return a function that runs git in the checkout, or in another directory with ``-C``."""
    return lambda *words: run_git(checkout, *words)
