"""Processes whose agent forks inside a branch, killed at random moments, and how the next process recovers.

Run as a program of its own, with one thread, so that it can fork a driver that has everything loaded already. Prints
one JSON object for each round.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import UserPromptPart

from forkwise import BranchSpec, ForkCoordinator, ForkNotFoundError, LiveForkCapability, Workspace, open_ledger
from forkwise.conversation.store import StoredConversation
from forkwise.files.store import trash
from forkwise.fork.control import clean_up
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import ForkRecord
from tests.explore.kill_at_random import find_mounts, kill_at_random_moments, read_files, run_in_process, wait_for_exit
from tests.live.kill_at_random import rehearse
from tests.live.worker import BEFORE, last_prompts, last_results, work, worker
from tests.modules.brain import Asked, Brain, call

INSIDE = [
    {"label": "i", "steer": "write i.txt one; run echo two > i.2; say i is done"},
    {"label": "j", "steer": "write j.txt one; run rm gone; say j is done"},
]
WRITE = call("write_file", path="after.txt", text="after")
SPECS = [BranchSpec("a", "task"), BranchSpec("b", "write b.txt one; run echo two > b.2")]


def think(asked: Asked) -> Any:
    """Fork on the prompt ``task``, pick the second branch once both are done, then write one more file.

    A call whose result says that it was never executed is repeated.
    """
    is_merged = any(prompt.startswith("[Merged") for prompt in asked.prompts)
    is_inside = any(spec["steer"] in asked.prompts for spec in INSIDE)
    if "task" not in asked.prompts or (is_inside and not is_merged):
        return work(asked)
    if last_prompts(asked) == ["task"]:
        return call("fork_run", specs=INSIDE)
    return WRITE if last_prompts(asked) else _next(last_results(asked))


def _next(results: dict[str, str]) -> Any:
    [(tool, report)] = results.items()
    if tool == "write_file":
        return "all is done" if "wrote" in report else WRITE
    if tool == "fork_run":
        return call("inspect_branches") if "Forked" in report else call("fork_run", specs=INSIDE)
    if tool == "merge_or_select":
        return WRITE if "Merged" in report else call("inspect_branches")
    if report == "No active branches.":
        return WRITE
    ids = {label: name for name, label in re.findall(r"- (\S+) \(([^)]+)\): done", report)}
    if len(ids) == len(INSIDE):
        return call("merge_or_select", action=f"pick:{ids['j']}")
    return call("inspect_branches")


def coordinator_of(project: Path, brain: Brain) -> ForkCoordinator:
    workspace = Workspace(project, durable=False)
    agent: Agent[Any, Any] = worker(brain, capabilities=[LiveForkCapability(workspace=workspace)])
    return ForkCoordinator(agent, workspace=workspace)


async def drive(project: Path) -> None:
    """Fork, wait for all branches, and merge the one that forked."""
    coordinator = coordinator_of(project, Brain(decide=think, seconds=0.01))
    await coordinator.fork(SPECS, parent_history=BEFORE)
    await finish(coordinator)


async def finish(coordinator: ForkCoordinator) -> dict[str, Any]:
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
    report = {s.label: [s.state, s.error] for s in coordinator.inspect_branches()}
    assert {state for state, _ in report.values()} == {"done"}, report
    cost = {c.branch_label: c.requests for c in coordinator.fork_cost().per_branch.values()}
    result = await coordinator.merge_or_select("pick:a")
    assert not result.errors
    return {"cost": cost}


def talk_of(ledger: Ledger, fork: ForkRecord) -> dict[str, list[str]]:
    """Return the texts of each branch of a fork, by label."""
    if fork.spec["conversation"] not in {record.id for record in ledger.conversations.all()}:
        return {}
    talk = StoredConversation.load(ledger.conversations, fork.spec["conversation"]).conversation
    labels = [spec["label"] for spec in fork.spec["specs"]]
    paths = {label: talk.labels.get(f"branch-{number}") for number, label in enumerate(labels)}
    return {label: [str(m.parts) for m in talk.path(node)] for label, node in paths.items() if node is not None}


Known = dict[str, dict[str, list[str]]]  # texts by fork and label


def known_of(project: Path) -> tuple[str, Known, dict[str, str]]:
    """Read the last outermost fork: its texts, those of the forks inside it, and their states."""
    with open_ledger(Workspace(project, durable=False)) as ledger:
        outer = next(fork for fork in ledger.forks() if fork.parent is None)
        several = [outer, *(f for f in ledger.forks() if (f.parent or "").startswith(f"{outer.id}."))]
        return outer.id, {f.id: talk_of(ledger, f) for f in several}, {f.id: f.state for f in several}


def lost(before: Known, after: Known) -> list[str]:
    """Return the branches that lost a message."""
    return [
        f"{fork} {label}"
        for fork, labels in before.items()
        for label, said in labels.items()
        if after[fork].get(label, [])[: len(said)] != said
    ]


def recover(project: Path, state: Path) -> None:
    last = state / "last"
    outer, before, stood = known_of(project)
    report: dict[str, Any] = {"outcome": "not started"}
    if last.read_text() != outer:
        last.write_text(outer)
        report["inside"] = [stood[name] for name in before if name != outer]
        try:
            asyncio.run(resume_fork(coordinator_of(project, Brain(decide=think)), report))
        except ForkNotFoundError:
            report["outcome"] = "nothing to resume"
        _, after, stands = known_of(project)
        report["lost"] = lost(before, after)
        # the number of texts in every nested branch that was resumed or started again
        ended = [after[name] for name in after if name != outer and stands[name] == "resolved"]
        report["spoken"] = [
            sum("TextPart" in said or "ToolCallPart" in said for said in path[len(BEFORE) + 2 :])
            for labels in ended
            for path in labels.values()
        ]
        report["dropped"] = [name for name in after if stands[name] == "aborted" and before.get(name)]
    workspace = Workspace(project, durable=False)
    clean_up(workspace)
    trash.wait_until_empty()
    report["branches"] = [branch.branch_path for branch in workspace.branches()]
    report["mounts"] = find_mounts(state)
    report["content"] = read_files(project)
    with open_ledger(workspace) as ledger:
        report["open"] = [fork.id for fork in ledger.forks() if not fork.is_over]
        report["going"] = [a.id for f in ledger.forks() for a in ledger.attempts(f.id) if not a.is_over]
    if (project / "after.txt").exists():
        workspace.undo()
    print(json.dumps(report), flush=True)


async def resume_fork(coordinator: ForkCoordinator, report: dict[str, Any]) -> None:
    await coordinator.resume()
    if coordinator.merge_result is not None:
        report["outcome"] = "completed"
    else:
        report["outcome"] = "resumed"
        report |= await finish(coordinator)


# A tool that forks, killed at exact moments


def splitter(workspace: Workspace, brain: Brain, is_killed: bool) -> Agent[Any, Any]:
    """Create an agent without the forking tools, with a tool of its own that forks the current branch."""
    agent = worker(brain)

    @agent.tool_plain
    async def split() -> str:
        """Fork inside."""
        inner = ForkCoordinator(agent, workspace=workspace)
        specs = [BranchSpec("quick", "write quick.txt one"), BranchSpec("slow", "write slow.txt one; SLOW; say bye")]
        await inner.fork(specs, parent_history=BEFORE)
        quick, slow = inner.branches.values()
        await asyncio.wait([quick.task])
        while is_killed and len(slow.partial_history) < len(BEFORE) + 3:
            await asyncio.sleep(0.01)
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        await inner.merge_or_select("combine:quick,slow")
        return "split, and combined"

    return agent


def split_first(is_killed: bool, again: bool) -> Any:
    def decide(asked: Asked) -> Any:
        if asked.prompts[-1] != "split":
            slow = "run sleep 100" if is_killed else "run true"
            return work(Asked([_steered(m, slow) for m in asked.messages], asked.info))
        results = last_results(asked)
        if not results and not again:
            return WRITE
        if not results or (again and "split," not in results.get("split", "split,")):
            return call("split")
        return "done" if "write_file" in results else WRITE

    return decide


def _steered(message: Any, slow: str) -> Any:
    parts = [
        replace(p, content=p.content.replace("SLOW", slow)) if isinstance(p, UserPromptPart) else p
        for p in message.parts
    ]
    return replace(message, parts=parts)


def of_a_tool(project: Path, is_killed: bool, again: bool = True) -> ForkCoordinator:
    workspace = Workspace(project, durable=False)
    brain = Brain(decide=split_first(is_killed, again))
    return ForkCoordinator(splitter(workspace, brain, is_killed), workspace=workspace)


async def forks_in_a_tool(project: Path) -> None:
    coordinator = of_a_tool(project, is_killed=True)
    await coordinator.fork([BranchSpec("a", "split"), BranchSpec("b", "say hi")], parent_history=BEFORE)
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])


async def resume_in_tool(project: Path, how: str) -> None:
    coordinator = of_a_tool(project, is_killed=how == "merged", again=how == "again")
    await coordinator.resume()
    a, b = coordinator.branches.values()
    await asyncio.wait([b.task if how == "merged" else a.task])
    assert how == "merged" or a.status.state == "done", a.status
    await coordinator.merge_or_select("pick:b" if how == "merged" else "pick:a")
    workspace = Workspace(project, durable=False)
    report: dict[str, Any] = {"content": read_files(project), "branches": [b.branch_path for b in workspace.branches()]}
    with open_ledger(workspace) as ledger:
        report["forks"] = [[fork.parent is None, fork.state] for fork in reversed(ledger.forks())]
        report["going"] = [a.id for f in ledger.forks() for a in ledger.attempts(f.id) if not a.is_over]
    print(json.dumps(report), flush=True)


HOWS = ("again", "otherwise", "merged")


def main() -> None:
    for how in HOWS:
        project = Path(sys.argv[1]) / how
        project.mkdir()
        assert wait_for_exit(run_in_process(lambda: asyncio.run(forks_in_a_tool(project)))) == -signal.SIGKILL  # noqa: B023 - at once
        assert wait_for_exit(run_in_process(lambda: asyncio.run(resume_in_tool(project, how)))) == 0, how  # noqa: B023
    kill_at_random()


def kill_at_random() -> None:
    home, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    project = home / "project"
    _, taken = rehearse(project, drive)
    (home / "state" / "last").write_text(known_of(project)[0])
    kill_at_random_moments(
        project,
        Random(seed),
        rounds,
        longest=taken,
        run=lambda: asyncio.run(drive(project)),
        recover=lambda: recover(project, home / "state"),
    )


if __name__ == "__main__":
    main()
