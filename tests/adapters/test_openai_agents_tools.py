"""Agents of the OpenAI Agents SDK, whose model is scripted, with tools that work in branches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Tests, Workspace
from forkwise.adapters.openai_agents_tools import make_tools, run_best_of
from tests.need import need

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _sdk() -> None:
    try:
        from agents import set_tracing_disabled
    except ImportError:
        need(False, "openai-agents is not installed")
    else:
        set_tracing_disabled(True)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    return Workspace(project, state=tmp_path / "state")


@pytest.fixture
def branch(workspace: Workspace) -> Iterator[Branch]:
    made = workspace.branch("try", None, None)
    yield made
    if made.status not in ("committed", "aborted"):
        made.abort()


def script(*calls: tuple[str, dict[str, Any]]) -> Any:
    """A model that calls tools one after another, and then says that it is done."""
    from agents.testing import ScriptedModel, assistant_message, function_call

    steps = [[function_call(name, arguments, call_id=str(number))] for number, (name, arguments) in enumerate(calls)]
    return ScriptedModel([*steps, [assistant_message("done")]])


def ask(branch: Branch, name: str, **arguments: Any) -> str:
    """Call one tool as a model would; return what the model gets to see."""
    from agents import Agent, Runner

    agent = Agent(name="worker", model=script((name, arguments)), tools=make_tools(branch, timeout_s=30))
    result = asyncio.run(Runner.run(agent, "go"))
    [output] = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    return str(output)


def test_tools_work_in_the_branch_until_its_commit(branch: Branch, tmp_path: Path) -> None:
    project = branch.workspace.path
    assert ask(branch, "write_file", path="new/b.txt", content="two\n") == "wrote new/b.txt"
    assert ask(branch, "edit_file", path=f"{project}/a.txt", old="one", new="1") == f"edited {project}/a.txt"
    assert ask(branch, "read_file", path="a.txt") == "1\n"
    assert ask(branch, "list_files", path=".").splitlines() == ["a.txt", "new/"]
    answer = ask(branch, "run_command", command=f"cat a.txt new/b.txt; touch {tmp_path}/outside; exit 3")
    assert answer.startswith("1\ntwo\n")
    assert answer.endswith("[exit code 3]")
    assert not (tmp_path / "outside").exists()
    assert (project / "a.txt").read_text() == "one\n"
    branch.commit()
    assert (project / "new/b.txt").read_text() == "two\n"


def test_mistakes_are_answers_that_a_model_can_read(branch: Branch) -> None:
    (branch.path / "link").symlink_to("/etc/passwd")
    assert "leads out of" in ask(branch, "read_file", path="/etc/passwd")
    assert "leads out of" in ask(branch, "read_file", path="link")
    assert "leads out of" in ask(branch, "write_file", path="../outside", content="x")
    assert "No such file" in ask(branch, "read_file", path="gone")
    assert "0 times" in ask(branch, "edit_file", path="a.txt", old="nothing", new="x")
    assert "0 times" in ask(branch, "edit_file", path="a.txt", old="", new="x")
    assert (branch.path / "a.txt").read_text() == "one\n"


def test_answers_are_bounded_and_clean(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    answer = ask(branch, "run_command", command="env; head -c 3000000 /dev/zero | tr '\\0' x; printf '\\033[31m'")
    assert len(answer) < 70_000
    assert "characters more" in answer
    assert "secret-value" not in answer
    assert "\x1b" not in answer


def agents_with(*contents: str) -> Any:
    """Build an agent for each attempt, which writes one of the contents."""

    def build(branch: Branch, number: int) -> Any:
        from agents import Agent

        call = ("write_file", {"path": "answer", "content": contents[number]})
        return Agent(name=f"worker {number}", model=script(call))

    return build


def test_the_run_that_passes_the_tests_is_committed(workspace: Workspace) -> None:
    runs = asyncio.run(
        run_best_of(agents_with("41", "42", "40"), "find the answer", workspace, evaluate=Tests("grep -q 42 answer"))
    )
    assert runs.outcome.committed
    assert (workspace.path / "answer").read_text() == "42"
    assert runs.result.last_agent.name == "worker 1"
    assert sorted(runs.results) == [0, 1, 2]
    assert len(runs.result.to_input_list()) >= 3
    workspace.undo()
    assert not (workspace.path / "answer").exists()
    assert workspace.branches() == []


def test_nothing_is_committed_if_no_run_passes(workspace: Workspace) -> None:
    runs = asyncio.run(run_best_of(agents_with("1", "2"), "go", workspace, 2, evaluate=Tests("grep -q 42 answer")))
    assert not runs.outcome.committed
    assert runs.result is None
    assert [path.name for path in workspace.path.iterdir()] == ["a.txt"]


def test_one_agent_runs_several_times_and_keeps_its_own_tools(workspace: Workspace) -> None:
    from agents import Agent, function_tool
    from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

    @function_tool
    def give_word() -> str:
        """Return the word."""
        return "own tool"

    def respond(call: Any) -> Any:
        done = [item for item in call.input if isinstance(item, dict) and item.get("type") == "function_call_output"]
        if not done:
            return [function_call("give_word", {}, call_id="1")]
        if len(done) == 1:
            return [function_call("write_file", {"path": "w", "content": json.dumps(done[0]["output"])}, call_id="2")]
        return [assistant_message("done")]

    model = ScriptedModel([ModelStep.respond(respond) for _ in range(6)])
    runs = asyncio.run(run_best_of(Agent(name="a", model=model, tools=[give_word]), "go", workspace, 2))
    assert runs.outcome.committed
    assert "own tool" in (workspace.path / "w").read_text()


def test_runs_do_not_share_a_session(workspace: Workspace) -> None:
    with pytest.raises(ValueError, match="share a session"):
        asyncio.run(run_best_of(agents_with("1"), "go", workspace, 1, runner={"session": object()}))
