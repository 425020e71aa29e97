"""Backends of other libraries and users' own: read through, flushed into, or refused when the fork is made."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic_ai_backends as peer
import pytest
from pydantic_ai.workspaces import LocalWorkspaceBackend
from pydantic_ai_backends.permissions import OperationPermissions, PermissionRule, PermissionRuleset

from forkwise import (
    BranchError,
    BranchOverlay,
    BranchSpec,
    DeepAgentDeps,
    ForkCoordinator,
    LocalBackend,
    StateBackend,
    Workspace,
    clone_for_branch,
    create_deep_agent,
)
from forkwise.live.backends.branch_overlay import FilesOverlay, MemoryOverlay
from forkwise.live.backends.foreign import ForeignBackend, adapt_backend
from forkwise.live.values import BranchIsolation
from tests.live.worker import all_over, last_results
from tests.modules.brain import Asked, Brain, call

pytestmark = pytest.mark.anyio

FILES = {"cat.md": b"# Cat\n", "src/app.py": b"import os\n", "old/gone.txt": b"x"}


class Bucket:
    """A user's backend with the methods that a branch needs, and a deletion. It knows one spelling of each path."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.content = {f"/{path}": content for path, content in files.items()}
        self.calls: list[str] = []

    def exists(self, path: str) -> bool:
        return path in self.content

    def read_bytes(self, path: str) -> bytes:
        return self.content.get(path, b"")

    def write(self, path: str, content: str | bytes) -> peer.WriteResult:
        self.calls.append(f"write {path}")
        if "refused" in path:
            return peer.WriteResult(error="quota exceeded")
        self.content[path] = content.encode() if isinstance(content, str) else content
        return peer.WriteResult(path)

    def ls_info(self, path: str) -> list[dict[str, Any]]:
        prefix = path.rstrip("/") + "/"
        found: dict[str, dict[str, Any]] = {}
        for name in self.content:
            if name.startswith(prefix):
                first, slash, _ = name[len(prefix) :].partition("/")
                found[first] = {"name": first, "path": prefix + first, "is_dir": bool(slash), "size": None}
        return list(found.values())

    def delete(self, path: str) -> None:
        self.calls.append(f"delete {path}")
        self.content.pop(path, None)


class AsyncBucket:
    """The same methods as coroutines, which belong to the event loop of the first call."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.bucket = Bucket(files)
        self.loops: set[asyncio.AbstractEventLoop] = set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.bucket, name)
        if not inspect.ismethod(method):
            return method

        async def call_later(*args: Any) -> Any:
            self.loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return method(*args)

        return call_later


def _state(files: dict[str, bytes], _: Path) -> Any:
    backend = peer.StateBackend()
    for path, content in files.items():
        backend.write(path, content.decode())
    return backend


def _local(files: dict[str, bytes], directory: Path) -> Any:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return peer.LocalBackend(root_dir=directory)


def _workspace(files: dict[str, bytes], directory: Path) -> Any:
    _local(files, directory)
    return LocalWorkspaceBackend(directory)


KINDS: dict[str, Callable[[dict[str, bytes], Path], Any]] = {
    "StateBackend": _state,
    "LocalBackend": _local,
    "async adapter": lambda files, directory: peer.AsyncBackendAdapter(_state(files, directory)),
    "workspace of pydantic-ai": _workspace,
    "users' own": lambda files, _: Bucket(files),
    "users' own, async": lambda files, _: AsyncBucket(files),
}


@pytest.fixture(params=KINDS)
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A backend of another library with files in it."""
    (tmp_path / "files").mkdir()
    return KINDS[request.param](FILES, tmp_path / "files")


def _steps(asked: Asked) -> Any:
    """Do what a steer says: read the parent's file, edit, write and delete."""
    done = len([result for result in asked.results if result])
    steps = [
        call("read", path="cat.md"),
        call("edit", path="src/app.py", old_string="os", new_string="sys"),
        call("write", path="new/dog.md", content="# Dog\n"),
        call("delete", path="old/gone.txt"),
        call("ls", path="/"),
    ]
    return steps[done] if done < len(steps) and asked.prompts[-1] == "work" else "done"


def _contents(backend: Any) -> dict[str, bytes]:
    adapter = adapt_backend(backend)
    return {info["path"]: adapter.get(info["path"]) for info in adapter.walk()}


