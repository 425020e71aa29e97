"""The explore commands: their attempts, commits, output, and failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import MountError, NamespaceError, Workspace
from forkwise.fork import runner
from forkwise.fork.fork import open_ledger
from forkwise.linux.mountinfo import mounts
from tests.leftovers import processes_about
from tests.need import need

Run = Callable[..., Result]
Ask = Callable[..., Any]
Lines = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def lines(run: Run) -> Lines:
    """Run a command with ``--json``, and return the lines that it prints."""

    def lines(*words: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run(words[0], "--json", *words[1:], code=code).stdout.splitlines()]

    return lines


@pytest.fixture
def outcome(lines: Lines) -> Callable[..., Any]:
    """Run a command and return its outcome, which is the last line."""

    def outcome(*words: str, code: int = 0) -> Any:
        *events, last = lines(*words, code=code)
        assert all(set(line) == {"event"} for line in events)
        return last["outcome"]

    return outcome


def sh(line: str) -> tuple[str, ...]:
    """Return the words that run a shell command after two dashes."""
    return "--", "sh", "-c", line


# Attempts and winners


def test_run_commits_what_a_command_changed(run: Run, project: Path) -> None:
    said = run("run", *sh("echo uno > a.txt; rm b.txt; echo done")).stdout
    assert (project / "a.txt").read_text() == "uno\n"
    assert not (project / "b.txt").exists()
    assert "+uno\n" in said
    assert "as 1: 0 added, 1 changed, 1 deleted.\nUndo with: forkwise undo 1\n" in said
    run("undo", "1")
    assert (project / "a.txt").read_text() == "one\n"


def test_run_that_fails_changes_nothing_and_says_why(run: Run, project: Path) -> None:
    said = run("run", *sh("echo uno > a.txt; echo out of luck; exit 3"), code=7).stdout
    assert (project / "a.txt").read_text() == "one\n"
    assert "exit code 3" in said
    assert "\nout of luck\n" in said
    assert said.endswith("No attempt succeeded; nothing was changed.\n")


def test_speculate_takes_the_first_that_succeeds(outcome: Callable[..., Any], project: Path) -> None:
    result = outcome("speculate", "-c", "exit 1", "-c", "echo b > won", "-c", "sleep 60; echo c > won")
    assert (project / "won").read_text() == "b\n"
    assert [a["state"] for a in result["attempts"]][1:] == ["succeeded", "cancelled"]
    assert [a["won"] for a in result["attempts"]] == [False, True, False]
    assert [a["label"] for a in result["attempts"]][:2] == ["exit 1", "echo b > won"]


def test_speculate_may_wait_for_the_best(outcome: Callable[..., Any], project: Path) -> None:
    lines = ('echo 1 > won; echo 1 > "$FORKWISE_SCORE"', 'sleep .2; echo 2 > won; echo 2 > "$FORKWISE_SCORE"')
    assert outcome("speculate", "--all", "-c", lines[0], "-c", lines[1])["winner"].endswith(".2")
    assert (project / "won").read_text() == "2\n"


def test_best_of_weighs_the_score_and_then_the_diff(outcome: Callable[..., Any], project: Path) -> None:
    result = outcome("best-of", "3", *sh('seq $((4 - FORKWISE_ATTEMPT)) > n; echo 5 > "$FORKWISE_SCORE"'))
    assert [a["won"] for a in result["attempts"]] == [False, False, True]
    work = 'seq $FORKWISE_ATTEMPT > m; echo $FORKWISE_ATTEMPT > "$FORKWISE_SCORE"'
    result = outcome("best-of", "3", *sh(work))
    assert [a["won"] for a in result["attempts"]] == [False, False, True]
    assert result["attempts"][2]["score"] == 3


def test_best_of_needs_the_tests_to_pass(outcome: Callable[..., Any], project: Path) -> None:
    (project / "check.sh").write_text('grep -q right answer && echo "ok 1" || echo "not ok 1"; echo 1..1\n')
    work = 'test "$FORKWISE_ATTEMPT" = 2 && echo right > answer || echo wrong > answer'
    result = outcome("best-of", "2", "--test", "sh check.sh", *sh(work))
    assert [a["state"] for a in result["attempts"]] == ["failed", "succeeded"]
    assert [a["tests"]["passed"] for a in result["attempts"]] == [0, 1]
    assert (project / "answer").read_text() == "right\n"


def test_the_tests_can_be_found(run: Run, project: Path) -> None:
    (project / "Makefile").write_text("test:\n\tgrep -q right answer\n")
    run("run", "--test", "auto", *sh("echo wrong > answer"), code=7)
    run("run", "--test", "auto", *sh("echo right > answer"))
    (project / "Makefile").unlink()
    assert "--test 'COMMAND'" in run("run", "--test", "auto", *sh("touch ran"), code=2).stderr
    assert not (project / "ran").exists()


def test_reflexion_passes_feedback_to_the_next_attempt(outcome: Callable[..., Any], project: Path) -> None:
    check = 'test "$(cat answer)" = 42 && echo "ok 1 - it adds up" || echo "not ok 1 - it adds up"; echo 1..1\n'
    (project / "check.sh").write_text(check)
    work = 'grep -q "it adds up" "$FORKWISE_FEEDBACK" && echo 42 > answer || echo 41 > answer'
    result = outcome("reflexion", "--retries", "3", "--test", "sh check.sh", *sh(work))
    assert [a["state"] for a in result["attempts"]] == ["failed", "succeeded"]
    assert (project / "answer").read_text() == "42\n"


def test_cascade_widens_until_one_succeeds(outcome: Callable[..., Any], project: Path) -> None:
    work = (
        'test "$FORKWISE_ATTEMPT" = 3 && cp "$FORKWISE_FEEDBACK" taught && exit; echo lesson $FORKWISE_ATTEMPT; exit 1'
    )
    result = outcome("cascade", "--fan-out", "2,2", *sh(work))
    assert [a["state"] for a in result["attempts"]][:3] == ["failed", "failed", "succeeded"]
    taught = (project / "taught").read_text()
    assert "Attempt 1: " in taught
    assert "lesson 1" in taught
    assert "lesson 2" in taught


def test_refine_builds_on_the_best(outcome: Callable[..., Any], project: Path) -> None:
    work = 'echo $FORKWISE_ATTEMPT >> trail; echo $((FORKWISE_ATTEMPT % 5)) > "$FORKWISE_SCORE"'
    result = outcome("refine", "2", "--rounds", "2", *sh(work))
    assert (project / "trail").read_text() == "2\n4\n"
    assert result["winner"].endswith(".4")


def test_summaries_are_shown(outcome: Callable[..., Any], run: Run, ask: Ask) -> None:
    result = outcome("reflexion", "--retries", "2", *sh("echo lesson learned; exit 1"), code=7)
    shown = run("show", f"{result['fork']}.1").stdout
    assert "Summary:\nfailed: exit code 1" in shown
    assert ask("show", f"{result['fork']}.1")["attempt"]["summary"]["outcome"] == "failed: exit code 1"
    assert ask("show", f"{result['fork']}.2")["attempt"]["summary"] is None


def test_costs_of_shell_commands_are_never_known(run: Run) -> None:
    refused = run("best-of", "2", "--stop-when", "cost:1", *sh("true"), code=2).stderr
    assert "the cost of a shell command is never known" in refused


def test_the_best_score_in_a_list_is_that_of_a_success(run: Run, ask: Ask) -> None:
    run("best-of", "1", *sh('echo 5 > "$FORKWISE_SCORE"; exit 1'), code=7)
    run("best-of", "1", "--test", "false", "--no-baseline", *sh('echo 5 > "$FORKWISE_SCORE"'), code=7)
    assert [fork["best"] for fork in ask("ls")["forks"]] == [None, None]
    run("best-of", "1", *sh('echo 5 > "$FORKWISE_SCORE"; echo x > made'))
    assert ask("ls")["forks"][0]["best"] == 5


def test_a_broken_test_command_is_reported_once(run: Run) -> None:
    result = run("best-of", "2", "--test", "no-such-program-here", *sh("true"), code=1)
    assert (result.stdout + result.stderr).count("attempts cannot be judged by these tests") == 1
    assert "attempt  " not in result.stdout, "there is nothing to put into a table"


def test_recursive_tournament_teaches_by_the_winners(outcome: Callable[..., Any], run: Run, project: Path) -> None:
    (project / "larger.sh").write_text('test "$(cat "$1/n")" -gt "$(cat "$2/n")" && echo a || echo b\n')
    options = ("3", "--group", "2", "--judge", "sh larger.sh")
    result = outcome("playoff", *options, *sh('echo $FORKWISE_ATTEMPT > n; cp "$FORKWISE_FEEDBACK" f'))
    assert (project / "n").read_text() == "5\n"
    assert (project / "f").read_text().startswith("The best attempt of your group: succeeded\n")
    assert len(result["attempts"]) == 5
    assert "--max-attempts 2 is less" in run("playoff", "3", "--max-attempts", "2", *sh("true"), code=2).stderr


def test_cross_tests_from_the_command_line(outcome: Callable[..., Any], project: Path) -> None:
    """Tests of others count; their ``conftest.py``, which would make every test pass, is left out."""
    head = "import words\ndef test_{}():\n    assert words.size({!r}) == {}\n"
    (project / "words.py").write_text("def size(text):\n    return 0\n")
    (project / "test_words.py").write_text(head.format("two", "a b", 2))
    right = {"words.py": "def size(text): return len(text.split())", "test_three.py": head.format("three", "a b c", 3)}
    flip = "def pytest_pyfunc_call(pyfuncitem): return True"
    wrong = {"words.py": "def size(text): return 2", "test_nine.py": head.format("nine", "a", 9), "conftest.py": flip}
    (project / "work.py").write_text(
        "import os, pathlib\n"
        f"files = {right} if int(os.environ['FORKWISE_ATTEMPT']) > 1 else {wrong}\n"
        "for name, text in files.items():\n    pathlib.Path(name).write_text(text)\n"
    )
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider"
    result = outcome("best-of", "3", "--cross-tests", "--test", command, *sh(f"{sys.executable} work.py"))
    assert result["winner"].endswith(".2")
    shares = [attempt["scores"][3] for attempt in result["attempts"]]
    assert shares == [0.0, 1.0, 1.0], "the test that nothing passes without the conftest.py does not count"
    assert "split" in (project / "words.py").read_text()


def test_cross_tests_need_a_test_command(run: Run) -> None:
    assert "needs to know how tests run" in run("best-of", "2", "--cross-tests", *sh("true"), code=2).stderr


def test_a_rule_stops_best_of(outcome: Callable[..., Any], run: Run, project: Path) -> None:
    (project / "check.sh").write_text("test -e n && echo ok 1 && echo 1..1\n")
    rule = ("--stop-when", "all-green", "--test", "sh check.sh", "-j", "1")
    result = outcome("best-of", "3", *rule, *sh("test $FORKWISE_ATTEMPT = 2 && touch n"))
    assert [a["state"] for a in result["attempts"]] == ["failed", "succeeded", "cancelled"]
    assert result["attempts"][2]["reason"].startswith("the search stopped: all tests of ")
    assert "needs tests" in run("best-of", "2", "--stop-when", "all-green", *sh("true"), code=2).stderr
    assert "not a stop rule" in run("best-of", "2", "--stop-when", "bored", *sh("true"), code=2).stderr


def test_tournament_asks_the_judge(outcome: Callable[..., Any], project: Path) -> None:
    (project / "larger.sh").write_text('test "$(cat "$1/n")" -gt "$(cat "$2/n")" && echo a || echo b\n')
    result = outcome("tournament", "3", "--judge", "sh larger.sh", *sh("echo $((FORKWISE_ATTEMPT * 7 % 11)) > n"))
    assert (project / "n").read_text() == "10\n"
    assert [a["won"] for a in result["attempts"]] == [False, False, True]


def test_tree_builds_upon_the_best(outcome: Callable[..., Any], project: Path) -> None:
    result = outcome(
        "tree",
        *("-c", 'echo a > t; echo 1 > "$FORKWISE_SCORE"', "-c", 'echo b > t; echo 2 > "$FORKWISE_SCORE"'),
        *("--expand", "echo c >> t", "--expand", "exit 1"),
    )
    assert (project / "t").read_text() == "b\nc\n"
    forks = {a["id"].partition(".")[0] for a in result["attempts"]}
    assert len(forks) == 2
    assert [a["won"] for a in result["attempts"]] == [False, True, True, False]


def test_a_dead_end_of_a_tree(outcome: Callable[..., Any], run: Run, project: Path) -> None:
    run("tree", "-c", "echo a > t", "--expand", "exit 1", "--on-dead-end", "fail", "-q", code=7)
    assert not (project / "t").exists()
    assert outcome("tree", "-c", "echo a > t", "--expand", "exit 1")["commit"] is not None
    assert (project / "t").read_text() == "a\n"


def test_beam_keeps_the_best_few(outcome: Callable[..., Any], project: Path) -> None:
    scored = [
        part
        for name, score in (("a", 1), ("b", 2), ("c", 3))
        for part in ("-c", f'echo {name} > t; echo {score} > "$FORKWISE_SCORE"')
    ]
    result = outcome("beam", *scored, "--width", "2", "--expand", "echo x >> t")
    assert len(result["attempts"]) == 5
    assert (project / "t").read_text() in ("b\nx\n", "c\nx\n")


def test_a_tree_without_expansions_tries_the_same_again(outcome: Callable[..., Any], project: Path) -> None:
    outcome("tree", "--depth", "3", "-c", "echo again >> t")
    assert (project / "t").read_text() == "again\n" * 3


# The sandbox of an attempt


def test_the_variables_of_an_attempt(outcome: Callable[..., Any], project: Path) -> None:
    names = "ATTEMPT BRANCH FORK FEEDBACK SCORE"
    result = outcome("best-of", "1", *sh(f'pwd > where; for n in {names}; do eval "echo \\$FORKWISE_$n"; done > seen'))
    attempt, branch, fork, feedback, score = (project / "seen").read_text().splitlines()
    assert (attempt, fork) == ("1", result["fork"])
    assert branch == f"/main/{fork}-1"
    assert Path(feedback).is_absolute()
    assert Path(score).is_absolute()
    assert (project / "where").read_text() == f"{project}\n"


def test_what_an_attempt_may_do(run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("SOME_TOKEN", "s3cret")
    run("run", *sh(f"touch {cache}/here"), code=7)
    run("run", "--writable", str(cache), *sh(f"touch {cache}/here"))
    assert (cache / "here").exists()
    strict = ("run", "--confinement", "strict")
    run(*strict, *sh('test -z "$SOME_TOKEN"'))
    run(*strict, "--env", "SOME_TOKEN", "--env", "NAME=a=b", *sh('test "${#SOME_TOKEN}$NAME" = 6a=b'))
    with open_ledger(Workspace(project)) as ledger:
        assert "s3cret" not in "".join(str(event) for event in ledger.events())


def test_timeouts(outcome: Callable[..., Any], project: Path) -> None:
    result = outcome("run", "--timeout", "0.2", *sh("sleep 60"), code=7)
    assert result["attempts"][0]["reason"] == "timed out after 0.2 s"
    slow = ("--test", "sleep 60", "--test-timeout", "0.2", "--no-baseline")
    result = outcome("run", *slow, *sh("true"), code=7)
    assert "did not finish within 0.2 s" in result["attempts"][0]["reason"]


def test_how_many_at_a_time(outcome: Callable[..., Any], tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    work = f"mkdir {room}/taken || exit 1; sleep .05; rmdir {room}/taken"
    result = outcome("best-of", "3", "-j", "1", "--writable", str(room), *sh(work))
    assert [a["state"] for a in result["attempts"]] == ["succeeded"] * 3


# Commit, patch and kept branches


def test_no_commit_leaves_the_choice(run: Run, outcome: Callable[..., Any], project: Path) -> None:
    result = outcome("best-of", "2", "--no-commit", *sh("echo $FORKWISE_ATTEMPT > n"))
    assert (result["state"], result["commit"]) == ("open", None)
    assert result["winner"].endswith(".1")
    assert not (project / "n").exists()
    assert len(Workspace(project).branches()) == 2
    said = run("run", "--no-commit", *sh("echo x > n")).stdout
    assert "+x\n" in said
    assert "Commit one with: forkwise pick " in said


def test_keep_keeps_the_others(run: Run, project: Path) -> None:
    said = run("speculate", "--keep", "--all", "-c", "echo a > n", "-c", "echo b > n; exit 1").stdout
    assert "The other branches were kept" in said
    [kept] = Workspace(project).branches()
    assert (kept.path / "n").read_text() == "b\n"


def test_the_patch_is_one_that_git_applies(run: Run, project: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(project, before)
    run("run", "--output-patch", str(tmp_path / "x.patch"), *sh("echo uno > a.txt; printf '\\377' > bytes; rm b.txt"))
    subprocess.run(["git", "apply", str(tmp_path / "x.patch")], cwd=before, check=True)
    assert {p.name: p.read_bytes() for p in before.iterdir() if p.is_file()} == {
        p.name: p.read_bytes() for p in project.iterdir() if p.is_file()
    }


def test_a_conflict_is_refused_and_nothing_is_lost(run: Run, project: Path, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    work = f"echo branch > a.txt; touch {room}/begun; while [ ! -e {room}/go ]; do :; done"
    with start(project, "run", "--writable", str(room), *sh(work)) as process:
        wait_until((room / "begun").exists, process)
        (project / "a.txt").write_text("changed elsewhere\n")
        (room / "go").touch()
        _, said = process.communicate()
    assert process.returncode == 3
    assert (project / "a.txt").read_text() == "changed elsewhere\n"
    [kept] = Workspace(project).branches()
    assert f"forkwise branch commit {kept.name} --on-conflict" in said
    run("branch", "commit", kept.name, "--on-conflict", "ours")
    assert (project / "a.txt").read_text() == "branch\n"
    with open_ledger(Workspace(project)) as ledger:
        [fork] = ledger.forks()
        assert (fork.state, fork.commit) == ("resolved", 1)
    assert "decided but not committed" not in run("ls").stdout


def test_quiet_says_only_what_came_of_it(run: Run, lines: Lines) -> None:
    said = run("run", "-q", *sh("echo x > n")).stdout.splitlines()
    assert len(said) == 2
    assert said[0].startswith("Committed ")
    [only] = lines("run", "-q", *sh("echo y > n"))
    assert set(only) == {"outcome"}


# JSON lines


def test_the_lines_are_what_the_documentation_says(lines: Lines, project: Path) -> None:
    (project / "check.sh").write_text('echo "ok 1"; echo 1..1\n')
    result = lines(
        "best-of", "2", "--test", "sh check.sh", *sh("echo $FORKWISE_ATTEMPT > n; exit $((FORKWISE_ATTEMPT - 1))")
    )
    result += lines("run", "--no-commit", *sh("true"))
    result += lines("tournament", "2", "--judge", "echo a #", *sh("echo $FORKWISE_ATTEMPT > n"))
    result += lines("run", *sh("exit 1"), code=7)
    documented = _documented()
    seen: set[str] = set()
    for line in result:
        if "outcome" in line:
            assert set(line["outcome"]) == documented["outcome"]
            for attempt in line["outcome"]["attempts"]:
                assert set(attempt) == documented["attempt"]
        else:
            event = line["event"]
            assert set(event) == documented["event"]
            assert set(event["data"]) <= documented[event["kind"]], event["kind"]
            seen.add(event["kind"])
    assert seen == {
        "begun",
        "added",
        "started",
        "tested",
        "scored",
        "ended",
        "judged",
        "measured",
        "resolved",
        "committed",
        "opened",
        "aborted",
    }


def _documented() -> dict[str, set[str]]:
    """Return the keys that docs/cli.md lists for each document."""
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    table = page.partition("<!-- lines -->")[2].partition("<!-- end of lines -->")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    assert rows
    return {row[1].strip(" `"): set(row[2].partition(":")[0].replace("`", "").split()) for row in rows}


def test_a_failure_is_the_last_line(lines: Lines) -> None:
    [failed] = lines("run", "--commit-to-git", *sh("true"), code=1)
    assert failed["error"]["exit_code"] == 1
    [usage] = lines("run", code=2)
    assert usage["error"]["type"] == "UsageError"


def test_the_events_are_the_ledgers(lines: Lines, project: Path) -> None:
    result = [line["event"] for line in lines("tree", "--depth", "2", "-c", "echo x >> n") if "event" in line]
    with open_ledger(Workspace(project)) as ledger:
        assert [(e["seq"], e["kind"], e["attempt"]) for e in result] == [
            (e.seq, e.kind, e.attempt) for e in ledger.events()
        ]


# Usage errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "nothing to try"),
        (("run", "make", "deps"), "-- make deps"),
        (("run", "--", "no-such-program"), "no-such-program"),
        (("run", "--", "./no-such-script"), "no-such-script"),
        (("run", "-c", "true", "-c", "true"), "speculate"),
        (("best-of", "0", "--", "true"), "0"),
        (("best-of", "--", "true"), "N"),
        (("cascade", "--fan-out", "1,x", "--", "true"), "1,x"),
        (("tournament", "2", "--", "true"), "--judge"),
        (("run", "--timeout", "0", "--", "true"), "timeout"),
        (("run", "--env", "=x", "--", "true"), "=x"),
        (("run", "--writable", "/nowhere", "--", "true"), "/nowhere"),
        (("run", "--test", " ", "--", "true"), "--test"),
        (("run", "-m", "text", "--", "true"), "--commit-to-git"),
        (("run", "--no-commit", "--commit-to-git", "--", "true"), "exclude"),
        (("run", "--output-patch", "no/where.patch", "--", "true"), "where.patch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    run: Run, project: Path, words: tuple[str, ...], said: str
) -> None:
    refused = run(*words, code=2)
    assert refused.stdout == ""
    assert refused.stderr.startswith("forkwise: error: ")
    assert said in refused.stderr.splitlines()[0]
    with open_ledger(Workspace(project)) as ledger:
        assert ledger.forks() == []


def test_a_command_keeps_its_own_options(run: Run, project: Path) -> None:
    run("run", "--", "sh", "-c", 'echo "$@" > result', "sh", "--json", "-q", "--", "--commit-to-git")
    assert (project / "result").read_text() == "--json -q -- --commit-to-git\n"


# Signals and failures


def start(project: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command line in a new process."""
    program = [sys.executable, "-c", "from forkwise.cli import main; main()", *words]
    return subprocess.Popen(program, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until ``condition`` holds, as long as the process runs."""
    while not condition():
        assert process.poll() is None, process.communicate()


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
)
def test_a_signal_ends_all_of_it(project: Path, tmp_path: Path, number: int, code: int, word: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    work = f"echo x > n; sleep 600 & touch {room}/$FORKWISE_ATTEMPT; sleep 600"
    words = ["best-of", "3", "--keep", "--writable", str(room), *sh(work)]
    with start(project, *words) as process:
        wait_until(lambda: len(list(room.iterdir())) == 3, process)
        process.send_signal(number)
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == code
    with open_ledger(Workspace(project)) as ledger:
        [fork] = ledger.forks()
        assert said == f"forkwise: error: {word}; fork {fork.id} was aborted, nothing was changed\n"
        assert {a.state for a in ledger.attempts(fork.id)} == {"cancelled"}
    assert Workspace(project).branches() == []
    assert not (project / "n").exists()
    assert processes_about(str(tmp_path)) == []
    assert [m.point for m in mounts() if m.point.startswith(f"{tmp_path}/")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_had_succeeded(run: Run, project: Path, tmp_path: Path, number: int) -> None:
    room = tmp_path / "room"
    room.mkdir()
    work = f"echo $FORKWISE_ATTEMPT > n; touch {room}/$FORKWISE_ATTEMPT; test $FORKWISE_ATTEMPT = 2 || sleep 600"
    with start(project, "best-of", "3", "--writable", str(room), *sh(work)) as process:
        wait_until(lambda: len(list(room.iterdir())) == 3, process)
        with open_ledger(Workspace(project)) as ledger:
            [fork] = ledger.forks()
            wait_until(lambda: any(a.state == "succeeded" for a in ledger.attempts(fork.id)), process)
        process.send_signal(number)
        process.send_signal(number)  # while it cleans up
        _, said = process.communicate()
    assert process.returncode == 128 + number
    assert said.endswith(
        f"nothing was changed; {fork.id}.2 had succeeded and can be committed with: forkwise pick {fork.id}\n"
    )
    with open_ledger(Workspace(project)) as ledger:
        assert ledger.fork(fork.id).state == "open"
        assert [a.state for a in ledger.attempts(fork.id)] == ["cancelled", "succeeded", "cancelled"]
    assert [branch.name for branch in Workspace(project).branches()] == [f"{fork.id}-2"]
    assert not (project / "n").exists()
    assert processes_about(str(tmp_path)) == []
    assert "+1" in run("diff", f"{fork.id}.1").stdout, "what a stopped attempt had done is known"
    run("pick", fork.id)
    assert (project / "n").read_text() == "2\n"


def test_another_process_decides(project: Path, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    with start(project, "run", "--writable", "../room", *sh(f"touch {room}/begun; sleep 600")) as process:
        wait_until((room / "begun").exists, process)
        with open_ledger(Workspace(project)) as ledger:
            [fork] = ledger.forks()
            assert fork.spec["writable"] == [str(room)]  # absolute, so that it can be resumed from any directory
            ledger.abort_fork(fork.id, "by hand")
        _, said = process.communicate()
    assert process.returncode != 0
    assert said.startswith(f"forkwise: error: fork {fork.id} was decided elsewhere")
    assert Workspace(project).branches() == []


def test_output_that_is_not_text(run: Run, lines: Lines) -> None:
    said = run("run", *sh("printf '\\377\\033[2Jred\\n'; exit 1"), code=7).stdout
    assert "\x1b" not in said
    assert "red" in said
    ended = next(
        e["event"] for e in lines("run", *sh("printf '\\377\\n'")) if e.get("event", {}).get("kind") == "ended"
    )
    assert ended["data"]["tail"] == "�\n"


def test_much_output_is_capped_in_memory_and_on_the_disk(command: Callable[..., Any], state: Path) -> None:
    measured = textwrap.dedent("""
        import resource, sys
        from forkwise.cli import forkwise_command
        try:
            forkwise_command.main(sys.argv[1:])
        finally:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
    """)
    peaks = []
    for size in ("1M", "96M"):
        words = [sys.executable, "-c", measured, "run", "-q", "--", "head", "-c", size, "/dev/zero"]
        done = subprocess.run(words, cwd=state.parent / "project", capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.split()[-1]))
    assert peaks[1] < peaks[0] + (48 << 10)  # KiB
    assert sum(p.stat().st_size for p in state.rglob("output/*")) < 80 << 20


PYTEST = """\
report=$(printf %s "$PYTEST_ADDOPTS" | sed 's/.*--junitxml=\\([^ ]*\\).*/\\1/')
"""


@pytest.mark.parametrize(
    ("script", "doubt"),
    [
        ("echo '<testsuite tests=' > \"$report\"; echo '9 passed in 0.1s'", "report"),
        ('echo \'<testsuite tests="1"><testcase name="a"/></testsuite>\' > "$report"; exit 1', "exited with 1"),
        ('echo \'<testsuite tests="0"/>\' > "$report"', "no tests"),
        ("echo 'ok 1'; echo 1..5", ""),
        ("echo '1 passed in 0.1s'; kill -9 $$", "exited with 137"),
    ],
    ids=["malformed", "at odds with the exit code", "of nothing", "fewer than planned", "killed"],
)
def test_a_report_that_lies_wins_nothing(outcome: Callable[..., Any], project: Path, script: str, doubt: str) -> None:
    (project / "pytest").write_text(PYTEST + script)
    result = outcome("run", "--no-baseline", "--test", "sh ./pytest", *sh("echo uno > a.txt"), code=7)
    assert (project / "a.txt").read_text() == "one\n"
    reason = result["attempts"][0]["reason"]
    assert reason.startswith("tests: ")
    assert doubt in reason


def test_a_workspace_that_vanishes(project: Path, tmp_path: Path) -> None:
    room, moved = tmp_path / "room", tmp_path / "moved"
    room.mkdir()
    work = f"echo x > n; touch {room}/begun; while [ ! -e {room}/go ]; do :; done"
    words = ["run", "--writable", str(room), *sh(work)]
    with start(project, *words) as process:
        wait_until((room / "begun").exists, process)
        project.rename(moved)
        (room / "go").touch()
        _, said = process.communicate()
    moved.rename(project)
    assert process.returncode == 1
    assert said == f"forkwise: error: {project}: No such file or directory\n"
    assert sorted(os.listdir(project)) == ["a.txt", "b.txt", "sub"]


def test_a_disk_that_is_full(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(os.geteuid() == 0, "only root can mount a small disk")
    state = tmp_path / "small"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(state)], check=True)
    try:
        monkeypatch.setenv("FORKWISE_STATE", str(state))
        with start(project, "run", *sh("head -c 9M /dev/zero > big")) as process:
            said, _ = process.communicate()
        assert process.returncode == 7
        assert "No space left on device" in said
        assert "No attempt succeeded; nothing was changed.\n" in said
        assert said.endswith("1 of 1 could not be judged: a fault outside of the attempts (disk).\n")
        assert Workspace(project).branches() == []
    finally:
        subprocess.run(["umount", str(state)], check=True)
    assert sorted(os.listdir(project)) == ["a.txt", "b.txt", "sub"]


def test_a_reader_that_goes_away_ends_it(project: Path) -> None:
    with start(project, "run", "--json", *sh("echo x > n; sleep 600")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        with open_ledger(Workspace(project)) as ledger:
            ledger.record_verdict(ledger.forks()[0].id, {})  # an event to print
        process.wait()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 1
    assert Workspace(project).branches() == []
    assert not (project / "n").exists()


def test_frozen_is_an_error_where_it_is_not_possible(run: Run, ask: Ask, project: Path) -> None:
    """On a filesystem with snapshots or clones it works; elsewhere nothing is run."""
    try:
        Workspace(project, frozen=True)
    except MountError:
        error = ask("run", "--frozen", "-q", "--", "touch", "made", code=6)["error"]
        assert "view='copy'" in error["remedy"]
        assert "cannot be frozen" in run("branch", "create", "one", "--frozen", code=6).stderr
        assert not (project / "made").exists()
    else:
        ask("run", "--frozen", "-q", "--", "touch", "made")
        assert (project / "made").exists()


def test_a_fault_is_shown_as_one(run: Run, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise NamespaceError("the sandbox could not be set up: no space left")

    monkeypatch.setattr(runner, "arun_in_branch", fail)
    shown = run("run", "--", "touch", "made", code=7).stdout
    assert ".1 faulted in " in shown
    assert "1 of 1 could not be judged: a fault outside of the attempts (sandbox)." in shown
    [attempt] = lines("run", "-q", "--", "touch", "made", code=7)[-1]["outcome"]["attempts"]
    assert (attempt["state"], attempt["fault"]) == ("faulted", "sandbox")


def test_held_out_tests(outcome: Callable[..., Any], run: Any, project: Path, tmp_path: Path) -> None:
    """They judge, and attempts find nothing in their place, whatever the confinement."""
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    (held_out / "check.sh").write_text("! grep -q . stolen && grep -q uno a.txt\n")
    steals = f"cat {held_out}/* > stolen 2>/dev/null; echo check.sh: true > check.sh; "
    options = ("run", "--test", "sh check.sh", "--test-from", str(held_out), "--confinement")
    for confinement in ("standard", "strict", "open"):
        assert outcome(*options, confinement, *sh(f"{steals} echo two > a.txt"), code=7)["winner"] is None
        result = outcome(*options, confinement, *sh(f"{steals} echo uno > a.txt"))
        assert result["winner"] is not None
        assert (project / "stolen").read_text() == ""
        run("undo")
    for refused in (("--test-from", str(project / "sub")), ("--test-from", str(held_out), "--landlock-instead")):
        run("run", "--test", "sh check.sh", *refused, *sh("true"), code=2)
    run("run", "--test-from", str(held_out), *sh("true"), code=2)
