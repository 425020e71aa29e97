"""Forks on the command line: ls, show, watch, diff, pick, combine, resume, abort, gc."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Tests, Workspace
from forkwise.ledger.records import AttemptRecord
from forkwise.ledger.sqlite import SqliteLedger, open_ledger
from forkwise.linux.mountinfo import mounts
from forkwise.linux.process_id import ProcessId
from forkwise.progress import listen
from tests.display.work_recorder import WorkRecorder
from tests.fork.kill_at_point import becomes_so
from tests.leftovers import processes_about

Run = Callable[..., Result]
Ask = Callable[..., Any]

ONE = "echo uno > a.txt; echo said; echo warned >&2"
TWO = "echo due > b.txt"
CLASH = "echo eins > a.txt"
FAILS = "echo lost > c.txt; exit 3"
MAIN = "from forkwise.cli import main; main()"


@pytest.fixture
def hold(run: Run, ask: Ask) -> Callable[..., str]:
    """Try shell commands with --no-commit, and return the fork."""

    def hold(*lines: str, options: tuple[str, ...] = (), code: int = 0) -> str:
        words = [word for line in lines for word in ("-c", line)]
        run("speculate", "--all", "--no-commit", "--quiet", *options, *words, code=code)
        name: str = ask("ls")["forks"][0]["id"]
        return name

    return hold


@pytest.fixture
def kill(project: Path, ask: Ask, tmp_path: Path) -> Callable[..., str]:
    """Try shell commands in a process that is killed as soon as the named files exist, and return the fork."""

    def kill(*lines: str, once: tuple[str, ...], options: tuple[str, ...] = ()) -> str:
        words = [word for line in lines for word in ("-c", line)]
        outside = ("--writable", str(tmp_path))
        driver = [sys.executable, "-c", MAIN, "speculate", "--all", *outside, *options, *words]
        with subprocess.Popen(driver, cwd=project, stdout=subprocess.DEVNULL) as process:
            assert becomes_so(lambda: all((tmp_path / name).exists() for name in once))
            name: str = ask("ls")["forks"][0]["id"]
            assert becomes_so(lambda: ask("ls")["forks"][0]["attempts"].get("succeeded", 0) == len(lines) - 1)
            process.send_signal(signal.SIGKILL)
        assert becomes_so(lambda: not processes_about(str(tmp_path)))
        return name

    return kill


# Look


def test_nothing_yet(run: Run, ask: Ask, project: Path) -> None:
    assert "No forks yet" in run("ls").stdout
    assert ask("ls") == {"workspace": str(project), "forks": []}
    assert "no fork is running" in run("watch", code=1).stderr


def test_a_list_recovers_an_unfinished_commit(run: Run, ask: Ask, project: Path) -> None:
    state = Workspace(project).state
    (state / "head").mkdir(exist_ok=True)
    (state / "head/0+").mkdir()
    (state / "head/0").rmdir()
    assert ask("ls") == {"workspace": str(project), "forks": []}
    assert os.listdir(state / "head") == ["0"]


def test_ls(run: Run, ask: Ask, hold: Callable[..., str]) -> None:
    run("run", "--quiet", "--", "sh", "-c", "echo 1 > one.txt")
    run("undo")
    fork = hold(ONE, FAILS)
    table = run("ls").stdout.splitlines()
    assert table[0].split() == ["fork", "kind", "state", "attempts", "best", "started", "commit", "label"]
    assert table[1].split()[:7] == [fork, "speculate", "open", "1", "succeeded,", "1", "failed"]
    assert ONE[:20] in table[1]
    assert "1, undone by 2" in table[2]
    assert table[3].startswith(f"{fork} waits for a pick. Commit the best: forkwise pick {fork}. Give it up:")
    open_fork, undone = ask("ls")["forks"]
    assert (open_fork["attempts"], open_fork["best"]) == ({"succeeded": 1, "failed": 1}, 1.0)
    assert (open_fork["state"], open_fork["label"], open_fork["commit"]) == ("open", ONE, None)
    assert (undone["kind"], undone["state"], undone["commit"], undone["undone"]) == ("run", "resolved", 1, 2)
    assert [f["id"] for f in ask("ls", "-n", "1")["forks"]] == [fork]


def test_forks_inside_others_are_listed_when_asked_for(run: Run, ask: Ask) -> None:
    run("tree", "-c", "echo 1 > one.txt", "--expand", "echo 2 > two.txt", "--quiet")
    [outer] = ask("ls")["forks"]
    inner, again = ask("ls", "--all")["forks"]
    assert again == outer
    assert (inner["parent"], inner["origin"]) == (f"{outer['id']}.1", f"/main/{outer['id']}-1")
    shown = run("show", inner["id"]).stdout
    assert f"nested in:  {outer['id']}.1" in shown
    assert f"{inner['id']}.1" in run("show", outer["id"]).stdout


def test_show_a_fork(run: Run, ask: Ask, hold: Callable[..., str]) -> None:
    fork = hold(ONE, FAILS, options=("--test", "test -e a.txt"))
    said = run("show", fork[:4]).stdout
    assert said.startswith(f"{fork}: speculate, open\n")
    assert "tests:      test -e a.txt" in said
    assert f"judged:     winner {fork}.1" in said
    assert [line.split()[0] for line in said.splitlines() if line.startswith(f"{fork}.")] == [f"{fork}.1", f"{fork}.2"]
    assert "exit code 3" in said
    assert "The fork waits for a pick" in said
    report = ask("show", fork)["fork"]
    assert (report["id"], report["state"], report["winner"]) == (fork, "open", None)
    assert report["spec"]["kind"] == "speculate"
    assert [(a["state"], a["exit_code"]) for a in report["attempts"]] == [("succeeded", 0), ("failed", 3)]
    run("pick", f"{fork}.1")
    said = run("show", fork).stdout
    assert f"decided:    pick, for {fork}.1" in said
    assert "commit:     1\n" in said
    assert "Undo with: forkwise undo 1" in said


def test_show_an_attempt(run: Run, ask: Ask, hold: Callable[..., str]) -> None:
    fork = hold(ONE, FAILS, options=("--test", "cat a.txt; grep -q one a.txt"), code=7)
    said = run("show", f"{fork}.1").stdout
    assert said.startswith(f"{fork}.1: failed (tests: exit code 1)\n")
    assert f"branch:     /main/{fork}-1\n" in said
    assert "  ~ a.txt\n" in said
    assert "Tests:\nexit code 1\n" in said
    assert "The output ends with:\nuno\n" in said
    assert said.endswith("Output:\nsaid\nwarned\n")
    assert run("show", f"{fork}.1", "--output").stdout == "said\nwarned\n"
    assert run("show", f"{fork}.1", "--stderr").stdout == "warned\n"
    report = ask("show", f"{fork}.2")["attempt"]
    assert (report["state"], report["exit_code"], report["reason"]) == ("failed", 3, "exit code 3")
    assert (report["branch"], [c["path"] for c in report["changes"]]) == (f"/main/{fork}-2", ["c.txt"])
    assert report["command"][-1] == FAILS
    assert report["ended"] >= report["started"]
    run("abort", fork)
    assert f"branch:     {fork}-1 (dropped)" in run("show", f"{fork}.1").stdout
    report = ask("show", f"{fork}.1", "--stderr")["attempt"]
    assert (report["branch"], report["output"]) == (None, "warned\n")
    assert [change["path"] for change in report["changes"]] == ["a.txt"]


def test_show_tells_the_end_of_a_long_output(run: Run, hold: Callable[..., str]) -> None:
    fork = hold("seq 1000")
    said = run("show", f"{fork}.1").stdout
    assert said.endswith("End of the output:\n" + "".join(f"{n}\n" for n in range(981, 1001)))
    assert len(run("show", f"{fork}.1", "--output").stdout.splitlines()) == 1000


def test_printed_text_cannot_control_the_terminal(run: Run, hold: Callable[..., str]) -> None:
    fork = hold("printf 'a\\033[2Jb\\n'")
    assert "a\\x1b[2Jb" in run("show", f"{fork}.1").stdout
    assert run("show", f"{fork}.1", "--output").stdout == "a\x1b[2Jb\n"


@pytest.mark.parametrize("verb", ["show", "watch", "resume", "abort", "pick"])
def test_an_unknown_id(run: Run, ask: Ask, hold: Callable[..., str], verb: str) -> None:
    fork = hold(ONE)
    said = run(verb, f"{fork[:-1]}-", code=5).stderr
    assert f"did you mean {fork}?" in said
    assert "forkwise: hint: list the forks with forkwise ls" in said
    if verb in ("show", "pick"):
        error = ask(verb, f"{fork}.7", code=5)["error"]
        assert (error["type"], error["subject"], error["near"]) == ("ForkNotFoundError", f"{fork}.7", [f"{fork}.1"])


def test_output_is_an_attempts(run: Run, hold: Callable[..., str]) -> None:
    fork = hold(ONE)
    assert f"{fork}.1" in run("show", fork, "--output", code=2).stderr


def test_diff(run: Run, ask: Ask, hold: Callable[..., str], project: Path) -> None:
    fork = hold(ONE, TWO, CLASH)
    assert run("diff", f"{fork}.1").stdout == run("branch", "diff", f"{fork}-1").stdout
    said = run("diff", f"{fork}.1", f"{fork}.2").stdout
    assert [line for line in said.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
        "-uno",
        "+one",
        "-two",
        "+due",
    ]
    report = ask("diff", f"{fork}.1", f"{fork}-3")
    assert (report["from"], report["to"]) == (f"/main/{fork}-1", f"/main/{fork}-3")
    assert report["diff"].endswith("-uno\n+eins\n")
    # The diff turns the first into the second.
    seen = Path(ask("branch", "path", f"{fork}-1")["path"])
    subprocess.run(["patch", "-p1", "-s"], cwd=seen, input=said, text=True, check=True)
    assert run("diff", f"{fork}.1", f"{fork}.2").stdout == ""
    assert "nobody" in run("diff", "nobody", code=5).stderr


def test_diffs_and_details_of_all_attempts_stay(
    run: Run, ask: Ask, hold: Callable[..., str], project: Path, command: Callable[..., Any]
) -> None:
    fork = hold(ONE, CLASH, f"echo oops; {FAILS}")
    names = [f"{fork}.{number}" for number in (1, 2, 3)]
    before = {name: run("diff", name).stdout for name in names}
    between = run("diff", names[0], names[1]).stdout
    run("pick", names[0])
    assert ask("branch", "ls")["branches"] == []
    for name in names:
        assert command("diff", name).stdout == before[name] != ""
    assert run("diff", names[0], names[1]).stdout == between
    report = ask("diff", names[1])
    assert (report["from"], report["to"], report["diff"]) == ("/main", f"/main/{fork}-2", before[names[1]])
    assert (report["stored"], report["left_out"], report["unlisted"], report["redacted"]) == (True, [], 0, False)
    details = ask("show", names[2])["attempt"]
    assert [(c["path"], c["kind"]) for c in details["changes"]] == [("c.txt", "added")]
    assert "oops" in details["output"]
    assert "+ c.txt" in run("show", names[2]).stdout


def test_diff_of_a_commit(run: Run, ask: Ask, project: Path) -> None:
    run("run", "--quiet", "--", "sh", "-c", "echo uno > a.txt")
    made = run("diff", "1").stdout
    assert made.endswith("-one\n+uno\n")
    run("undo")
    assert run("diff", "1").stdout == made, "although it was undone"
    assert run("diff", "2").stdout.endswith("-uno\n+one\n")
    (project / "a.txt").write_text("edited by hand\n")
    assert run("diff", "1").stdout == made
    run("gc", "--keep", "0")
    report = ask("diff", "1")
    assert (report["from"], report["to"], report["diff"]) == ("/main", "commit 1", made)
    branch = ask("branch", "create", "hand")["branch"]["path"]
    Path(branch, "b.txt").write_text("due\n")
    run("branch", "commit", "hand")
    assert run("diff", "3").stdout.endswith("-two\n+due\n")
    assert "no diff of commit 77" in run("diff", "77", code=5).stderr


def test_diff_of_attempts_of_different_forks(run: Run, ask: Ask) -> None:
    run("run", "--quiet", "--", "sh", "-c", "echo uno > a.txt")
    first = ask("ls")["forks"][0]["id"]
    run("run", "--quiet", "--", "sh", "-c", "echo due > b.txt")
    second = ask("ls")["forks"][0]["id"]
    assert run("diff", f"{first}.1", f"{second}.1").stdout.splitlines()[-2:] == ["-two", "+due"]
    assert "a.txt" not in run("diff", f"{first}.1", f"{second}.1").stdout, "the second started from the first's commit"
    assert run("diff", f"{second}.1", f"{first}.1").stdout.splitlines()[-2:] == ["-due", "+two"]


def test_watch(project: Path, ask: Ask, command: Callable[..., Any], tmp_path: Path) -> None:
    """Another process watches the fork until it is over."""
    words = ("run", "--writable", str(tmp_path), "--", "sh", "-c", f"touch {tmp_path}/on; cat {tmp_path}/fifo > a.txt")
    os.mkfifo(tmp_path / "fifo")
    program = [sys.executable, "-c", MAIN]
    with subprocess.Popen([*program, *words], cwd=project, stdout=subprocess.DEVNULL) as driver:
        assert becomes_so((tmp_path / "on").exists)
        with subprocess.Popen([*program, "watch", "--json"], cwd=project, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            first = json.loads(watcher.stdout.readline())
            (tmp_path / "fifo").write_text("uno\n")
            *events, last = map(json.loads, watcher.stdout)
        assert driver.wait() == watcher.wait() == 0
    assert first["event"]["kind"] == "begun"
    assert [line["event"]["kind"] for line in events][-2:] == ["resolved", "committed"]
    assert (last["fork"]["state"], last["fork"]["commit"]) == ("resolved", 1)
    again = command("watch", last["fork"]["id"][:5])
    assert again.returncode == 0
    assert "Undo with: forkwise undo 1" in again.stdout


# Decide


def test_pick(run: Run, ask: Ask, hold: Callable[..., str], project: Path) -> None:
    fork = hold(ONE, TWO)
    said = run("pick", f"{fork}.2").stdout
    assert f"Committed {fork}.2 as 1: 0 added, 1 changed, 0 deleted.\n  ~ b.txt\n" in said
    assert "Undo with: forkwise undo 1" in said
    assert (project / "b.txt").read_text() == "due\n"
    assert ask("branch", "ls")["branches"] == []
    assert "was committed as 1" in run("pick", f"{fork}.1", code=4).stderr
    assert ask("pick", f"{fork}.1", code=4)["error"]["fork"] == fork


def test_pick_takes_the_best_and_keeps_the_others(run: Run, ask: Ask, hold: Callable[..., str], project: Path) -> None:
    fork = hold(ONE, f"{TWO}; echo 5 > $FORKWISE_SCORE")
    assert ask("pick", fork, "--keep")["commit"]["changed"] == ["b.txt"]
    assert [b["name"] for b in ask("branch", "ls")["branches"]] == [f"{fork}-1"]


def test_pick_one_that_failed(run: Run, hold: Callable[..., str], project: Path) -> None:
    fork = hold(ONE, FAILS)
    assert "--force" in run("pick", f"{fork}.2", code=1).stderr
    run("pick", f"{fork}.2", "--force")
    assert (project / "c.txt").read_text() == "lost\n"


def test_a_pick_decides_conflicts(run: Run, ask: Ask, hold: Callable[..., str], project: Path) -> None:
    fork = hold(ONE)
    (project / "a.txt").write_text("changed elsewhere\n")
    said = run("pick", fork, code=3).stderr
    assert "a.txt" in said
    assert "--on-conflict" in said
    run("pick", fork, "--on-conflict", "ours")
    assert (project / "a.txt").read_text() == "uno\n"


def test_combine(run: Run, ask: Ask, hold: Callable[..., str], project: Path) -> None:
    fork = hold(ONE, TWO, CLASH, options=("--test", "! grep lost *"))
    said = run("combine", f"{fork}.1", f"{fork}.2", f"{fork}.3", code=3).stdout
    assert f"! a.txt: {fork}.1, {fork}.3 changed the same lines" in said
    assert f"forkwise combine {fork}.1 {fork}.2 {fork}.3 --prefer a.txt={fork}.3" in said
    report = ask("combine", f"{fork}.1", f"{fork}.3", code=3)["combination"]
    assert (report["commit"], report["tests"]) == (None, None)
    assert report["conflicts"][0]["attempts"] == [f"{fork}.1", f"{fork}.3"]
    assert (project / "a.txt").read_text() == "one\n"

    names = (f"{fork}.1", f"{fork}.2", f"{fork}.3")
    said = run("combine", *names, "--prefer", f"a.txt={fork}.3", "--test", "false", code=7).stdout
    assert "The tests do not pass; nothing was committed" in said
    said = run("combine", *names, "--prefer", f"{fork[:5]}.3").stdout
    assert f"  a.txt: from {fork}.3\n  b.txt: from {fork}.2\ntests: exit code 0\n" in said
    assert f"Committed {fork}.1 and {fork}.2 and {fork}.3 together as 1" in said
    assert [(project / name).read_text() for name in ("a.txt", "b.txt")] == ["eins\n", "due\n"]
    [shown] = ask("ls")["forks"]
    assert (shown["resolution"]["how"], shown["resolution"]["attempts"]) == ("combination", list(names))
    assert ask("branch", "ls")["branches"] == []


def test_combine_says_that_it_takes_no_commits(run: Run, ask: Ask, hold: Callable[..., str], project: Path) -> None:
    git = "git -c user.name=A -c user.email=a@example.org"
    subprocess.run(f"git init -qb main && {git} commit -q --allow-empty -m zero", shell=True, cwd=project, check=True)
    fork = hold(f"echo 1 > one.txt; git add one.txt; {git} commit -qm one", "echo 2 > two.txt")
    said = run("combine", f"{fork}.1", f"{fork}.2", "--no-test").stdout
    left = "1 commit on main, index changed"
    table = run("show", fork).stdout
    assert "1 commit" in table
    [attempt, other] = ask("show", fork)["fork"]["attempts"]
    assert (attempt["files"], attempt["git"], other["git"]) == (1, "1 commit", None)
    assert f"git: the commits of {fork}.1 are not taken, because a combination takes files: {left}" in said
    run("undo")
    fork = hold(f"echo 1 > one.txt; git add one.txt; {git} commit -qm one", "echo 2 > two.txt")
    report = ask("combine", f"{fork}.1", f"{fork}.2", "--no-test")["combination"]
    assert [change["text"] for change in report["left_repositories"][f"{fork}.1"]] == [left]


def test_combine_says_what_it_needs(run: Run, hold: Callable[..., str]) -> None:
    fork = hold(ONE, FAILS)
    assert "at least two attempts" in run("combine", f"{fork}.1", code=1).stderr
    assert "contradict" in run("combine", f"{fork}.1", f"{fork}.2", "--test", "true", "--no-test", code=2).stderr
    assert f"{fork}.2 did not succeed" in run("combine", f"{fork}.1", f"{fork}.2", "--no-test", code=1).stderr
    run("combine", f"{fork}.1", f"{fork}.2", "--test", "test -e c.txt")


def test_abort(run: Run, ask: Ask, hold: Callable[..., str]) -> None:
    fork = hold(ONE, TWO)
    assert ask("abort", fork[:5]) == {"aborted": fork, "dropped": [f"/main/{fork}-1", f"/main/{fork}-2"]}
    assert ask("branch", "ls")["branches"] == []
    assert run("abort", fork).stdout == f"Aborted {fork}; its branches were dropped.\n"
    assert "it is aborted" in run("resume", fork, code=4).stderr


# Killed processes


def test_resume(run: Run, ask: Ask, kill: Callable[..., str], project: Path, tmp_path: Path) -> None:
    waits = f"echo again >> {tmp_path}/second; test -e {tmp_path}/go || sleep 1000; {TWO}; echo 2 > $FORKWISE_SCORE"
    fork = kill(f"echo again >> {tmp_path}/first; {ONE}", waits, once=("first", "second"))
    said = run("ls").stdout
    assert "interrupted  1 interrupted, 1 succeeded" in said
    assert f"{fork} was interrupted. Resume it: forkwise resume {fork}. Give it up: forkwise abort {fork}." in said
    assert ask("ls")["forks"][0]["state"] == "interrupted"
    (tmp_path / "go").touch()
    said = run("resume", fork).stdout
    assert f"Committed {fork}.2 as 1" in said
    assert (project / "b.txt").read_text() == "due\n"
    assert ((tmp_path / "first").read_text(), (tmp_path / "second").read_text()) == ("again\n", "again\nagain\n")
    assert "committed as 1 already" in run("resume", fork, code=4).stderr
    assert ask("branch", "ls")["branches"] == []


def test_resume_in_json(run: Run, kill: Callable[..., str], tmp_path: Path) -> None:
    fork = kill(f"touch {tmp_path}/on; test -e {tmp_path}/go || sleep 1000", once=("on",))
    (tmp_path / "go").touch()
    works = WorkRecorder()
    with listen(works):
        *events, last = map(json.loads, run("resume", fork, "--json").stdout.splitlines())
    assert "Dropping what the interrupted attempts left" in [name for name, *_ in works.ended]
    assert "adopted" in [line["event"]["kind"] for line in events]
    assert (last["outcome"]["fork"], last["outcome"]["winner"]) == (fork, f"{fork}.1")
    error = json.loads(run("resume", fork, "--json", code=4).stdout)["error"]
    assert (error["type"], error["fork"]) == ("ForkResolvedError", fork)


def test_resume_counts_the_time_that_was_used(
    run: Run, kill: Callable[..., str], tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget is not renewed: what attempts used before the kill is used."""
    waits = f"echo again >> {tmp_path}/on; test -e {tmp_path}/go || sleep 1000; {TWO}"
    fork = kill(ONE, waits, once=("on",), options=("--budget", "10m"))
    (tmp_path / "go").touch()
    read = SqliteLedger.attempts

    def attempts(self: SqliteLedger, *which: Any, **how: Any) -> list[AttemptRecord]:
        return [replace(a, wall=700.0) if a.state == "succeeded" else a for a in read(self, *which, **how)]

    monkeypatch.setattr(SqliteLedger, "attempts", attempts)
    done = run("resume", fork)
    assert f"Committed {fork}.1 as 1" in done.stdout
    assert "the budget of 600 s of running time was used up" in done.stderr
    assert (tmp_path / "on").read_text() == "again\n", "the other attempt was not started again"