async def test_a_branch_reads_through_and_its_merge_reaches_the_backend(foreign: Any) -> None:
    """The API page: "Reads consult the overlay first; if a path has not been written in this branch, the read falls
    through to the parent backend." And the guide: "the winner's overlay writes are flushed onto the parent backend".
    """
    can_delete = not isinstance(foreign, peer.AsyncBackendAdapter)
    agent = create_deep_agent(Brain(decide=_steps), forking=True)
    deps = DeepAgentDeps(backend=foreign)
    await agent.run("warm up", deps=deps)
    coordinator = deps.fork_coordinator
    specs = [BranchSpec("a", "work"), BranchSpec("b", "rest")]
    handle = await coordinator.fork(specs, parent_history=[])
    await all_over(coordinator)
    runtime = coordinator.branches[handle.branches[0]]
    said = [part.content for m in runtime.thread.history() for part in m.parts if part.part_kind == "tool-return"]
    assert said[0] == "     1\t# Cat"
    assert "new/" in said[-1]
    assert ("old/" in said[-1]) == isinstance(foreign, peer.LocalBackend), "only a directory on disk can be empty"
    assert deps.backend is foreign
    assert await asyncio.to_thread(_contents, foreign) == FILES, "nothing reaches the parent before the merge"
    result = await coordinator.merge_or_select("pick:a")
    merged = {"cat.md": b"# Cat\n", "src/app.py": b"import sys\n", "new/dog.md": b"# Dog\n"}
    assert (result.applied_paths, result.conflicts) == (["new/dog.md", "src/app.py"], [])
    if can_delete:
        assert (result.deleted_paths, result.errors) == (["old/gone.txt"], [])
    else:
        assert [(error.path, error.op) for error in result.errors] == [("old/gone.txt", "delete")]
        merged["old/gone.txt"] = b"x"
    assert await asyncio.to_thread(_contents, foreign) == merged


async def test_a_loser_leaves_no_trace(foreign: Any) -> None:
    """The guide: "the rest of the branches are cancelled with their writes discarded"."""
    agent = create_deep_agent(Brain(decide=_steps))
    coordinator = ForkCoordinator(agent, DeepAgentDeps(backend=foreign))
    await coordinator.fork([BranchSpec("a", "work"), BranchSpec("b", "rest")], parent_history=[])
    await all_over(coordinator)
    assert (await coordinator.merge_or_select("pick:b")).applied_paths == []
    assert await asyncio.to_thread(_contents, foreign) == FILES


async def test_async_methods_run_on_the_event_loop_of_the_fork() -> None:
    """A session of a user's backend may belong to one loop: "Every object that follows the protocol works"."""
    bucket = AsyncBucket(FILES)
    agent = create_deep_agent(Brain(decide=_steps))
    coordinator = ForkCoordinator(agent, DeepAgentDeps(backend=bucket))
    await coordinator.fork([BranchSpec("a", "work")], parent_history=[])
    await all_over(coordinator)
    coordinator.branches[next(iter(coordinator.branches))].overlay.changes()  # on the loop, without waiting for it
    assert (await coordinator.merge_or_select("pick:a")).errors == []
    assert bucket.loops == {asyncio.get_running_loop()}
    assert bucket.bucket.content["/new/dog.md"] == b"# Dog\n"


async def test_a_branch_of_a_local_backend_is_a_directory_with_commands(tmp_path: Path) -> None:
    """The API page: "or via a shell rm invoked through execute against a LocalBackend parent"."""
    foreign = _local(FILES, tmp_path)

    def run(asked: Asked) -> Any:
        return "done" if last_results(asked) else call("execute", command="rm -r old; echo new > made.txt")

    coordinator = ForkCoordinator(create_deep_agent(Brain(decide=run)), DeepAgentDeps(backend=foreign))
    await coordinator.fork([BranchSpec("a", "go")], parent_history=[])
    await all_over(coordinator)
    assert (tmp_path / "old").exists()
    result = await coordinator.merge_or_select("pick:a")
    assert result.applied_paths == ["made.txt"]
    assert (foreign.exists("made.txt"), foreign.exists("old/gone.txt")) == (True, False)
    assert Workspace(tmp_path).undo().deleted == ("made.txt",)


