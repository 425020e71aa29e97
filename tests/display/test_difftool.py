"""``forkwise diff --tool``: with the real git difftool, and with fake tools that record their arguments."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from forkwise import Workspace

Run = Callable[..., Result]

# Prints its arguments, and the content of every file among them.
TOOL = """#!/bin/sh
{{
  printf 'called %s\\n' "$(basename "$0")"
  for word in "$@"; do
    case "$word" in
      /*) printf '%s: %s\\n' "${{word##*/forkwise-scratch-diff-????????/fork/}}" "$(cat "$word" 2>&1)" ;;
      *) printf '%s\\n' "$word" ;;
    esac
  done
}} >> {calls}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Put tools on an otherwise empty PATH. Return a function that returns each recorded line once."""
    programs, written = tmp_path / "tools", tmp_path / "calls"
    programs.mkdir()
    for name in ("git", "sh", "cat", "basename", "stat", "sed", "grep", "wc", "tr", "expr", "uname", "rm", "mkdir"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))  # hides the editors of this machine
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("FORKWISE_DIFFTOOL", "PYDANTIC_DEEP_DIFFTOOL", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    def calls(*names: str) -> list[str]:
        for name in names:
            (programs / name).write_text(TOOL.format(calls=written))
            (programs / name).chmod(0o755)
        text = written.read_text() if written.exists() else ""
        written.unlink(missing_ok=True)
        return text.splitlines()

    return calls


@pytest.fixture
def two(project: Path) -> list[str]:
    """Create two branches: one changes a file and adds one, the other changes the same file and deletes another."""
    workspace = Workspace(project)
    one, two = workspace.branch("one"), workspace.branch("two")
    (one.path / "a.txt").write_text("uno\n")
    (one.path / "new file.txt").write_text("new\n")
    (two.path / "a.txt").write_text("eins\n")
    (two.path / "b.txt").unlink()
    for branch in (one, two):
        branch.keep()
    return ["one", "two"]


def git_tool(tmp_path: Path) -> None:
    """Configure a diff tool of git."""
    words = 'probe git "$LOCAL" "$REMOTE"'.replace("\\", "\\\\").replace('"', '\\"')
    (tmp_path / "gitconfig").write_text(f'[diff]\n\ttool = mine\n[difftool "mine"]\n\tcmd = "{words}"\n')


def test_git_difftool_on_a_branch(run: Run, calls: Callable[..., list[str]], two: list[str], tmp_path: Path) -> None:
    calls("probe")
    git_tool(tmp_path)
    run("diff", "--tool", "one")
    assert calls() == [
        "called probe",
        "git",
        "parent/a.txt: one",
        "branches/one/a.txt: uno",
        "called probe",
        "git",
        "/dev/null: ",
        "branches/one/new file.txt: new",
    ]
    run("diff", "--tool=git", "one", "two")
    lines = calls()
    assert "branches/one/a.txt: uno" in lines
    assert "branches/two/a.txt: eins" in lines
    assert "branches/one/b.txt: two" in lines  # unchanged: the other branch deleted it
    assert lines.count("/dev/null: ") == 2


def test_a_tool_that_git_knows_by_name(run: Run, calls: Callable[..., list[str]], two: list[str]) -> None:
    calls("meld")
    run("diff", "--tool=meld", "one")
    lines = calls()
    assert lines[0] == "called meld"
    assert "branches/one/a.txt: uno" in lines


def test_all_that_is_left_of_a_fork(run: Run, calls: Callable[..., list[str]], project: Path, tmp_path: Path) -> None:
    calls("probe")
    git_tool(tmp_path)
    lines = ("echo uno > a.txt", "echo due > a.txt; echo new > n.txt")
    run("speculate", "--all", "--no-commit", "--quiet", "-c", lines[0], "-c", lines[1])
    fork = run("ls").stdout.splitlines()[1].split()[0]
    run("diff", "--tool", fork)
    said = calls()
    assert [line for line in said if line.endswith(("a.txt: uno", "a.txt: due"))] == [
        f"branches/{fork}.1/a.txt: uno",
        f"branches/{fork}.2/a.txt: due",
    ]
    assert f"branches/{fork}.2/n.txt: new" in said
    assert f"branches/{fork}.1/n.txt" not in "".join(said)
    run("abort", fork)
    assert "has no branches left" in run("diff", "--tool", fork, code=5).stderr


def test_editors(run: Run, calls: Callable[..., list[str]], two: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls("code")
    run("diff", "--tool", "one")  # the only editor on PATH
    assert calls() == [
        *("called code", "--wait", "--diff", "parent/a.txt: one", "branches/one/a.txt: uno"),
        *("called code", "--wait", "--diff", "/dev/null: ", "branches/one/new file.txt: new"),
    ]
    calls("pycharm")
    run("diff", "--tool", "one", "two")
    said = calls()
    assert said[:4] == ["called pycharm", "diff", "branches/one/a.txt: uno", "branches/two/a.txt: eins"]
    run("diff", "--tool=code", "two")
    assert "/dev/null: " in calls()  # a deleted file
    calls("mine")
    monkeypatch.setenv("FORKWISE_DIFFTOOL", "mine --base {parent} {branches}")
    run("diff", "--tool", "two")
    assert calls()[:4] == ["called mine", "--base", "parent/a.txt: one", "branches/two/a.txt: eins"]
    run("diff", "--tool", "mine {branches}", "two", code=5)  # the value needs an equals sign
    run("diff", "--tool=mine {branches}", "two")
    assert calls()[:2] == ["called mine", "branches/two/a.txt: eins"]


def test_nothing_is_changed_or_left_by_looking(
    run: Run,
    calls: Callable[..., list[str]],
    two: list[str],
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = tmp_path / "temporary"
    room.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    calls()
    (tmp_path / "tools/spoil").write_text(f'#!/bin/sh\nstat -c %a "$2" >> {tmp_path}/modes\n')
    (tmp_path / "tools/spoil").chmod(0o755)
    run("diff", "--tool=spoil {parent} {branches}", "one")
    assert set((tmp_path / "modes").read_text().split()) == {"444"}
    assert list(room.iterdir()) == []
    assert (project / "a.txt").read_text() == "one\n"
    assert stat.S_IMODE((project / "a.txt").stat().st_mode) != 0o444


def test_what_cannot_be_shown(run: Run, calls: Callable[..., list[str]], two: list[str], project: Path) -> None:
    calls("code")
    assert "--json" in run("diff", "--tool", "one", "--json", code=2).stdout
    assert "program 'pycharm' not found" in run("diff", "--tool=pycharm", "one", code=1).stderr
    assert "three" in run("diff", "--tool", "three", code=5).stderr
    Workspace(project).branch("empty").keep()
    assert "no file was changed" in run("diff", "--tool", "empty", code=1).stderr
    many = Workspace(project).branch("many")
    for number in range(21):
        (many.path / f"{number}.txt").write_text("x\n")
    many.keep()
    assert "too many windows" in run("diff", "--tool=code", "many", code=1).stderr
    assert calls() == []
