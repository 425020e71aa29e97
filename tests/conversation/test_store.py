"""Storage: a loaded conversation has the same paths, labels, results and current node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ThinkingPart, ToolCallPart

from forkwise.conversation.conversation import Conversation
from forkwise.conversation.store import StoredConversation, export_conversation, import_conversation
from forkwise.errors import ConversationError, LedgerError
from forkwise.ledger.sqlite import SqliteLedger


@pytest.fixture
def talk() -> Conversation:
    talk = Conversation()
    question = talk.say("what is it?")
    caller = talk.add(
        ModelResponse(parts=[ThinkingPart("hm", signature="s"), TextPart("see"), ToolCallPart("look", {"a": 1}, "a")])
    )
    talk.say("one way")
    talk.reply("so it is")
    talk.say("the other \N{SNOWMAN}", caller)
    talk.settle(caller, "a", {"found": [1, 2]})
    talk.label("fork", caller)
    talk.reply("no", question)
    talk.here = talk.node(4)
    return talk


def same(one: Conversation, other: Conversation) -> bool:
    def whole(t: Conversation) -> object:
        paths = [ModelMessagesTypeAdapter.dump_python(t.path(n), mode="json") for n in t]
        results = [{k: v.content for k, v in n.results.items()} for n in t]
        return paths, results, [n.awaits for n in t], t.here.id, {k: n.id for k, n in t.labels.items()}

    return whole(one) == whole(other)


def test_to_a_file_and_back(talk: Conversation, tmp_path: Path) -> None:
    export_conversation(talk, tmp_path / "talk.json")
    assert same(import_conversation(tmp_path / "talk.json"), talk)
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]


def test_to_the_ledger_and_back(talk: Conversation, tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as ledger:
        saved = StoredConversation(talk, ledger.conversations, title="a talk")
        saved.save()
        assert same(StoredConversation.load(ledger.conversations, saved.id).conversation, talk)
        [record] = ledger.conversations.all()
        assert (record.id, record.title, record.here) == (saved.id, "a talk", 4)


def test_only_new_messages_are_written(talk: Conversation, tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as ledger:
        saved = StoredConversation(talk, ledger.conversations)
        written: list[list[int]] = []
        save = ledger.conversations.save
        ledger.conversations.save = lambda record, rows: (  # type: ignore[method-assign]
            written.append([row.node for row in rows]),
            save(record, rows),
        )[1]
        saved.save()
        caller = talk.add(ModelResponse(parts=[ToolCallPart("look", {}, "b")]), talk.say("more", talk.node(4)))
        saved.save()
        talk.settle(caller, "b", "there")
        talk.label("end", caller)
        saved.save()
        saved.save()
        assert written == [[1, 2, 3, 4, 5, 6], [7, 8], [8], []]
        again = StoredConversation.load(ledger.conversations, saved.id)
        assert same(again.conversation, talk)
        again.save()
        assert written[-1] == []


def test_ten_thousand_nodes(tmp_path: Path) -> None:
    talk = Conversation()
    for number in range(5000):
        node = talk.node(number // 3 * 2)
        talk.reply("so", talk.say(f"on {number}", node))
    with SqliteLedger(tmp_path) as ledger:
        saved = StoredConversation(talk, ledger.conversations)
        saved.save()
        assert len(StoredConversation.load(ledger.conversations, saved.id).conversation) == 10_000


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as ledger, pytest.raises(LedgerError, match="no conversation 'x'"):
        StoredConversation.load(ledger.conversations, "x")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("parents"),
        lambda d: d.update(format=99),
        lambda d: d["messages"].pop(),
        lambda d: d["parents"].__setitem__(1, 40),
        lambda d: d["awaits"].clear(),
        lambda d: d.update(here=99),
        lambda d: d["messages"][0].update(parts=[]),
    ],
)
def test_a_file_that_was_spoilt_is_refused(talk: Conversation, tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "talk.json"
    export_conversation(talk, path)
    document = json.loads(path.read_text())
    assert callable(spoil)
    spoil(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ConversationError):
        import_conversation(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no")
    with pytest.raises(ConversationError, match="holds no conversation"):
        import_conversation(tmp_path / "x")


DEEP = "[" * 100_000
HOSTILE = {
    "format": [2, "1", None, True, []],
    "here": [99, -1, "x", None, 1e9, []],
    "labels": [[], {"x": 99}, {"x": "y"}, None],
    "parents": [[99], [-1] * 6, ["x"] * 6, None, 1, [[]] * 6],
    "awaits": [{"x": ["a"]}, {"1": 1}, [], {"9" * 5000: []}],
    "results": [{"2": [1]}, {"2": "x"}, {"x": []}, []],
    "messages": [[], [1], None, "x", [{"kind": "request"}], [{"kind": "other", "parts": []}]],
}


def test_a_hostile_file_is_no_conversation(tmp_path: Path, talk: Conversation) -> None:
    path = tmp_path / "talk.json"
    export_conversation(talk, path)
    document = json.loads(path.read_text())
    for field, values in HOSTILE.items():
        for value in values:
            path.write_text(json.dumps({**document, field: value}))
            with pytest.raises(ConversationError):
                import_conversation(path)
    for content in ("", "null", "{}", DEEP, '{"format": 1, "messages": ' + DEEP, '{"format": ' + "9" * 5000 + "}"):
        path.write_text(content)
        with pytest.raises(ConversationError):
            import_conversation(path)


@pytest.mark.parametrize("value", ["", "x", "[1]", "-1", DEEP], ids=range(5))
def test_a_damaged_message_takes_away_its_conversation_only(tmp_path: Path, talk: Conversation, value: str) -> None:
    with SqliteLedger(tmp_path) as ledger:
        bad, good = (StoredConversation(talk, ledger.conversations, title=title) for title in ("bad", "good"))
        for stored in (bad, good):
            stored.save()
        ledger._database.rows("UPDATE messages SET message = ? WHERE conversation = ? AND node = 2", (value, bad.id))
        with pytest.raises((ConversationError, LedgerError)):
            StoredConversation.load(ledger.conversations, bad.id)
        assert same(StoredConversation.load(ledger.conversations, good.id).conversation, talk)
