"""The model of a cluster, where the result is known without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.simulation import Parameters, simulate

FREE = Parameters(
    driver_s=0,
    events=0,
    supervisor_s=0,
    node_s=0,
    snapshot_mb=0,
    unpacked_mb=0,
    delta_mb=0,
    requests=0,
    workers_per_node=1,
)


def cost(**values: float) -> Parameters:
    return Parameters(**{**{name: getattr(FREE, name) for name in FREE.__slots__}, **values})


@pytest.mark.parametrize("workers", [1, 3, 7])
def test_attempts_without_cost_keep_all_workers_busy(workers: int) -> None:
    found = simulate(workers, 200 * workers, 10.0, FREE)
    assert found.limit == "workers"
    assert found.busy["workers"] > 0.97
    assert found.throughput == pytest.approx(workers / 10.0, rel=0.1)


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({"driver_s": 0.1}, "driver"),
        ({"supervisor_s": 0.1}, "supervisor"),
        ({"delta_mb": 0.1, "stream_mb_per_s": 1, "store_mb_per_s": 1}, "store"),
    ],
)
def test_a_part_that_needs_a_tenth_of_a_second_allows_ten_attempts_a_second(
    values: dict[str, float], limit: str
) -> None:
    found = simulate(1000, 500, 1.0, cost(**values))
    assert found.limit in (limit, "workers")
    assert found.seconds == pytest.approx(50.0, rel=0.1)
    assert found.busy[limit] > 0.9


def test_the_driver_waits_for_its_ledger() -> None:
    found = simulate(1000, 500, 1.0, cost(events=4, event_s=0.025))
    assert found.seconds == pytest.approx(50.0, rel=0.1)
    assert found.busy["driver"] == pytest.approx(found.busy["ledger"])


def test_a_snapshot_is_unpacked_once_on_each_node() -> None:
    given = cost(workers_per_node=4, snapshot_mb=100, stream_mb_per_s=10, store_mb_per_s=1000, unpacked_mb=0)
    assert simulate(8, 8, 1.0, given).seconds == pytest.approx(11.0, rel=0.1)


def test_shared_processors_are_a_limit_too() -> None:
    assert simulate(8, 40, 0.0, cost(node_s=1.0, processors=2)).seconds == pytest.approx(20.0)


def test_a_seed_gives_the_same_result() -> None:
    first, again, other = (simulate(50, 200, 5.0, Parameters(), seed) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("attempt_s", [60, 600])
def test_the_page_quotes_what_it_prints(attempt_s: int) -> None:
    """The first rows of each kind; ``python -m bench.simulation --page docs/scaling.md`` writes all of them."""
    page = Path(__file__).parents[2].joinpath("docs/scaling.md").read_text()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in page.splitlines() if line.startswith("│")]
    for workers in (100, 300):
        found = simulate(workers, 5 * workers, float(attempt_s), Parameters())
        shares = [f"{found.busy[name]:.0%}" for name in ("workers", "driver", "ledger", "supervisor", "store")]
        row = [str(workers), f"{attempt_s} s", "one driver", f"{found.seconds:.0f} s", f"{found.throughput:.1f}"]
        assert [*row, *shares, found.limit] in rows


def test_the_page_quotes_what_an_attempt_costs() -> None:
    page = Path(__file__).parents[2].joinpath("docs/scaling.md").read_text()
    given = Parameters()
    assert (
        f"| driver, for each attempt | {1e3 * given.driver_s:g} ms, and {given.events} events in the ledger |" in page
    )
    assert f"| supervisor, for each attempt | {1e3 * given.supervisor_s:g} ms |" in page
    assert f"| node, around each attempt | {1e3 * given.node_s:g} ms |" in page
    assert f"| an event in PostgreSQL | {1e3 * given.event_s:g} ms |" in page
