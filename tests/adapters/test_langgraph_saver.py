"""LangGraph's own checkpointer tests and real graphs, with files that follow the checkpoints."""

from __future__ import annotations

import asyncio
import operator
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from forkwise import BranchError, BranchingError, ConflictError, Tests, Workspace
from forkwise.adapters.langgraph_saver import make_node, make_saver
from tests.need import need

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("base\n")
    made = Workspace(project, state=tmp_path / "state")
    yield made
    for branch in made.branches():
        if branch.parent is made:
            branch.abort()


@pytest.fixture
def saver(workspace: Workspace) -> Any:
    try:
        return make_saver(workspace)
    except ImportError:
        need(False, "langgraph is not installed")


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def writer(saver: Any, path: str, text: str, meeting: threading.Barrier | None = None) -> Any:
    def node(state: State, config: Any) -> State:
        with saver.branch(config) as branch:
            if meeting is not None:
                meeting.wait(60)
            file = branch.path / path
            file.write_text((file.read_text() if file.exists() else "") + text)
        return {"log": [path]}

    node.__annotations__ = {}
    return node


def chain(saver: Any, *nodes: Any) -> Any:
    from langgraph.graph import START, StateGraph

    graph = StateGraph(State)
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node)
        graph.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return graph.compile(checkpointer=saver)


def read(saver: Any, name: str, path: str) -> str | None:
    file = saver.files.branch(name).path / path
    return file.read_text() if file.exists() else None


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_files_follow_checkpoints_back_and_forth(saver: Any, workspace: Workspace, durability: str) -> None:
    app = chain(saver, writer(saver, "a.txt", "1\n"), writer(saver, "b.txt", "2\n"), writer(saver, "a.txt", "3\n"))
    assert app.invoke({"log": []}, thread("t"), durability=durability)["log"] == ["a.txt", "b.txt", "a.txt"]
    assert (read(saver, "t", "a.txt"), read(saver, "t", "b.txt")) == ("base\n1\n3\n", "2\n")
    assert (workspace.path / "a.txt").read_text() == "base\n"
    after_first = next(found for found in app.get_state_history(thread("t")) if found.next == ("n1",))
    app.get_state(after_first.config)
    assert read(saver, "t", "b.txt") == "2\n", "looking at a state changes no file"
    # A fork of an earlier checkpoint, with another state: its files are those of that checkpoint.
    changed = app.update_state(after_first.config, {"log": ["edited"]})
    assert app.invoke(None, changed, durability=durability)["log"] == ["a.txt", "edited", "b.txt", "a.txt"]
    assert (read(saver, "t", "a.txt"), read(saver, "t", "b.txt")) == ("base\n1\n3\n", "2\n")
    # A replay runs on the same files as the first time: nothing is appended twice.
    app.invoke(None, after_first.config, durability=durability)
    assert (read(saver, "t", "a.txt"), read(saver, "t", "b.txt")) == ("base\n1\n3\n", "2\n")
    commit = saver.commit(after_first.config)
    assert (commit.added, commit.changed) == ((), ("a.txt",))
    assert (workspace.path / "a.txt").read_text() == "base\n1\n"
    assert not (workspace.path / "b.txt").exists()
    workspace.undo()
    assert (workspace.path / "a.txt").read_text() == "base\n"


def test_a_thread_goes_on_after_its_commit(saver: Any, workspace: Workspace) -> None:
    app = chain(saver, writer(saver, "a.txt", "x\n"))
    app.invoke({"log": []}, thread("t"))
    first = app.get_state(thread("t"))
    saver.commit(thread("t"))
    app.invoke({"log": ["more"]}, thread("t"))
    assert read(saver, "t", "a.txt") == "base\nx\nx\n"
    start = [found for found in app.get_state_history(thread("t")) if found.next == ("n0",)][-1]
    with pytest.raises(BranchError, match="cannot be restored"):
        app.invoke(None, start.config)
    assert first.values["log"] == ["a.txt"]
    saver.commit(thread("t"))
    assert (workspace.path / "a.txt").read_text() == "base\nx\nx\n"