async def test_a_local_backend_without_commands_has_branches_without(tmp_path: Path) -> None:
    """``enable_execute=False`` of the parent holds in its branches."""
    branch = BranchOverlay(peer.LocalBackend(root_dir=tmp_path, enable_execute=False))
    assert isinstance(branch, FilesOverlay)
    assert not branch.execute_enabled
    assert branch.execute("touch made.txt").exit_code == 126
    assert (await branch.async_execute("touch made.txt")).exit_code == 126
    assert branch.changes() == []
    branch.discard()


async def test_permission_rules_of_a_local_backend_hold_in_branches_and_in_the_merge(tmp_path: Path) -> None:
    """Only its own methods know its rules, so that its branches use them: neither reads nor writes evade them."""
    _local({"secret.env": b"key", "cat.md": b"# Cat\n"}, tmp_path)
    deny = [PermissionRule(pattern="**/*.env", action="deny")]
    rules = PermissionRuleset(
        default="allow",
        read=OperationPermissions(default="allow", rules=deny),
        write=OperationPermissions(default="allow", rules=deny),
    )
    foreign = peer.LocalBackend(root_dir=tmp_path, permissions=rules)
    branch = BranchOverlay(foreign)
    assert isinstance(branch, MemoryOverlay)
    assert "key" not in branch.read("secret.env")
    assert branch.grep_raw("key") == []
    assert branch.write("dog.md", "# Dog").error is None
    branch.write("new.env", "key=2")
    report = branch.flush_to(foreign)
    assert report.applied_paths == ["dog.md"]
    assert [error.path for error in report.errors] == ["new.env"]
    assert not (tmp_path / "new.env").exists()