def test_gc_keeps_an_interrupted_fork(
    run: Run, ask: Ask, kill: Callable[..., str], project: Path, state: Path, tmp_path: Path
) -> None:
    fork = kill("true", f"echo half > half.txt; touch {tmp_path}/on; sleep 1000", once=("on",))
    assert f"kept {fork}: it was interrupted. Resume it: forkwise resume {fork}." in run("gc").stdout
    report = ask("gc")
    assert [f["id"] for f in report["unfinished"]] == [fork]
    assert (report["removed"], report["listed"], report["aborted"]) == ([], [], [])
    assert len(ask("branch", "ls")["branches"]) == 2
    assert f"would abort {fork}" in run("gc", "--force", "--dry-run").stdout
    report = ask("gc", "--force")
    assert (report["aborted"], sorted(report["removed"])) == ([fork], [f"/main/{fork}-1", f"/main/{fork}-2"])
    assert ask("branch", "ls")["branches"] == []
    assert [m.point for m in mounts() if m.point.startswith(str(state))] == []
    assert ask("ls")["forks"][0]["state"] == "aborted"
    assert not (project / "half.txt").exists()


def test_gc_forgets_old_forks(run: Run, ask: Ask) -> None:
    for n in range(3):
        run("run", "--quiet", "--", "sh", "-c", f"echo {n} > n.txt")
    names = [fork["id"] for fork in ask("ls")["forks"]]
    assert "removed 2 old forks from the ledger" in run("gc", "--keep-forks", "1").stdout
    assert [fork["id"] for fork in ask("ls")["forks"]] == names[:1]
    assert [commit["fork"] for commit in ask("log")["commits"]] == [names[0], None, None]


