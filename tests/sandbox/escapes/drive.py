"""Run attempts and print the results as JSON: a process of its own, so that it can run as another user."""

from __future__ import annotations

import json
import os
import pty
import select
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from forkwise import BranchContext, Confinement, Limits, Workspace
from forkwise.files.branch import Branch
from forkwise.sandbox.run import run_in_branch, spawn
from tests.sandbox.escapes import appetite, files, kernel, outside, processes, rights
from tests.sandbox.escapes.attempt import ATTEMPTS, BOTH, PRELUDE, Attempt
from tests.sandbox.escapes.world import TOKEN, World

__all__ = ["TABLE", "main"]

TABLE = (files, rights, processes, outside, kernel, appetite)  # in the order in which they are documented


def main(base: str, pattern: str = "") -> None:
    """Run the attempts whose name contains the pattern, each in every confinement that must stop it."""
    os.environ["MY_API_TOKEN"] = TOKEN
    os.environ["SSH_AUTH_SOCK"] = "/tmp/agent.sock"
    os.environ["XDG_STATE_HOME"] = f"{base}/state"
    os.environ["HOME"] = f"{base}/world/home"
    world = World(Path(base, "world"))
    try:
        outcomes = {}
        for attempt in ATTEMPTS.values():
            if pattern in attempt.name and (not attempt.by or (attempt.by == "root") == (os.geteuid() == 0)):
                for under in attempt.under:
                    outcomes[f"{attempt.name}|{under}"] = _tried(world, attempt, under)
        for under in BOTH:
            outcomes |= _as_functions(world, under, pattern)
    finally:
        world.close()
    for attempt in ATTEMPTS.values():
        if attempt.control and pattern in attempt.name and (not attempt.by or os.geteuid() == 0):
            outcomes[f"{attempt.name}|control"] = _control(Path(base, "control"), attempt)
    print(json.dumps(outcomes))


def _as_functions(world: World, under: str, pattern: str) -> dict[str, dict[str, Any]]:
    """Run the same programs as functions of this process. The world is compared once, before and after all of them."""
    before = world.snapshot()
    outcomes = {}
    for attempt in ATTEMPTS.values():
        is_wanted = pattern in attempt.name and (not attempt.by or os.geteuid() == 0)
        if is_wanted and under in attempt.under and attempt.is_function():
            outcomes[f"{attempt.name}|{under}|function"] = _called(world, attempt, under)
    after = world.snapshot()
    world.mend(before)
    differing = [name for name in before | after if before.get(name) != after.get(name)]
    problems = [f"{name}: {before.get(name)} became {after.get(name)}" for name in differing]
    if left := world.survivors():
        problems.append(f"processes are left: {left}")
    outcomes[f"the world|{under}|function"] = {"problems": problems, "said": ""}
    return outcomes


def _called(world: World, attempt: Attempt, under: str) -> dict[str, Any]:
    workspace = Workspace(world.workspace, durable=False)
    with (
        workspace.branch("sibling", on_success=None, on_error=None) as sibling,
        workspace.branch("attempt", on_success=None, on_error=None) as branch,
    ):
        (Path(sibling.home) / "layer/key").write_text("the-secret-key")
        knowledge = world.knowledge(world.workspace, str(workspace.state), str(sibling.home))
        confinement = _confinement(world, attempt, under, world.workspace)
        program = f"{PRELUDE}\n{attempt.program}\nprint('TRIED', flush=True)"
        try:
            with BranchContext(lambda _: _execute(program, knowledge), branch, confinement=confinement) as context:
                context.wait(60)
                said = str(context.result.value)
        except Exception:  # noqa: BLE001 - reported to the test, which fails
            said = traceback.format_exc()
        sibling.abort()
        branch.abort()
    problems = ["it got what it wanted"] if "GOT" in said else []
    return {"problems": problems + ([] if "TRIED" in said else ["it did not come to its end"]), "said": said[-3000:]}


def _execute(program: str, knowledge: str) -> str:
    """Run a program in a function's process and return what it printed."""
    printed = os.memfd_create("printed")
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as this process lives
    sys.argv = ["-c", knowledge]
    exec(compile(program, "attempt", "exec"), {"__name__": "__main__"})
    return os.pread(printed, 1 << 20, 0).decode(errors="replace")


def _tried(world: World, attempt: Attempt, under: str) -> dict[str, Any]:
    try:
        return _try(world, attempt, under)
    except Exception:  # noqa: BLE001 - reported to the test, which fails
        return {"problems": [traceback.format_exc()], "said": ""}


