"""Git on an untrusted repository: none of the programs that its configuration, attributes and hooks name is run."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import forkwise
from forkwise.errors import GitError
from forkwise.git.program import parse_settings, prepare_difftool, read_user_settings, run_git
from forkwise.git.repository import find_repository
from tests.git.payloads import plant, run_plain_git
from tests.need import need


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    return tmp_path / "witness"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    need(shutil.which("git") is not None, "git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    root = tmp_path / "project"
    root.mkdir()
    run_plain_git(root, "init", "--quiet")
    (root / "a.txt").write_text("one\n")
    run_plain_git(root, "add", ".")
    run_plain_git(root, "commit", "--quiet", "-m", "first")
    return root


def run_in(project: Path, *words: str) -> None:
    found = find_repository(project)
    assert found is not None
    found.run(*words)


def test_the_payloads_run_with_plain_git(project: Path, witness: Path) -> None:
    """Otherwise the next test would show nothing."""
    plant(project, witness)
    (project / "a.txt").write_text("two\n")
    for words in (("status",), ("add", "a.txt"), ("diff",), ("update-ref", "refs/heads/x", "HEAD")):
        try:
            run_plain_git(project, *words)
        except Exception:  # noqa: BLE001 - the payloads fail on purpose
            continue
    ran = set(witness.read_text().splitlines())
    assert {"core.fsmonitor", "filter.evil.process", "hook reference-transaction"} <= ran


def test_no_payload_is_run(project: Path, witness: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(project, witness)
    for name in ("GIT_DIR", "GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_PAGER", "GIT_EXEC_PATH", "GIT_PROXY_COMMAND"):
        monkeypatch.setenv(name, str(witness.parent / "scripts/core.pager"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(witness.parent / "scripts/core.fsmonitor"))
    repository = find_repository(project)
    assert repository is not None
    (project / "a.txt").write_text("two\n")
    (project / "b.inc").write_text("new\n")
    head = repository.run("rev-parse", "HEAD").stdout.decode().strip()
    for words in (
        ("status", "--porcelain"),
        ("diff",),
        ("diff", "--ext-diff", "--textconv", "HEAD"),
        ("show", "--ext-diff", "--textconv", "HEAD"),
        ("log", "-p", "--show-signature"),
        ("add", "a.txt", "b.inc"),
        ("cat-file", "--filters", "HEAD:a.txt"),
        ("cat-file", "--textconv", "HEAD:a.txt"),
        ("cat-file", "blob", ":./a.txt"),
        ("checkout-index", "-f", "a.txt"),
        ("stash", "list"),
        ("commit", "-m", "second"),
        ("commit", "-S", "--amend"),
        ("tag", "-s", "x", "-m", "x"),
        ("update-ref", "refs/heads/x", head),
        ("fetch", "origin"),
        ("ls-remote", "ssh://example.invalid/x"),
        ("merge", "x"),
        ("difftool", "--no-prompt", "HEAD"),
        ("gc", "--auto"),
        ("config", "--list"),
        ("var", "GIT_COMMITTER_IDENT"),
    ):
        repository.run(*words)
    assert not witness.exists() or witness.read_text() == ""


def test_configuration_is_parsed_and_read_without_running_anything(project: Path, witness: Path) -> None:
    plant(project, witness)
    found = parse_settings((project / ".git/config").read_bytes())
    assert found is not None
    assert ("filter.any thing.clean", str(witness.parent / "scripts/filter.any-thing.clean")) in found
    assert "filter.included.clean" not in dict(found)
    assert dict(read_user_settings(str(project / ".git"))) == {"user.name": "Ada", "user.email": "ada@example.org"}
    assert parse_settings(b"[core\n") is None
    assert not witness.exists()


def test_a_diff_tool_comes_from_the_user_s_own_configuration(project: Path, witness: Path, tmp_path: Path) -> None:
    plant(project, witness)
    own = tmp_path / "own"
    with open(tmp_path / "gitconfig", "a") as file:
        file.write(f'[diff]\n\ttool = mine\n[difftool "mine"]\n\tcmd = touch {own}\n')
    (tmp_path / "x").write_text("x")
    words, environment = prepare_difftool(["git", "difftool", "-y", "--no-index", str(tmp_path / "x"), os.devnull])
    subprocess.run(words, cwd=project, env=environment, check=False, capture_output=True)
    assert own.exists()
    assert not witness.exists()


def test_no_program_of_the_workspace_passes_for_git(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "git").write_text("#!/bin/sh\ntouch ran\n")
    (project / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(project)
    assert b"git version" in run_git(["version"], project).stdout
    assert not (project / "ran").exists()
    monkeypatch.setenv("PATH", ".")
    with pytest.raises(GitError, match="not installed"):
        run_git(["version"], project)


@pytest.mark.parametrize("name", ["refs", "objects", "logs/refs", "index", "packed-refs", "HEAD", "config"])
def test_no_link_inside_a_repository_is_followed(project: Path, tmp_path: Path, name: str) -> None:
    place = project / ".git" / name
    if place.exists():
        place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    with pytest.raises(GitError, match=r"link|cannot be read"):
        run_in(project, "status")


def test_work_trees_and_submodules(project: Path, tmp_path: Path) -> None:
    run_plain_git(project, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "linked"))
    found = find_repository(tmp_path / "linked")
    assert found is not None
    assert found.head == "refs/heads/other"
    assert (found.git_directory, found.common_directory) == (
        str(project / ".git/worktrees/linked"),
        str(project / ".git"),
    )
    assert found.run("rev-parse", "--abbrev-ref", "HEAD").stdout == b"other\n"
    assert found.run("status", "--porcelain").stdout == b""
    (tmp_path / "linked/a.txt").write_text("changed\n")
    assert found.run("status", "--porcelain").stdout == b" M a.txt\n"
    (project / "sub").mkdir()
    inner = find_repository(project / "sub")
    assert inner is not None
    assert inner.work_tree == str(project)
    assert inner.run("rev-parse", "--show-prefix", directory=project / "sub").stdout == b"sub/\n"


def test_a_directory_that_looks_like_a_repository_is_none(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / ".git", tmp_path / "bare")
    assert find_repository(tmp_path / "bare") is None
    assert find_repository(tmp_path) is None


def test_the_repository_of_another_user_is_refused(project: Path, tmp_path: Path) -> None:
    need(os.geteuid() == 0, "giving a directory to another user needs root")
    os.chown(project / ".git", 12345, 12345)
    with pytest.raises(GitError, match="belongs to another user"):
        find_repository(project)
    with open(tmp_path / "gitconfig", "a") as file:
        file.write(f"[safe]\n\tdirectory = {project}\n\tdirectory = /elsewhere\n")
    assert find_repository(project) is not None


def test_only_one_module_starts_git() -> None:
    """``prepare_difftool`` is the only other way, for a tool that the user asked for."""
    root = Path(forkwise.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            if words and isinstance(words[0], ast.Constant) and words[0].value == "git":
                found.add(str(path.relative_to(root)))
    assert found <= {"live/diff/mirror.py"}  # the words of a diff tool, which prepare_difftool completes