def test_log_and_undo_know_the_fork(run: Run, ask: Ask) -> None:
    path = Path(ask("branch", "create", "mine")["branch"]["path"])
    (path / "a.txt").write_text("mine\n")
    run("branch", "commit", "mine")
    run("run", "--quiet", "--", "sh", "-c", "echo 1 > one.txt")
    fork = ask("ls")["forks"][0]["id"]
    run("undo")
    assert [(c["id"], c["fork"]) for c in ask("log")["commits"]] == [(3, fork), (2, fork), (1, None)]
    header, *rows = run("log").stdout.splitlines()
    assert header.split()[-1] == "fork"
    assert [row.split()[-1] for row in rows] == [fork, fork, "deleted"]
    assert ask("ls")["forks"][0]["undone"] == 3
    run("undo", "3")
    assert (ask("ls")["forks"][0]["commit"], ask("ls")["forks"][0]["undone"]) == (4, None)


def test_listing_loads_nothing_that_explores(project: Path) -> None:
    """A list of forks must stay fast, so it loads few modules."""
    with open_ledger(Workspace(project)) as ledger:
        ledger.begin_fork("run", workspace=str(project), spec={})
    code = f"""
import json, sys
from forkwise.cli import main
sys.argv = ["forkwise", "-C", {str(project)!r}, "ls"]
try:
    main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    floors = (
        "forkwise.explore",
        "forkwise.fork",
        "forkwise.sandbox",
        "forkwise.testing",
        "forkwise.cli.options",
        "forkwise.display.board",
        "forkwise.files.branch",
        "forkwise.files.workspace",
        "forkwise.git",
        "forkwise.ledger.stored_changes",
        "rich",
        "secrets",
        "socket",
    )
    assert "forkwise.display.subject" in loaded
    assert not [name for name in loaded if name in ("asyncio", "opentelemetry", "rich") or name.startswith(floors)]


def test_a_long_list_ends_with_a_page_of_advice(run: Run, project: Path) -> None:
    with open_ledger(Workspace(project)) as ledger:
        for _ in range(25):
            ledger.begin_fork("run", workspace=str(project), spec={}, owner=ProcessId.nobody())
    lines = run("ls", "--all").stdout.splitlines()
    assert len([line for line in lines if "was interrupted" in line]) == 20
    assert lines[-1].startswith("Older forks may need a decision")


def test_a_fork_of_another_process_is_aborted(run: Run, ask: Ask, project: Path, tmp_path: Path) -> None:
    words = ["run", "--writable", str(tmp_path), "--", "sh", "-c", f"touch {tmp_path}/on; sleep 1000"]
    program = [sys.executable, "-c", MAIN, *words]
    with subprocess.Popen(program, cwd=project, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as driver:
        assert becomes_so((tmp_path / "on").exists)
        fork = ask("ls")["forks"][0]["id"]
        run("abort", fork)
        _, said = driver.communicate(timeout=30)
    assert (driver.returncode, f"fork {fork} was decided" in said) == (4, True)
    assert not processes_about(f"{tmp_path}/on")
    with open_ledger(Workspace(project)) as ledger:
        assert [a.state for a in ledger.attempts(fork)] == ["cancelled"]


def test_one_attempt_of_another_process_is_ended(run: Run, ask: Ask, project: Path, tmp_path: Path) -> None:
    stuck = f"touch {tmp_path}/on; sleep 1000"
    works = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo 2 > two.txt"
    words = ["speculate", "--all", "--writable", str(tmp_path), "-c", stuck, "-c", works]
    with subprocess.Popen([sys.executable, "-c", MAIN, *words], cwd=project, stdout=subprocess.DEVNULL) as driver:
        try:
            assert becomes_so((tmp_path / "on").exists)
            fork = ask("ls")["forks"][0]["id"]
            ended = ask("abort", f"{fork[:5]}.1")
            left = [line for line in processes_about(f"{tmp_path}/on") if MAIN not in line]
            report = ask("show", fork)["fork"]["attempts"]
            again = run("abort", f"{fork}.1", code=1).stderr
        finally:
            (tmp_path / "go").touch()
    assert (ended, left) == ({"aborted": f"{fork}.1", "dropped": []}, [])
    assert [(a["state"], a["reason"]) for a in report] == [("cancelled", "aborted by the user"), ("running", None)]
    assert "it is cancelled already" in again
    assert driver.returncode == 0
    assert (project / "two.txt").read_text() == "2\n"
    assert "no attempt of it runs" in run("abort", f"{fork}.2", code=4).stderr
    assert "name the fork" in run("abort", f"{fork}.2", "--lost", code=2).stderr


def test_an_attempt_ended_after_a_kill_is_not_run_again(
    run: Run, ask: Ask, kill: Callable[..., str], project: Path, tmp_path: Path
) -> None:
    fork = kill("echo 1 > one.txt", f"touch {tmp_path}/on; sleep 1000", once=("on",))
    assert run("abort", f"{fork}.2").stdout == f"Stopped {fork}.2; the other attempts keep running.\n"
    assert f"/main/{fork}-2" not in [branch.branch_path for branch in Workspace(project).branches()]
    run("resume", fork, "--quiet")
    assert [(a["id"], a["state"]) for a in ask("show", fork)["fork"]["attempts"]] == [
        (f"{fork}.1", "succeeded"),
        (f"{fork}.2", "cancelled"),
    ]
    assert (project / "one.txt").exists()


def test_the_output_of_attempts_is_printed_line_by_line(run: Run, hold: Callable[..., str], project: Path) -> None:
    fork = hold("echo said; printf '\\033[31mred'", "true")
    lines = run("watch", fork, "--plain").stdout.splitlines()
    assert lines[0] == (
        f"From another terminal, forkwise pick {fork}.N commits attempt N, forkwise abort {fork}.N stops it, "
        f"forkwise abort {fork} aborts the fork."
    )
    report = [line for line in lines if line.startswith(f"{fork}.1")]
    assert report[1:3] == [f"{fork}.1: said", f"{fork}.1: red"]
    assert report[3].startswith(f"{fork}.1 succeeded in "), "its output is printed before its end"
    assert f"{fork} waits for a pick" in lines
    assert not any(line.startswith("attempt ") for line in lines), "no table, which screen readers do not read well"
    run("pick", f"{fork}.1")
    assert run("watch", fork, "--plain").stdout.startswith(f"Fork {fork}: speculate")


def test_a_fork_of_another_machine_is_left_to_it(run: Run, ask: Ask, project: Path) -> None:
    there = ProcessId(os.getpid(), 1, "another boot", "pid:[1]", "another machine", "far")
    with open_ledger(Workspace(project)) as ledger:
        fork = ledger.begin_fork("run", workspace=str(project), spec={}, owner=there).id
        ledger.start_attempt(ledger.add_attempt(fork, "0", index=0, label="true", branch=f"{fork}-1").id)
    assert ask("ls")["forks"][0]["state"] == "running"
    assert f"{os.getpid()} on far" in run("show", fork).stdout
    assert "it is running" in run("resume", fork, code=4).stderr
    assert ask("gc", "--force")["aborted"] == []
    assert ask("abort", fork, "--lost") == {"aborted": fork, "dropped": []}
    assert [a["state"] for a in ask("show", fork)["fork"]["attempts"]] == ["cancelled"]


NOT_BOTH = "test ! -e one -o ! -e two"


def test_pick_and_combine_test_again_what_changed_meanwhile(run: Run, ask: Ask, hold: Any, project: Path) -> None:
    """The attempt passed alone and fails together with another commit: nothing is committed, except by --no-retest."""
    fork = hold("touch one", "touch three", options=("--test", NOT_BOTH))
    run("run", "-q", "--test", NOT_BOTH, "--", "touch", "two")
    error = ask("pick", f"{fork}.1", code=7)["error"]
    assert error["type"] == "RetestError"
    assert "it passed alone, fails together with commit 1 (/main/" in error["message"]
    assert "--no-retest" in run("pick", f"{fork}.1", code=7).stderr
    assert [f["state"] for f in ask("ls")["forks"] if f["id"] == fork] == ["open"]
    assert not (project / "one").exists()
    run("pick", f"{fork}.1", "--no-retest")
    assert (project / "one").exists()
    other = hold("rm one; touch three", "touch four", options=("--test", NOT_BOTH), code=0)
    ask("combine", f"{other}.1", f"{other}.2", "--no-retest")
    assert (project / "four").exists()


def test_a_winner_that_fails_together_with_another_commit(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Tests.evaluate

    async def overtaken(self: Any, attempt: Any) -> Any:
        done = await real(self, attempt)
        with Workspace(project).branch("other") as other:
            (other.path / "two").write_text("")
        return done

    monkeypatch.setattr(Tests, "evaluate", overtaken)
    done = run("run", "--test", NOT_BOTH, "--", "touch", "one", code=7)
    assert "failed: passed alone, fails together with commit 1 (/main/other)" in done.stdout
    assert "is kept as the branch /main/" in done.stderr
    assert "nothing was changed" in done.stdout
    assert sorted(path.name for path in project.iterdir()) == ["a.txt", "b.txt", "sub", "two"]


def test_secrets_are_not_recorded(
    project: Path, state: Path, run: Run, ask: Ask, hold: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "correct-horse-battery")
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    # Octal escapes: the command itself, which a resumed fork runs again, does not contain the key.
    line = "echo $SERVICE_TOKEN | cut -c1-8 | tr -d '\\n'; echo $SERVICE_TOKEN | cut -c9-; "
    line += "printf '\\101KIA%s %s\\n' IOSFODNN7EXAMPLE \"$SERVICE_TOKEN\" >&2; exit 3"
    fork = hold(line, code=7)
    shown = run("show", f"{fork}.1", "--output").output
    assert "[redacted]" in shown
    for text in (shown, run("show", f"{fork}.1", "--json").output, run("ls", "--json").output):
        assert key not in text
        assert "correct-horse-battery" not in text
    for path in state.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert key.encode() not in content, path
            assert b"correct-horse-battery" not in content, path


def test_a_secret_variable_of_a_fork_is_not_shown(run: Run, hold: Callable[..., str]) -> None:
    line = "echo $DEPLOY_TOKEN; exit 3"
    fork = hold(line, options=("--env", "DEPLOY_TOKEN=given-on-the-line"), code=7)
    for words in (("show", fork, "--json"), ("show", f"{fork}.1", "--output"), ("watch", fork, "--json")):
        text = run(*words).output
        assert "given-on-the-line" not in text, words
        assert "[redacted]" in text, words


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_ls_fits_the_terminal(run: Run, ask: Ask, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    run("speculate", "--all", "-c", "echo a > n; : a rather long line that nobody can read", "-c", "exit 1", code=0)
    run("run", "--no-commit", "--", "sh", "-c", "echo 漢字漢字漢字漢字漢字漢字漢字 > m")
    forks = ask("ls")["forks"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    said = re.sub(r"\x1b\[[0-9;]*m", "", run("ls").stdout)
    lines = [line for line in said.splitlines() if "Commit the best" not in line]
    assert all(len(line.rstrip()) <= width for line in lines)
    for fork in forks:
        [row] = [line for line in lines if line.startswith(fork["id"])]
        assert fork["state"] in row
        if width >= 80:
            assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", row)
    assert "1 succeeded" in said
    assert said.splitlines()[0].startswith("fork")
