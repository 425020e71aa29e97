"""Measure: every policy on every bug, for every share of cheats and every seed."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from bench.quality.agent import SHARES, Agent
from bench.quality.bug import Bug, Patch, load_bugs
from bench.quality.cheat import build_cheats
from bench.quality.interval import Interval, bootstrap
from bench.quality.policy import POLICIES, Play, Policy, play, play_with_files
from bench.quality.replay import start_no_threads
from bench.quality.verdict import GRADINGS, Grading, Verdict, find_verdicts

__all__ = ["Case", "Cell", "Table", "check_with_files", "find_all_verdicts", "load_cases", "simulate"]


@dataclass(slots=True)
class Case:
    """A bug, its patches, and the verdicts on them, by the way of grading."""

    bug: Bug
    patches: list[Patch]
    verdicts: dict[Grading, list[Verdict]] = field(default_factory=dict)


@dataclass(slots=True)
class Cell:
    """One policy at one share of cheats: how many forks chose a fix, by bug, and the sums of their costs."""

    fixes: list[int] = field(default_factory=list)
    forks: int = 0
    attempts: int = 0
    tests: int = 0
    calls: int = 0
    seconds: float = 0.0

    def add(self, plays: Sequence[Play]) -> None:
        """Add the forks of one bug."""
        self.fixes.append(sum(one.is_fix for one in plays))
        self.forks += len(plays)
        self.attempts += sum(one.attempts for one in plays)
        self.tests += sum(one.tests for one in plays)
        self.calls += sum(one.calls for one in plays)
        self.seconds += sum(one.seconds for one in plays)

    @property
    def rate(self) -> Interval:
        """The share of forks that chose a fix."""
        return bootstrap(self.fixes, [self.forks / len(self.fixes)] * len(self.fixes))

    def relative_to(self, oracle: Cell) -> Interval:
        """The number of fixes chosen, as a share of those that the oracle chose."""
        return bootstrap(self.fixes, oracle.fixes)


#: Cells by the label of the policy and the share of cheats.
Table = dict[tuple[str, float], Cell]


def load_cases() -> list[Case]:
    """Read the bugs with all of their patches."""
    return [Case(bug, bug.patches + build_cheats(bug, number)) for number, bug in enumerate(load_bugs())]


def find_all_verdicts(case: Case, directory: str) -> None:
    """Find the verdicts on every patch of a case, in every way of grading."""
    for grading in GRADINGS:
        case.verdicts[grading] = find_verdicts(case.bug, case.patches, directory, grading)


def simulate(cases: Sequence[Case], seeds: int, workers: int, report: Callable[[str], None]) -> Table:
    """Let every policy choose on every case, for every share and ``seeds`` seeds, in ``workers`` processes."""
    table: Table = {(policy.label, share): Cell() for policy in POLICIES for share in SHARES}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for number, result in enumerate(pool.map(_simulate_case, cases, [seeds] * len(cases)), 1):
            report(f"simulating: {number} of {len(cases)} bugs")
            for key, plays in result.items():
                table[key].add(plays)
    return table


def _simulate_case(case: Case, seeds: int) -> dict[tuple[str, float], list[Play]]:
    with start_no_threads():
        return asyncio.run(_play_all(case, seeds))


async def _play_all(case: Case, seeds: int) -> dict[tuple[str, float], list[Play]]:
    """Let all policies choose between the same attempts."""
    plays: dict[tuple[str, float], list[Play]] = {}
    for share in SHARES:
        for seed in range(seeds):
            agent = _build_agent(case, share, seed)
            for policy in POLICIES:
                plays.setdefault((policy.label, share), []).append(await play(policy, agent, case.verdicts))
    return plays


def _build_agent(case: Case, share: float, seed: int) -> Agent:
    return Agent(case.patches, share, f"{case.bug.name} {share} {seed}")


def check_with_files(cases: Sequence[Case], count: int, directory: str) -> Iterator[tuple[str, bool]]:
    """Play ``count`` forks with files too; yield what each was, and whether the same attempt was chosen."""
    patterns = [policy for policy in POLICIES if policy.build is not None]
    for number in range(count):
        policy: Policy = patterns[number % len(patterns)]
        case, share, seed = cases[number * 7 % len(cases)], SHARES[number % len(SHARES)], number
        replayed = asyncio.run(play(policy, _build_agent(case, share, seed), case.verdicts)).winner
        played = play_with_files(policy, case.bug, _build_agent(case, share, seed), directory)
        yield (
            f"{policy.label} on {case.bug.name}, {share:.0%} cheats: {replayed} replayed, {played} played",
            replayed == played,
        )
