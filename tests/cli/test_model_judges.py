"""``--judge`` on the command line: models by name, over a real client, and commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.provider import Request, structured
from tests.provider.fixtures import StartProvider, provider
from tests.provider.reply import Answer

__all__ = ["provider"]

Run = Callable[..., Result]
Ask = Callable[..., Any]
WRITE = ("--", "sh", "-c", "echo number $FORKWISE_ATTEMPT > n.txt")


def prefer(word: str) -> Callable[[Request], Answer]:
    """Prefer the attempt whose diff has this word, in any order."""

    def decide(request: Request) -> Answer:
        first, second = request.first_user_text.split("\n# Attempt A\n")[1].split("\n# Attempt B\n")
        better = "A" if word in first else "B" if word in second else "tie"
        return structured(better=better, confidence=0.9, reason="clear")(request)

    return decide


@pytest.fixture
def judge(provider: StartProvider, monkeypatch: pytest.MonkeyPatch) -> str:
    """Serve a model of OpenAI that prefers the third attempt."""
    server = provider(prefer("number 3"))
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-is-needed")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return "model:openai-chat:gpt-5.2"


def last_line(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("verb", ["best-of", "tournament", "playoff"])
def test_a_model_over_the_wire(run: Run, ask: Ask, judge: str, project: Path, verb: str) -> None:
    said = run(verb, "3", "--judge", judge, *WRITE).stdout
    assert (project / "n.txt").read_text() == "number 3\n"
    fork = ask("ls")["forks"][0]["id"]
    requests = 6 if verb == "best-of" else 4
    assert f"Judge openai-chat:gpt-5.2: {fork}.3 (confidence 0.90; {requests} requests, " in said
    shown = run("show", fork).stdout
    assert "by openai-chat:gpt-5.2 (confidence 0.90)" in shown
    assert f"{requests} requests" in shown
    [found] = ask("judges")["judges"]
    assert (found["judge"], found["picks"]) == ("openai-chat:gpt-5.2", 1)


def test_outcome_in_json(run: Run, judge: str) -> None:
    lines = [word for n in (1, 3) for word in ("-c", f"echo number {n} > n.txt")]
    outcome = last_line(run("speculate", "--all", "--json", "--judge", judge, *lines))["outcome"]
    assert outcome["winner"] == outcome["verdict"]["votes"][0]["winner"] == f"{outcome['fork']}.2"
    assert outcome["verdict"]["usage"]["requests"] == 2


def test_a_judge_without_a_key_is_a_warning(run: Run, ask: Ask, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    # The size of the diff does not decide between these either.
    result = run("best-of", "2", "--judge", "model:openai-chat:gpt-5.2", *WRITE, code=8)
    assert "OPENAI_API_KEY" in result.stderr
    assert "did not decide between" in result.stderr
    assert not (project / "n.txt").exists()
    fork = ask("ls")["forks"][0]
    assert fork["state"] == "open"
    run("abort", fork["id"])


def test_a_judge_that_is_none(run: Run) -> None:
    assert (
        "unknown model: nonsense:x; name it as provider:name"
        in run("best-of", "2", "--judge", "model:nonsense:x", *WRITE, code=2).stderr
    )
    assert "needs --all" in run("speculate", "--judge", "model:test", "-c", "true", code=2).stderr


def test_the_test_model_goes_by_the_order(run: Run, ask: Ask) -> None:
    run("best-of", "2", "-q", "--judge", "model:test", *WRITE)
    fork = ask("ls")["forks"][0]
    assert fork["verdict"]["matches"][0]["winner"] is None
    assert fork["winner"] == f"{fork['id']}.1"


def test_a_command_judges_best_of(run: Run, ask: Ask, project: Path) -> None:
    run("best-of", "3", "--judge", "grep -q 3 $2/n.txt && echo 1 || echo 0; true", *WRITE)
    judges = ask("judges")["judges"]
    assert len(judges) == 1
    assert (project / "n.txt").read_text() == "number 3\n"
    line = "grep -q 2 $2/n.txt && echo 1 || echo 0; true"
    run("tournament", "2", "--judge", line, *WRITE)
    assert {found["judge"] for found in ask("judges")["judges"]} >= {line}
    run("tournament", "2", "--judge", "echo 1; true", *WRITE)
    assert (project / "n.txt").read_text() == "number 1\n", "it contradicts itself: the first of equals wins"
    assert "echo 1; true" not in {found["judge"] for found in ask("judges")["judges"]}


def test_a_model_of_summaries(
    run: Run, ask: Ask, provider: StartProvider, judge: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = provider(structured(decisions=["Use a set."], errors=["Slow."]))
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    work = ("--", "sh", "-c", 'echo $FORKWISE_ATTEMPT > "$FORKWISE_SCORE"; cp "$FORKWISE_FEEDBACK" taught')
    name = judge.removeprefix("model:")
    run("refine", "1", "--rounds", "2", "--summary-model", name, *work)
    assert "- Use a set.\n" in (project / "taught").read_text()
    [fork] = [fork["id"] for fork in ask("ls", "--all")["forks"] if "." not in (fork["parent"] or "")]
    shown = run("show", f"{fork}.1").stdout
    assert "Summary, by a model:" in shown
    assert "- Use a set." in shown
    assert ask("show", f"{fork}.1")["attempt"]["summary"]["errors"] == ["Slow."]
    assert "unknown" in run("refine", "1", "--summary-model", "nonsense:x", *work, code=2).stderr
