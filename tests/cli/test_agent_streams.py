"""Attempts by agents that print a stream: what is shown, recorded, summed and continued. The programs are fakes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.agents.estimate import Estimate, estimate_cost
from forkwise.fork.fork import open_ledger
from forkwise.tui.fork_model import ForkModel

Run = Callable[..., Result]
Ask = Callable[..., Any]

STREAMS = Path(__file__).parents[1] / "agents/streams"
CLOSING = "Done (right): the function add was looked at."
SESSION = "49f9e2d3-76ce-4ed5-97d7-7186d932d5f3"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a home directory, and a directory of programs at the front of PATH."""
    place = tmp_path / "home"
    (place / "bin").mkdir(parents=True)
    for path in STREAMS.iterdir():
        shutil.copy(path, place / "bin")
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    return place


@pytest.fixture
def install(home: Path) -> Callable[[str, str], None]:
    """Put a shell script on PATH."""

    def install(name: str, script: str) -> None:
        program = home / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return install


def stream_of(name: str) -> str:
    return f"cat ~/bin/{name}.jsonl"


def test_steps_cost_session_and_closing_message(
    run: Run, ask: Ask, project: Path, install: Callable[[str, str], None]
) -> None:
    install("claude", f"{stream_of('claude')}; echo fixed > a.txt")
    shown = run("run", "--agent", "claude", "fix it").stdout
    assert f"claude says:\n{CLOSING}\n" in shown
    assert "$0.02" in shown
    assert '{"type"' not in shown
    [fork] = ask("ls")["forks"]
    attempt = ask("show", f"{fork['id']}.1")["attempt"]
    assert attempt["answer"] == CLOSING
    assert attempt["session"] == SESSION
    assert attempt["cost"].pop("usd") == pytest.approx(0.0228)
    assert attempt["cost"] == {"source": "agent", "input_tokens": 4800, "output_tokens": 180}
    assert {"kind": "tool", "tool": "edit", "text": "/home/me/project/calc.py"} in attempt["steps"]
    text = run("show", f"{fork['id']}.1").stdout
    assert f"Closing message:\n{CLOSING}" in text
    assert "$0.02, 4800 input, 180 output tokens" in text
    assert '{"type"' not in text
    assert run("show", f"{fork['id']}.1", "--output").stdout == (STREAMS / "claude.jsonl").read_text()
    watched = run("watch", fork["id"], "--plain").stdout
    assert f"{fork['id']}.1: read /home/me/project/calc.py\n" in watched
    assert '{"type"' not in watched


def test_panels_and_reports_show_steps_and_not_the_stream(
    run: Run, ask: Ask, project: Path, tmp_path: Path, install: Callable[[str, str], None]
) -> None:
    install("claude", f"{stream_of('claude')}; echo fixed > a.txt")
    install("codex", 'for n in 1 2 3; do echo \'{"kind":"of another version"}\'; done; echo fixed > b.txt')
    run("best-of", "--agent", "claude", "--agent", "codex", "--quiet", "fix it")
    [fork] = ask("ls")["forks"]
    model = ForkModel(project)
    try:
        last, text = model.steps(f"{fork['id']}.1", 0) or (0, "")
        assert "read /home/me/project/calc.py\n" in text
        assert text.endswith(f"{CLOSING}\n")
        assert text.count(CLOSING) == 1
        assert model.steps(f"{fork['id']}.1", last) == (last, "")
        assert model.steps(f"{fork['id']}.2", 0) is None  # its output says more
    finally:
        model.close()
    run("report", fork["id"], str(tmp_path / "report"))
    page = (tmp_path / "report/index.html").read_text()
    assert "<h3>Closing message</h3>" in page
    steps = page.partition("<h3>Steps</h3>")[2].partition("</pre>")[0]
    assert "read /home/me/project/calc.py" in steps
    assert "type" not in steps
    assert "<summary>Output</summary>" in page or "<summary>End of the output</summary>" in page
    assert "no event that forkwise knows" in page


