"""The options for a cluster, where there is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "elsewhere"], "names no cluster"),
        (["--on", "ray://host"], "names no cluster"),
        (["--gpus", "1"], "--gpus is about the nodes of a cluster"),
    ],
)
def test_says_what_is_wrong(run: Run, words: list[str], message: str) -> None:
    result = run("run", *words, "--", "true", code=2)
    assert message in result.output


def test_names_the_extra_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "forkwise.cli.app.find_spec", lambda name: None if name == "ray" else importlib.util.find_spec(name)
    )
    result = run("run", "--on", "ray", "--", "true", code=2)
    assert "pip install 'forkwise[ray]'" in result.output
