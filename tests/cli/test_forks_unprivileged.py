"""Decide forks without the right to mount: each command must see the branches in a private namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.test_unprivileged import NAMESPACES, place, python, readable, run_unprivileged
from tests.need import need

__all__ = ["place", "readable", "run_unprivileged"]

KILLED = """
import os, signal
from forkwise.cli import main
from forkwise.ledger.sqlite import SqliteLedger
SqliteLedger.resolve = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def test_a_fork_is_shown_combined_picked_resumed_and_cleared(
    run_unprivileged: Callable[..., tuple[int, str, str]], place: Path
) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    lines = ("-c", "echo uno > one.txt", "-c", "echo due > two.txt")

    def newest() -> str:
        return str(json.loads(run_unprivileged("ls", "--json")[1])["forks"][0]["id"])

    def hold() -> str:
        code, out, err = run_unprivileged("speculate", "--all", "--no-commit", "-q", *lines)
        assert code == 0, (out, err)
        return newest()

    fork = hold()
    assert "+uno" in run_unprivileged("diff", f"{fork}.1")[1]
    assert "-uno" in run_unprivileged("diff", f"{fork}.1", f"{fork}.2")[1]
    assert "  + one.txt" in run_unprivileged("show", f"{fork}.1")[1]
    code, out, err = run_unprivileged("combine", f"{fork}.1", f"{fork}.2", "--test", "cat one.txt two.txt")
    assert code == 0, (out, err)
    assert [(place / "project" / f"{name}.txt").read_text() for name in ("one", "two")] == ["uno\n", "due\n"]
    assert run_unprivileged("undo")[0] == 0

    code, out, err = run_unprivileged("pick", f"{hold()}.2")
    assert code == 0, (out, err)
    assert sorted(p.name for p in (place / "project").iterdir()) == ["a.txt", "two.txt"]
    assert run_unprivileged("abort", hold())[0] == 0

    assert python(place, KILLED, "run", "-q", "--", "sh", "-c", "echo tre > three.txt").returncode == -9
    code, out, err = run_unprivileged("resume", newest(), "-q")
    assert code == 0, (out, err)
    assert (place / "project/three.txt").read_text() == "tre\n"
    assert python(place, KILLED, "run", "-q", "--", "sh", "-c", "echo lost > lost.txt").returncode == -9
    assert f"aborted {newest()}" in run_unprivileged("gc", "--force")[1]
    assert run_unprivileged("branch", "ls")[1] == "No branches.\n"


def test_a_fork_runs_in_the_background(run_unprivileged: Callable[..., tuple[int, str, str]], place: Path) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    code, fork, err = run_unprivileged("best-of", "1", "--detach", "-q", "-c", "echo uno > one.txt")
    assert code == 0, (fork, err)
    code, out, err = run_unprivileged("wait", fork.strip())
    assert (code, "Committed" in out) == (0, True), (out, err)
    assert (place / "project/one.txt").read_text() == "uno\n"