def test_threads_are_apart_and_forked_threads_run_at_once(saver: Any, workspace: Workspace) -> None:
    async def node(state: State, config: Any) -> State:
        async with saver.abranch(config) as branch:
            name = config["configurable"]["thread_id"]
            await asyncio.to_thread((branch.path / f"{name}.txt").write_text, name)
        return {"log": [name]}

    node.__annotations__ = {}
    app = chain(saver, writer(saver, "a.txt", "1\n"), node)
    with pytest.raises(TypeError, match="async"):
        app.invoke({"log": []}, thread("t"))  # the second node is asynchronous
    forks = [saver.fork_thread(app.get_state(thread("t")).config, f"fork {number}") for number in range(4)]

    async def main() -> list[Any]:
        return await asyncio.gather(*(app.ainvoke(None, config) for config in forks))

    done = asyncio.run(main())
    assert [state["log"] for state in done] == [["a.txt", f"fork {number}"] for number in range(4)]
    for number in range(4):
        found = sorted(path.name for path in saver.files.branch(f"fork {number}").path.iterdir())
        assert found == ["a.txt", f"fork {number}.txt"]
        assert read(saver, f"fork {number}", "a.txt") == "base\n1\n"
    with pytest.raises(BranchError, match="has files already"):
        saver.fork_thread(app.get_state(thread("t")).config, "fork 1")
    saver.commit(thread("fork 2"))
    assert sorted(path.name for path in workspace.path.iterdir()) == ["a.txt", "fork 2.txt"]
    with pytest.raises(BranchError, match="committed to since"):  # the new branch would hide that both changed a.txt
        saver.fork_thread(app.get_state(thread("t")).config, "fork 5")


def parallel(saver: Any, *nodes: Any) -> Any:
    from langgraph.graph import START, StateGraph

    graph = StateGraph(State)
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node)
        graph.add_edge(START, f"n{number}")
    return graph.compile(checkpointer=saver)


def test_parallel_nodes_merge_and_a_failed_one_runs_again(saver: Any, workspace: Workspace) -> None:
    is_broken = [True]

    def fails_once(state: State, config: Any) -> State:
        with saver.branch(config) as branch:
            (branch.path / "c.txt").write_text("half")
            if is_broken.pop() if is_broken else False:
                raise RuntimeError("broken")
        return {"log": ["c.txt"]}

    fails_once.__annotations__ = {}
    app = parallel(saver, writer(saver, "a.txt", "1\n"), writer(saver, "b.txt", "2\n"), fails_once)
    with pytest.raises(RuntimeError, match="broken"):
        app.invoke({"log": []}, thread("t"))
    assert read(saver, "t", "c.txt") is None, "a node that raises leaves nothing"
    # Another process goes on: nodes whose writes are pending are not run again, and keep their files.
    other = make_saver(workspace, saver_of(saver))
    again = parallel(other, writer(other, "a.txt", "1\n"), writer(other, "b.txt", "2\n"), fails_once_with(other))
    assert sorted(again.invoke(None, thread("t"))["log"]) == ["a.txt", "b.txt", "c.txt"]
    assert [read(other, "t", name) for name in ("a.txt", "b.txt", "c.txt")] == ["base\n1\n", "2\n", "whole"]


def fails_once_with(saver: Any) -> Any:
    return writer(saver, "c.txt", "whole")


def saver_of(saver: Any) -> Any:
    """The saver in memory behind a BranchSaver, as another process would find a database."""
    [inner] = [cell.cell_contents for cell in type(saver).put.__closure__ if hasattr(cell.cell_contents, "put_writes")]
    return inner


def test_parallel_nodes_that_change_the_same_file_conflict(saver: Any, workspace: Workspace) -> None:
    meeting = threading.Barrier(2)
    app = parallel(saver, *(writer(saver, "new.txt", text, meeting) for text in ("1\n", "2\n")))
    with pytest.raises(ConflictError):
        app.invoke({"log": []}, thread("t"))
    assert [branch.name for branch in workspace.branches()] == ["langgraph-t"]


def test_threads_are_committed_one_after_another(saver: Any, workspace: Workspace) -> None:
    for name in ("one", "two"):
        chain(saver, writer(saver, f"{name}.txt", name)).invoke({"log": []}, thread(name))
    conflicting = chain(saver, writer(saver, "one.txt", "another"))
    conflicting.invoke({"log": []}, thread("three"))
    saver.commit(thread("one"))
    saver.commit(thread("two"))
    assert [(workspace.path / f"{name}.txt").read_text() for name in ("one", "two")] == ["one", "two"]
    with pytest.raises(ConflictError):
        saver.commit(thread("three"))
    assert (workspace.path / "one.txt").read_text() == "one"
    assert read(saver, "three", "one.txt") == "another", "the thread's files are still there"


