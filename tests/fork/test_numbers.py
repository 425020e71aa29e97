"""Numbers of attempts: ids, branches and the environment agree, also in forks that are resumed."""

from __future__ import annotations

import asyncio

from forkwise import BestOfN, Workspace, open_ledger
from forkwise.explore.resume import resume
from tests.fork.kill_at_point import Scene

SHOW = 'echo "$FORKWISE_ATTEMPT $FORKWISE_BRANCH"; echo x > made'


def test_ids_branches_and_the_environment_agree(workspace: Workspace) -> None:
    outcome = BestOfN(["sh", "-c", SHOW], n=3, commit=False)(workspace)
    with open_ledger(workspace) as ledger:
        attempts = ledger.attempts(outcome.fork or "")
    assert [a.id for a in attempts] == [f"{outcome.fork}.{n}" for n in (1, 2, 3)]
    assert [a.branch for a in attempts] == [f"{outcome.fork}-{n}" for n in (1, 2, 3)]
    assert [a.tail for a in attempts] == [f"{n} /main/{outcome.fork}-{n}\n" for n in (1, 2, 3)]
    assert [result.branch_index for result in outcome.all_results] == [0, 1, 2]


def test_a_function_counts_from_0(workspace: Workspace) -> None:
    seen: list[int] = []
    BestOfN(lambda _path, attempt: not seen.append(attempt), n=2)(workspace)
    assert sorted(seen) == [0, 1]


def test_an_attempt_that_is_run_again_keeps_its_number(scene: Scene) -> None:
    body = 'echo "$FORKWISE_ATTEMPT $FORKWISE_BRANCH" > n; echo $FORKWISE_ATTEMPT > "$FORKWISE_SCORE"'
    scene.drive(scene.recipe(body, kind="best-of", n=2), "running")
    fork = scene.fork.id
    assert scene.fork.state == "interrupted"
    asyncio.run(resume(scene.workspace, fork))
    assert scene.text("n") == f"2 /main/{fork}-2\n"
