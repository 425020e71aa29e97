"""Candidates: valid ones, their labels and calls, and how their end is judged."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forkwise.errors import ProcessBranchError
from forkwise.fork.candidate import (
    Candidate,
    describe_error,
    describe_value,
    error_as_data,
    judge,
    read_score,
    to_json_data,
)
from forkwise.fork.run_end import RunEnd


class _Callable:
    def __call__(self, path: Path) -> bool:
        return True


def _named(path: Path) -> bool:
    return True


@pytest.mark.parametrize(
    ("what", "label"),
    [
        (_named, "_named"),
        (partial(_named), "_named"),
        (_Callable(), "_Callable"),
        (lambda path: True, "a function"),
        (["make", "test"], "make test"),
        (("sh", "-c", "make && make test"), "make && make test"),
    ],
)
def test_labels(what: Any, label: str) -> None:
    assert Candidate.of(what).label == label
    assert Candidate.of(Candidate.of(what)).label == label
    assert Candidate.of(what, label="mine").label == "mine"


def test_more_than_the_directory_is_passed_on() -> None:
    plain = Candidate.of(lambda *given: given, 1, "two").function
    assert plain is not None
    assert plain(Path("/x")) == (Path("/x"), 1, "two")

    async def task(*given: Any) -> Any:
        return given

    awaited = Candidate.of(task, 3).function
    assert awaited is not None
    assert inspect.iscoroutinefunction(awaited)
    assert asyncio.run(awaited(Path("/x"))) == (Path("/x"), 3)


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (RunEnd("exit", exit_code=0), None),
        (RunEnd("exit", exit_code=2), "exit code 2"),
        (RunEnd("signal", exit_code=-11), "killed by SIGSEGV"),
        (RunEnd("signal", exit_code=-35), "killed by signal 35"),
        (RunEnd("timeout", limit="wall"), "timed out after 3 s"),
        (RunEnd("out of memory", limit="memory"), "out of memory"),
        (RunEnd("killed", limit="disk"), "stopped by its limit disk"),
        (RunEnd("killed"), "killed"),
        (RunEnd("raised", error=KeyError("x")), "KeyError: 'x'"),
        (RunEnd("raised", error=KeyError()), "KeyError: no message"),
        (RunEnd("raised", error=ProcessBranchError("it says why")), "it says why"),
        (RunEnd("returned", value=(False, "because")), "because"),
        (RunEnd("returned", value=(False, "")), "it returned False"),
        (RunEnd("returned", value=(False, None)), "it returned False"),
        (RunEnd("returned", value=(True, "well")), "its score is not a finite number: 'well' (str)"),
    ],
)
def test_what_an_end_means(ended: RunEnd, reason: str | None) -> None:
    found = judge(ended, timeout=3)
    assert (found.success, found.reason) == (reason is None, reason)


def test_a_text_instead_of_a_score_is_feedback_if_the_pattern_has_that() -> None:
    found = judge(RunEnd("returned", value=(True, "well")), has_feedback=True)
    assert (found.success, found.score, found.message) == (True, None, "well")


@pytest.mark.parametrize(
    ("text", "score"), [(b"0.75\n", 0.75), (b" -3 ", -3.0), (b"", None), (None, None), (b"\n", None)]
)
def test_scores(text: bytes | None, score: float | None) -> None:
    assert read_score(text) == score


@pytest.mark.parametrize("text", [b"nan", b"inf", b"-inf", b"high", b"1 2", b"\xff", b"1e999"])
def test_invalid_scores(text: bytes) -> None:
    with pytest.raises(ValueError, match="its score is not a"):
        read_score(text)


# Values of unknown classes as text and as JSON


class _Mute(Exception):  # noqa: N818
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


def test_what_cannot_be_shown() -> None:
    assert describe_error(_Mute()) == "_Mute: (its message cannot be read)"
    assert describe_value(_Mute()) == "something (_Mute)"
    assert error_as_data(_Mute())["type"] == "_Mute"


def test_values_as_data() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert to_json_data((True, 0.5, None, "x")) == [True, 0.5, None, "x"]
    assert to_json_data({1: {2}, "k": b"b"}) == {"1 (int)": "{2} (set)", "k": "b'b' (bytes)"}
    assert to_json_data(10**30) == f"{10**30} (int)"
    assert isinstance(to_json_data(10**5000), str)
    assert "[[...]] (list)" in str(to_json_data(circle))
    assert len(to_json_data(list(range(1000)))) == 100
    assert len(to_json_data("x" * 10**6)) == 100_000