def test_what_a_killed_node_left_is_dropped(saver: Any, workspace: Workspace) -> None:
    app = chain(saver, writer(saver, "a.txt", "1\n"), writer(saver, "b.txt", "2\n"))
    app.invoke({"log": []}, thread("t"))
    inner = saver_of(saver)
    pid = os.fork()
    if not pid:
        try:
            branch = saver.files.begin_task(
                "t", {"": app.get_state(thread("t")).config["configurable"]["checkpoint_id"]}, "x"
            )
            (branch.path / "a.txt").write_text("half")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    other = make_saver(workspace, inner)
    again = chain(other, writer(other, "a.txt", "1\n"), writer(other, "b.txt", "2\n"))
    start = next(found for found in again.get_state_history(thread("t")) if found.next == ("n1",))
    again.invoke(None, start.config)
    assert (read(other, "t", "a.txt"), read(other, "t", "b.txt")) == ("base\n1\n", "2\n")
    assert [branch.name for branch in workspace.branches()] == ["langgraph-t"]


def test_an_interrupted_node_starts_over_on_clean_files(saver: Any) -> None:
    from langgraph.types import Command, interrupt

    def ask(state: State, config: Any) -> State:
        with saver.branch(config) as branch:
            file = branch.path / "a.txt"
            file.write_text(file.read_text() + "asked\n")
            answer = interrupt("go on?")
            file.write_text(file.read_text() + f"{answer}\n")
        return {"log": ["asked"]}

    ask.__annotations__ = {}
    app = chain(saver, ask)
    assert "__interrupt__" in app.invoke({"log": []}, thread("t"))
    assert read(saver, "t", "a.txt") == "base\n"
    app.invoke(Command(resume="yes"), thread("t"))
    assert read(saver, "t", "a.txt") == "base\nasked\nyes\n"


def test_subgraphs_share_the_files_of_their_thread(saver: Any) -> None:
    from langgraph.graph import START, StateGraph

    inner = StateGraph(State)
    inner.add_node("i0", writer(saver, "a.txt", "inner 0\n"))
    inner.add_node("i1", writer(saver, "a.txt", "inner 1\n"))
    inner.add_edge(START, "i0")
    inner.add_edge("i0", "i1")
    outer = StateGraph(State)
    outer.add_node("before", writer(saver, "a.txt", "before\n"))
    outer.add_node("sub", inner.compile())
    outer.add_node("after", writer(saver, "a.txt", "after\n"))
    outer.add_edge(START, "before")
    outer.add_edge("before", "sub")
    outer.add_edge("sub", "after")
    app = outer.compile(checkpointer=saver)
    app.invoke({"log": []}, thread("t"))
    whole = "base\nbefore\ninner 0\ninner 1\nafter\n"
    assert read(saver, "t", "a.txt") == whole
    at_sub = next(found for found in app.get_state_history(thread("t")) if found.next == ("sub",))
    app.invoke(None, at_sub.config)
    assert read(saver, "t", "a.txt") == whole


def test_a_node_takes_the_way_that_passes_the_tests(saver: Any, workspace: Workspace) -> None:
    def wrong(state: Any, directory: Path) -> State:
        (directory / "answer").write_text("41")
        return {"log": ["wrong"]}

    async def right(state: Any, directory: Path) -> State:
        (directory / "answer").write_text("42")
        return {"log": ["right", *state["log"]]}

    node = make_node(saver, [wrong, right], evaluate=Tests("grep -q 42 answer"))
    app = chain(saver, writer(saver, "a.txt", "1\n"), node)
    assert app.invoke({"log": ["x"]}, thread("t"))["log"] == ["x", "a.txt", "right", "x", "a.txt"]
    assert read(saver, "t", "answer") == "42"
    assert asyncio.run(app.ainvoke({"log": []}, thread("u")))["log"] == ["a.txt", "right", "a.txt"]
    failing = chain(saver, make_node(saver, {"a": wrong, "b": wrong}, evaluate=Tests("grep -q 42 answer")))
    with pytest.raises(BranchingError, match="none of 2 ways"):
        failing.invoke({"log": []}, thread("v"))
    assert read(saver, "v", "answer") is None


def test_what_cannot_work_is_refused(saver: Any, workspace: Workspace) -> None:
    app = chain(saver, writer(saver, "a.txt", "1\n"))
    with pytest.raises(BranchError, match="durability"):
        app.invoke({"log": []}, thread("t"), durability="exit")
    with pytest.raises(BranchError, match="outside of a node"), saver.branch(thread("t")):
        pass
    with pytest.raises(BranchError, match="no checkpoint"):
        saver.commit({"configurable": {"thread_id": "t", "checkpoint_id": "../../etc"}})
    hostile = thread("../../../etc/passwd\n\0")
    app.invoke({"log": []}, hostile)
    assert all("/" not in branch.name for branch in workspace.branches())


