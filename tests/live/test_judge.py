"""Judges: one, several that vote, two branches at a time; on scripted models and over the real clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.usage import RunUsage

from forkwise import JUDGE_SYSTEM_PROMPT, BranchDiffReport, BranchOutcome, JudgeAgent, JudgeVerdict, TestReport
from forkwise.live.judging.judge import JUDGE_PROMPTS, MAX_JUDGE_PROMPT_CHARS, build_judge_prompt
from forkwise.live.judging.panel import (
    NoVerdictError,
    PairwiseJudge,
    TournamentJudge,
    detect_judge_models,
    majority,
    vote,
)
from forkwise.testing import TestFailure
from tests.live.fork_scene import outcome, report_of
from tests.local_model.requirements import need_local_model
from tests.provider import Failure, Turns, structured
from tests.provider.fixtures import ModelOf, StartProvider

pytestmark = pytest.mark.anyio

REPORT = report_of({"x.py": b"x = 1\n"}, a={"x.py": b"x = 2\n"}, b={"x.py": b"def f(): pass\n"})
OUTCOMES = [outcome("a"), outcome("b")]


class Scripted:
    """A model that returns these verdicts in turn, and records its requests."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = [{"confidence": 0.9, "reasoning": "because"} | answer for answer in answers]
        self.asked: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.answer, model_name="scripted")

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        self.infos.append(info)
        args = self.answers[min(len(self.asked), len(self.answers)) - 1]
        return ModelResponse([ToolCallPart(info.output_tools[0].name, args)])


async def test_a_verdict_and_what_it_took() -> None:
    script = Scripted({"winner_branch_id": "b", "rejected_with_reasons": {"a": "too small"}, "caveats": ["slow"]})
    judge = JudgeAgent(script.model)
    verdict, usage = await judge.evaluate("make it better", REPORT, OUTCOMES)
    assert type(verdict) is JudgeVerdict
    assert (verdict.winner_branch_id, verdict.confidence, verdict.caveats) == ("b", 0.9, ["slow"])
    assert verdict.rejected_with_reasons == {"a": "too small"}
    assert usage.requests == 1
    assert isinstance(judge.agent, Agent)
    assert "scripted" in judge.name


async def test_the_prompt_of_a_judge_lists_the_branches() -> None:
    script = Scripted({"winner_branch_id": "a"})
    await JudgeAgent(script.model).evaluate("make it better", REPORT, OUTCOMES)
    schema = script.infos[0].output_tools[0].parameters_json_schema
    assert schema["properties"]["winner_branch_id"]["enum"] == ["a", "b"]
    assert JUDGE_SYSTEM_PROMPT.strip() in (script.infos[0].instructions or "")


async def test_an_unknown_winner_is_sent_back_to_the_judge() -> None:
    script = Scripted({"winner_branch_id": "zz"}, {"winner_branch_id": "b"})
    verdict, usage = await JudgeAgent(script.model).evaluate("goal", REPORT, OUTCOMES)
    assert verdict.winner_branch_id == "b"
    assert usage.requests == 2
    assert "zz" in str(script.asked[1][-1])


async def test_an_unknown_winner_never_raises() -> None:
    outcomes = [outcome("a", test_pass_ratio=0.2), outcome("b", test_pass_ratio=0.9), outcome("c", error_count=1)]
    script = Scripted({"winner_branch_id": "zz"})
    verdict, usage = await JudgeAgent(script.model).evaluate("goal", REPORT, outcomes)
    assert (verdict.winner_branch_id, verdict.confidence) == ("b", 0.0)
    assert usage.requests == len(script.asked) > 1
    assert verdict.caveats


async def test_a_label_is_as_good_as_an_id() -> None:
    script = Scripted({"winner_branch_id": " the b ", "rejected_with_reasons": {"the a": "no"}})
    verdict, usage = await JudgeAgent(script.model).evaluate("goal", REPORT, OUTCOMES)
    assert (verdict.winner_branch_id, verdict.rejected_with_reasons) == ("b", {"a": "no"})
    assert usage.requests == 1


async def test_a_label_that_two_have_is_not() -> None:
    outcomes = [outcome("a", branch_label="same"), outcome("b", branch_label="same")]
    script = Scripted({"winner_branch_id": "same"}, {"winner_branch_id": "b"})
    verdict, usage = await JudgeAgent(script.model).evaluate("goal", REPORT, outcomes)
    assert (verdict.winner_branch_id, usage.requests) == ("b", 2)


async def test_no_branch_is_nothing_to_judge() -> None:
    with pytest.raises(ValueError, match="no branch"):
        await JudgeAgent("test").evaluate("goal", REPORT, [])


