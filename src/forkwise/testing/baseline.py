"""Baseline: the test results of the base, and the results of an attempt compared with them, test by test.

A comparison also says whether an attempt's results can be believed: all tests of the base have to be there, and the
runner has to have worked as it did on the base.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from forkwise.testing.evidence import RunEvidence
from forkwise.testing.report import Comparison, Outcome, TestReport, combine
from forkwise.text.phrases import format_number, join_first

__all__ = ["Baseline", "TestRun", "combine_runs", "compare"]

_MAX_IDS = 50
_SHOWN = 3
_FAILING = ("failed", "error")
_NOT_LOADED = re.compile(
    r"unittest\.loader\._FailedTest\.(?P<module>.+)|(?:setUp|tearDown)(?:Class|Module) \((?P<fixture>.+)\)"
)


@dataclass(frozen=True, slots=True)
class TestRun:
    """One run of a test command: its report, the runner's evidence, if it sent any, and the graders that it changed.

    ``has_file`` says whether the runner wrote a report to a file, as requested.
    """

    __test__: ClassVar[bool] = False

    report: TestReport
    evidence: RunEvidence | None = None
    altered: frozenset[str] = frozenset()
    has_file: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """The results of the base, of one run or of several."""

    runs: tuple[TestRun, ...]

    @property
    def report(self) -> TestReport:
        """The combined report."""
        return combine([run.report for run in self.runs])

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcome of each test that had the same one in every run."""
        unsteady = self.unsteady
        return {name: outcome for name, outcome in _outcomes(self.runs[0].report).items() if name not in unsteady}

    @property
    def unsteady(self) -> frozenset[str]:
        """The tests whose outcome varied from run to run."""
        first, *others = (_outcomes(run.report) for run in self.runs)
        names = {name for outcomes in (first, *others) for name in outcomes}
        return frozenset(name for name in names if any(first.get(name) != other.get(name) for other in others))

    @property
    def failing(self) -> tuple[str, ...]:
        """The tests that failed."""
        return tuple(name for name, outcome in self.outcomes.items() if outcome in _FAILING)

    @property
    def problem(self) -> str | None:
        """Why attempts cannot be tested with this command at all; None if they can."""
        report = self.report
        if any(run.report.doubt for run in self.runs) and not report.failing:
            return report.doubt
        if report.source == "exit code" and not report.is_signal:
            return report.doubt or "the command could not be run"
        return None if report.is_signal or report.skipped else "no tests ran"


def _outcomes(report: TestReport) -> Mapping[str, Outcome]:
    """Return the outcomes by test; for a report without ids, only those of the failures."""
    return report.outcomes or {failure.name: failure.kind for failure in report.failures}


def combine_runs(runs: Sequence[TestRun], baseline: Baseline | None, root: str) -> TestReport:
    """Check and combine the runs of an attempt, and compare them with the baseline if there is one.

    ``root`` is the workspace's path, as the tests see it.
    """
    checked = [_check(run, baseline, root) for run in runs]
    report = combine(checked)
    report = replace(report, is_tampered=any(one.is_tampered for one in checked))
    if baseline is None:
        return report
    outcomes = _majority([one.outcomes for one in checked])
    comparison, missing = compare(baseline, replace(report, outcomes=outcomes))
    report = replace(report, outcomes=outcomes, comparison=comparison)
    if missing and report.doubt is None:
        tests = format_number(len(missing), "test")
        return _doubt(report, f"{tests} of the base did not run: {join_first(missing, _SHOWN)}")
    return report


def _majority(runs: Sequence[Mapping[str, Outcome]]) -> Mapping[str, Outcome]:
    """Return each test's outcome: passed if it passed in more than half of the runs, else one of its other outcomes."""
    if len(runs) == 1:
        return runs[0]
    found: dict[str, list[Outcome]] = {}
    for outcomes in runs:
        for name, outcome in outcomes.items():
            found.setdefault(name, []).append(outcome)
    return {
        name: "passed" if 2 * had.count("passed") > len(runs) else next((o for o in had if o != "passed"), "failed")
        for name, had in found.items()
    }


def _check(run: TestRun, baseline: Baseline | None, root: str) -> TestReport:
    """Return the report of a run, in doubt if the run cannot be believed."""
    evidence = run.evidence
    usual = frozenset() if baseline is None else frozenset().union(*(one.altered for one in baseline.runs))
    if altered := sorted(run.altered - usual):
        reason = f"tampered with: while the tests ran, something changed {join_first(altered, _SHOWN)}"
        return replace(_doubt(run.report, reason), is_tampered=True)
    known = [] if baseline is None else [one.evidence for one in baseline.runs if one.evidence is not None]
    if evidence is None:
        if known and run.report.doubt is None:
            return _doubt(run.report, "the runner did not report: it ended early, or something else ran in its place")
        return run.report
    if reasons := [*evidence.contradictions, *_find_intruders(evidence, known, root)]:
        return replace(_doubt(run.report, f"tampered with: {'; '.join(reasons)}"), is_tampered=True)
    if run.report.doubt is not None:
        return run.report
    if baseline is not None and not run.has_file and all(one.has_file for one in baseline.runs):
        return _doubt(run.report, "the runner ended without writing its report")
    if not evidence.is_complete:
        return _doubt(run.report, "a process that ran tests ended before it had finished")
    had_canary = any(one.has_canary for one in known)
    if had_canary and not evidence.has_canary and not run.report.failing:
        return _doubt(run.report, "the tests of known outcome, which run beside the project's own, did not run")
    return run.report