def test_everything_is_in_the_events(run: Run, project: Path, install: Callable[[str, str], None]) -> None:
    install("codex", f"{stream_of('codex')}; echo fixed > a.txt")
    run("run", "--agent", "codex", "fix it")
    with open_ledger(Workspace(project)) as ledger:
        [fork] = ledger.forks()
        before = ledger.attempt(f"{fork.id}.1"), ledger.find_steps(f"{fork.id}.1")
        ledger.rebuild()
        assert (ledger.attempt(f"{fork.id}.1"), ledger.find_steps(f"{fork.id}.1")) == before
        assert before[0].answer == before[0].last_line == CLOSING


def test_a_secret_in_a_stream_is_not_recorded(
    run: Run, project: Path, install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k3y-of-codex-0123456789")
    item = {"type": "agent_message", "text": "The key is k3y-of-codex-0123456789."}
    events = [{"type": "item.completed", "item": item}, {"type": "turn.completed", "usage": {}}]
    script = "\n".join(f"echo '{json.dumps(event)}'" for event in events)
    install("codex", f"{script}\necho fixed > a.txt")
    shown = run("run", "--agent", "codex", "fix it").stdout
    assert "k3y-of" not in shown
    with open_ledger(Workspace(project)) as ledger:
        assert "k3y-of" not in "".join(str(event) for event in ledger.events())


def test_a_failure_says_why(run: Run, ask: Ask, install: Callable[[str, str], None]) -> None:
    install("claude", "echo 'TypeError: no such model' >&2; exit 1")
    shown = run("best-of", "2", "--agent", "claude", "fix it", code=7).stdout
    assert "TypeError: no such model (exit code 1)" in shown
    [fork] = ask("ls")["forks"]
    attempts = ask("show", fork["id"])["fork"]["attempts"]
    assert {a["state"] for a in attempts} == {"failed"}


def test_a_fault_of_the_provider_is_no_failure(run: Run, ask: Ask, install: Callable[[str, str], None]) -> None:
    install("claude", "echo 'API Error: 529 Overloaded' >&2; exit 1")
    run("run", "--provider-retries", "0", "--agent", "claude", "fix it", code=7)
    [fork] = ask("ls")["forks"]
    [attempt] = ask("show", fork["id"])["fork"]["attempts"]
    assert (attempt["state"], attempt["fault"]) == ("faulted", "provider")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that attempts may write to: what they write there stays."""
    place = tmp_path / "shared"
    place.mkdir()
    return place


def refuse(message: str, times: int, shared: Path) -> str:
    """Return a script that ends with a message of its provider the first times, after some work that costs $0.40."""
    error = {"type": "error", "error": {"name": "APIError", "data": {"message": message}}}
    return (
        f"echo run >> {shared}/runs; echo half > half.txt; {report_usage(0.4, 'a')}\n"
        f"if [ $(wc -l < {shared}/runs) -le {times} ]; then echo '{json.dumps(error)}'; exit 1; fi\n"
        "rm half.txt; echo fixed > a.txt\n"
    )


def test_an_attempt_waits_for_its_provider_and_starts_again(
    run: Run, ask: Ask, project: Path, shared: Path, install: Callable[[str, str], None]
) -> None:
    install("opencode", refuse("429 Too Many Requests, retry after 0.01s", 2, shared))
    run("run", "--writable", str(shared), "--agent", "opencode", "fix it")
    assert (shared / "runs").read_text() == "run\n" * 3
    [fork] = ask("ls")["forks"]
    [row] = ask("show", fork["id"])["fork"]["attempts"]
    assert (row["state"], row["fault"], row["files"]) == ("succeeded", None, 1)
    assert row["cost"]["usd"] == pytest.approx(1.2)  # what was used before it was refused counts
    assert (row["cost"]["input_tokens"], row["cost"]["output_tokens"]) == (3000, 30)
    notes = [step["text"] for step in ask("show", row["id"])["attempt"]["steps"] if step["kind"] == "note"]
    assert len(notes) == 2
    assert "s for its provider, then starts again: 429 Too Many Requests, retry after 0.01s" in notes[0]


@pytest.mark.parametrize(
    ("message", "runs"),
    [
        ("429 rate_limit_error: try again in 5ms", 3),
        ("429 rate_limit_error: try again in 5 hours", 1),
        ("429 insufficient_quota: You exceeded your current quota, check your plan", 1),
        ("Not logged in", 1),
    ],
)
def test_an_attempt_that_its_provider_refuses_does_not_wait_for_ever(
    run: Run, ask: Ask, shared: Path, install: Callable[[str, str], None], message: str, runs: int
) -> None:
    install("opencode", refuse(message, 99, shared))
    options = ("--provider-retries", "2", "--writable", str(shared))
    run("run", *options, "--agent", "opencode", "fix it", code=7)
    assert (shared / "runs").read_text() == "run\n" * runs
    [fork] = ask("ls")["forks"]
    [row] = ask("show", fork["id"])["fork"]["attempts"]
    assert (row["state"], row["fault"]) == ("faulted", "provider")
    assert message in row["reason"]


def test_attempts_of_one_provider_take_turns(
    run: Run, ask: Ask, home: Path, shared: Path, install: Callable[[str, str], None], tmp_path: Path
) -> None:
    table = tmp_path / "config/forkwise/agents.toml"
    table.parent.mkdir(parents=True)
    table.write_text('[opencode]\nprovider = "anthropic"\nat_once = 8\n')
    script = f"echo begin >> {shared}/log; echo $FORKWISE_ATTEMPT > a.txt; head -c 3000000 /dev/zero | md5sum >&2"
    for name in ("claude", "opencode"):
        install(name, f"{script}; echo end >> {shared}/log")
    agents = ("--agent", "claude", "--agent", "opencode")
    run("best-of", "4", "--quiet", "--per-provider", "1", "--writable", str(shared), *agents, "fix it")
    assert (shared / "log").read_text() == "begin\nend\n" * 4


def test_the_cost_of_attempts_is_estimated_from_earlier_ones(
    run: Run, ask: Ask, install: Callable[[str, str], None]
) -> None:
    install("opencode", f"{report_usage(0.3, 'a')}; echo $FORKWISE_ATTEMPT > a.txt")
    first = run("best-of", "3", "--agent", "opencode", "fix it")
    assert "About $" not in first.stderr
    shown = run("best-of", "4", "--agent", "opencode:opus", "fix it")  # no history with this model
    assert shown.stderr.startswith("About $1.20 for 4 attempts, from 3 earlier ones.\n")
    outcome = json.loads(run("run", "--json", "--agent", "opencode:opus", "x").stdout.splitlines()[-1])["outcome"]
    assert outcome["estimate"] == {"usd": pytest.approx(0.3), "attempts": 1, "earlier": 4}
    assert json.loads(run("run", "--json", "--", "true").stdout.splitlines()[-1])["outcome"]["estimate"] is None


def test_a_long_history_is_not_read_for_an_estimate(
    run: Run, project: Path, install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("opencode", f"{report_usage(0.3, 'a')}; echo $FORKWISE_ATTEMPT > a.txt")
    for _ in range(3):
        run("best-of", "2", "--agent", "opencode", "fix it")
    monkeypatch.setattr("forkwise.agents.estimate._ENOUGH", 3)
    with open_ledger(Workspace(project)) as ledger:
        assert estimate_cost(ledger, [("opencode", "")]) == Estimate(pytest.approx(0.3), 1, earlier=4)
        assert estimate_cost(ledger, [("opencode", "opus")]) == Estimate(pytest.approx(0.3), 1, earlier=6)


def report_usage(usd: float, request: str) -> str:
    usage = {"id": request, "tokens": {"input": 1000, "output": 10}, "cost": usd, "reason": "tool-calls"}
    return f"echo '{json.dumps({'type': 'step_finish', 'part': usage})}'"


def test_a_budget_in_dollars_ends_all_attempts(run: Run, ask: Ask, install: Callable[[str, str], None]) -> None:
    install("opencode", f"{report_usage(0.4, 'a')}; {report_usage(0.7, 'b')}; echo fixed > a.txt; exec sleep 600")
    run("best-of", "3", "-j", "1", "--budget", "1usd", "--agent", "opencode", "fix it", code=7)
    [fork] = ask("ls")["forks"]
    assert fork["cost"]["usd"] == pytest.approx(1.1)
    attempts = ask("show", fork["id"])["fork"]["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["cancelled"] * 3
    assert {attempt["reason"] for attempt in attempts} == {"the budget of $1 was used up ($1.10)"}


def test_a_budget_in_dollars_says_what_it_cannot_count(run: Run, install: Callable[[str, str], None]) -> None:
    used = {"type": "turn.completed", "usage": {"input_tokens": 1000, "output_tokens": 10}}
    install("codex", f"echo '{json.dumps(used)}'; echo fixed > a.txt")
    said = run("run", "--budget", "1usd", "--agent", "codex", "fix it")
    assert "uses is not known: a budget in dollars does not count it" in said.stderr


def test_a_budget_of_tokens_ends_one_attempt(run: Run, ask: Ask, install: Callable[[str, str], None]) -> None:
    rest = f"{report_usage(0.1, 'b')}; exec sleep 600"
    install("opencode", f"{report_usage(0.1, 'a')}; echo fixed > a.txt; [ $FORKWISE_ATTEMPT = 1 ] || {{ {rest}; }}")
    shown = run("best-of", "2", "--attempt-budget", "2ktokens", "--agent", "opencode", "fix it").stdout
    assert "its budget of 2000 tokens was used up (2020)" in shown
    assert "Together: $0.30, 3030 tokens." in shown
    [fork] = ask("ls")["forks"]
    assert fork["winner"].endswith(".1")
    assert "$0.30" in run("ls").stdout
    assert "$0.30, 3030 tokens" in run("show", fork["id"]).stdout


def test_the_own_limit_of_an_agent_is_passed(run: Run, install: Callable[[str, str], None]) -> None:
    install("claude", f'{stream_of("claude")}; echo "$*" > a.txt')
    shown = run(
        "run", "--budget", "2usd", "--budget", "10m", "--attempt-budget", "0.5usd", "--agent", "claude", "x"
    ).stdout
    assert "--max-budget-usd=0.5" in shown
    assert "--max-budget-usd" not in run("run", "--agent", "claude", "again").stdout.replace("-+", "+").split("+")[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "2usd", "--", "true"), "shell commands do not report any"),
        (("--budget", "2usd", "--agent", "aider", "x"), "agent 'aider' does not report any"),
        (("--budget", "5ktokens", "--agent", "copilot", "x"), "agent 'copilot' does not report any"),
        (("--attempt-budget", "5m", "--agent", "claude", "x"), "--timeout limits the time of each"),
        (("--budget", "1usd", "--budget", "2usd", "--agent", "claude", "x"), "given twice in usd"),
        (("--budget", "2eur", "--agent", "claude", "x"), "is not an amount such as 30m, 2usd or 500ktokens"),
        (("--budget", "0usd", "--agent", "claude", "x"), "above zero"),
        (("--budget", "5", "--agent", "claude", "x"), "has no unit"),
    ],
)
def test_budgets_that_could_end_nothing(
    run: Run, install: Callable[[str, str], None], words: tuple[str, ...], message: str
) -> None:
    for name in ("claude", "aider", "copilot"):
        install(name, "exit 1")
    result = run("run", *words, code=2)
    assert message in result.stderr


REMEMBERING = """\
id=${1#--session-id=}
case "$*" in
  *--resume*) cat ~/.claude/projects/*/$2.jsonl >> a.txt; echo "went on with $2" >> a.txt; exit 0 ;;
esac
for word; do case $word in --session-id=*) id=${word#*=} ;; esac; done
printf '{"type":"system","subtype":"init","session_id":"%s"}\\n' "$id"
project=~/.claude/projects/$(pwd | sed 's/[^A-Za-z0-9]/-/g')
mkdir -p "$project" && echo "session of $FORKWISE_ATTEMPT" > "$project/$id.jsonl"
echo "by $FORKWISE_ATTEMPT" > a.txt
"""


def test_only_the_winner_leaves_its_session_and_says_how_to_continue_it(
    run: Run, ask: Ask, home: Path, install: Callable[[str, str], None]
) -> None:
    install("claude", REMEMBERING)
    shown = run("best-of", "3", "--agent", "claude", "fix it").stdout
    [fork] = ask("ls")["forks"]
    attempts = ask("show", fork["id"])["fork"]["attempts"]
    assert len({attempt["session"] for attempt in attempts}) == 3
    [winner] = [attempt for attempt in attempts if attempt["won"]]
    assert f"Continue with: claude --resume {winner['session']}\n" in shown
    [kept] = (home / ".claude/projects").glob("*/*.jsonl")
    assert kept.stem == winner["session"]
    said = run("continue", winner["id"], code=1).stderr
    assert f"continue its session with: claude --resume {winner['session']}" in said
    [loser, _] = [attempt for attempt in attempts if not attempt["won"]]
    assert "--keep or --no-commit" in run("continue", loser["id"], code=1).stderr


def test_a_kept_attempt_is_continued_in_its_branch(
    run: Run, ask: Ask, project: Path, home: Path, install: Callable[[str, str], None], command: Callable[..., Any]
) -> None:
    install("claude", REMEMBERING)
    shown = run("best-of", "2", "--no-commit", "--agent", "claude", "fix it").stdout
    [fork] = ask("ls")["forks"]
    assert f"Continue with: forkwise continue {fork['id']}.1" in shown
    second = ask("show", f"{fork['id']}.2")["attempt"]
    done = command("continue", second["id"])
    assert (done.returncode, done.stdout) == (0, f"Commit it with: forkwise pick {second['id']}\n"), done.stderr
    assert not list((home / ".claude").glob("projects/*/*"))
    shown = run("pick", second["id"]).stdout
    assert f"\nContinue with: claude --resume {second['session']}\n" in shown
    assert (project / "a.txt").read_text() == f"by 2\nsession of 2\nwent on with {second['session']}\n"
    assert [path.stem for path in (home / ".claude/projects").glob("*/*")] == [second["session"]]


def test_a_pick_says_in_json_how_to_continue(run: Run, ask: Ask, install: Callable[[str, str], None]) -> None:
    install("claude", REMEMBERING)
    run("best-of", "2", "--no-commit", "--quiet", "--agent", "claude", "fix it")
    [fork] = ask("ls")["forks"]
    picked = ask("pick", fork["id"])
    [winner] = [attempt for attempt in ask("show", fork["id"])["fork"]["attempts"] if attempt["won"]]
    assert picked["continue"] == f"claude --resume {winner['session']}"


def test_a_session_with_an_impossible_id_is_not_a_command(
    run: Run, ask: Ask, install: Callable[[str, str], None]
) -> None:
    event = {"type": "system", "subtype": "init", "session_id": "--mcp-config=/tmp/x; rm -rf ~"}
    install("claude", f"echo '{json.dumps(event)}'; echo fixed > a.txt")
    assert "Continue" not in run("run", "--no-commit", "--agent", "claude", "fix it").stdout
    [fork] = ask("ls")["forks"]
    assert "impossible id" in run("continue", f"{fork['id']}.1", code=1).stderr


def test_an_agent_that_cannot_start_is_started_once(
    run: Run, ask: Ask, home: Path, install: Callable[[str, str], None]
) -> None:
    install("claude", "echo 'Invalid API key · Please run /login' >&2; exit 1")
    shown = run("best-of", "4", "--agent", "claude", "fix it", code=7).stdout
    assert shown.count(" started: claude\n") == 1
    [fork] = ask("ls")["forks"]
    first, *others = ask("show", fork["id"])["fork"]["attempts"]
    assert (first["state"], first["fault"]) == ("faulted", "provider")
    assert first["reason"] == "Invalid API key · Please run /login (exit code 1)"
    assert {other["reason"] for other in others} == {f"not started: {first['id']} ended with {first['reason']}"}
    assert {other["state"] for other in others} == {"faulted"}


def test_one_agent_that_cannot_start_does_not_stop_another(
    run: Run, ask: Ask, install: Callable[[str, str], None]
) -> None:
    install("claude", "echo 'Not logged in' >&2; exit 1")
    install("codex", f"{stream_of('codex')}; echo fixed > a.txt")
    run("best-of", "4", "--vary", "agent=claude,codex", "fix it")
    [fork] = ask("ls")["forks"]
    states = [(a["agent"], a["state"]) for a in ask("show", fork["id"])["fork"]["attempts"]]
    assert sorted(states) == [("claude", "faulted")] * 2 + [("codex", "succeeded")] * 2


def test_variables_of_one_agent_are_not_in_the_environment_of_another_or_of_the_tests(
    run: Run, project: Path, tmp_path: Path, install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_API_KEY", "k3y-of-codex")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k3y-of-claude")
    monkeypatch.setenv("OTHER_API_KEY", "k3y-for-all")
    monkeypatch.setenv("CODEX_THEME", "dark")
    for name in ("claude", "codex"):
        install(name, f"env > env-of-{name}")
    table = tmp_path / "config/forkwise/agents.toml"
    table.parent.mkdir(parents=True)
    table.write_text('[claude]\nenvironment = { NOTE = "of-claude" }\n[codex]\nenvironment = { OWN = "of-codex" }\n')
    (project / "check.sh").write_text("! env | grep -q -e =of-claude -e =of-codex\n")
    words = ("--test", "sh check.sh", "--all", "--agent", "claude", "--agent", "codex")
    run("speculate", "--no-commit", *words, "fix it")
    [first, second] = Workspace(project).branches()
    env = {name: first.path / f"env-of-{name}" for name in ("claude", "codex")}
    texts = {name: (p if p.exists() else second.path / p.name).read_text() for name, p in env.items()}
    assert "NOTE=of-claude\n" in texts["claude"]
    assert "of-codex" not in texts["claude"]
    assert "OWN=of-codex\n" in texts["codex"]
    assert "of-claude" not in texts["codex"]
    assert "CODEX_API_KEY=k3y-of-codex\n" in texts["codex"]
    assert all("OTHER_API_KEY=k3y-for-all\n" in text and "CODEX_THEME=dark\n" in text for text in texts.values())


@pytest.mark.parametrize("prompt", ["--help me", "-", "- one\n- two", "x" * (10 << 20)])
def test_prompts_that_cannot_be_an_argument(
    run: Run, project: Path, tmp_path: Path, install: Callable[[str, str], None], prompt: str
) -> None:
    install("claude", 'cat > a.txt; [ "$*" != "${*#*--help}" ] && exit 3; exit 0')
    (tmp_path / "prompt").write_text(prompt)
    run("run", "--quiet", "--prompt-file", str(tmp_path / "prompt"), "--agent", "claude")
    assert (project / "a.txt").read_text() == prompt


def test_agents_and_models_in_one_fork(run: Run, ask: Ask, install: Callable[[str, str], None]) -> None:
    for name in ("claude", "codex"):
        install(name, f'echo {name} "$*" "$FORKWISE_MODEL" > a.txt')
    named = ("--agent", "claude:opus", "--agent", "claude", "--agent", "codex:o/4")
    run("best-of", "--no-commit", "--model", "sonnet", *named, "--agent-args", "--max-turns '2 0'", "fix it")
    [fork] = ask("ls")["forks"]
    attempts = ask("show", fork["id"])["fork"]["attempts"]
    assert [(a["label"], a["agent"]) for a in attempts] == [
        ("claude:opus", "claude"),
        ("claude", "claude"),
        ("codex:o/4", "codex"),
    ]
    said = [run("diff", a["id"]).stdout for a in attempts]
    assert all("--max-turns 2 0" in text for text in said)
    assert ["--model=opus" in said[0], "--model=sonnet" in said[1], "--model=o/4" in said[2]] == [True] * 3
    assert said[0].rstrip().endswith("opus")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--agent", "nobody:opus", "x"), "unknown agent 'nobody:opus'"),
        (("run", "--agent", "claude", "--agent", "claude:opus", "x"), "run makes one attempt, but 2"),
        (("run", "--agent-args", "-x", "--", "true"), "give --agent too"),
        (("run", "--agent", "claude", "--agent-args", "'", "x"), "cannot be split into words"),
        (("agents", "check"), "check needs the name of an agent"),
        (("agents", "check", "nobody"), "unknown agent 'nobody'"),
    ],
)
def test_agents_that_cannot_be(
    run: Run, install: Callable[[str, str], None], words: tuple[str, ...], message: str
) -> None:
    install("claude", "exit 1")
    assert message in run(*words, code=2).stderr


