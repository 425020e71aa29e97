"""Each rule of each provider: a breach is rejected with the exact text, and a similar valid request is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.provider.anthropic_cases import ADAPTIVE, ANTHROPIC_CASES, ENABLED, AnthropicCase
from tests.provider.bodies import anthropic_body, assistant, result, use, user
from tests.provider.openai_cases import OPENAI_CASES, OpenAICase
from tests.provider.rules import AnthropicOptions, Fault, anthropic_fault, openai_fault

Json = dict[str, Any]

ASKED = user("Look.")


def numbered(cases: list[Any]) -> list[Any]:
    return [pytest.param(case, id=f"{case.rule}-{number}") for number, case in enumerate(cases)]


def refused(fault: Fault | None) -> Fault:
    assert fault is not None, "it was accepted"
    return fault


@pytest.mark.parametrize("case", numbered(ANTHROPIC_CASES))
def test_anthropic(case: AnthropicCase) -> None:
    fault = refused(anthropic_fault(case.refused, options=case.options))
    error = {"type": "invalid_request_error", "message": case.says}
    assert (fault.status, fault.body, fault.rule) == (400, {"type": "error", "error": error}, case.rule)
    assert anthropic_fault(case.accepted, options=case.accepted_by or case.options) is None


@pytest.mark.parametrize("case", numbered(OPENAI_CASES))
def test_openai(case: OpenAICase) -> None:
    fault = refused(openai_fault(case.refused))
    error = {"message": case.says, "type": "invalid_request_error", "param": case.param, "code": case.code}
    assert (fault.status, fault.body, fault.rule) == (400, {"error": error}, case.rule)
    assert (fault.message, fault.param, fault.code) == (case.says, case.param, case.code)
    assert openai_fault(case.accepted) is None


def test_every_rule_has_its_case() -> None:
    # A6, nothing between a call and its result, has the text of A1 and is among its cases.
    assert {case.rule for case in ANTHROPIC_CASES} == {f"A{number}" for number in range(1, 20)} - {"A6"}
    assert {case.rule for case in OPENAI_CASES} == {f"O{number}" for number in range(1, 11)}


def test_a_late_result_breaks_a_rule_too() -> None:
    late = anthropic_body(ASKED, assistant("Yes?"), user(result("a")))
    assert refused(anthropic_fault(late)).rule == "A2"


@pytest.mark.parametrize(
    ("model", "may"),
    [
        ("claude-opus-4-5", True),
        ("claude-opus-4-20250514", True),
        ("claude-sonnet-4-6", True),
        ("claude-3-5-haiku-latest", True),
        ("claude-opus-4-6", False),
        ("claude-opus-5", False),
        ("claude-sonnet-5", False),
        ("claude-sonnet-5-20260203", False),
    ],
)
def test_which_models_continue_a_prefilled_answer(model: str, may: bool) -> None:
    assert AnthropicOptions().allows_prefill(model) is may


def test_thinking_is_asked_for_only_while_a_call_is_going_on() -> None:
    done = [ASKED, assistant(use("a")), user(result("a")), assistant("So."), ASKED]
    assert anthropic_fault(anthropic_body(*done, **ENABLED)) is None
    assert refused(anthropic_fault(anthropic_body(*done[:3], **ENABLED))).rule == "A17"
    assert anthropic_fault(anthropic_body(*done[:3], **ADAPTIVE)) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"model": "m", "max_tokens": 1},
        anthropic_body(messages="Look."),
        anthropic_body(messages=["Look."]),
        anthropic_body({"content": "Look."}),
        anthropic_body({"role": "tool", "content": "Look."}),
        anthropic_body({"role": "user", "content": None}),
        anthropic_body({"role": "user", "content": ["Look."]}),
        anthropic_body(ASKED, tool_choice={}),
    ],
)
def test_what_no_provider_can_read_is_refused(broken: Json) -> None:
    assert refused(anthropic_fault(broken)).status == 400
    if "tool_choice" not in broken and "tool" not in str(broken):
        assert refused(openai_fault(broken)).status == 400
