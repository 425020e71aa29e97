"""Diff tools: which one is found, and its arguments, by executables that only record them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import EditorDetector
from forkwise.live.diff.mirror import git_difftool

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put executables on an otherwise empty PATH; each writes its arguments into the directory ``calls``."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "calls").mkdir()
    monkeypatch.setenv("PATH", str(programs))
    for name in EditorDetector.ENV_OVERRIDES:
        monkeypatch.delenv(name, raising=False)

    def install(*names: str) -> None:
        for name in names:
            text = f'#!/bin/sh\nfor word in {name} "$@"; do printf "%s\\n" "$word"; done > {tmp_path}/calls/$$\n'
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)

    return install


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[list[subprocess.Popen[bytes]]], list[list[str]]]:
    """Return the arguments of the started processes, once they have ended."""

    def calls(started: list[subprocess.Popen[bytes]]) -> list[list[str]]:
        assert [process.wait(10) for process in started] == [0] * len(started)
        return [(tmp_path / f"calls/{process.pid}").read_text().splitlines() for process in started]

    return calls


Calls = Callable[[list[subprocess.Popen[bytes]]], list[list[str]]]
PARENT = Path("/fork/parent/x y.py")
A, B, C = (Path(f"/fork/branches/{name}/x y.py") for name in "abc")


@pytest.mark.parametrize(
    ("installed", "env", "kind"),
    [
        ((), {}, "tui"),
        (("code",), {}, "vscode"),
        (("pycharm", "code"), {}, "pycharm"),
        (("pycharm", "code"), {"FORKWISE_DIFFTOOL": "meld {parent} {branches}"}, "custom"),
        (("pycharm",), {"PYDANTIC_DEEP_DIFFTOOL": "meld"}, "custom"),
        (("code",), {"FORKWISE_DIFFTOOL": "  "}, "vscode"),
    ],
)
def test_the_first_available_tool_is_detected(
    install: Install, installed: tuple[str, ...], env: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(*installed)
    assert EditorDetector.detect({**env, "PATH": os.environ["PATH"]}) == kind
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert EditorDetector.detect() == kind


def test_our_own_variable_comes_first() -> None:
    env = {"PYDANTIC_DEEP_DIFFTOOL": "theirs", "FORKWISE_DIFFTOOL": "ours"}
    assert EditorDetector.custom_command(env) == "ours"
    assert EditorDetector.ENV_OVERRIDE == "FORKWISE_DIFFTOOL"


@pytest.mark.parametrize(
    ("branches", "given"),
    [
        ([A], [PARENT, A]),
        ([A, B], [A, PARENT, B]),
        ([A, B, C], [PARENT, A, B, C]),
    ],
)
def test_pycharm_has_the_base_in_the_middle_of_three(
    install: Install, calls: Calls, branches: list[Path], given: list[Path]
) -> None:
    install("pycharm")
    started = EditorDetector.invoke("pycharm", PARENT, branches)
    assert calls(started) == [["pycharm", "diff", *map(str, given)]]


def test_vs_code_is_started_for_each_branch(install: Install, calls: Calls) -> None:
    install("code")
    started = EditorDetector.invoke("vscode", PARENT, [A, B])
    assert calls(started) == [["code", "--diff", str(PARENT), str(branch)] for branch in (A, B)]


def test_the_terminal_starts_nothing(install: Install) -> None:
    install("code", "pycharm")
    assert EditorDetector.invoke("tui", PARENT, [A, B]) == []
    assert EditorDetector.invoke("pycharm", PARENT, []) == []


def test_a_file_the_parent_does_not_have_is_compared_with_dev_null(install: Install, calls: Calls) -> None:
    install("code")
    assert calls(EditorDetector.invoke("vscode", None, [A])) == [["code", "--diff", "/dev/null", str(A)]]


def test_a_custom_command(install: Install, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    install("meld")
    template = "meld --label='the base' {parent} {branches} --out={branches}"
    expected = ["meld", "--label=the base", str(PARENT), str(A), str(B), f"--out={A}", f"--out={B}"]
    assert calls(EditorDetector.invoke("custom", PARENT, [A, B], custom_cmd=template)) == [expected]
    monkeypatch.setenv("FORKWISE_DIFFTOOL", template)
    assert calls(EditorDetector.invoke("custom", PARENT, [A, B])) == [expected]


def test_a_file_name_is_never_run(install: Install, calls: Calls, tmp_path: Path) -> None:
    install("meld")
    hostile = Path(f"/fork/$(touch {tmp_path}/run); touch {tmp_path}/run {{parent}}")
    [given] = calls(EditorDetector.invoke("custom", PARENT, [hostile], custom_cmd="meld {parent} {branches}"))
    assert given == ["meld", str(PARENT), str(hostile)]
    assert not (tmp_path / "run").exists()


def test_a_custom_tool_without_a_command_is_refused(install: Install) -> None:
    with pytest.raises(ValueError, match="FORKWISE_DIFFTOOL"):
        EditorDetector.invoke("custom", PARENT, [A])


@pytest.mark.parametrize("names", [("one", "two"), ("one dir", "two dir")])
def test_git_difftool_shows_files_and_directories(names: tuple[str, str], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in names]
    for path in paths:
        file = path
        if "dir" in path.name:
            path.mkdir()
            file = path / "x"
        file.write_text(path.name)
    command = git_difftool(*paths, tool="probe")
    env = {**os.environ, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    setting = 'difftool.probe.cmd=cat "$LOCAL" "$REMOTE"'
    done = subprocess.run(["git", "-c", setting, *command[1:]], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "".join(names) in done.stdout, done.stderr
