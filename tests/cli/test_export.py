"""Results as git: ``--as-branch``, ``--as-patch``, ``--branches-prefix`` and ``forkwise export``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.progress import listen
from tests.cli.test_commit_to_git import Git, git, sh
from tests.display.work_recorder import WorkRecorder
from tests.git.payloads import plant

__all__ = ["git"]

Run = Callable[..., Result]
COMMIT = "git -c user.name=Agent -c user.email=agent@example.org commit --quiet -am"


def outcome(run: Run, *words: str) -> Any:
    return json.loads(run("run", "--json", "-q", *words).stdout.splitlines()[-1])["outcome"]


def last_fork(run: Run) -> str:
    return str(json.loads(run("ls", "--json").stdout)["forks"][0]["id"])


def snapshot(project: Path) -> dict[str, bytes]:
    """Return every file of a checkout, with what git has of it, except objects, branches and their logs."""
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in sorted(project.rglob("*"))
        if path.is_file() and not any(part in ("objects", "refs") for part in path.parts)
    }


def test_the_winner_as_a_branch(run: Run, git: Git, project: Path) -> None:
    (project / "b.txt").write_text("staged\n")
    git("add", "b.txt")
    (project / "mine.txt").write_text("untracked\n")
    before = snapshot(project)
    work = "echo uno > a.txt; rm -r sub; mkdir new; echo n > new/n; chmod +x new/n; ln -s n new/l; echo x > x.log"
    report = outcome(run, "--as-branch", "fix/it", *sh(work))
    [made] = report["exported"]
    assert made == {
        "attempt": report["winner"],
        "commit": git("rev-parse", "fix/it").strip(),
        "branch": "fix/it",
        "patch": None,
        "has_cr": False,
    }
    assert report["commit"] is None
    assert snapshot(project) == before
    assert git("show", "--format=%P", "--name-status", "fix/it").split("\n")[0] == git("rev-parse", "HEAD").strip()
    assert git("show", "--format=", "--raw", "--no-abbrev", "--name-status", "fix/it").split() == [
        *("M", "a.txt", "A", "new/l", "A", "new/n", "D", "sub/c.txt")
    ]
    modes = {line.split("\t")[1]: line.split()[0] for line in git("ls-tree", "-r", "fix/it").splitlines()}
    assert (modes["new/l"], modes["new/n"]) == ("120000", "100755")
    trailers = git("log", "-1", "--format=%(trailers)", "fix/it")
    assert f"Forkwise-Fork: {report['fork']}\n" in trailers
    assert f"Forkwise-Attempt: {report['winner']}\n" in trailers
    git("fsck", "--strict")
    assert Workspace(project).branches() == [], "the attempts' branches are dropped"


def test_the_message_of_the_agent(run: Run, git: Git, project: Path) -> None:
    message = "Greet properly\n\nBecause.\n\nForkwise-Fork: forged"
    run("run", "--as-branch=own", *sh(f"echo uno > a.txt; {COMMIT} '{message}'; echo due > b.txt; {COMMIT} second"))
    text = git("log", "-1", "--format=%B", "own")
    assert text.startswith("Greet properly\n\nBecause.\n\nsecond\n\nForkwise-Fork: ")
    assert "forged" not in text
    assert git("log", "-1", "--format=%an", "own") == "Ada\n"
    assert git("diff", "--name-only", "main", "own").split() == ["a.txt", "b.txt"]
    run("run", "--as-branch=given", "-m", "By hand", *sh(f"echo uno > a.txt; {COMMIT} own"))
    assert git("log", "-1", "--format=%s", "given") == "By hand\n"


def test_a_patch_for_git_am_and_git_apply(run: Run, git: Git, project: Path, tmp_path: Path) -> None:
    work = r"printf 'a\0b' > bin; mv b.txt moved.txt; chmod +x a.txt; rm sub/c.txt"
    before = snapshot(project)
    report = outcome(run, f"--as-patch={tmp_path / 'p'}", *sh(work))
    assert report["exported"][0]["patch"] == str(tmp_path / "p")
    assert snapshot(project) == before
    assert "dangling commit" not in git("fsck", "--no-reflogs"), "nothing is left in the repository"
    git("apply", "--check", str(tmp_path / "p"))
    git("am", "--quiet", str(tmp_path / "p"))
    assert (project / "bin").read_bytes() == b"a\0b"
    assert (project / "moved.txt").read_text() == "two\n"
    assert os.access(project / "a.txt", os.X_OK)
    assert not (project / "sub/c.txt").exists()
    assert "Forkwise-Attempt: " in git("log", "-1", "--format=%B")


def test_every_attempt_as_a_branch(run: Run, git: Git, project: Path) -> None:
    run(
        "speculate",
        "--all",
        "--branches-prefix",
        "try",
        "-c",
        "echo uno > a.txt",
        "-c",
        "echo due > a.txt",
        "-c",
        "true",
    )
    assert git("branch", "--format=%(refname:short)").split() == ["main", "try/1", "try/2"]
    assert [git("show", f"try/{n}:a.txt") for n in (1, 2)] == ["uno\n", "due\n"]
    assert (project / "a.txt").read_text() == "one\n"


def test_a_patch_with_odd_names_and_line_ends(
    run: Run, git: Git, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["nl\nname", "tab\tname", '"quote"', "-dash", ":colon", " lead", "trail ", "back\\slash", "--- a", "\udcff"]
    code = f"""
