"""``forkwise walk``: every command, one at a time and in a session."""

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


@pytest.fixture
def talk() -> Conversation:
    """Build a conversation with two answers to one question; the first is forked in three, one without an answer."""
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


def asked(*words: str, code: int = 0, text: str | None = None) -> str:
    done = CliRunner().invoke(forkwise_command, ["walk", *words], input=text)
    assert done.exit_code == code, done.output
    return done.output


def where(file: str, *words: str) -> int:
    found = json.loads(asked(file, "--json", *words))["id"]
    assert import_conversation(file).here.id == found
    return int(found)


def test_every_move(file: str) -> None:
    assert where(file, "root") == 0
    assert where(file, "down", "1") == 2
    assert where(file, "right") == 3
    assert where(file, "right") == 2
    assert where(file, "left") == 3
    assert where(file, "up") == 0
    assert where(file, "next-fork") == 2
    assert where(file, "down", "2") == 7
    assert where(file, "left") == 5
    assert where(file, "last-fork") == 2
    assert where(file, "leaf", "2") == 7
    assert where(file, "go", "8") == 8
    assert where(file, "up") == 2


def test_what_cannot_be_done_is_said(file: str) -> None:
    """Seed: "Malformed inputs (validation and error messages)"; the exit codes are those of every command."""
    for words, (told, code) in {
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
        assert told in asked(file, *words, code=code)
        record = json.loads(asked(file, *words, "--json", code=code))["error"]
        assert told in record["message"]
        assert record["exit_code"] == code
    assert where(file, "root") == 0
    assert "nothing forks above" in asked(file, "last-fork", code=1)
    assert "no branch beside" in asked(file, "left", code=1)


def test_labels_and_leaves(file: str) -> None:
    asked(file, "go", "5")
    asked(file, "label", "best")
    asked(file, "root")
    assert where(file, "label", "best") == 5
    assert json.loads(asked(file, "--json", "label"))["labels"][0]["label"] == "best"
    asked(file, "root")
    assert [leaf["id"] for leaf in json.loads(asked(file, "--json", "leaf"))["leaves"]] == [5, 7, 3]


def test_diff_and_combine(file: str) -> None:
    diff = asked(file, "diff", "5", "7")
    assert "-model: came to one" in diff
    assert "+model: came to two" in diff
    made = where(file, "combine", "concatenate", "5", "7")
    talk = import_conversation(file)
    node = talk.node(made)
    assert node.parent is not None
    assert node.parent.parent is talk.node(2)
    assert "Response 2:\ncame to two" in asked(file, "show")
    assert len(talk.node(2).replies) == 4


def test_show(file: str) -> None:
    asked(file, "go", "5")
    told = asked(file, "show")
    assert told.splitlines() == [
        "[5] depth 4",
        "user: what is it?",
        "model: see",
        "model calls look({'at': 1})",
        "user: one",
        "model: came to one",
    ]


def test_a_session(file: str, tmp_path: Path) -> None:
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
    told = asked(file, text="\n".join(lines))
    assert "[7] depth 4" in told
    assert "next-fork" in told
    assert import_conversation(copy).here.id == 7
    assert import_conversation(file).labels["end"].id == 7


def test_one_that_the_ledger_has(talk: Conversation, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with open_ledger(Workspace(tmp_path / "w")) as ledger:
        saved = StoredConversation(talk, ledger.conversations, id_="k3")
        saved.save()
    assert json.loads(asked("k3", "-C", str(tmp_path / "w"), "--json", "go", "5"))["id"] == 5
    with open_ledger(Workspace(tmp_path / "w")) as ledger:
        assert StoredConversation.load(ledger.conversations, "k3").conversation.here.id == 5
    assert "no conversation 'zz'" in asked("zz", "-C", str(tmp_path / "w"), code=5)


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
    told = asked(branched, "show")
    assert "branch_self returned: Successfully created 2 branches." in told
    assert "Branch 2 ('b'):\ndid (self-prompt): b" in told
    assert "note returned: noted" in told
    assert "branch_self returned: Successfully created 2 branches." in asked(branched, "up")
    found = json.loads(asked(branched, "go", "2", "--json"))
    results = {one["tool"]: one["result"] for one in found["calls"]}
    assert results["branch_self"].startswith("Successfully created 2 branches.")
    assert results["note"] == "noted"


def test_ids_of_branches_are_in_the_json(branched: str) -> None:
    """Seed: "able to communicate with the branches if needed later"."""
    found = json.loads(asked(branched, "go", "2", "--json"))
    assert found["branches"] == 3
    assert [below["number"] for below in found["down"]] == [1, 2, 3]
    for below in found["down"]:
        there = json.loads(asked(branched, "go", str(below["id"]), "--json"))
        assert there["text"] in below["text"]
    assert "did (self-prompt): b" in found["down"][1]["text"]


def test_a_long_result_is_cut_in_text_alone(tmp_path: Path) -> None:
    """Seed: "Minimal Conversation Pollution"."""
    talk = Conversation()
    talk.say("go")
    talk.add(ModelResponse(parts=[ToolCallPart("read", {}, "a")]))
    talk.settle(talk.here, "a", "z" * 5000)
    export_conversation(talk, tmp_path / "long.json")
    assert "[3000 more characters]" in asked(str(tmp_path / "long.json"), "show")
    assert len(json.loads(asked(str(tmp_path / "long.json"), "show", "--json"))["calls"][0]["result"]) == 5000


# --- models ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A provider behind `CLAUDE`. The list, which has the requests, is the script: pop it, and add answers."""
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
def test_a_missing_key_and_an_unknown_model_are_one_line(
    file: str, model: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: "API errors (proper error propagation)"."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    told = asked(file, "--model", model, "prompt", "hi", code=1)
    assert told.count("\n") == 1
    assert told.startswith("forkwise: error: model ")
    assert message in told
    assert (
        "is not available"
        in json.loads(asked(file, "--model", model, "--json", "prompt", "hi", code=1))["error"]["message"]
    )
    session = asked(file, "--model", model, text="root\nprompt hi\ngo 5\n")
    assert "is not available" in session
    assert session.rindex("[5] depth 4") > session.index("is not available")
    assert "Traceback" not in session


def test_a_401_is_one_line_and_the_session_continues(file: str, claude: list[Any]) -> None:
    """Seed: "API errors (proper error propagation)"."""
    seen = claude.pop()
    refusal = Failure(401)
    asked(file, "go", "5")
    claude += [refusal, refusal, refusal, answer("Now it works.")]
    told = asked(file, *CLAUDE, "prompt", "hi", code=1)
    assert told.count("\n") == 1
    assert "401" in told
    record = json.loads(asked(file, *CLAUDE, "--json", "prompt", "hi", code=1))["error"]
    assert record["type"] == "ConversationError"
    session = asked(file, *CLAUDE, "--json", text="prompt hi\nprompt hi\nshow\n")
    documents = [json.loads(line) for line in session.splitlines()]
    assert [next(iter(one)) for one in documents] == ["id", "error", "id", "id"]
    assert documents[2]["text"] == "model: Now it works."
    assert len(seen) == 4
    assert len(import_conversation(file).node(5).replies) == 1  # a prompt without an answer is not added again


def test_a_prompt_needs_no_quotes(file: str, claude: list[Any]) -> None:
    """Seed: "able to communicate with the branches if needed later"."""
    seen = claude.pop()
    claude += [answer("one"), answer("two"), answer("three")]
    told = asked(
        file,
        *CLAUDE,
        text="""go 5
prompt What's next?
prompt 'Quoted, too'
prompt   say "it"  as it is
""",
    )
    assert "model: three" in told
    assert [request.last_user_text for request in seen] == ["What's next?", "Quoted, too", 'say "it"  as it is']


def test_a_prompt_continues_with_the_instructions_of_the_conversation(branched: str, claude: list[Any]) -> None:
    """Seed: "This allows later modification or continuation"."""
    seen = claude.pop()
    claude += [answer("a"), answer("b")]
    asked(branched, *CLAUDE, "prompt", "and?")
    asked(branched, "go", "5")
    asked(branched, *CLAUDE, "prompt", "or?")
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


def test_a_prompt_continues_with_a_named_agent(
    file: str, claude: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: "This allows later modification or continuation": with the bot's own tools."""
    seen = claude.pop()
    claude += [call("bleat"), answer("It said baa.")]
    (tmp_path / "goat_agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    told = asked(file, "--agent", "goat_agent:agent", text="go 5\nprompt Speak!\nshow\n")
    assert "model: It said baa." in told
    assert "bleat returned: baa" in told
    assert "You are a goat." in seen[0].system
    for name, message, code in (
        ("goat_agent", "MODULE:NAME", 2),
        ("goat_agent:nothing", "not an agent", 1),
        ("goat_agent:nobody", "not available", 1),
        ("no_such_module:agent", "not available", 1),
    ):
        assert message in asked(file, "--agent", name, "prompt", "hi", code=code)


def test_a_chat_continues_with_the_agent_of_chats(project: Path, claude: list[Any]) -> None:
    """Seed: "This allows later modification or continuation": with the bot's own tools."""
    seen = claude.pop()
    claude += [call("read", path="a.txt"), answer("It has one line.")]
    with_chat(project)
    told = asked("chat-k1", "-C", str(project), *CLAUDE, text="prompt What's in a.txt?\nshow\n")
    assert "model: It has one line." in told
    assert "read returned: " in told
    assert set(seen[0].tool_names) >= {"read", "write", "execute"}


def with_chat(project: Path) -> None:
    with open_ledger(Workspace(project)) as ledger:
        talk = Conversation()
        talk.say("hello")
        talk.reply("hi")
        StoredConversation(talk, ledger.conversations, id_="chat-k1", title="chat").save()


def test_a_chat_that_is_open_elsewhere_can_only_be_read(project: Path, claude: list[Any]) -> None:
    """Seed: "Conversation Tree Integrity": two processes never write one tree at once."""
    with_chat(project)
    chat = StoredChat.open(Workspace(project), "chat-k1")
    try:
        told = asked(
            "chat-k1", "-C", str(project), *CLAUDE, text="root\nlabel x\nprompt hi\ncombine concatenate 1 2\nlabel\n"
        )
        assert told.count("is locked by another chat") == 3
        assert "No labels." in told
    finally:
        chat.close()
    assert json.loads(asked("chat-k1", "-C", str(project), "show", "--json"))["id"] == 2


@pytest.mark.integration
def test_the_local_model_answers_in_a_session(file: str) -> None:
    """Seed: "able to communicate with the branches if needed later"."""
    need_local_model()
    told = asked(file, "--model", "local", "--json", text="go 5\nprompt What's a goat?\nprompt And a sheep?\n")
    documents = [json.loads(line) for line in told.splitlines()]
    assert [one["id"] for one in documents] == [2, 5, 10, 12]
    assert documents[-1]["text"].startswith("model: ")


# --- lists and terminals --------------------------------------------------------------------------------------------


def test_the_conversations_of_the_ledger_are_listed(project: Path) -> None:
    """Seed: "A CLI allows the user to traverse the tree at their discretion"."""
    assert asked("--list", "-C", str(project)) == "No conversations.\n"
    with_chat(project)
    told = asked("--list", "-C", str(project))
    assert "chat-k1" in told
    assert "hello" in told
    [found] = json.loads(asked("--list", "--json", "-C", str(project)))["conversations"]
    assert (found["id"], found["messages"], found["prompt"], found["here"]) == ("chat-k1", 2, "hello", 2)
    assert "--list" in asked("-C", str(project), code=2)
    assert "--list takes no conversation" in asked("--list", "chat-k1", "-C", str(project), code=2)


def test_a_file_that_nobody_may_write_can_be_read(file: str, tmp_path: Path) -> None:
    """Seed: "File system issues"."""
    before = Path(file).stat().st_mtime_ns
    asked(file, "show")
    asked(file, "help")
    asked(file, "go", "99", code=5)
    assert Path(file).stat().st_mtime_ns == before


def test_a_question_mark_lists_the_commands(file: str) -> None:
    """Seed: "A CLI allows the user to traverse the tree at their discretion"."""
    assert asked(file, "?") == asked(file, "help")
    assert "next-fork" in asked(file, text="?\n")


def test_a_terminal_has_line_editing_and_history(file: str) -> None:
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