def _try(world: World, attempt: Attempt, under: str) -> dict[str, Any]:
    """Return the problems found from outside, and what the program printed."""
    project = "project" if attempt.then != "commit" else f"project-{len(os.listdir(world.base))}"
    path = world.workspace if project == "project" else world.make_workspace(project)
    if attempt.by == "root" and attempt.name == "device node elsewhere":
        os.mknod(path / "node", 0o666 | stat.S_IFCHR, os.makedev(1, 11))
    before = world.snapshot()
    workspace = Workspace(path, durable=False)
    sibling = workspace.branch("sibling", on_success=None, on_error=None)
    branch = workspace.branch("attempt", on_success=None, on_error=None)
    (Path(sibling.home) / "layer/key").write_text("the-secret-key")
    problems = []
    try:
        knowledge = world.knowledge(path, str(workspace.state), str(sibling.home))
        command = [sys.executable, "-I", "-S", "-c", f"{PRELUDE}\n{attempt.program}\nprint('TRIED')", knowledge]
        done = _run(world, branch, attempt, command, _confinement(world, attempt, under, path))
        said = done["stdout"] + done["stderr"]
        if "GOT" in said:
            problems.append("it got what it wanted")
        if "TRIED" not in said and "signal" not in attempt.endings:
            problems.append("it did not come to its end")
        if done["ending"] not in attempt.endings or (done["ending"] == "exit" and done["code"] != 0):
            problems.append(f"it ended by {done['ending']} with {done['code']}")
        problems += done["problems"]
        if attempt.then == "commit":
            os.chdir(path)
            branch.commit(allow_executable_config=True)
            os.chdir("/")
        if left := world.survivors():
            problems.append(f"processes are left: {left}")
    finally:
        for one in (sibling, branch):
            if one.name in [b.name for b in workspace.branches()]:
                one.abort()
    after = world.snapshot()
    world.mend(before)
    if attempt.name == "device node elsewhere":
        os.unlink(path / "node")
    problems += [
        f"{name}: {before.get(name)} became {after.get(name)}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
    return {"problems": problems, "said": said[-3000:]}


def _confinement(world: World, attempt: Attempt, under: str, workspace: Path) -> Confinement:
    changes: dict[str, Any] = {"hidden": world.hidden(workspace), "writable": (str(world.base / "cache"),)}
    if attempt.limits:
        changes["limits"] = Limits(**attempt.limits)
    if under == "strict":
        return Confinement.strict(**changes)
    return Confinement.standard(network="host" if under == "standard" else under, **changes)


def _run(
    world: World, branch: Branch, attempt: Attempt, command: list[str], confinement: Confinement
) -> dict[str, Any]:
    if attempt.then == "terminal":
        return _run_on_terminal(branch, command, confinement)
    done = run_in_branch(branch, command, confinement=confinement, text=True, **attempt.options)
    problems = []
    return {
        "stdout": done.stdout,
        "stderr": done.stderr,
        "ending": done.ending,
        "code": done.returncode,
        "problems": problems,
    }


def _run_on_terminal(branch: Branch, command: list[str], confinement: Confinement) -> dict[str, Any]:
    """Run an attempt with a terminal as its three descriptors. Nothing may have been typed on it in the end."""
    near, far = pty.openpty()
    process = spawn(branch, command, (far, far, far), confinement=confinement)
    said = b""
    try:
        while not process.wait(0):
            if select.select([near, process], [], [], 10)[0] == [near]:
                said += os.read(near, 4096)
        done = process.collect(command, None, None)
        os.set_blocking(far, False)
        os.write(near, b"\n")  # anything typed before would be the beginning of this line
        typed = os.read(far, 4096)
        problems = [] if typed == b"\n" else [f"typed on the terminal: {typed!r}"]
        while select.select([near], [], [], 0)[0]:
            said += os.read(near, 4096)
    finally:
        process.close()
        os.close(near)
        os.close(far)
    return {"stdout": said.decode(), "stderr": "", "ending": done.ending, "code": done.returncode, "problems": problems}


def _control(base: Path, attempt: Attempt) -> dict[str, Any]:
    """Run an attempt without a sandbox: it must succeed, or the world must notice it."""
    world = World(base)
    try:
        knowledge = world.knowledge(world.workspace, str(base / "no-state"), str(base / "no-sibling"))
        before = world.snapshot()
        command = [sys.executable, "-I", "-S", "-c", f"{PRELUDE}\n{attempt.program}\nprint('TRIED')", knowledge]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        noticed = world.snapshot() != before
    finally:
        world.close()
    return {
        "said": done.stdout + done.stderr,
        "noticed": noticed,
        "problems": [] if "GOT" in done.stdout else ["nothing got"],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
