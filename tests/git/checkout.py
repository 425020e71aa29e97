"""A git checkout that is a workspace, and git commands in it and in its branches."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from forkwise import Workspace
from forkwise.files.branch import Branch

_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_EDITOR": "true",
    "LC_ALL": "C.UTF-8",
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
}


@dataclass(frozen=True)
class Checkout:
    """A workspace with a repository in it."""

    path: Path
    workspace: Workspace

    @classmethod
    def create(cls, path: Path, **options: str) -> Checkout:
        """Create a repository with one commit of ``a.txt``."""
        path.mkdir()
        found = cls(path, Workspace(path, durable=False, **options))  # type: ignore[arg-type]
        found.git("init", "-q", "-b", "main")
        found.git("config", "user.name", "User")
        found.git("config", "user.email", "user@example.org")
        (path / "a.txt").write_text("a\n")
        found.git("add", "a.txt")
        found.git("commit", "-qm", "initial")
        return found

    def run(self, *words: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run git in the workspace or in a branch."""
        return subprocess.run(
            ["git", *words], cwd=at or self.path, env=_ENVIRONMENT, capture_output=True, text=True, check=False
        )

    def git(self, *words: str, at: Path | None = None) -> str:
        """Run git and return its output."""
        done = self.run(*words, at=at)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def commit(self, branch: Branch | None, name: str, content: str) -> str:
        """Commit a file in the workspace or in a branch; return the id."""
        at = self.path if branch is None else branch.path
        (at / name).write_text(content)
        self.git("add", name, at=at)
        self.git("commit", "-qm", name, at=at)
        return self.git("rev-parse", "HEAD", at=at).strip()

    def check(self) -> None:
        """Assert that git finds nothing wrong, and that no lock is left."""
        done = self.run("fsck", "--full", "--strict")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "missing" not in done.stdout
        assert "broken" not in done.stdout
        assert not list((self.path / ".git").rglob("*.lock"))
