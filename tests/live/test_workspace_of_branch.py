"""A branch is a pydantic-ai workspace: by that project's own test suite, and by ours on isolation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import Workspace as AgentWorkspace
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceOutputLimitError, WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from forkwise import Branch, ForkwiseWarning, Workspace
from forkwise.fork.agent_workspace import AgentFiles, BranchWorkspaceBackend, agent_workspace, open_ref
from forkwise.linux.mountinfo import mounts
from tests.leftovers import processes_about
from tests.need import need

pytestmark = pytest.mark.anyio


@pytest.fixture
def branch(workspace: Workspace) -> Iterator[Branch]:
    made = workspace.branch("try", None, None)
    yield made
    if made.status not in ("committed", "aborted"):
        made.abort()


@pytest.fixture
def inside(branch: Branch) -> AgentWorkspace:
    return agent_workspace(branch)


class TestByPydanticAisRules(WorkspaceBackendSuite):
    # Rules for backends that create or lose machines, which ours do not; a dropped branch is tested below. One rule
    # cannot be tested as root, which may read everything.
    test_concurrent_first_use_shares_one_environment = None  # type: ignore[assignment]
    test_destroying_environment_during_command_raises_unavailable = None  # type: ignore[assignment]
    test_attaching_to_a_destroyed_environment_raises_unavailable = None  # type: ignore[assignment]
    if os.geteuid() == 0:
        test_permission_denied_uses_builtin_error = None  # type: ignore[assignment]
    else:

        async def test_permission_denied_uses_builtin_error(
            self, backend: WorkspaceBackend, has_real_posix_shell: bool, filesystem_honors_shell_permissions: bool
        ) -> None:
            assert isinstance(backend, BranchWorkspaceBackend)
            source = backend.files.source
            can_delete = not (isinstance(source, Workspace) and source.fstype == "fuse")
            need(can_delete, "fuse-overlayfs cannot delete a file of the workspace that its owner cannot read")
            await super().test_permission_denied_uses_builtin_error(
                backend, has_real_posix_shell, filesystem_honors_shell_permissions
            )

    @pytest.fixture(params=["branch", "workspace"])
    def backend(self, request: pytest.FixtureRequest, workspace: Workspace) -> WorkspaceBackend:
        place = workspace if request.param == "workspace" else request.getfixturevalue("branch")
        return BranchWorkspaceBackend(AgentFiles(place))

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: BranchWorkspaceBackend(AgentFiles(open_ref(ref)))

    async def test_background_child_does_not_hold_up_completed_command(self, backend: WorkspaceBackend) -> None:
        """Ours is stricter: all processes that a command started end with it."""
        workspace = AgentWorkspace(backend)
        with anyio.fail_after(20):
            result = await workspace.run("(sleep 3600; echo late > late) & echo done", shell=True)
        assert (result.exit_code, result.stdout) == (0, "done\n")
        assert processes_about("sleep 3600; echo late") == []

    async def test_cancellation_stops_foreground_work(self, backend: WorkspaceBackend) -> None:
        """Tested differently: process ids are the sandbox's own, and output arrives when the command ends."""
        job = asyncio.create_task(AgentWorkspace(backend).run("sleep 3601; echo late > late", shell=True))
        while not processes_about("sleep 3601"):
            await asyncio.sleep(0.01)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert processes_about("sleep 3601") == []
        assert not await AgentWorkspace(backend).exists("late")


class TestABranchThatIsTakenAway:
    @pytest.fixture
    async def destroyed(self, inside: AgentWorkspace, branch: Branch) -> AgentWorkspace:
        await inside.write_text("b.txt", "b")
        branch.abort()
        return inside

    @pytest.mark.parametrize(
        "use",
        [
            lambda w: w.working_dir(),
            lambda w: w.read_bytes("a.txt"),
            lambda w: w.write_bytes("a.txt", b""),
            lambda w: w.run(["true"]),
        ],
    )
    async def test_is_unavailable(
        self, destroyed: AgentWorkspace, use: Callable[[AgentWorkspace], Awaitable[object]]
    ) -> None:
        with pytest.raises(WorkspaceUnavailableError):
            await use(destroyed)

    async def test_cannot_be_attached_to(self, destroyed: AgentWorkspace) -> None:
        assert destroyed.ref is not None
        with pytest.raises(WorkspaceUnavailableError):
            open_ref(destroyed.ref)


