"""Limits of the explore commands: memory, processors, and the time of tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from forkwise.linux import cgroup
from tests.need import need

Run = Callable[..., Result]


def test_memory(run: Run, project: Path) -> None:
    line = "import sys; x = bytearray(600 << 20); open('big', 'w')"
    run("run", "-q", "--memory", "200M", "--", "python3", "-c", line, code=7)
    assert not (project / "big").exists()
    run("run", "-q", "--", "python3", "-c", "open('big', 'w')")


def test_memory_of_tests(run: Run) -> None:
    test = "python3 -c 'bytearray(600 << 20)'"
    run("run", "-q", "--memory", "200M", "--no-baseline", "--test", test, "--", "touch", "new", code=7)


def test_processors(run: Run, project: Path) -> None:
    """The kernel's quota is what was given, as the sandbox's control group shows it."""
    need(cgroup.version_of("cpu") is not None, f"processors cannot be limited: {cgroup.why_not('cpu')}")
    line = (
        "from pathlib import Path\n"
        "from forkwise.linux.cgroup import own_groups\n"
        "names = ('cpu.max', 'cpu.cfs_quota_us', 'cpu.cfs_period_us')  # the first is of version 2\n"
        "found = [path for group in own_groups().values() for name in names if (path := Path(group, name)).exists()]\n"
        "Path('quota').write_text(' '.join(path.read_text() for path in found))\n"
    )
    run("run", "-q", "--cpus", "0.2", "--", sys.executable, "-c", line)
    assert (project / "quota").read_text().split() == ["20000", "100000"]


def test_processors_cannot_be_limited(run: Run, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setattr(cgroup, "version_of", lambda _: None)
    said = run("best-of", "2", "--cpus", "1.5", "--", "touch", "new", code=6).stderr
    assert "the limit cpus=1.5 cannot be enforced" in said
    assert "systemd-run" in said
    assert json.loads(run("ls", "--json").stdout)["forks"] == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--memory", "lots", "'lots' is not a size such as 512M or 2G"),
        ("--memory", "0", "not a possible size"),
        ("--memory", "-1G", "is not a size"),
        ("--cpus", "0", "0.0 is not in the range"),
        ("--cpus", "nan", "nan"),
        ("--timeout", "soon", "'soon' is not a duration such as 90s, 10m or 1.5h"),
        ("--timeout", "0", "is not above zero"),
        ("--test-timeout", "-1", "is not a duration"),
        ("--timeout", "inf", "is not a duration"),
        ("--timeout", "9999999999h", "longer than ten years"),
    ],
)
def test_values(run: Run, option: str, value: str, message: str) -> None:
    assert message in run("run", option, value, "--", "true", code=2).stderr


def test_tests_that_hang(run: Run) -> None:
    """A hanging test ends the attempt, a hanging baseline the command; both say how to allow more time."""
    words = ("--test-timeout", "0.5s", "--test", "test -e new || exit 0; sleep 60", "--", "touch", "new")
    assert "--test-timeout 30m" in run("run", "--no-baseline", *words, code=7).stdout
    said = run("run", "--test-timeout", "0.5s", "--test", "sleep 60", "--", "touch", "new", code=1).stderr
    assert "did not finish within 0.5 s; allow them more time with --test-timeout 30m" in said


def test_tests_have_a_limit_by_default(run: Run) -> None:
    command = ("--test", "true", "--", "sh", "-c", "date +%N > new")
    for words, limit in (((), 600.0), (("--test-timeout", "0"), None), (("--test-timeout", "2m"), 120.0)):
        found = run("run", "-q", "--json", "--no-baseline", *words, *command)
        fork = json.loads(found.stdout.splitlines()[-1])["outcome"]["fork"]
        assert json.loads(run("show", fork, "--json").stdout)["fork"]["spec"]["test_timeout"] == limit


def test_budget(run: Run, project: Path) -> None:
    """When the time is used up, attempts that run are ended; one that had ended is judged and wins."""
    line = 'test "$PAUSE" = 0 || sleep "$PAUSE"; date > new'
    words = ("--budget", "8s", "--vary", "env.PAUSE=0,60,60", "-j", "2", "--json", "-c", line)
    found = json.loads(run("best-of", *words).stdout.splitlines()[-1])["outcome"]
    assert [attempt["state"] for attempt in found["attempts"]] == ["succeeded", "cancelled", "cancelled"]
    reason = "the budget of 8 s of running time was used up"
    assert [attempt["reason"] for attempt in found["attempts"]] == [None, reason, reason]
    assert found["warnings"] == [f"{reason}: 2 of 3 attempts were stopped or not started"]
    assert (project / "new").exists()


def test_budget_of_attempts_in_turn(run: Run) -> None:
    """No attempt is made after the time is used up, and nothing is committed if none succeeded."""
    said = run("reflexion", "--retries", "5", "--budget", "0.3s", "--", "sleep", "60", code=7)
    assert "1 of 1 attempts were stopped" in said.stderr


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("10", "'10' has no unit: 10s are seconds, 10m minutes, 10h hours"),
        ("x", "is not an amount"),
        ("0m", "above zero"),
        ("0", "above zero"),
    ],
)
def test_budget_values(run: Run, value: str, message: str) -> None:
    assert message in run("best-of", "2", "--budget", value, "--", "true", code=2).stderr
