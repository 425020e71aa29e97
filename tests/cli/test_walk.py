"""``forkwise walk``: each command on its own, and several in a session."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise import BranchSelf, Talk, Workspace
from forkwise.chat.storage import StoredChat
from forkwise.cli import forkwise_command
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.store import StoredConversation, export_conversation, import_conversation
from forkwise.ledger.sqlite import open_ledger
from tests.local_model.requirements import need_local_model
from tests.provider.reply import Failure, answer, call
from tests.provider.request import Request
from tests.provider.server import ProviderServer

pytestmark = pytest.mark.integration


@pytest.fixture
def talk() -> Conversation:
    """Build a conversation whose question has two answers; after the first, it forks in three, one still unanswered."""
    talk = Conversation()
    question = talk.say("what is it?")  # 1
    talk.add(ModelResponse(parts=[TextPart("see"), ToolCallPart("look", {"at": 1}, "a")]))  # 2
    fork = talk.here
    talk.reply("other", question)  # 3
    for way in ("one", "two"):
        talk.reply(f"came to {way}", talk.say(way, fork))  # 5, 7
    talk.say("three", fork)  # 8
    return talk


@pytest.fixture
def file(talk: Conversation, tmp_path: Path) -> str:
    export_conversation(talk, tmp_path / "talk.json")
    return str(tmp_path / "talk.json")


def run_walk(*words: str, code: int = 0, text: str | None = None) -> str:
    done = CliRunner().invoke(forkwise_command, ["walk", *words], input=text)
    assert done.exit_code == code, done.output
    return done.output


def move(file: str, *words: str) -> int:
    found = json.loads(run_walk(file, "--json", *words))["id"]
    assert import_conversation(file).here.id == found
    return int(found)


def test_moves_select_the_expected_node(file: str) -> None:
    assert move(file, "root") == 0
    assert move(file, "down", "1") == 2
    assert move(file, "right") == 3
    assert move(file, "right") == 2
    assert move(file, "left") == 3
    assert move(file, "up") == 0
    assert move(file, "next-fork") == 2
    assert move(file, "down", "2") == 7
    assert move(file, "left") == 5
    assert move(file, "last-fork") == 2
    assert move(file, "leaf", "2") == 7
    assert move(file, "go", "8") == 8
    assert move(file, "up") == 2


def test_errors_name_the_problem_and_set_the_exit_code(file: str) -> None:
    """Seed: "Malformed inputs (validation and error messages)"; the exit codes are those of every command."""
    for words, (message, code) in {
        ("down",): ("3 branches begin here", 1),
        ("leaf", "9"): ("there is no leaf 9", 5),
        ("down", "9"): ("there is no branch 9", 5),
        ("go", "99"): ("no message 99", 5),
        ("go", "nowhere"): ("neither a label nor a number", 5),
        ("fly",): ("no command 'fly'", 2),
        ("go",): ("wrong arguments for go", 2),
        ("prompt", "more"): ("--model", 2),
        ("prompt",): ("needs a text", 2),
        ("combine", "by-hand"): ("cannot combine by 'by-hand'", 2),
    }.items():
        assert message in run_walk(file, *words, code=code)
        record = json.loads(run_walk(file, *words, "--json", code=code))["error"]
        assert message in record["message"]
        assert record["exit_code"] == code
    assert move(file, "root") == 0
    assert "nothing forks above" in run_walk(file, "last-fork", code=1)
    assert "no branch beside" in run_walk(file, "left", code=1)


def test_label_and_leaf_commands(file: str) -> None:
    run_walk(file, "go", "5")
    run_walk(file, "label", "best")
    run_walk(file, "root")
    assert move(file, "label", "best") == 5
    assert json.loads(run_walk(file, "--json", "label"))["labels"][0]["label"] == "best"
    run_walk(file, "root")
    assert [leaf["id"] for leaf in json.loads(run_walk(file, "--json", "leaf"))["leaves"]] == [5, 7, 3]


def test_diff_and_combine_commands(file: str) -> None:
    diff = run_walk(file, "diff", "5", "7")
    assert "-model: came to one" in diff
    assert "+model: came to two" in diff
    made = move(file, "combine", "concatenate", "5", "7")
    talk = import_conversation(file)
    node = talk.node(made)
    assert node.parent is not None
    assert node.parent.parent is talk.node(2)
    assert "Response 2:\ncame to two" in run_walk(file, "show")
    assert len(talk.node(2).replies) == 4


def test_show_prints_the_path_to_the_node(file: str) -> None:
    run_walk(file, "go", "5")
    output = run_walk(file, "show")
    assert output.splitlines() == [
        "[5] depth 4",
        "user: what is it?",
        "model: see",
        "model calls look({'at': 1})",
        "user: one",
        "model: came to one",
    ]


def test_session_reads_commands_from_stdin(file: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    lines = [
        "root",
        "down 1",
        "down 2",
        "nonsense",
        "'",
        "",
        f"save {copy}",
        "label end",
        f"load {copy}",
        "help",
        "quit",
        "up",
    ]
    output = run_walk(file, text="\n".join(lines))
    assert "[7] depth 4" in output
    assert "next-fork" in output
    assert import_conversation(copy).here.id == 7
    assert import_conversation(file).labels["end"].id == 7


def test_walk_a_conversation_stored_in_the_ledger(talk: Conversation, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with open_ledger(Workspace(tmp_path / "w")) as ledger:
        saved = StoredConversation(talk, ledger.conversations, id_="k3")
        saved.save()
    assert json.loads(run_walk("k3", "-C", str(tmp_path / "w"), "--json", "go", "5"))["id"] == 5
    with open_ledger(Workspace(tmp_path / "w")) as ledger:
        assert StoredConversation.load(ledger.conversations, "k3").conversation.here.id == 5
    assert "no conversation 'zz'" in run_walk("zz", "-C", str(tmp_path / "w"), code=5)


# --- results and summaries ------------------------------------------------------------------------------------------


@pytest.fixture
def branched(tmp_path: Path) -> str:
    """Export a conversation of an agent that branched itself in two and used another tool."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if not isinstance(last, UserPromptPart):
            return ModelResponse(parts=[TextPart("Both were tried.")])
        if str(last.content).startswith("(self-prompt)"):
            return ModelResponse(parts=[TextPart(f"did {last.content}")])
        calls = [ToolCallPart("branch_self", {"self_prompts": ["a", "b"]}, "x"), ToolCallPart("note", {}, "y")]
        return ModelResponse(parts=list(calls))

    agent = Agent(FunctionModel(model), toolsets=[BranchSelf()], instructions="Be brief.")

    @agent.tool_plain
    def note() -> str:
        return "noted"

    talk = Talk(agent)
    asyncio.run(talk.prompt("go"))
    export_conversation(talk.conversation, tmp_path / "branched.json")
    return str(tmp_path / "branched.json")