def test_deleted_threads_and_checkpoints_leave_no_files(saver: Any, workspace: Workspace) -> None:
    from forkwise.files.shelf import list_copies

    app = chain(saver, writer(saver, "a.txt", "1\n"), writer(saver, "b.txt", "2\n"))
    app.invoke({"log": []}, thread("t"))
    branch = saver.files.branch("t")
    assert len(list_copies(branch)) == 3, "the base, and one for each step that changed files"
    inner = saver_of(saver)
    for id_ in sorted(inner.storage["t"][""])[:-1]:
        del inner.storage["t"][""][id_]
    saver.collect_files("t")
    assert len(list_copies(branch)) == 2
    saver.delete_thread("t")
    assert workspace.branches() == []
    assert saver.get_tuple(thread("t")) is None


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Any:
    """Call a method of a saver, or its asynchronous variant."""

    def method(saver: Any, name: str, *values: Any, **options: Any) -> None:
        if request.param == "sync":
            getattr(saver, name)(*values, **options)
        else:
            asyncio.run(getattr(saver, f"a{name}")(*values, **options))

    return method


def test_a_copied_thread_has_files_of_its_own(saver: Any, workspace: Workspace, call: Any) -> None:
    app = chain(saver, writer(saver, "a.txt", "1\n"), writer(saver, "b.txt", "2\n"))
    app.invoke({"log": []}, thread("t"))
    call(saver, "copy_thread", "t", "copy")
    assert [read(saver, "copy", name) for name in ("a.txt", "b.txt")] == ["base\n1\n", "2\n"]
    app.invoke({"log": ["again"]}, thread("copy"))
    assert [read(saver, "copy", name) for name in ("a.txt", "b.txt")] == ["base\n1\n1\n", "2\n2\n"]
    assert [read(saver, "t", name) for name in ("a.txt", "b.txt")] == ["base\n1\n", "2\n"]
    # Earlier checkpoints have their files in the copy, also after the source is gone.
    saver.delete_thread("t")
    early = [found for found in app.get_state_history(thread("copy")) if found.next == ("n1",)][-1]
    app.invoke(None, early.config)
    assert [read(saver, "copy", name) for name in ("a.txt", "b.txt")] == ["base\n1\n", "2\n"]
    saver.commit(thread("copy"))
    assert (workspace.path / "a.txt").read_text() == "base\n1\n"


def test_a_copied_thread_keeps_what_nodes_of_an_unfinished_step_wrote(saver: Any) -> None:
    is_broken = [True]

    def fails_once(state: State, config: Any) -> State:
        if is_broken:
            raise RuntimeError("broken")
        return {"log": ["c"]}

    fails_once.__annotations__ = {}
    app = parallel(saver, writer(saver, "a.txt", "1\n"), fails_once)
    with pytest.raises(RuntimeError, match="broken"):
        app.invoke({"log": []}, thread("t"))
    saver.copy_thread("t", "copy")
    is_broken.clear()
    for name in ("copy", "t"):
        assert sorted(app.invoke(None, thread(name))["log"]) == ["a.txt", "c"]
        assert read(saver, name, "a.txt") == "base\n1\n", "the node that had succeeded does not run again"


def test_what_cannot_be_copied_or_deleted_is_refused(saver: Any, workspace: Workspace) -> None:
    app = chain(saver, writer(saver, "a.txt", "1\n"))
    for name in ("t", "u"):
        app.invoke({"log": []}, thread(name))
    with pytest.raises(BranchError, match="has files already"):
        saver.copy_thread("t", "u")
    with pytest.raises(ValueError, match="not a strategy"):
        saver.prune(["t"], strategy="some")
    id_ = app.get_state(thread("t")).config["configurable"]["checkpoint_id"]
    with saver.files.task_branch("t", {"": id_}, "x"), pytest.raises(BranchError, match="tasks that run"):
        saver.prune(["t"])
    assert len(list(app.get_state_history(thread("t")))) == 3
    saver.commit(thread("u"))
    with pytest.raises(BranchError, match="committed to since"):
        saver.copy_thread("t", "copy")
    assert saver.get_tuple(thread("copy")) is None
    assert [branch.name for branch in workspace.branches()] == ["langgraph-t", "langgraph-u"]
    with pytest.raises(NotImplementedError, match="Minimal"):
        make_saver(workspace, minimal_saver()).prune(["t"])


