"""Completion of words, as find_candidates returns them and as bash, zsh and fish insert them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace, __version__
from forkwise.cli.completion import build_script, find_candidates
from tests.acceptance import write_accepted
from tests.need import need

Run = Callable[..., Result]
Ask = Callable[..., Any]

HOSTILE = ("$(touch pwned)", "`touch pwned`", "a b", "a\nb", "x;touch pwned", "\x1b[31m", "'", "-rf", "a\tb")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the cache in the test's own directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/forkwise/completion.json"


def values(*words: str) -> list[str]:
    """Return what the last of the words can become."""
    return [value for value, _ in find_candidates(words[:-1], words[-1])]


@pytest.fixture
def fork(run: Run, ask: Ask) -> str:
    """Make a fork of two attempts, with tests and a commit."""
    run("speculate", "--all", "--test", "test -e n", "-c", "echo a > n", "-c", "exit 1")
    run("branch", "create", "try-1")
    return str(ask("ls")["forks"][0]["id"])


def test_verbs_and_options(run: Run) -> None:
    assert {"best-of", "branch", "completion"} <= set(values("b")) | set(values("c"))
    assert values("branch", "com") == ["commit"]
    assert "--test" in values("run", "--te")
    assert values("run", "--confinement", "s") == ["standard", "strict"]
    assert values("run", "--confinement=o") == ["--confinement=open"]
    assert "--quiet" not in values("run", "--quiet", "--q")
    assert "-C" in values("-")
    assert values("run", "--", "--te") == []
    assert values("no-such-verb", "x") == []


def test_names_of_the_workspace(run: Run, fork: str) -> None:
    assert values("show", fork[:3]) == [fork, f"{fork}.1", f"{fork}.2"]
    assert values("resume", "") == [fork]
    assert values("pick", f"{fork}.") == [f"{fork}.1", f"{fork}.2"]
    assert values("combine", f"{fork}.1", f"{fork}.") == [f"{fork}.1", f"{fork}.2"]
    assert values("wait", "") == values("port", "ls", "") == [fork]
    assert values("open", "") == [fork, f"{fork}.1", f"{fork}.2", "try-1"]
    assert values("undo", "") == ["1"]
    assert values("branch", "commit", "") == ["try-1"]
    assert {"1", "try-1", f"{fork}.1"} <= set(values("diff", ""))
    assert values("run", "--test", "") == ["auto", "test -e n"]
    assert values("run", "--agent", "cl") == ["claude"]
    assert "model:local" in values("best-of", "2", "--judge", "model:lo")


def test_nested_branches_are_offered_by_their_paths(run: Run, fork: str, project: Path) -> None:
    run("branch", "create", "variant", "--from", "try-1")
    run("branch", "create", "deep", "--from", "/main/try-1/variant")
    assert values("branch", "commit", "") == ["try-1", "/main/try-1/variant", "/main/try-1/variant/deep"]
    assert values("branch", "commit", "/main/try-1/variant/") == ["/main/try-1/variant/deep"]
    planted = Workspace(project).state / "branches/try-1/branches/$(id)"
    planted.mkdir()
    assert len(values("branch", "commit", "")) == 3
    planted.rmdir()


def test_agents_of_the_workspace_are_offered_once_they_are_accepted(run: Run, fork: str, project: Path) -> None:
    path = project / ".forkwise/agents.toml"
    table = '[{}]\ncommand = ["true", "{{prompt}}"]\n'
    path.parent.mkdir()
    path.write_text(table.format("ours"))
    assert values("run", "--agent", "ou") == []
    write_accepted(path, table.format("ours") + table.format('"$(id)"'))
    assert values("run", "--agent", "ou") == ["ours"]
    assert "$(id)" not in values("run", "--agent", "")
    path.write_text(table.format("ours-2"))
    assert values("run", "--agent", "ou") == [], "another content is not accepted"


def test_the_workspace_that_is_meant(run: Run, fork: str, project: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(project / "sub")
    assert values("resume", "") == [fork]
    monkeypatch.chdir(tmp_path)
    assert values("resume", "") == []
    assert values("-C", str(project), "resume", "") == values("resume", "-C", str(project), "") == [fork]
    monkeypatch.setenv("FORKWISE_WORKSPACE", str(project))
    assert values("resume", "") == [fork]


def plant(project: Path) -> None:
    """Write names that a shell would run into the ledger and the state directory."""
    state = Workspace(project).state
    with sqlite3.connect(state / "ledger/ledger.db") as ledger:
        for number, name in enumerate(HOSTILE):
            data = json.dumps({"kind": name, "spec": {"tests": name}})
            row = (9000 + number, name, name, data)
            ledger.execute("INSERT INTO forks (seq, id, state, data) VALUES (?, ?, ?, ?)", row)
            ledger.execute(
                "INSERT INTO attempts (seq, id, fork, key, round, state, data) VALUES (?, ?, ?, 'k', 0, 'x', '{')",
                (9000 + number, f"{name}.1", name),
            )
    ledger.close()
    for name in HOSTILE:
        (state / "branches" / name).mkdir(exist_ok=True)
        (state / "history" / name).mkdir(exist_ok=True)


@pytest.fixture
def planted(run: Run, fork: str, project: Path) -> Any:
    """Plant hostile names, and remove them again before the workspace is cleaned up."""
    plant(project)
    yield fork
    state = Workspace(project).state
    for name in HOSTILE:
        (state / "branches" / name).rmdir()
        (state / "history" / name).rmdir()


def test_hostile_names_are_not_offered(planted: str) -> None:
    for words in (("show", ""), ("pick", ""), ("diff", ""), ("undo", ""), ("branch", "commit", "")):
        assert not set(values(*words)) & {*HOSTILE, *(f"{name}.1" for name in HOSTILE)}, words
    assert all(value.isprintable() for value in values("run", "--test", ""))
    assert all(text.isprintable() for _, text in find_candidates(["show"], ""))


def test_a_ledger_is_only_read(run: Run, fork: str, project: Path) -> None:
    state = Workspace(project).state
    before = {path: path.stat().st_mtime_ns for path in (state / "ledger").rglob("*.db")}
    values("show", "")
    assert {path: path.stat().st_mtime_ns for path in (state / "ledger").rglob("*.db")} == before
    (state / "ledger/ledger.db").write_bytes(b"not a database")
    assert values("resume", "") == []


def test_nothing_is_created(project: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert values("show", "") == values("undo", "") == []
    assert not state.exists()


def test_the_cache_is_built_once_and_again_for_other_commands(run: Run, cache: Path) -> None:
    values("b")
    stored = json.loads(cache.read_text())
    stored["grammar"]["verbs"]["verbs"]["bogus"] = stored["grammar"]["verbs"]["verbs"]["ls"]
    cache.write_text(json.dumps(stored))
    assert values("bog") == ["bogus"]
    cache.write_text(json.dumps({**stored, "key": "of another version"}))
    assert values("bog") == []
    cache.write_text("{")
    assert values("bog") == []


LOADED = """
import json, sys
sys.argv = ["forkwise", "_complete", "zsh", "forkwise", "show", ""]
from forkwise.cli import main
main()
print(json.dumps(sorted(sys.modules)))
"""


def test_completion_loads_few_modules(run: Run, fork: str, project: Path) -> None:
    values("b")
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=project, capture_output=True, text=True, check=True)
    *_, last = done.stdout.splitlines()
    loaded = json.loads(last)
    assert f"{fork}.1\tsucceeded" in done.stdout
    assert not {"click", "pydantic", "pydantic_ai", "rich", "asyncio", "forkwise.files.workspace"} & set(loaded)
    assert "forkwise.fork.fork" not in loaded


def test_the_version_loads_few_modules(tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['--version']\nfrom forkwise.cli import main\nmain()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"forkwise, version {__version__}\n")
    assert "click" not in done.stdout.split()


def test_the_verb_prints_the_script(run: Run, ask: Ask) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run("completion", shell).stdout == build_script(shell)
        assert ask("completion", shell)["script"] == build_script(shell)
    assert "bash" in run("completion", "tcsh", code=2).stderr


# In real shells


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a forkwise on the path."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "forkwise"
    program.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'from forkwise.cli import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


BASH = """
eval "$(forkwise completion bash)"
complete_line() {
    COMP_LINE=$1 COMP_POINT=${#1}
    read -r -a COMP_WORDS <<< "$1"
    if [[ $1 == *" " ]]; then COMP_WORDS+=(""); fi
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _forkwise_complete
    printf '%s\\n' "${COMPREPLY[@]}"
    echo end
}
"""


def in_bash(project: Path, *lines: str) -> list[list[str]]:
    """Complete lines in bash, as it does at the tab key."""
    script = BASH + "".join(f"complete_line {shlex.quote(line)}\n" for line in lines)
    done = subprocess.run(["bash", "-c", script], cwd=project, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [part.split("\n")[:-1] for part in done.stdout.split("end\n")[:-1]]


def test_bash(run: Run, planted: str, project: Path, programs: Path) -> None:
    fork = planted
    verbs, ids, tests, quoted = in_bash(
        project, "forkwise bra", f"forkwise show {fork[:4]}", "forkwise run --test ", "forkwise run --test 'te"
    )
    assert verbs == ["branch"]
    assert ids == [fork, f"{fork}.1", f"{fork}.2"]
    assert "test\\ -e\\ n" in tests
    assert quoted == ["test -e n"]
    for line in tests:  # what bash would insert is one word, and runs nothing
        shown = subprocess.run(
            ["bash", "-c", f"printf %s {line}"], cwd=project, capture_output=True, text=True, check=True
        )
        assert shown.stdout in {"auto", "test -e n", *HOSTILE}
    assert not (project / "pwned").exists()


def test_bash_at_colons_and_equals_signs(run: Run, project: Path, programs: Path) -> None:
    script = BASH + (
        'COMP_LINE="forkwise best-of 2 --judge model:loc" COMP_POINT=39\n'
        "COMP_WORDS=(forkwise best-of 2 --judge model : loc)\nCOMP_CWORD=6\n"
        '_forkwise_complete\necho "${COMPREPLY[@]}"\n'
        'COMP_LINE="forkwise run --confinement=st" COMP_POINT=29 COMP_WORDS=(forkwise run --confinement = st)'
        '\nCOMP_CWORD=4\n_forkwise_complete\necho "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["local", "standard strict"]


def test_zsh(run: Run, planted: str, project: Path, programs: Path) -> None:
    need(shutil.which("zsh") is not None, "zsh is not installed")
    fork = planted
    script = f"""
compdef() {{ :; }}
compadd() {{ print -rl -- "${{values[@]}}"; }}
eval "$(forkwise completion zsh)"
words=(forkwise show {fork[:4]}) CURRENT=3
_forkwise_complete
words=(forkwise run --test "'te") CURRENT=4
_forkwise_complete
words=(forkwise run --test "") CURRENT=4
_forkwise_complete >/dev/null
"""
    done = subprocess.run(["zsh", "-f", "-c", script], cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [fork, f"{fork}.1", f"{fork}.2", "test -e n"]
    assert not (project / "pwned").exists()


def test_fish(run: Run, planted: str, project: Path, programs: Path, tmp_path: Path, monkeypatch: Any) -> None:
    need(shutil.which("fish") is not None, "fish is not installed")
    fork = planted
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "forkwise.fish").write_text(build_script("fish"))
    lines = [f"forkwise show {fork[:4]}", "forkwise run --test te", "forkwise bra"]
    script = f"source {tmp_path}/forkwise.fish\n" + "".join(f"complete -C{shlex.quote(line)}\n" for line in lines)
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], cwd=project, capture_output=True, text=True, check=True
    )
    shown = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert shown == [fork, f"{fork}.1", f"{fork}.2", "test -e n", "branch"]
    subprocess.run(
        ["fish", "--no-config", "-c", f"source {tmp_path}/forkwise.fish\ncomplete -C'forkwise run --test '"],
        cwd=project,
        capture_output=True,
        check=True,
    )
    assert not (project / "pwned").exists()