import os
for name in {names!r}:
    open(name, "w").write("From me\\n--- \\ndiff --git\\n")
open("crlf", "wb").write(b"a\\r\\nb\\r\\n")
open("bytes", "wb").write(bytes(range(256)))
open("empty", "w").close()
os.chmod("a.txt", 0o755)
os.unlink("b.txt"); os.symlink("sub", "b.txt")
os.unlink("sub/c.txt"); os.rmdir("sub"); open("sub", "w").write("a file")
"""
    (project / "odd.py").write_text(code)
    git("add", ".")
    git("commit", "--quiet", "--allow-empty", "-m", "odd")
    said = run("run", "--as-branch=odd", f"--as-patch={tmp_path / 'odd patch'}", "--", sys.executable, "odd.py").stdout
    assert f"git am --keep-cr '{tmp_path / 'odd patch'}'" in said
    git("am", "--quiet", "--keep-cr", str(tmp_path / "odd patch"))
    assert git("diff", "--raw", "odd", "HEAD") == ""
    assert len(git("ls-tree", "-r", "HEAD").splitlines()) == 18


def test_export_of_a_decided_fork(
    run: Run, git: Git, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("speculate", "--all", "-c", "echo uno > a.txt; rm b.txt", "-c", "echo due > a.txt; ln -s a.txt l; exit 1")
    fork = last_fork(run)
    monkeypatch.setenv("GIT_COMMITTER_DATE", f"{int(time.time()) - 60} +0000")  # the log of HEAD is no help
    git("commit", "--quiet", "-am", "later")
    monkeypatch.delenv("GIT_COMMITTER_DATE")
    before = snapshot(project)
    run("export", fork, "--as-branch", "won")
    assert git("log", "-1", "--format=%s", "won^") == "first\n", "it is on what HEAD was then"
    assert git("diff", "--name-status", "won^", "won").split() == ["M", "a.txt", "D", "b.txt"]
    made = json.loads(run("export", f"{fork}.2", "--as-branch", "lost", "--json").stdout)["exported"][0]
    assert made["commit"] == git("rev-parse", "lost").strip()
    assert git("show", "lost:l") == "a.txt"
    assert git("show", "lost:b.txt") == "two\n"
    run("export", f"{fork}.2", "--as-branch", "on-top", "--base", "main")
    assert git("log", "-1", "--format=%s", "on-top^") == "later\n"
    patch = run("export", fork, "--as-patch=-").stdout
    assert patch.startswith("From ")
    run("export", fork, "--branches-prefix", "all")
    assert git("rev-parse", "all/1^{tree}") == git("rev-parse", "won^{tree}")
    assert git("rev-parse", "all/2^{tree}") == git("rev-parse", "lost^{tree}")
    assert snapshot(project) == before
    assert "already exists" in run("export", fork, "--as-branch", "won", code=1).stderr
    assert "say what to make" in run("export", fork, code=2).stderr
    run("export", "zzzzzz", "--as-branch", "x", code=5)


def test_an_export_reports_its_progress(run: Run, git: Git, project: Path) -> None:
    run("speculate", "-q", "--all", "-c", "echo 1 > one.txt", "-c", "echo 2 > two.txt")
    fork, works = last_fork(run), WorkRecorder()
    with listen(works):
        run("export", fork, "--as-branch", "won", "--branches-prefix", "all")
    assert [(name[:9], done, total) for name, done, total in works.ended if name.startswith("Exporting")] == [
        ("Exporting", 0, None),
        ("Exporting", 2, 2),
    ]


def test_content_that_the_ledger_lacks_is_an_error(run: Run, git: Git, project: Path) -> None:
    run("run", *sh(r"printf 'a\0b' > bin"))
    said = run("export", last_fork(run), "--as-branch", "x", code=1).stderr
    assert "bin" in said
    assert "--keep" in said
    assert git("branch", "--format=%(refname:short)").split() == ["main"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--as-branch", "no good"), "not a valid name"),
        (("--as-branch=-x",), "not a valid name"),
        (("--as-branch", "../x"), "not a valid name"),
        (("--as-branch", "a\nb"), "not a valid name"),
        (("--as-branch", "main"), "already exists"),
        (("--branches-prefix", "a..b"), "not a valid name"),
        (("--as-patch=/nowhere/x",), "no directory"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    run: Run, git: Git, project: Path, words: Any, said: str
) -> None:
    assert said in run("run", *words, *sh("echo uno > a.txt"), code=1).stderr
    assert json.loads(run("ls", "--json").stdout)["forks"] == []


def test_options_that_exclude_each_other(run: Run, git: Git) -> None:
    assert "one or the other" in run("run", "--commit-to-git", "--as-branch", "x", *sh("true"), code=2).stderr


def test_linked_worktree_detached_head_unborn_branch_and_subdirectory(
    run: Run, git: Git, project: Path, tmp_path: Path
) -> None:
    git("worktree", "add", "--quiet", "-b", "topic", str(tmp_path / "linked"))
    run("run", "-C", str(tmp_path / "linked"), "--as-branch", "one", *sh("echo uno > a.txt"))
    assert git("diff", "--name-only", "topic", "one") == "a.txt\n"
    git("checkout", "--quiet", "--detach")
    run("run", "-C", str(project / "sub"), "--as-branch", "two", *sh("echo uno > c.txt"))
    assert git("diff", "--name-only", "main", "two") == "sub/c.txt\n"
    git("checkout", "--quiet", "--orphan", "empty")
    git("rm", "-r", "--quiet", "--cached", ".")
    (project / ".git/logs/HEAD").unlink()
    run("run", "--as-branch", "three", *sh("echo uno > a.txt"))
    assert git("ls-tree", "-r", "--name-only", "three") == "a.txt\n"
    assert git("rev-list", "--count", "three") == "1\n"


def test_submodules_keep_their_pointers(run: Run, git: Git, project: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(project), str(tmp_path / "library")], check=True)
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    git("commit", "--quiet", "-m", "submodule")
    run("run", "--as-branch", "x", *sh("echo uno > a.txt; echo uno > lib/a.txt"))
    assert git("diff", "--name-only", "main", "x") == "a.txt\n"
    assert "160000 commit" in git("ls-tree", "x", "lib")


def test_nothing_that_an_attempt_planted_is_run(run: Run, git: Git, project: Path, tmp_path: Path) -> None:
    plant(project, tmp_path / "witness")
    run("run", "--as-branch", "x", "--as-patch", *sh("echo uno > a.dat"))
    assert "git filters a.txt" in run("run", "--as-branch", "y", *sh("echo uno > a.txt"), code=1).stderr
    assert not (tmp_path / "witness").exists()


def test_without_identity(run: Run, project: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("EMAIL", "")
    git("config", "user.useConfigOnly", "true")
    assert "user.email" in run("run", "--as-branch", "x", *sh("echo uno > a.txt"), code=1).stderr