@pytest.mark.parametrize("missing", ["exists", "read_bytes", "write", "ls_info"])
async def test_a_backend_without_a_needed_method_is_refused_when_the_fork_is_made(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "one that lacks a needed method is refused when the fork is made"."""
    monkeypatch.delattr(Bucket, missing)
    agent = create_deep_agent(Brain(decide=_steps))
    coordinator = ForkCoordinator(agent, DeepAgentDeps(backend=Bucket(FILES)))
    with pytest.raises(BranchError, match=f"Bucket cannot be branched: it has no method {missing}"):
        await coordinator.fork([BranchSpec("a", "work")], parent_history=[])
    assert coordinator.is_resolved
    assert coordinator.branches == {}


async def test_the_agent_hears_why_its_backend_cannot_be_forked() -> None:
    """A refusal is an answer of the tool ``fork_run``, not the end of the run."""

    def drive(asked: Asked) -> Any:
        said = last_results(asked).get("fork_run")
        return said or call("fork_run", specs=[{"label": "a", "steer": "work"}])

    agent = create_deep_agent(Brain(decide=drive), forking=True)
    result = await agent.run("fork", deps=DeepAgentDeps(backend={"a": "dict"}))
    assert result.output.startswith("fork_run failed: dict cannot be branched: it has no method exists, ls_info")


def test_a_failing_write_does_not_stop_the_others() -> None:
    """The guide: "Per-write failures (parent WriteResult.error non-empty or the backend raises) do not abort flush_to —
    the failing path is excluded from applied_paths, recorded in MergeResult.errors as a FlushError, and the remaining
    writes continue."
    """
    bucket = Bucket({"cat.md": b"one", "refused/a": b"old"})
    branch = BranchOverlay(bucket)
    branch.write("refused/a", "new")
    branch.write("cat.md", "two")
    report = branch.flush_to(bucket)
    assert (report.applied_paths, report.applied_changes) == (["cat.md"], 1)
    assert [(error.path, error.op, error.message) for error in report.errors] == [
        ("refused/a", "write", "quota exceeded")
    ]
    assert report.conflict_contents == {"refused/a": b"new"}, "the branch's version is not lost"
    assert bucket.content == {"/cat.md": b"two", "/refused/a": b"old"}


def test_a_backend_that_loses_what_is_written_is_an_error() -> None:
    """A merge that "reports success while nothing reaches the backend" is worse than one that fails."""
    bucket = Bucket({"a": b"old"})
    branch = BranchOverlay(bucket)
    branch.write("a", "new")
    bucket.write = lambda path, content: peer.WriteResult(path)  # type: ignore[method-assign]
    [error] = branch.flush_to(bucket).errors
    assert error.message == "the backend does not have the content that was written"


def test_binary_content_that_the_backend_would_spoil_is_refused_and_the_old_text_stays() -> None:
    """The peer's StateBackend keeps text: other bytes would come back as replacement characters."""
    foreign = _state({"a": b"old"}, Path())
    branch = BranchOverlay(foreign)
    branch.write("a", b"\xff\x00")
    branch.write("b", "text")
    report = branch.flush_to(foreign)
    if report.errors:  # later releases keep bytes
        assert [error.path for error in report.errors] == ["a"]
        assert foreign.read_bytes("a") == b"old"
    assert foreign.read_bytes("b") == b"text"


def test_a_path_changed_by_a_third_actor_is_a_conflict() -> None:
    """The API page: "paths where the parent's pre-flush content diverged from the pre-fork snapshot"."""
    bucket = Bucket({"a": b"old", "b": b"old"})
    branch = BranchOverlay(bucket)
    branch.write("/a", "mine")
    branch.write("b", "mine")
    bucket.content["/a"] = b"theirs"
    report = branch.flush_to(bucket)
    assert (report.applied_paths, report.conflicts) == (["b"], ["a"])
    assert bucket.content == {"/a": b"theirs", "/b": b"mine"}


def test_files_keep_the_spelling_that_the_backend_knows() -> None:
    """Agents write ``a``, ``/a`` and ``./a``; the backend has one file."""
    bucket = Bucket({"a": b"old"})
    branch = BranchOverlay(bucket)
    for path in ("a", "/a", "./a"):
        assert branch.read(path).endswith("old")
    branch.write("a", "new")
    branch.write("/fresh", "new")
    branch.flush_to(bucket)
    assert set(bucket.content) == {"/a", "/fresh"}
    with pytest.raises(PermissionError):
        branch.read_bytes("../../etc/passwd")
    assert branch.write("../out", "x").error


def test_a_path_outside_the_directory_of_a_foreign_backend_is_refused(tmp_path: Path) -> None:
    """A path below the root is the same file, absolute or not; any other absolute path is outside."""
    adapter = adapt_backend(_local(FILES, tmp_path))
    assert adapter.read_bytes(f"{tmp_path}/cat.md") == adapter.read_bytes("cat.md") == b"# Cat\n"
    with pytest.raises(PermissionError):
        adapter.read_bytes("/etc/passwd")


def test_a_link_to_a_directory_above_ends_the_walk(tmp_path: Path) -> None:
    """A hostile or careless tree must not keep a listing busy for ever."""
    foreign = _local({"a/b.txt": b"x"}, tmp_path)
    (tmp_path / "a/up").symlink_to("..")
    assert [info["path"] for info in adapt_backend(foreign).walk()] == ["a/b.txt"]


def test_a_listing_cannot_name_a_path_outside() -> None:
    """A branch trusts no name that a backend lists."""
    bucket = Bucket({"a": b"x"})
    own = bucket.ls_info
    names = [{"name": name, "path": name, "is_dir": False, "size": 1} for name in ("..", "../b", "", "c/d")]
    bucket.ls_info = lambda path: own(path) + names  # type: ignore[method-assign]
    assert [info["path"] for info in BranchOverlay(bucket).walk()] == ["a"]


def test_nested_branches_over_a_foreign_backend() -> None:
    """The guide: "flush_to writing into that overlay correctly propagates the winner's writes up one level; resolving
    the outer fork later propagates them to the root backend."
    """
    bucket = Bucket(FILES)
    outer = BranchOverlay(bucket)
    inner = BranchOverlay(outer)
    inner.write("cat.md", "# Tiger\n")
    inner.record_rmdir("old")
    assert inner.flush_to(outer).deleted_paths == ["old", "old/gone.txt"]
    assert bucket.content["/cat.md"] == b"# Cat\n"
    assert outer.flush_to(bucket).applied_paths == ["cat.md"]
    assert bucket.content == {"/cat.md": b"# Tiger\n", "/src/app.py": b"import os\n"}


def test_clones_and_shared_files() -> None:
    """The guide: "Wraps the parent backend in a BranchOverlay — reads fall through, writes land in an overlay"."""
    deps = DeepAgentDeps(backend=Bucket(FILES))
    copied = clone_for_branch(deps, BranchIsolation())
    assert copied.backend.read("cat.md") == "     1\t# Cat"
    read_only = clone_for_branch(deps, BranchIsolation(backend="share_readonly"))
    assert "read-only" in (read_only.backend.write("cat.md", "x").error or "")
    assert clone_for_branch(deps, BranchIsolation(backend="share")).backend is deps.backend


def test_all_users_of_a_backend_share_its_lock() -> None:
    """Two tools that edit one file at once lose no change."""
    bucket = Bucket(FILES)
    first, second = adapt_backend(bucket), adapt_backend(bucket)
    assert first is second
    assert isinstance(first, ForeignBackend)
    assert adapt_backend(Bucket(FILES)) is not first
    own = StateBackend()
    assert adapt_backend(own) is own


def test_a_directory_by_the_name_that_the_peer_has(tmp_path: Path) -> None:
    """The reference: ``LocalBackend(root_dir=…)``."""
    backend = LocalBackend(root_dir=tmp_path)
    assert backend.root_dir == str(tmp_path)
    for wrong in ({}, {"root": tmp_path, "root_dir": tmp_path}):
        with pytest.raises(TypeError, match="root_dir"):
            LocalBackend(**wrong)


# Directories in memory


def test_a_directory_removed_in_memory_is_hidden_flushed_and_reported() -> None:
    """The API page: "Paths the branch has deleted via delete - or that live inside a deleted directory - are hidden
    regardless of parent presence", and "deleted_paths lists paths the branch removed".
    """
    parent = StateBackend({"old/a.txt": "x", "old/deep/b.txt": "y", "kept.txt": "z"})
    branch = BranchOverlay(parent)
    branch.record_rmdir("/old")
    assert not any(map(branch.exists, ("old", "old/a.txt", "old/deep/b.txt")))
    assert [info["path"] for info in branch.ls_info("/")] == ["kept.txt"]
    assert branch.deleted() == {"old", "old/a.txt", "old/deep/b.txt"}
    assert "rmdir" in [change.op for change in branch.changes()]
    report = branch.flush_to(parent)
    assert report.deleted_paths == ["old", "old/a.txt", "old/deep/b.txt"]
    assert (report.conflicts, report.errors) == ([], [])
    assert set(parent.files) == {"kept.txt"}


def test_a_file_written_into_a_removed_directory_brings_it_back() -> None:
    """The API page: "Writing the same path afterwards "un-deletes" it"."""
    parent = StateBackend({"old/a.txt": "x"})
    branch = BranchOverlay(parent)
    branch.record_rmdir("old")
    branch.write("old/new.txt", "n")
    assert branch.deleted() == {"old/a.txt"}
    assert branch.flush_to(parent).deleted_paths == ["old/a.txt"]
    assert set(parent.files) == {"old/new.txt"}


def test_a_removed_directory_with_a_conflict_is_not_reported_as_gone() -> None:
    """The API page: "Conflicting paths are NOT replayed onto the parent"."""
    parent = StateBackend({"old/a.txt": "x", "old/b.txt": "y"})
    branch = BranchOverlay(parent)
    branch.record_rmdir("old")
    parent.write("old/a.txt", "theirs")
    report = branch.flush_to(parent)
    assert (report.conflicts, report.deleted_paths) == (["old/a.txt"], ["old/b.txt"])


async def test_many_tools_at_once_over_an_async_backend_neither_wait_for_ever_nor_lose_an_edit() -> None:
    """Tools run in threads that wait for the event loop, while the loop reads the changes of the branch."""
    bucket = AsyncBucket({"a": b"0" * 40})
    agent = create_deep_agent(Brain(decide=_edit_all))
    coordinator = ForkCoordinator(agent, DeepAgentDeps(backend=bucket))
    await coordinator.fork([BranchSpec("a", "go"), BranchSpec("b", "go")], parent_history=[])
    overlays = [runtime.overlay for runtime in coordinator.branches.values()]
    while any(runtime.is_running for runtime in coordinator.branches.values()):
        assert all(change.path == "a" for overlay in overlays for change in overlay.changes())
        await asyncio.sleep(0)
    assert (await coordinator.merge_or_select("pick:a")).errors == []
    lines = bucket.bucket.content["/a"].decode().splitlines()
    assert sorted(lines[1:]) == sorted(f"line {n}" for n in range(8))


def _edit_all(asked: Asked) -> Any:
    if asked.results:
        return "done"
    edits = [{"path": "a", "old_string": "0" * 40, "new_string": f"{'0' * 40}\nline {n}"} for n in range(8)]
    return [call("edit", **edit) for edit in edits]