@pytest.mark.parametrize("domain", ["code", "research", "prose"])
async def test_each_domain_has_its_prompt(domain: Any) -> None:
    assert JUDGE_PROMPTS[domain].startswith(JUDGE_SYSTEM_PROMPT)
    assert len({*JUDGE_PROMPTS.values()}) == len(JUDGE_PROMPTS)
    script = Scripted({"winner_branch_id": "a"})
    await JudgeAgent(script.model, domain=domain).evaluate("goal", REPORT, OUTCOMES)
    extra = JUDGE_PROMPTS[domain].removeprefix(JUDGE_SYSTEM_PROMPT).strip()
    assert extra in (script.infos[0].instructions or "")


def test_the_prompt_has_goal_changes_and_outcomes() -> None:
    result = build_judge_prompt("make it better", REPORT, [outcome("a", cost_usd=None), outcome("b", state="done")])
    assert "make it better" in result
    assert "do it the a way" in result
    assert "b is done" in result
    assert "+x = 2" in result
    assert "x.py [split]" in result
    assert "added f" in result  # a definition
    assert "cost unknown" in result


def test_test_results_are_in_the_prompt() -> None:
    failure = TestFailure("test_sum::test_adds", "assert 4 == 5")
    report = TestReport(passed=11, failed=1, failures=(failure,), source="junit", exit_code=1)
    result = build_judge_prompt(
        "goal", REPORT, [outcome("a", test_report=report), outcome("b", test_pass_ratio=0.5), outcome("c")]
    )
    assert "11 passed, 1 failed" in result
    assert "test_sum::test_adds" in result
    assert "tests: 50% passed" in result
    assert "tests: not run" in result


@pytest.mark.parametrize("branches", [2, 50, 400])
@pytest.mark.parametrize("size", [10, 100_000])
def test_the_prompt_is_bounded(branches: int, size: int) -> None:
    names = [f"branch{n}" for n in range(branches)]
    report = report_of(
        {f"file{n}": b"old\n" for n in range(50)},
        **{name: {f"file{n}": f"{name} {'x' * 200}\n".encode() * 20 for n in range(10)} for name in names[:20]},
    )
    outcomes = [outcome(n, final_assistant_message="f" * size, steer="s" * size) for n in names]
    result = build_judge_prompt("g" * size, report, outcomes)
    assert len(result) <= MAX_JUDGE_PROMPT_CHARS == 32_000
    assert result.count("g" * 2001) == result.count("f" * 401) == result.count("s" * 301) == 0
    if size > 1000 or branches > 2:
        assert "[truncated]" in result
    if branches <= 50:
        assert all(name in result for name in names)


