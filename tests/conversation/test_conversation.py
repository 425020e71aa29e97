"""The tree: forking is free, results reach every branch that awaits them, and depth does not slow it down."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from forkwise.conversation.conversation import IN_PROGRESS, Conversation
from forkwise.conversation.node import Node
from forkwise.errors import ConversationError


def calling(*ids: str, text: str = "") -> ModelResponse:
    said = [TextPart(text)] if text else []
    return ModelResponse(parts=[*said, *(ToolCallPart("look", {"at": i}, i) for i in ids)])


def results(talk: Conversation, node: Node) -> dict[str, object]:
    last = talk.path(node)[-1]
    return {p.tool_call_id: p.content for p in last.parts if isinstance(p, ToolReturnPart)}


def test_a_branch_adds_only_what_it_says() -> None:
    talk = Conversation()
    for number in range(500):
        talk.say(f"question {number}")
        talk.reply(f"answer {number}")
    trunk = talk.here
    tracemalloc.start()
    branches = [talk.fork(trunk) for _ in range(1000)]
    for number, branch in enumerate(branches):
        branch.say(f"and {number}?")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5_000_000
    assert len(talk) == 2000
    assert talk.here is trunk
    shared = branches[0].path()
    assert all(one is other for one, other in zip(shared[:-1], branches[-1].path()[:-1], strict=True))
    assert len(shared) == 1001


def test_depth_is_no_matter() -> None:
    talk = Conversation()
    for _ in range(50_000):
        talk.say("on")
        talk.reply("and on")
    assert talk.here.depth == 100_000 > sys.getrecursionlimit()
    assert len(talk.path()) == 100_000
    assert talk.here.ancestor_at(1).depth == 1
    assert talk.here.is_below(talk.node(1))


def test_ancestors_are_distinguished_from_other_nodes() -> None:
    talk = Conversation()
    nodes = [talk.say("start")]
    for number in range(200):
        parent = nodes[number * 7 % len(nodes)]
        nodes.append(talk.say("on", parent) if parent.is_response else talk.reply("so", parent))
    for node in nodes:
        above = {n.id for n in node.upwards()}
        assert {other.id for other in nodes if node.is_below(other)} == above
        assert [node.ancestor_at(d).depth for d in range(node.depth + 1)] == list(range(node.depth + 1))


def test_results_reach_all_branches_that_await_them() -> None:
    talk = Conversation()
    talk.say("compare")
    caller = talk.add(calling("a", "b"))
    first, second = talk.fork(caller), talk.fork(caller)
    first.say("the one way")
    first.reply("done one")
    second.say("the other way")
    asked = first.node.parent
    assert asked is not None
    assert results(talk, asked) == {"a": IN_PROGRESS, "b": IN_PROGRESS}
    talk.settle(caller, "a", "all of it")
    assert results(talk, asked) == results(talk, second.node) == {"a": "all of it", "b": IN_PROGRESS}
    talk.settle(caller, "b", "rest")
    later = talk.say("go on", caller)
    assert results(talk, later) == results(talk, asked) == {"a": "all of it", "b": "rest"}
    assert [part.part_kind for part in talk.path(later)[-1].parts] == ["tool-return", "tool-return", "user-prompt"]


def test_siblings_may_answer_a_call_each_in_its_own_way() -> None:
    talk = Conversation()
    talk.say("look")
    caller = talk.add(calling("a"))
    ways = [
        talk.add(ModelRequest(parts=[ToolReturnPart("look", found, "a")]), caller) for found in ("one thing", "another")
    ]
    assert [results(talk, way) for way in ways] == [{"a": "one thing"}, {"a": "another"}]


def test_siblings_may_reuse_an_id_and_descendants_may_not() -> None:
    talk = Conversation()
    question = talk.say("look")
    one = talk.add(calling("same"), question)
    talk.add(calling("same"), question)
    report = talk.say("and again", one)
    with pytest.raises(ConversationError) as refused:
        talk.add(calling("same"), report)
    assert refused.value.rule == "no id twice on a path"
    assert refused.value.calls == ("same",)
    assert len(talk) == 4


def test_the_position_follows_only_messages_at_the_position() -> None:
    talk = Conversation()
    first = talk.say("hello")
    talk.reply("hello")
    here = talk.here
    talk.reply("good day", first)
    assert talk.here is here


def test_what_can_be_sent_from_anywhere() -> None:
    talk = Conversation()
    question = talk.say("look")
    assert talk.request(node=question) == talk.path(question)
    with pytest.raises(ConversationError, match="the last message is a user message"):
        talk.request("more", question)
    answer = talk.reply("seen")
    with pytest.raises(ConversationError, match="a prompt is required"):
        talk.request()
    sent = talk.request("more", answer)
    assert sent[-1].parts == [UserPromptPart("more", timestamp=sent[-1].parts[0].timestamp)]
    talk.say("once more")
    caller = talk.add(calling("a"))
    assert [p.part_kind for p in talk.request(node=caller)[-1].parts] == ["tool-return"]
    assert len(talk) == 4


def test_a_result_of_no_call_is_refused() -> None:
    talk = Conversation()
    node = talk.say("hello")
    with pytest.raises(ConversationError, match="made no call 'a'"):
        talk.settle(node, "a", "result")


def test_an_unknown_number_is_named() -> None:
    with pytest.raises(ConversationError, match="no message 7"):
        Conversation().node(7)