def test_tool_results_and_branch_summaries_are_shown(branched: str) -> None:
    """Seed: "the user only sees the results of the branches", "A CLI allows the user to traverse the tree"."""
    output = run_walk(branched, "show")
    assert "branch_self returned: Successfully created 2 branches." in output
    assert "Branch 2 ('b'):\ndid (self-prompt): b" in output
    assert "note returned: noted" in output
    assert "branch_self returned: Successfully created 2 branches." in run_walk(branched, "up")
    found = json.loads(run_walk(branched, "go", "2", "--json"))
    results = {one["tool"]: one["result"] for one in found["calls"]}
    assert results["branch_self"].startswith("Successfully created 2 branches.")
    assert results["note"] == "noted"


def test_json_contains_the_ids_of_branches(branched: str) -> None:
    """Seed: "able to communicate with the branches if needed later"."""
    found = json.loads(run_walk(branched, "go", "2", "--json"))
    assert found["branches"] == 3
    assert [below["number"] for below in found["down"]] == [1, 2, 3]
    for below in found["down"]:
        there = json.loads(run_walk(branched, "go", str(below["id"]), "--json"))
        assert there["text"] in below["text"]
    assert "did (self-prompt): b" in found["down"][1]["text"]


def test_long_results_are_shortened_in_text_but_not_in_json(tmp_path: Path) -> None:
    """Seed: "Minimal Conversation Pollution"."""
    talk = Conversation()
    talk.say("go")
    talk.add(ModelResponse(parts=[ToolCallPart("read", {}, "a")]))
    talk.settle(talk.here, "a", "z" * 5000)
    export_conversation(talk, tmp_path / "long.json")
    assert "[3000 more characters]" in run_walk(str(tmp_path / "long.json"), "show")
    assert len(json.loads(run_walk(str(tmp_path / "long.json"), "show", "--json"))["calls"][0]["result"]) == 5000


