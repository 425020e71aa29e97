"""``--commit-to-git``: commit the winner's paths to git, touch nothing else, and run nothing that the winner wrote."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.git.payloads import plant

Run = Callable[..., Result]
Git = Callable[..., str]


@pytest.fixture
def git(project: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Make the project a git repository, and return a function that runs git in it."""
    home = project.parent
    (home / "gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    (project / ".gitignore").write_text("*.log\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    return git


def sh(line: str) -> tuple[str, ...]:
    return "--", "sh", "-c", line


def test_only_committed_paths_are_in_the_git_commit(run: Run, git: Git, project: Path) -> None:
    (project / "b.txt").write_text("staged\n")
    git("add", "b.txt")
    (project / "mine.txt").write_text("untracked\n")
    (project / "sub/mine.txt").write_text("untracked\n")
    said = run("run", "--commit-to-git", *sh("echo uno > a.txt; echo x > x.log; chmod 700 sub; echo q > ':q *'")).stdout
    assert f"In git: {git('rev-parse', '--short=10', 'HEAD').strip()} on main.\n" in said
    assert git("show", "--name-status", "--format=", "-z").split("\0") == ["A", ":q *", "M", "a.txt", ""]
    assert git("status", "--porcelain").splitlines() == ["M  b.txt", "?? mine.txt", "?? sub/mine.txt"]
    assert git("diff", "--cached", "--name-only") == "b.txt\n"
    git("fsck", "--strict")


def test_what_replaces_what(run: Run, git: Git, project: Path) -> None:
    run(
        "run",
        "--commit-to-git",
        *sh("rm -r sub; echo file > sub; rm a.txt; mkdir a.txt; echo in > a.txt/in; ln -s x b.txt -f"),
    )
    assert git("ls-tree", "-r", "--name-only", "HEAD").split() == [".gitignore", "a.txt/in", "b.txt", "sub"]
    assert git("status", "--porcelain") == ""
    run("run", "--commit-to-git", *sh("rm -r a.txt"))
    assert git("ls-tree", "-r", "--name-only", "HEAD").split() == [".gitignore", "b.txt", "sub"]


def test_a_commit_on_a_branch_leaves_the_checkout_unchanged(run: Run, git: Git, project: Path) -> None:
    (project / "b.txt").write_text("staged\n")
    git("add", "b.txt")
    before = git("rev-parse", "HEAD"), (project / ".git/index").read_bytes()
    run("run", "--commit-to-git=fix/it", "-m", "By hand\n\nand foot", *sh("echo uno > a.txt"))
    assert (git("rev-parse", "HEAD"), (project / ".git/index").read_bytes()) == before
    assert git("show", "--name-only", "--format=%P %B", "fix/it").startswith(
        f"{before[0].strip()} By hand\n\nand foot\n\nForkwise-Fork: "
    )
    assert git("show", "--name-only", "--format=", "fix/it") == "a.txt\n"


def test_the_default_message(run: Run, git: Git, project: Path) -> None:
    (project / "check.sh").write_text('echo "ok 1"; echo 1..1')
    run("best-of", "2", "--commit-to-git", "--test", "sh check.sh", "-c", "echo uno > a.txt")
    subject, _, body = git("log", "-1", "--format=%B").strip().partition("\n\n")
    assert subject == "echo uno > a.txt"
    assert body.startswith("By forkwise best-of: attempt ")
    note, _, trailers = body.partition("\n\n")
    assert note.endswith("of 2.")
    assert [line.partition(": ")[0] for line in trailers.splitlines()] == [
        "Forkwise-Fork",
        "Forkwise-Attempt",
        "Forkwise-Tests",
    ]
    assert trailers.endswith("Forkwise-Tests: 1 passed")


def test_in_a_repository_without_a_commit_and_from_a_directory_of_it(run: Run, git: Git, project: Path) -> None:
    git("update-ref", "-d", "HEAD")
    run("run", "-C", str(project / "sub"), "--commit-to-git", *sh("echo uno > c.txt"))
    assert git("ls-tree", "-r", "--name-only", "HEAD") == "sub/c.txt\n"
    assert git("diff", "--name-only", "HEAD", "--", "sub") == ""


def test_a_winner_that_committed_by_itself(run: Run, git: Git, project: Path) -> None:
    commit = "git -c user.name=Agent -c user.email=agent@example.org commit --quiet -am 'by the agent'"
    said = run("run", "--commit-to-git", *sh(f"echo uno > a.txt; {commit}")).stdout
    assert git("log", "--format=%s").splitlines() == ["by the agent", "first"]
    assert git("status", "--porcelain") == ""
    assert "In git" not in said


def test_nothing_that_the_winner_wrote_is_run(run: Run, git: Git, project: Path, tmp_path: Path) -> None:
    hook = 'printf "#!/bin/sh\\ntouch $1\\n" > .git/hooks/$2; chmod +x .git/hooks/$2'
    evil = tmp_path / "evil"
    names = ("pre-commit", "post-commit", "commit-msg", "reference-transaction", "post-index-change")
    write = "; ".join(f"set -- {evil} {name}; {hook}" for name in names)
    run("run", "--commit-to-git", "--allow-executable-config", *sh(f"{write}; echo uno > a.txt"))
    assert git("show", "--name-only", "--format=") == "a.txt\n"
    assert not evil.exists()


@pytest.mark.parametrize("path", [".git/config", "shared.ini"])
def test_a_configuration_that_the_winner_wrote_is_not_obeyed(
    run: Run, git: Git, project: Path, tmp_path: Path, path: str
) -> None:
    git("config", "include.path", "../shared.ini")
    (project / "shared.ini").write_text("")
    evil = tmp_path / "evil"
    work = f'printf "[filter \\"evil\\"]\\nclean = touch {evil}\\n[core]\\nfsmonitor = touch {evil}\\n" >> {path}'
    attributes = "echo '*.dat filter=evil' > .gitattributes"
    words = ("run", "--commit-to-git", *sh(f"{work}; {attributes}; echo uno > a.txt"))
    done = run(*words, code=1)
    assert "a confined program changed what your machine will run" in done.stderr
    assert f"{path} (git (core.fsmonitor, filter.evil.clean))" in done.stderr
    assert (project / "a.txt").read_text() == "one\n"
    done = run("run", "--allow-executable-config", *words[1:])
    assert f"This changes what your machine will run:\n  {path}: git (core" in done.stdout.replace(
        "  .gitattributes: git (filter=evil)\n", ""
    )
    assert "a.txt" in git("-c", "core.fsmonitor=false", "show", "--name-only", "--format=").split()
    done = run("run", "--commit-to-git", *sh("echo due > a.txt; echo x > x.dat"), code=1)
    assert "git filters x.dat through 'evil' (.gitattributes), which forkwise does not run" in done.stderr
    assert "Undo with: forkwise undo" in done.stdout
    assert (project / "a.txt").read_text() == "due\n"
    assert not evil.exists()


def test_nothing_that_an_earlier_attempt_planted_is_run(run: Run, git: Git, project: Path, tmp_path: Path) -> None:
    plant(project, tmp_path / "witness")
    run("run", "--commit-to-git", *sh("echo uno > a.dat; rm b.txt"))
    run("run", "--commit-to-git=other", *sh("echo due > a.dat"))
    assert "git filters a.txt" in run("run", "--commit-to-git", *sh("echo uno > a.txt"), code=1).stderr
    run("diff", "--tool=evil", "none", code=5)
    assert not (tmp_path / "witness").exists()
    git("config", "--remove-section", "core")
    git("config", "--remove-section", "pager")
    assert git("log", "--format=%s", "--name-status", "-1").split() == [
        "echo",
        "uno",
        ">",
        "a.dat;",
        "rm",
        "b.txt",
        "A",
        "a.dat",
        "D",
        "b.txt",
    ]


def test_in_a_linked_work_tree(run: Run, git: Git, project: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git("worktree", "add", "--quiet", "-b", "topic", str(linked))
    said = run("run", "-C", str(linked), "--commit-to-git", *sh("echo uno > a.txt")).stdout
    assert " on topic." in said
    assert git("show", "--name-only", "--format=%s", "topic").split("\n")[-2:] == ["a.txt", ""]
    assert git("-C", str(linked), "status", "--porcelain") == ""
    assert git("-C", str(linked), "reflog", "-1", "--format=%gs").startswith("commit: ")


def test_a_commit_that_should_be_signed_is_not_and_says_so(run: Run, git: Git, project: Path) -> None:
    with open(project.parent / "gitconfig", "a") as file:
        file.write("[commit]\n\tgpgSign = true\n")
    assert "not signed" in run("run", "--commit-to-git", *sh("echo uno > a.txt")).stderr


@pytest.mark.parametrize("name", ["logs/HEAD", "refs/heads/main", "logs/refs/heads/main"])
def test_nothing_is_written_through_a_link(run: Run, git: Git, project: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text(git("rev-parse", "HEAD"))
    (project / ".git" / name).unlink()
    (project / ".git" / name).symlink_to(victim)
    before = victim.read_text()
    assert "symbolic link" in run("run", "--commit-to-git", *sh("echo uno > a.txt"), code=1).stderr
    assert victim.read_text() == before


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--commit-to-git=no good", "not a valid name"),
        ("--commit-to-git=main", "already"),
        ("--commit-to-git=-x", "not a valid name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(run: Run, git: Git, option: str, said: str) -> None:
    assert said in run("run", option, *sh("echo uno > a.txt"), code=1).stderr
    assert git("status", "--porcelain") == ""


def test_without_repository_or_identity(run: Run, project: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("EMAIL", "")
    git("config", "user.useConfigOnly", "true")
    assert "who commits" in run("run", "--commit-to-git", *sh("echo uno > a.txt"), code=1).stderr
    (project / ".git").rename(project.parent / "git")
    assert "git init" in run("run", "--commit-to-git", *sh("echo uno > a.txt"), code=1).stderr
    assert (project / "a.txt").read_text() == "one\n"


def test_the_outcome_names_the_commit(run: Run, git: Git) -> None:
    def outcome(*words: str) -> Any:
        return json.loads(run("run", "--json", "-q", *words).stdout)["outcome"]

    report = outcome("--commit-to-git", *sh("echo uno > a.txt"))
    assert report["git"] == {"id": git("rev-parse", "HEAD").strip(), "branch": "main"}
    git("checkout", "--quiet", "--detach")
    assert outcome("--commit-to-git", *sh("echo due > a.txt"))["git"]["branch"] is None


@pytest.mark.parametrize("option", ["--commit-to-git", "--commit-to-git=result"])
def test_undo_takes_back_the_git_commit_too(run: Run, git: Git, project: Path, option: str) -> None:
    before = git("rev-parse", "HEAD")
    own = "git -c user.name=A -c user.email=a@example.org commit -qam own"
    run("run", option, *sh(f"echo uno > a.txt; {own} || exit; echo due > two.txt"))
    assert git("log", "-1", "--format=%s", "result" if "=" in option else "main~1") != "first\n"
    said = run("undo").stdout
    assert "git: branch main is back at" in said
    assert "git: branch result removed" in said or "=" not in option
    assert git("rev-parse", "HEAD") == before
    assert git("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert git("status", "--porcelain") == ""
    git("fsck", "--strict")


def test_undo_names_a_git_commit_that_it_leaves(run: Run, git: Git, project: Path) -> None:
    run("run", "--commit-to-git", *sh("echo uno > a.txt"))
    (project / "more.txt").write_text("more\n")
    git("add", "more.txt")
    git("commit", "-qm", "more")
    head = git("rev-parse", "HEAD")
    assert "git: branch main stays as it is: it was moved since" in run("undo").stdout
    assert git("rev-parse", "HEAD") == head
    assert git("status", "--porcelain") == " M a.txt\n"
