"""``forkwise walk``: every command, one at a time and in a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from forkwise import Workspace
from forkwise.cli import forkwise_command
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.store import StoredConversation, export_conversation, import_conversation
from forkwise.ledger.sqlite import open_ledger


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
    for words, told in {
        ("down",): "3 branches begin here",
        ("leaf", "9"): "there is no leaf 9",
        ("go", "99"): "no message 99",
        ("go", "nowhere"): "neither a label nor a number",
        ("fly",): "no command 'fly'",
        ("go",): "wrong arguments for go",
        ("prompt", "more"): "--model",
        ("combine", "by-hand"): "cannot combine by 'by-hand'",
    }.items():
        assert told in asked(file, *words, code=1)
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
    assert "no conversation 'zz'" in asked("zz", "-C", str(tmp_path / "w"), code=1)