def _find_intruders(evidence: RunEvidence, known: Sequence[RunEvidence], root: str) -> list[str]:
    """Describe what took part in a run but not in those of the base."""
    if not known:
        return []
    origins = {origin for one in known for origin in one.plugins.values()}
    replaced = sorted(evidence.patched - {name for one in known for name in one.patched})
    plugins = [
        origin
        for origin in dict.fromkeys(evidence.plugins.values())
        if origin not in origins
        and not origin.startswith("_pytest")
        and (origin.startswith(f"{root}/") or "/" not in origin)
    ]
    found = [f"{origin.removeprefix(f'{root}/')} is a plugin of the test runner" for origin in plugins[:_SHOWN]]
    if replaced:
        found.append(f"the tests' process replaced {join_first(replaced, _SHOWN)}")
    bodies = {name: body for one in known for name, body in one.bodies.items() if body != "other"}
    passed = (name for name, outcome in evidence.outcomes.items() if outcome == "passed")
    if others := [name for name in passed if name in bodies and evidence.bodies.get(name) != bodies[name]]:
        found.append(f"other code ran in the place of {join_first(others, _SHOWN)}")
    return found


def _doubt(report: TestReport, reason: str) -> TestReport:
    return replace(report, doubt="; ".join(filter(None, [report.doubt, reason])))


def compare(baseline: Baseline, report: TestReport) -> tuple[Comparison, list[str]]:
    """Compare a report with the baseline. Also return the tests of the base that are missing.

    A test that ran on the base and is skipped now counts as failing. So does one whose parameters are gone while its
    function still runs, because parameters may come from files that an attempt may change. A file that could not be
    loaded on the base counts as fixed if it can be loaded now and its tests pass.
    """
    before, now, unsteady = baseline.outcomes, _outcomes(report), baseline.unsteady
    has_ids = bool(baseline.runs[0].report.outcomes)
    ids: dict[Literal["fixed", "broken", "still_failing"], list[str]] = {"fixed": [], "broken": [], "still_failing": []}
    missing: list[str] = []
    functions = {_function(name) for name in now}
    new_failures = [name for name, outcome in now.items() if outcome in _FAILING and name not in before]
    for name, outcome in before.items():
        if outcome == "skipped":
            if now.get(name) in _FAILING:
                ids["broken"].append(name)
            continue
        found = now.get(name)
        if found is None:
            found = _replacement(name, outcome, now, functions) if has_ids else "passed"  # only failures have names
        if found is None:
            missing.append(name)
        elif found == "passed":
            if outcome in _FAILING:
                ids["fixed"].append(name)
        else:
            ids["broken" if outcome == "passed" else "still_failing"].append(name)
    # Tests of a file that could not be loaded before count once, for the file.
    counted = tuple(_prefix_inside(name) for name in ids["still_failing"])
    ids["broken"] += [name for name in new_failures if name not in unsteady and not name.startswith(counted)]
    if not has_ids and report.total < baseline.report.total:
        missing += ["a test without a name"] * (baseline.report.total - report.total)
    return (
        Comparison(
            fixed=len(ids["fixed"]),
            broken=len(ids["broken"]),
            still_failing=len(ids["still_failing"]),
            fixed_ids=tuple(ids["fixed"][:_MAX_IDS]),
            broken_ids=tuple(ids["broken"][:_MAX_IDS]),
            still_failing_ids=tuple(ids["still_failing"][:_MAX_IDS]),
            set_apart=tuple(sorted(unsteady)[:_MAX_IDS]),
        ),
        missing,
    )


def _replacement(name: str, before: Outcome, now: Mapping[str, Outcome], functions: set[str]) -> Outcome | None:
    """Return the outcome that stands for a test that is not in a report; None if it is missing."""
    if before == "error":
        prefix = _prefix_inside(name)
        if inside := [outcome for other, outcome in now.items() if other.startswith(prefix)]:
            return "failed" if any(outcome in _FAILING for outcome in inside) else "passed"
    return "failed" if "[" in name and _function(name) in functions else None


def _function(name: str) -> str:
    return name.partition("[")[0]


def _prefix_inside(name: str) -> str:
    """Return the prefix of the tests in a file, module or class that is reported by its own name if it does not load.

    pytest reports the path; unittest reports what failed, the import of a module or the set-up of its tests.
    """
    found = _NOT_LOADED.fullmatch(name)
    return f"{name}::" if found is None else f"{found['module'] or found['fixture']}."
