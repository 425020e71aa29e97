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
from forkwise.fork.fork import open_ledger

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
    run("run", "--agent", "claude", "fix it", code=7)
    [fork] = ask("ls")["forks"]
    [attempt] = ask("show", fork["id"])["fork"]["attempts"]
    assert (attempt["state"], attempt["fault"]) == ("faulted", "provider")
