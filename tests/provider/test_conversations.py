"""Whole conversations: both providers accept each that follows the rules, and reject any single breach."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.counts import examples
from tests.provider.conversations import (
    ANTHROPIC_BREAKS,
    OPENAI_BREAKS,
    Break,
    Round,
    as_anthropic,
    as_openai,
    broken,
    conversations,
)
from tests.provider.rules import anthropic_fault, openai_fault

pytestmark = pytest.mark.integration

some = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
many = settings(some, max_examples=examples(150))
PLACES = st.integers(0, 10)


def each_of(breaks: dict[Break, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("one", "rule"), breaks.items(), ids=[one.__name__.removeprefix("_") for one in breaks]
    )


@many
@given(conversation=conversations())
def test_a_conversation_that_keeps_the_rules_is_accepted(conversation: list[Round]) -> None:
    assert anthropic_fault(as_anthropic(conversation)) is None
    assert openai_fault(as_openai(conversation)) is None


@many
@given(conversation=conversations())
def test_it_may_stop_after_each_of_the_users_turns(conversation: list[Round]) -> None:
    messages = as_anthropic(conversation)["messages"]
    roles = [message["role"] for message in messages]
    for end in range(1, len(messages) + 1):
        is_whole_turn = roles[end - 1] == "user" and (end == len(roles) or roles[end] == "assistant")
        fault = anthropic_fault(as_anthropic(conversation) | {"messages": messages[:end]})
        assert (fault is None) or not is_whole_turn


@each_of(ANTHROPIC_BREAKS)
@some
@given(conversation=conversations(), place=PLACES)
def test_anthropic_refuses_one_breakage(one: Break, rule: str, conversation: list[Round], place: int) -> None:
    fault = anthropic_fault(broken(as_anthropic(conversation), one, place))
    assert fault is not None
    assert fault.rule == rule


@each_of(OPENAI_BREAKS)
@some
@given(conversation=conversations(), place=PLACES)
def test_openai_refuses_one_breakage(one: Break, rule: str, conversation: list[Round], place: int) -> None:
    fault = openai_fault(broken(as_openai(conversation), one, place))
    assert fault is not None
    assert fault.rule == rule
