"""The results as tables for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table as RichTable

from bench.line import Goal
from bench.quality.agent import JUDGE_ERROR, SHARES, SUCCESS_RATE
from bench.quality.measure import Case, Table
from bench.quality.policy import ATTEMPTS, POLICIES
from bench.quality.verdict import GRADINGS, Grading

__all__ = ["as_json", "build_cost_table", "build_verdict_table", "build_win_table", "find_goals"]

_COST_SHARE = 0.25
_BOTH = "best of 8 by tests and judge, sealed"
_UNPROTECTED = "best of 8 by tests, exit code"


def build_win_table(table: Table) -> RichTable:
    """Build the table of how often each policy chose a fix."""
    shown = RichTable(
        title=f"Forks of {ATTEMPTS} attempts that end with a fix, in % [95 % interval], and (in % of the oracle)",
        show_lines=True,
    )
    shown.add_column("policy", no_wrap=True)
    for share in SHARES:
        shown.add_column(f"{share:.0%} cheat", no_wrap=True)
    for policy in POLICIES:
        cells = []
        for share in SHARES:
            cell = table[policy.label, share]
            relative = cell.relative_to(table["oracle", share])
            cells.append(f"{cell.rate}\n({relative})")
        shown.add_row(policy.label, *cells)
    return shown


def build_cost_table(table: Table) -> RichTable:
    """Build the table of what a fork costs on average."""
    shown = RichTable(title=f"Cost of a fork on average, with {_COST_SHARE:.0%} cheats")
    shown.add_column("policy", no_wrap=True)
    for name in ("attempts", "test runs", "judge calls", "seconds of testing"):
        shown.add_column(name, justify="right")
    for policy in POLICIES:
        cell = table[policy.label, _COST_SHARE]
        sums = (cell.attempts, cell.tests, cell.calls, cell.seconds)
        shown.add_row(policy.label, *(f"{total / cell.forks:.1f}" if total else "—" for total in sums))
    return shown


def build_verdict_table(cases: Sequence[Case]) -> RichTable:
    """Build the table of what the tests said of each kind of patch and each cheat."""
    shown = RichTable(title="Patches that pass the visible tests, of those tried")
    for name in ("patch", *GRADINGS):
        shown.add_column(name, no_wrap=True)
    for name, counts in _count_verdicts(cases).items():
        total = len(counts["sealed"])
        shown.add_row(name, *(f"{sum(counts[grading])} of {total}" for grading in GRADINGS))
    return shown


def _count_verdicts(cases: Sequence[Case]) -> dict[str, dict[Grading, list[bool]]]:
    found: dict[str, dict[Grading, list[bool]]] = {}
    for kind in ("fix", "wrong", "cheat"):
        for case in cases:
            for number, patch in enumerate(case.patches):
                if patch.kind == kind:
                    name = f"cheat: {patch.name}" if kind == "cheat" else {"fix": "fix", "wrong": "wrong fix"}[kind]
                    counts = found.setdefault(name, {grading: [] for grading in GRADINGS})
                    for grading in GRADINGS:
                        counts[grading].append(case.verdicts[grading][number].success)
    return found


def find_goals(table: Table) -> list[Goal]:
    """Compare the results with what is required of them."""
    goals = []
    for share in SHARES:
        relative = table[_BOTH, share].relative_to(table["oracle", share])
        goals.append(
            Goal(f"{share:.0%} cheat: {_BOTH}, ≥ 95 % of the oracle", 100 * relative.value, 95.0, at_least=True)
        )
    relative = table[_UNPROTECTED, SHARES[-1]].relative_to(table["oracle", SHARES[-1]])
    goals.append(Goal(f"{SHARES[-1]:.0%} cheat: {_UNPROTECTED}, < 60 % of the oracle", 100 * relative.value, 60.0))
    return goals


def as_json(cases: Sequence[Case], table: Table, *, seeds: int, seconds: float) -> dict[str, Any]:
    """Return everything as JSON data."""
    rows = [
        {
            "policy": policy.label,
            "cheat_share": share,
            "rate": table[policy.label, share].rate.dump(),
            "of_oracle": table[policy.label, share].relative_to(table["oracle", share]).dump(),
            "attempts": table[policy.label, share].attempts / table[policy.label, share].forks,
            "tests": table[policy.label, share].tests / table[policy.label, share].forks,
            "judge_calls": table[policy.label, share].calls / table[policy.label, share].forks,
            "seconds": table[policy.label, share].seconds / table[policy.label, share].forks,
        }
        for policy in POLICIES
        for share in SHARES
    ]
    return {
        "bugs": len(cases),
        "seeds": seeds,
        "success_rate": SUCCESS_RATE,
        "judge_error": JUDGE_ERROR,
        "seconds": seconds,
        "rows": rows,
        "goals": [{"text": g.text, "value": g.value, "bound": g.bound, "met": g.is_met} for g in find_goals(table)],
    }