class Streamed:
    """A model that streams a verdict in small pieces."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[DeltaToolCalls]:
        text = self.texts.pop(0)
        yield {0: DeltaToolCall(name=info.output_tools[0].name, json_args="")}
        for start in range(0, len(text), 10):
            yield {0: DeltaToolCall(json_args=text[start : start + 10])}

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(stream_function=self.stream)


GOOD = '{"winner_branch_id": "b", "confidence": 0.75, "reasoning": "it does what was asked, and it is tested"}'


async def test_a_verdict_is_streamed() -> None:
    drafts = [draft async for draft in JudgeAgent(Streamed(GOOD).model).stream("goal", REPORT, OUTCOMES)]
    grown = [draft.reasoning for draft in drafts]
    assert grown == sorted(grown, key=len)
    assert len(set(grown)) > 3
    assert any(draft.winner_branch_id == "b" and draft.confidence is None for draft in drafts)
    assert [draft.verdict is not None for draft in drafts] == [False] * (len(drafts) - 1) + [True]
    final = drafts[-1]
    assert final.verdict is not None
    assert (final.verdict.winner_branch_id, final.verdict.confidence) == ("b", 0.75)
    assert final.usage is not None
    assert final.usage.requests == 1


async def test_a_verdict_that_comes_as_text_is_streamed_too() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for start in range(0, len(GOOD), 10):
            yield GOOD[start : start + 10]

    profile = ModelProfile(default_structured_output_mode="native", supports_json_schema_output=True)
    judge = JudgeAgent(FunctionModel(stream_function=stream, profile=profile))
    drafts = [draft async for draft in judge.stream("goal", REPORT, OUTCOMES)]
    assert len({draft.reasoning for draft in drafts}) > 3
    assert drafts[-1].verdict is not None
    assert drafts[-1].verdict.confidence == 0.75


async def test_a_streamed_judge_is_sent_back_too() -> None:
    streamed = Streamed(GOOD.replace('"b"', '"zz"'), GOOD)
    drafts = [draft async for draft in JudgeAgent(streamed.model).stream("goal", REPORT, OUTCOMES)]
    assert drafts[-1].verdict is not None
    assert drafts[-1].verdict.winner_branch_id == "b"
    assert any(draft.winner_branch_id == "zz" for draft in drafts)


async def test_a_streamed_judge_that_insists_does_not_raise() -> None:
    streamed = Streamed(*[GOOD.replace('"b"', '"zz"')] * 10)
    drafts = [draft async for draft in JudgeAgent(streamed.model).stream("goal", REPORT, OUTCOMES)]
    assert drafts[-1].verdict is not None
    assert drafts[-1].verdict.confidence == 0.0


class Fixed:
    """A judge that decides by the branches it is shown, without a model, and records them."""

    def __init__(self, choose: Callable[[Sequence[BranchOutcome]], tuple[str, float]]) -> None:
        self.choose = choose
        self.cases: list[list[str]] = []

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        self.cases.append([o.branch_id for o in outcomes])
        for path in diff_report.paths:
            assert set(path.branches) >= set(self.cases[-1])
        winner, confidence = self.choose(outcomes)
        verdict = JudgeVerdict(winner_branch_id=winner, confidence=confidence, reasoning=f"{winner} it is")
        return verdict, RunUsage(requests=1)


def says(winner: str, confidence: float = 0.9) -> Fixed:
    return Fixed(lambda _: (winner, confidence))


class Broken:
    async def evaluate(self, *_: object) -> tuple[JudgeVerdict, RunUsage]:
        raise ModelHTTPError(500, "broken")


async def test_the_majority_wins() -> None:
    done = await vote([says("a", 0.5), says("b", 1.0), says("a", 0.7)], "goal", REPORT, OUTCOMES)
    assert done.verdict.winner_branch_id == "a"
    assert done.verdict.confidence == pytest.approx((0.5 + 0.7) / 3)
    assert [v.winner_branch_id for v in done.verdicts] == ["a", "b", "a"]
    assert done.usage.requests == 3


async def test_a_tie_goes_to_the_surest() -> None:
    three = [
        JudgeVerdict(winner_branch_id=w, confidence=c, reasoning="") for w, c in [("a", 0.6), ("b", 0.9), ("c", 0.7)]
    ]
    assert majority(three).winner_branch_id == "b"
    with pytest.raises(ValueError, match="no verdict"):
        majority([])


async def test_a_judge_that_fails_has_no_vote() -> None:
    done = await vote([Broken(), says("b"), Broken()], "goal", REPORT, OUTCOMES)
    assert done.verdict.winner_branch_id == "b"
    assert len(done.failures) == 2
    with pytest.raises(NoVerdictError, match="gave no verdict: ModelHTTPError"):
        await vote([Broken(), Broken()], "goal", REPORT, OUTCOMES)


@pytest.mark.parametrize(
    ("keys", "vendors"),
    [
        ([], ["fallback"] * 3),
        (["ANTHROPIC_API_KEY"], ["anthropic"] * 3),
        (["OPENAI_API_KEY", "ANTHROPIC_API_KEY"], ["anthropic", "openai", "anthropic"]),
        (["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY", "GEMINI_API_KEY"], ["anthropic", "openai", "groq"]),
        (["MISTRAL_API_KEY", "CO_API_KEY", "GOOGLE_API_KEY"], ["mistral", "cohere", "google"]),
        (["GOOGLE_GENERATIVE_AI_API_KEY"], ["google"] * 3),
        (["OPENROUTER_API_KEY"], ["openrouter"] * 3),
        (["CO_API_KEY", "COHERE_API_KEY", "OPENROUTER_API_KEY"], ["cohere", "openrouter", "openrouter"]),
    ],
)
def test_the_panel_is_found_by_its_keys(keys: list[str], vendors: list[str]) -> None:
    models = detect_judge_models("fallback:model", dict.fromkeys(keys, "key"))
    assert [model.split(":")[0] for model in models] == vendors
    if keys == ["OPENROUTER_API_KEY"]:
        assert len({model.split("/")[0] for model in models}) == 3
    assert detect_judge_models("fallback:model", dict.fromkeys(keys, "")) == ["fallback:model"] * 3


def test_the_panel_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GROQ_API_KEY", "key")
    assert detect_judge_models("fallback")[0].startswith("groq:")


FIVE = [outcome(name) for name in "abcde"]
FIVE_REPORT = report_of({}, **{name: {f"{name}.txt": b"x"} for name in "abcde"})


def best(outcomes: Sequence[BranchOutcome]) -> tuple[str, float]:
    return max(o.branch_id for o in outcomes), 0.8


async def test_pairwise_judging_plays_every_two_in_both_orders() -> None:
    judge = Fixed(best)
    verdict, usage = await PairwiseJudge(judge).evaluate("goal", FIVE_REPORT, FIVE)
    assert (verdict.winner_branch_id, verdict.confidence) == ("e", pytest.approx(0.8))
    assert usage.requests == len(judge.cases) == 20
    assert ["a", "b"] in judge.cases
    assert ["b", "a"] in judge.cases
    assert verdict.reasoning.startswith("Won 4 of 4 matches.")


async def test_a_tournament_lets_one_of_two_go_on() -> None:
    judge = Fixed(best)
    verdict, usage = await TournamentJudge(judge).evaluate("goal", FIVE_REPORT, FIVE)
    assert (verdict.winner_branch_id, verdict.confidence) == ("e", pytest.approx(0.8))
    assert usage.requests == len(judge.cases) == 8


@pytest.mark.parametrize("kind", [PairwiseJudge, TournamentJudge])
async def test_one_branch_needs_no_match(kind: type[PairwiseJudge | TournamentJudge]) -> None:
    judge = Fixed(best)
    verdict, _ = await kind(judge).evaluate("goal", FIVE_REPORT, FIVE[:1])
    assert (verdict.winner_branch_id, judge.cases) == ("a", [])


async def test_a_judge_that_always_picks_the_first_branch_is_not_trusted() -> None:
    judge = Fixed(lambda outcomes: (outcomes[0].branch_id, 0.9))
    verdict, _ = await PairwiseJudge(judge).evaluate("goal", REPORT, OUTCOMES)
    assert verdict.confidence == 0.0
    assert "other order" in verdict.caveats[0]


async def test_a_match_lost_counts_against_the_winner() -> None:
    beaten = {"a": "b", "b": "c", "c": "a"}

    def circle(outcomes: Sequence[BranchOutcome]) -> tuple[str, float]:
        one, other = (o.branch_id for o in outcomes)
        return (one if beaten[one] == other else other), 0.8

    verdict, _ = await PairwiseJudge(Fixed(circle)).evaluate("goal", FIVE_REPORT, FIVE[:3])
    assert verdict.confidence == pytest.approx(0.4)


async def test_over_the_real_clients(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([structured(winner_branch_id="b", confidence=0.8, reasoning="tested")]))
    verdict, usage = await JudgeAgent(model_of(server), domain="code").evaluate("goal", REPORT, OUTCOMES)
    assert (verdict.winner_branch_id, verdict.confidence) == ("b", 0.8)
    assert usage.input_tokens > 0
    assert JUDGE_SYSTEM_PROMPT.splitlines()[0] in server.seen[0].system


async def test_an_unknown_winner_over_the_real_clients(provider: StartProvider, model_of: ModelOf) -> None:
    wrong = structured(winner_branch_id="zz", confidence=0.8, reasoning="tested")
    right = structured(winner_branch_id="b", confidence=0.8, reasoning="tested")
    server = provider(Turns([wrong, right]))
    verdict, usage = await JudgeAgent(model_of(server)).evaluate("goal", REPORT, OUTCOMES)
    assert (verdict.winner_branch_id, usage.requests) == ("b", 2)


async def test_a_stream_over_the_real_clients(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([structured(winner_branch_id="b", confidence=0.8, reasoning="tested, and small")]))
    drafts = [draft async for draft in JudgeAgent(model_of(server)).stream("goal", REPORT, OUTCOMES)]
    assert len(drafts) > 2
    assert drafts[-1].verdict is not None
    assert drafts[-1].verdict.winner_branch_id == "b"


async def test_a_provider_that_fails_is_an_error(provider: StartProvider, model_of: ModelOf) -> None:
    server = provider(Turns([Failure(503, "overloaded")]))
    with pytest.raises(ModelHTTPError):
        await JudgeAgent(model_of(server)).evaluate("goal", REPORT, OUTCOMES)


@pytest.mark.integration
async def test_the_local_model_can_only_choose_a_branch_there_is() -> None:
    need_local_model()
    verdict, usage = await JudgeAgent("local", instructions="Choose.").evaluate(
        "x = 2", report_of({}, a={}, b={}), OUTCOMES
    )
    assert verdict.winner_branch_id in ("a", "b")
    assert usage.requests >= 1
