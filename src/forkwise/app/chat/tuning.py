"""Tuning: what is typed to change the settings of the next fork, read into what is to be changed, and how it is told.

Each function gives the telling and the changes, in the order in which `Session.change` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forkwise.app.chat.command import UsageError
from forkwise.app.chat.settings import Settings

__all__ = ["Change", "budget_change", "count_change", "model_change"]

#: What is told, and the fields that change.
Change = tuple[str, dict[str, Any]]


def count_change(settings: Settings, words: Sequence[str]) -> Change:
    """How many branches.

    >>> count_change(Settings(), ["4"])
    ('fork_branch_count = 4', {'branches': 4})
    """
    if not words:
        return f"fork_branch_count = {settings.branches}", {}
    if len(words) != 1 or not words[0].isdecimal():
        raise UsageError("how many branches? /fork-branches N")
    return f"fork_branch_count = {int(words[0])}", {"branches": int(words[0])}


def budget_change(settings: Settings, words: Sequence[str]) -> Change:
    """What they may cost.

    >>> budget_change(Settings(), ["per-branch", "0.25"])
    ('per-branch budget = $0.25', {'branch_budget': 0.25})
    """
    match list(words):
        case []:
            return f"{_told('per-branch', settings.branch_budget)}, {_told('aggregate', settings.fork_budget)}", {}
        case ["clear"]:
            return "no budgets", {"branch_budget": None, "fork_budget": None}
        case ["per-branch", text]:
            return _told("per-branch", _dollars(text)), {"branch_budget": _dollars(text)}
        case ["aggregate", text] | [text]:
            return _told("aggregate", _dollars(text)), {"fork_budget": _dollars(text)}
    raise UsageError("what may it cost? /fork-budget per-branch USD, /fork-budget aggregate USD, /fork-budget clear")


def model_change(settings: Settings, words: Sequence[str]) -> Change:
    """Which models.

    >>> model_change(Settings(branches=2), ["2", "local"])
    ('Branch 2 model = local', {'models': {2: 'local'}})
    """
    match list(words):
        case []:
            told = [f"Branch {number} model = {model}" for number, model in sorted(settings.models.items())]
            return "\n".join(told) or "all branches run on the chat's model", {}
        case ["clear"]:
            return "all branches run on the chat's model", {"models": {}}
        case [number, "clear"]:
            left = {n: model for n, model in settings.models.items() if n != _slot(settings, number)}
            return f"Branch {number} runs on the chat's model", {"models": left}
        case [number, model]:
            slot = _slot(settings, number)
            return f"Branch {slot} model = {_named(model)}", {"models": {**settings.models, slot: model}}
        case [model] if not model.isdecimal():
            every = {number: _named(model) for number in range(1, settings.branches + 1)}
            return f"All branches: model = {model}", {"models": every}
    raise UsageError("which model? /fork-model N MODEL, /fork-model MODEL, /fork-model N clear, /fork-model clear")


def _told(name: str, usd: float | None) -> str:
    return f"{name} budget = {'unset' if usd is None else f'${usd:.2f}'}"


def _dollars(text: str) -> float:
    try:
        return float(text.removeprefix("$"))
    except ValueError:
        raise UsageError(f"{text!r} is no number of dollars") from None


def _slot(settings: Settings, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= settings.branches:
        raise UsageError(f"branches are numbered from 1 to {settings.branches}, not {text}")
    return int(text)


def _named(model: str) -> str:
    if model != "local" and ":" not in model:
        raise UsageError(f"{model!r} names no provider: say provider:name, local, or script:FILE")
    return model