class TestAbsolutePathsStayInTheBranch:
    async def test_of_files(self, inside: AgentWorkspace, workspace: Workspace) -> None:
        await inside.write_text(f"{workspace.path}/a.txt", "two\n")
        assert await inside.read_text("a.txt") == "two\n"
        assert (workspace.path / "a.txt").read_text() == "one\n"

    async def test_of_commands(self, inside: AgentWorkspace, workspace: Workspace) -> None:
        done = await inside.run(f"cd / && echo two > {workspace.path}/a.txt", shell=True)
        assert done.exit_code == 0
        assert await inside.read_text("a.txt") == "two\n"
        assert (workspace.path / "a.txt").read_text() == "one\n"

    async def test_of_links(self, inside: AgentWorkspace, workspace: Workspace) -> None:
        await inside.run(["ln", "-s", f"{workspace.path}/a.txt", "link"])
        await inside.write_text("link", "two\n")
        assert await inside.read_text("a.txt") == "two\n"
        assert await inside.realpath("link") == f"{workspace.path}/a.txt"
        assert (workspace.path / "a.txt").read_text() == "one\n"

    async def test_a_command_runs_where_the_workspace_is(self, inside: AgentWorkspace, workspace: Workspace) -> None:
        assert (await inside.run(["pwd"])).stdout == f"{workspace.path}\n"
        assert await inside.working_dir() == str(workspace.path)


class TestWhatLeadsOutIsRefused:
    @pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "sub/../../outside", "/"])
    async def test_by_its_name(self, inside: AgentWorkspace, path: str) -> None:
        for use in (inside.read_bytes, inside.stat, inside.exists, inside.list_dir, inside.make_dir):
            with pytest.raises(PermissionError):
                await use(path)
        with pytest.raises(PermissionError):
            await inside.write_bytes(path, b"x")

    @pytest.mark.parametrize("target", ["..", "/etc", "sub/../.."])
    async def test_through_a_link(self, inside: AgentWorkspace, workspace: Workspace, target: str) -> None:
        await inside.run(f"mkdir sub; ln -s {target} way", shell=True)
        for use in (inside.read_bytes, inside.list_dir):
            with pytest.raises(PermissionError):
                await use("way/passwd")
        with pytest.raises(PermissionError):
            await inside.write_bytes("way/planted", b"x")
        assert not (workspace.path.parent / "planted").exists()
        assert [e.is_dir for e in await inside.list_dir(".") if e.name == "way"] == [False]

    async def test_of_a_command_that_swaps_a_directory_for_a_link(
        self, inside: AgentWorkspace, branch: Branch, workspace: Workspace
    ) -> None:
        victim = workspace.path.parent / "victim"
        victim.mkdir()
        swap = f"while :; do ln -sfn {victim} way; rm way; mkdir way; rmdir way; done"
        swapping = asyncio.create_task(inside.run(swap, shell=True))
        for number in range(200):
            try:
                await inside.write_bytes(f"way/{number}", b"x")
            except OSError:
                continue
        swapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await swapping
        assert list(victim.iterdir()) == []

    async def test_remove_takes_the_link_and_not_what_it_leads_to(
        self, inside: AgentWorkspace, workspace: Workspace
    ) -> None:
        (workspace.path.parent / "precious").write_text("x")
        await inside.run(["ln", "-s", "../precious", "link"])
        await inside.remove("link")
        assert (workspace.path.parent / "precious").exists()
        assert [e.name for e in await inside.list_dir(".")] == ["a.txt"]


class TestCommands:
    async def test_what_a_command_did_is_the_branchs_delta(self, inside: AgentWorkspace, branch: Branch) -> None:
        await inside.run("mv a.txt b.txt; mkdir d; echo c > d/c; chmod 755 d/c", shell=True)
        assert {c.path: (c.kind, c.type) for c in branch.delta()} == {
            "a.txt": ("deleted", "file"),
            "b.txt": ("added", "file"),
            "d": ("added", "directory"),
            "d/c": ("added", "file"),
        }

    async def test_too_much_output_is_an_error_with_its_beginning(self, inside: AgentWorkspace) -> None:
        with pytest.raises(WorkspaceOutputLimitError) as caught:
            await inside.run("yes forkwise; true", shell=True)
        assert caught.value.stdout.startswith("forkwise\n")

    async def test_secrets_are_not_handed_on(self, inside: AgentWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_API_KEY", "secret")
        monkeypatch.setenv("SOMETHING", "else")
        done = await inside.run('echo "$SOME_API_KEY$SOMETHING$GIVEN_TOKEN"', shell=True, env={"GIVEN": "x"})
        assert done.stdout == "else\n"

    async def test_a_signal_is_reported_as_by_a_shell(self, inside: AgentWorkspace) -> None:
        assert (await inside.run(["sh", "-c", "kill -TERM $$"])).exit_code == 128 + 15

    async def test_a_program_that_cannot_be_started(self, inside: AgentWorkspace) -> None:
        await inside.write_text("tool", "#!/bin/sh\n")
        assert (await inside.run(["./tool"])).exit_code == 126


async def test_cancelling_ten_commands_leaves_no_process_mount_or_task(workspace: Workspace) -> None:
    branches = [workspace.branch(f"b{n}", None, None) for n in range(10)]
    before = asyncio.all_tasks()
    jobs = [asyncio.create_task(agent_workspace(b).run("sleep 3602 & sleep 3602", shell=True)) for b in branches]
    while len(processes_about("sleep 3602")) < 20:
        await asyncio.sleep(0.01)
    for job in jobs:
        job.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*jobs, return_exceptions=True))
    assert processes_about("sleep 3602") == []
    for branch in branches:
        branch.abort()
    assert asyncio.all_tasks() == before
    assert [m.point for m in mounts() if m.point.startswith(f"{workspace.path.parent}/")] == []