# --- models ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Serve the model `CLAUDE`. The list yielded holds the list of requests: pop that, then append the answers."""
    script: list[Any] = []

    def respond(request: Request) -> Any:
        seen.append(request)
        return script.pop(0)(request) if callable(script[0]) else script.pop(0)

    seen: list[Request] = []
    script.append(seen)
    with ProviderServer(respond) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "no-key-is-needed")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield script


CLAUDE = ("--model", "anthropic:claude-sonnet-4-6")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("openai:gpt-5.2", "OPENAI_API_KEY"),
        ("nobody:knows", "nobody"),
        ("gpt", "gpt"),
        ("", "not available"),
    ],
)
def test_missing_key_or_unknown_model_is_a_one_line_error(
    file: str, model: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: "API errors (proper error propagation)"."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    output = run_walk(file, "--model", model, "prompt", "hi", code=1)
    assert output.count("\n") == 1
    assert output.startswith("forkwise: error: model ")
    assert message in output
    assert (
        "is not available"
        in json.loads(run_walk(file, "--model", model, "--json", "prompt", "hi", code=1))["error"]["message"]
    )
    session = run_walk(file, "--model", model, text="root\nprompt hi\ngo 5\n")
    assert "is not available" in session
    assert session.rindex("[5] depth 4") > session.index("is not available")
    assert "Traceback" not in session


def test_session_continues_after_a_401(file: str, claude: list[Any]) -> None:
    """Seed: "API errors (proper error propagation)"."""
    seen = claude.pop()
    refusal = Failure(401)
    run_walk(file, "go", "5")
    claude += [refusal, refusal, refusal, answer("Now it works.")]
    output = run_walk(file, *CLAUDE, "prompt", "hi", code=1)
    assert output.count("\n") == 1
    assert "401" in output
    record = json.loads(run_walk(file, *CLAUDE, "--json", "prompt", "hi", code=1))["error"]
    assert record["type"] == "ConversationError"
    session = run_walk(file, *CLAUDE, "--json", text="prompt hi\nprompt hi\nshow\n")
    documents = [json.loads(line) for line in session.splitlines()]
    assert [next(iter(one)) for one in documents] == ["id", "error", "id", "id"]
    assert documents[2]["text"] == "model: Now it works."
    assert len(seen) == 4
    assert len(import_conversation(file).node(5).replies) == 1  # a prompt without an answer is not added again


def test_prompt_text_needs_no_quotes(file: str, claude: list[Any]) -> None:
    """Seed: "able to communicate with the branches if needed later"."""
    seen = claude.pop()
    claude += [answer("one"), answer("two"), answer("three")]
    output = run_walk(
        file,
        *CLAUDE,
        text="""go 5
prompt What's next?
prompt 'Quoted, too'
prompt   say "it"  as it is
""",
    )
    assert "model: three" in output
    assert [request.last_user_text for request in seen] == ["What's next?", "Quoted, too", 'say "it"  as it is']


def test_prompt_keeps_the_instructions_of_the_conversation(branched: str, claude: list[Any]) -> None:
    """Seed: "This allows later modification or continuation"."""
    seen = claude.pop()
    claude += [answer("a"), answer("b")]
    run_walk(branched, *CLAUDE, "prompt", "and?")
    run_walk(branched, "go", "5")
    run_walk(branched, *CLAUDE, "prompt", "or?")
    for request in seen:
        assert "Be brief." in request.system


AGENT = """
from pydantic_ai import Agent
agent = Agent("anthropic:claude-sonnet-4-6", instructions="You are a goat.")
@agent.tool_plain
def bleat() -> str:
    return "baa"
nothing = 7
"""


def test_prompt_uses_the_agent_given_on_the_command_line(
    file: str, claude: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: "This allows later modification or continuation": with the bot's own tools."""
    seen = claude.pop()
    claude += [call("bleat"), answer("It said baa.")]
    (tmp_path / "goat_agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    output = run_walk(file, "--agent", "goat_agent:agent", text="go 5\nprompt Speak!\nshow\n")
    assert "model: It said baa." in output
    assert "bleat returned: baa" in output
    assert "You are a goat." in seen[0].system
    for name, message, code in (
        ("goat_agent", "MODULE:NAME", 2),
        ("goat_agent:nothing", "not an agent", 1),
        ("goat_agent:nobody", "not available", 1),
        ("no_such_module:agent", "not available", 1),
    ):
        assert message in run_walk(file, "--agent", name, "prompt", "hi", code=code)


def test_prompt_in_a_stored_chat_uses_the_chat_agent(project: Path, claude: list[Any]) -> None:
    """Seed: "This allows later modification or continuation": with the bot's own tools."""
    seen = claude.pop()
    claude += [call("read", path="a.txt"), answer("It has one line.")]
    store_chat(project)
    output = run_walk("chat-k1", "-C", str(project), *CLAUDE, text="prompt What's in a.txt?\nshow\n")
    assert "model: It has one line." in output
    assert "read returned: " in output
    assert set(seen[0].tool_names) >= {"read", "write", "execute"}


def store_chat(project: Path) -> None:
    with open_ledger(Workspace(project)) as ledger:
        talk = Conversation()
        talk.say("hello")
        talk.reply("hi")
        StoredConversation(talk, ledger.conversations, id_="chat-k1", title="chat").save()


def test_chat_opened_by_another_process_is_read_only(project: Path, claude: list[Any]) -> None:
    """Seed: "Conversation Tree Integrity": two processes never write one tree at once."""
    store_chat(project)
    chat = StoredChat.open(Workspace(project), "chat-k1")
    try:
        output = run_walk(
            "chat-k1", "-C", str(project), *CLAUDE, text="root\nlabel x\nprompt hi\ncombine concatenate 1 2\nlabel\n"
        )
        assert output.count("is locked by another chat") == 3
        assert "No labels." in output
    finally:
        chat.close()
    assert json.loads(run_walk("chat-k1", "-C", str(project), "show", "--json"))["id"] == 2


def test_the_local_model_answers_in_a_session(file: str) -> None:
    """Seed: "able to communicate with the branches if needed later"."""
    need_local_model()
    output = run_walk(file, "--model", "local", "--json", text="go 5\nprompt What's a goat?\nprompt And a sheep?\n")
    documents = [json.loads(line) for line in output.splitlines()]
    assert [one["id"] for one in documents] == [2, 5, 10, 12]
    assert documents[-1]["text"].startswith("model: ")


# --- lists and terminals --------------------------------------------------------------------------------------------


def test_conversations_in_the_ledger_are_listed(project: Path) -> None:
    """Seed: "A CLI allows the user to traverse the tree at their discretion"."""
    assert run_walk("--list", "-C", str(project)) == "No conversations.\n"
    store_chat(project)
    output = run_walk("--list", "-C", str(project))
    assert "chat-k1" in output
    assert "hello" in output
    [found] = json.loads(run_walk("--list", "--json", "-C", str(project)))["conversations"]
    assert (found["id"], found["messages"], found["prompt"], found["here"]) == ("chat-k1", 2, "hello", 2)
    assert "--list" in run_walk("-C", str(project), code=2)
    assert "--list takes no conversation" in run_walk("--list", "chat-k1", "-C", str(project), code=2)


def test_read_only_file_can_be_walked(file: str, tmp_path: Path) -> None:
    """Seed: "File system issues"."""
    before = Path(file).stat().st_mtime_ns
    run_walk(file, "show")
    run_walk(file, "help")
    run_walk(file, "go", "99", code=5)
    assert Path(file).stat().st_mtime_ns == before


def test_question_mark_lists_the_commands(file: str) -> None:
    """Seed: "A CLI allows the user to traverse the tree at their discretion"."""
    assert run_walk(file, "?") == run_walk(file, "help")
    assert "next-fork" in run_walk(file, text="?\n")


def test_terminal_has_line_editing_and_history(file: str) -> None:
    """Seed: "A CLI allows the user to traverse the tree at their discretion"."""
    leader, follower = pty.openpty()
    program = [sys.executable, "-c", "from forkwise.cli import main; main()", "walk", file]
    environment = {**os.environ, "TERM": "xterm", "INPUTRC": "/dev/null"}
    with subprocess.Popen(program, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        _read_until(leader, "[2]> ")
        os.write(leader, b"goo\x7f 5\n")  # backspace
        _read_until(leader, "[5]> ")
        os.write(leader, b"root\n")
        _read_until(leader, "[0]> ")
        os.write(leader, b"\x1b[A\x1b[A\n")  # the line before the last
        _read_until(leader, "[5]> ")
        os.write(leader, b"\x04")  # the end of input
        assert process.wait(60) == 0
    os.close(leader)
    assert import_conversation(file).here.id == 5


def _read_until(descriptor: int, text: str) -> None:
    seen = ""
    while not seen.endswith(text):
        assert select.select([descriptor], [], [], 60)[0], seen
        seen += os.read(descriptor, 1 << 16).decode(errors="replace").replace("\x1b[?2004h", "")