def minimal_saver() -> Any:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    class Minimal(BaseCheckpointSaver):
        pass

    return Minimal()


def test_a_savers_own_methods_are_used(workspace: Workspace, call: Any) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    calls = []

    class Full(InMemorySaver):
        def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            calls.append(target_thread_id)
            raise RuntimeError("the disk is full")

        def prune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
            calls.append(strategy)

    saver = make_saver(workspace, Full())
    chain(saver, writer(saver, "a.txt", "1\n")).invoke({"log": []}, thread("t"))
    with pytest.raises(RuntimeError, match="disk is full"):
        call(saver, "copy_thread", "t", "copy")
    call(saver, "prune", ["t"], strategy="keep_latest")
    assert calls == ["copy", "keep_latest"]
    assert [branch.name for branch in workspace.branches()] == ["langgraph-t"], "the copy's files are dropped"


def test_pruned_threads_keep_the_files_of_the_last_checkpoint(saver: Any, workspace: Workspace, call: Any) -> None:
    from forkwise.files.shelf import list_copies

    app = chain(saver, writer(saver, "a.txt", "1\n"), writer(saver, "b.txt", "2\n"))
    for name in ("t", "u"):
        app.invoke({"log": []}, thread(name))
    call(saver, "prune", ["t"])
    assert len(list(app.get_state_history(thread("t")))) == 1
    assert (len(list_copies(saver.files.branch("t"))), len(list_copies(saver.files.branch("u")))) == (2, 3)
    assert not [key for key in saver_of(saver).writes if key[0] == "t"]
    app.invoke({"log": ["again"]}, thread("t"))
    assert [read(saver, "t", name) for name in ("a.txt", "b.txt")] == ["base\n1\n1\n", "2\n2\n"]
    call(saver, "prune", ["t", "unknown"], strategy="delete")
    assert saver.get_tuple(thread("t")) is None
    assert [branch.name for branch in workspace.branches()] == ["langgraph-u"]


def test_a_thread_goes_back_to_the_files_before_a_deleted_run(saver: Any, workspace: Workspace, call: Any) -> None:
    from forkwise.files.shelf import list_copies

    app = chain(saver, writer(saver, "a.txt", "1\n"))
    for run in ("first", "second"):
        app.invoke({"log": []}, {**thread("t"), "metadata": {"run_id": run}})
    assert read(saver, "t", "a.txt") == "base\n1\n1\n"
    call(saver, "delete_for_runs", ["second"])
    assert app.get_state(thread("t")).values["log"] == ["a.txt"]
    assert read(saver, "t", "a.txt") == "base\n1\n"
    assert len(list_copies(saver.files.branch("t"))) == 2
    app.invoke({"log": []}, {**thread("t"), "metadata": {"run_id": "third"}})
    assert read(saver, "t", "a.txt") == "base\n1\n1\n"
    call(saver, "delete_for_runs", ["first", "third", "unknown"])
    assert workspace.branches() == []


def test_pruning_keeps_what_delta_channels_are_computed_from(saver: Any) -> None:
    try:
        from langgraph.channels.delta import DeltaChannel
    except ImportError:
        need(False, "this version of langgraph has no delta channels")
    from langgraph.graph import START, StateGraph

    def add(state: Any, writes: Any) -> Any:
        return [*state, *(one for write in writes for one in write)]

    state = TypedDict("state", {"log": Annotated[list, DeltaChannel(add, snapshot_frequency=3)]})  # noqa: UP013
    graph = StateGraph(state)
    graph.add_node("n", lambda _: {"log": ["n"]})
    graph.add_edge(START, "n")
    app = graph.compile(checkpointer=saver)
    for number in range(5):
        app.invoke({"log": [str(number)]}, thread("t"))
        before = app.get_state(thread("t")).values
        saver.prune(["t"])
        assert app.get_state(thread("t")).values == before
        assert len(list(saver.list(thread("t")))) <= 5


def test_the_packages_own_conformance_tests_pass(tmp_path: Path) -> None:
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    numbers = iter(range(100))

    @checkpointer_test(name="BranchSaver")
    async def branch_saver() -> Any:
        project = tmp_path / str(next(numbers))
        project.mkdir()
        workspace = Workspace(project, state=tmp_path / f"{project.name}.state")
        yield make_saver(workspace)
        for branch in workspace.branches():
            branch.abort()

    report = asyncio.run(validate(branch_saver))
    failed = {
        name: result.failures for name, result in report.results.items() if result.detected and result.passed is False
    }
    assert not failed
    assert report.passed_all()
    assert all(result.detected for result in report.results.values())