async def test_the_event_loop_is_not_blocked_while_ten_branches_run_commands(workspace: Workspace) -> None:
    """Every command waits for a file that this event loop creates when all ten run: a blocked one never would."""
    branches = [workspace.branch(f"b{n}", None, None) for n in range(10)]
    command = "touch started; until [ -e go ]; do sleep 0.02; done; echo done > out"

    async def work(branch: Branch) -> None:
        files = agent_workspace(branch)
        await files.run(command, shell=True)
        await files.write_text("notes", await files.read_text("out"))

    async def release() -> None:
        while not all((branch.path / "started").exists() for branch in branches):
            await asyncio.sleep(0.01)
        for branch in branches:
            (branch.path / "go").touch()

    await asyncio.gather(release(), *map(work, branches))
    for branch in branches:
        assert (branch.path / "notes").read_text() == "done\n"
        branch.abort()


class TestAWorkspaceItself:
    @pytest.mark.usefixtures("recorded_changes")
    async def test_each_change_can_be_undone(self, workspace: Workspace) -> None:
        files = agent_workspace(workspace)
        await files.write_text("a.txt", "two\n")
        await files.run("echo three > a.txt; rm -f none; mkdir d", shell=True)
        await files.remove("d")
        assert [c.paths for c in workspace.history()] == [("d",), ("d", "a.txt"), ("a.txt",)]
        for expected in ("three\n", "two\n", "one\n"):
            workspace.undo()
            assert (workspace.path / "a.txt").read_text() == expected

    async def test_what_only_looks_records_nothing(self, workspace: Workspace) -> None:
        files = agent_workspace(workspace)
        await files.run(["cat", "a.txt"])
        await files.make_dir(".")
        assert workspace.history() == []

    @pytest.mark.usefixtures("recorded_changes")
    async def test_a_cancelled_command_did_nothing(self, workspace: Workspace) -> None:
        job = asyncio.create_task(agent_workspace(workspace).run("echo two > a.txt; sleep 3603", shell=True))
        while not processes_about("sleep 3603"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert (workspace.path / "a.txt").read_text() == "one\n"

    async def test_many_at_once_all_land(self, workspace: Workspace) -> None:
        files = agent_workspace(workspace)
        await asyncio.gather(*(files.write_text(f"f{n}", str(n)) for n in range(20)))
        assert {p.name: p.read_text() for p in workspace.path.glob("f*")} == {f"f{n}": str(n) for n in range(20)}


@pytest.mark.filterwarnings("ignore::forkwise.ForkwiseWarning")
class TestAWorkspaceWhoseBranchesAreWholeCopies:
    """A copy of all files for each change would be too slow."""

    @pytest.fixture
    def whole(self, workspace: Workspace) -> Workspace:
        return Workspace(workspace.path, view="copy", durable=False)

    async def test_is_changed_as_it_is_and_says_so(self, whole: Workspace) -> None:
        files = agent_workspace(whole)
        with pytest.warns(ForkwiseWarning, match="cannot be undone"):
            await files.write_text("a.txt", "two\n")
        await files.run("echo three > b.txt", shell=True)
        assert (whole.path / "a.txt").read_text() == "two\n"
        assert (whole.path / "b.txt").read_text() == "three\n"
        assert whole.history() == []

    async def test_confines_commands_all_the_same(self, whole: Workspace) -> None:
        outside = whole.path.parent / "outside"
        files = agent_workspace(whole)
        done = await files.run(f"pwd; echo x > {outside}; (sleep 3607 &)", shell=True)
        assert done.stdout == f"{whole.path}\n"
        assert done.exit_code == 0
        assert not outside.exists()
        assert processes_about("sleep 3607") == []


async def test_a_name_that_is_not_utf_8(inside: AgentWorkspace, branch: Branch) -> None:
    name = os.fsdecode(b"caf\xe9")
    await inside.write_bytes(name, b"\xff\x00")
    assert name in [e.name for e in await inside.list_dir(".")]
    assert await inside.read_bytes(name) == b"\xff\x00"
    assert branch.delta().added == (name,)


async def test_tools_find_it_as_the_workspace_of_their_run(workspace: Workspace, branch: Branch) -> None:
    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        answers = [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(str(answers[0]))] if answers else [ToolCallPart("build", {})])

    agent = Agent(FunctionModel(model))

    @agent.tool
    async def build(ctx: RunContext[None]) -> str:
        await ctx.workspace.write_text("b.txt", "built")
        return (await ctx.workspace.run(f"cat {workspace.path}/b.txt", shell=True)).stdout

    result = await agent.run("build", workspace=agent_workspace(branch))
    assert result.output == "built"
    assert not Path(workspace.path, "b.txt").exists()
    assert result.workspace.ref is not None
    assert open_ref(result.workspace.ref).branch_path == branch.branch_path