def test_the_list_of_agents(
    run: Run, ask: Ask, home: Path, project: Path, install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{project / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k3y-of-claude")
    install("claude", 'case $1 in --version) echo "2.1.7 (Claude Code)" ;; *) echo fixed > a.txt ;; esac')
    (project / "bin").mkdir()
    (project / "bin/codex").write_text("#!/bin/sh\ntouch ~/codex-ran\n")
    (project / "bin/codex").chmod(0o755)
    (home / ".codex").mkdir()
    (home / ".codex/auth.json").write_text("{}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    (home / "config/forkwise").mkdir(parents=True)
    (home / "config/forkwise/agents.toml").write_text("[qwen]\nuntested = true\n")
    run("run", "--agent", "claude", "fix it")
    found = {agent["name"]: agent for agent in ask("agents")["agents"]}
    assert found["claude"]["version"] == "2.1.7"
    assert found["claude"]["login"] == "ANTHROPIC_API_KEY"
    assert found["claude"]["last_used"] is not None
    assert (found["codex"]["login"], found["codex"]["version"], found["codex"]["last_used"]) == ("file", None, None)
    assert not (home / "codex-ran").exists()  # it is inside the workspace, where an attempt may have put it
    assert [name for name, agent in found.items() if agent["untested"]] == ["qwen"]
    assert found["qwen"]["program"] is None
    text = run("agents").stdout
    assert "npm install -g @qwen-code/qwen-code" in text
    assert "k3y-of-claude" not in text


def test_an_agent_is_checked_in_a_branch_that_is_dropped(
    run: Run, ask: Ask, project: Path, install: Callable[[str, str], None]
) -> None:
    install("claude", f"{stream_of('claude')}; echo changed > a.txt")
    assert run("agents", "check", "claude").stdout.startswith("claude works (")
    assert ask("agents", "check", "claude")["answer"] == CLOSING
    install("claude", "echo 'Not logged in' >&2; exit 1")
    assert "claude does not work: Not logged in (exit code 1)\n" in run("agents", "check", "claude", code=7).stdout
    assert (project / "a.txt").read_text() == "one\n"
    assert not Workspace(project).branches()
