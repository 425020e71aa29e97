"""Branches with their own files: committed on success, aborted on failure."""
# ruff: noqa: RUF012 - a module's lists are declared as the specification shows

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from forkwise import BranchError, Module, Workspace, tool
from tests.modules.brain import Asked, Brain, call, finish


class Answer(BaseModel):
    value: str


class Writer(Module):
    """Write."""

    max_steps = 4
    final_output = Answer


class Root(Module):
    """Be the root."""

    workspace = "branch"
    branches = [Writer]
    max_steps = 3

    @tool
    def write(self, name: str, text: str) -> str:
        """Write a file."""
        (self.workspace.path / name).write_text(text)
        return str(self.workspace.path)

    @tool
    async def read(self, name: str) -> str:
        """Read a file."""
        return str((self.workspace.path / name).read_text())


def deciding(*writers: list[Any]) -> Any:
    """Decide for a root that spawns writers in one turn, each with its own list of steps."""

    def decide(asked: Asked) -> Any:
        if asked.system == "Be the root.":
            if asked.turn == 0:
                return [call("branch", name="Writer", number=n) for n in range(len(writers))]
            return finish()
        report = next(prompt for prompt in asked.prompts if "number" in prompt)
        steps = writers[int(report.rpartition(": ")[2][:-1])]
        return steps[asked.turn]

    return decide


def test_what_a_branch_wrote_is_committed(workspace: Workspace) -> None:
    brain = Brain(
        decide=deciding(
            [call("write", name="b.txt", text="b"), call("read", name="b.txt"), finish(value="ok")],
            [call("write", name="c.txt", text="c"), call("read", name="b.txt"), finish(value="ok")],
        )
    )
    Root.model = brain
    Root(workspace=workspace)()
    assert brain.asked[-1].results == ["<branch_result>\n  <value>ok</value>\n</branch_result>\n"] * 2
    assert (workspace.path / "b.txt").read_text() == "b"
    assert (workspace.path / "c.txt").read_text() == "c"
    second = next(a for a in brain.asked if a.turn == 2 and "1}" in a.prompts[-1])
    wrote, read = second.results
    assert Path(wrote) != workspace.path
    assert "No such file" in read  # a sibling's file is not visible, even if the sibling ended first


@pytest.mark.parametrize("at_once", [1, 2, None])
def test_many_that_write_the_same_file(workspace: Workspace, at_once: int | None) -> None:
    """Each branch sees the files as of its start; only the first is committed."""

    class Limited(Root):
        """Be the root."""

        max_parallel = at_once

    def writing(number: int) -> list[Any]:
        return [call("read", name="a.txt"), call("write", name="a.txt", text=f"{number}\n"), finish(value="ok")]

    brain = Brain(decide=deciding(*map(writing, range(8))))
    Limited.model = brain
    Limited(workspace=workspace)()
    assert [asked.results[0] for asked in brain.asked if asked.turn == 2 and asked.system == "Write."] == ["one\n"] * 8
    first, *others = brain.asked[-1].results
    assert "branch_result" in first
    assert all("conflict with another branch" in other for other in others)
    assert (workspace.path / "a.txt").read_text() == "0\n"


def test_what_a_failed_branch_wrote_is_gone(workspace: Workspace) -> None:
    brain = Brain(decide=deciding([call("write", name="a.txt", text="spoilt"), *["no call"] * 3]))
    Root.model = brain
    Root(workspace=workspace)()
    assert "No tool calls" in brain.asked[-1].results[0]
    assert (workspace.path / "a.txt").read_text() == "one\n"


def test_a_conflict_is_the_second_branchs_error(workspace: Workspace) -> None:
    brain = Brain(
        decide=deciding(
            [call("write", name="a.txt", text="mine\n"), finish(value="ok")],
            [call("write", name="a.txt", text="yours\n"), finish(value="ok")],
        )
    )
    Root.model = brain
    Root(workspace=workspace)()
    worked, failed = brain.asked[-1].results
    assert "branch_result" in worked
    assert failed == "Error: Branch execution failed: conflict with another branch that was committed first: a.txt"
    assert (workspace.path / "a.txt").read_text() == "mine\n"


def test_several_by_hand_at_the_same_time(workspace: Workspace) -> None:
    class Gathering(Root):
        """Be the root."""

        branches: list[Any] = []

        async def on_step(self, step: Any) -> None:
            both = (self.branch(Writer, number=number) for number in range(2))
            outcomes.extend(await asyncio.gather(*both, return_exceptions=True))

    def decide(asked: Asked) -> Any:
        if asked.system == "Be the root.":
            return finish() if asked.turn else call("read", name="a.txt")
        number = asked.prompts[-1][-2]
        return finish(value=number) if len(asked.results) > 1 else call("write", name="a.txt", text=number)

    outcomes: list[Any] = []
    Gathering.model = Brain(decide=decide)
    gathering = Gathering(workspace=workspace)
    gathering()
    assert outcomes[0] == Answer(value="0")
    assert isinstance(outcomes[1], BranchError)
    assert outcomes[1].paths == ("a.txt",)
    assert (workspace.path / "a.txt").read_text() == "0"
    assert sum(str(entry["content"]).startswith("[Branch Result]") for entry in gathering.history) == 1


def test_a_conflict_by_hand_names_the_paths(workspace: Workspace) -> None:
    class Late(Root):
        """Be the root."""

        branches: list[Any] = []

        def on_step(self, step: Any) -> None:
            with pytest.raises(BranchError) as error:
                self.branch(Writer, number=0)
            assert error.value.paths == ("a.txt",)

    def decide(asked: Asked) -> Any:
        if asked.system == "Be the root.":
            return finish() if asked.turn else call("read", name="a.txt")
        if len(asked.results) == 1:
            return call("write", name="a.txt", text="branch\n")
        (workspace.path / "a.txt").write_text("another writer\n")
        return finish(value="ok")

    Late.model = Brain(decide=decide)
    Late(workspace=workspace)()
    assert (workspace.path / "a.txt").read_text() == "another writer\n"


def test_text_that_two_branches_changed_in_different_places_is_merged(workspace: Workspace) -> None:
    lines = [f"{number}\n" for number in range(20)]
    (workspace.path / "a.txt").write_text("".join(lines))
    first, second = ["first\n", *lines[1:]], [*lines[:-1], "last\n"]
    brain = Brain(
        decide=deciding(
            [call("write", name="a.txt", text="".join(first)), finish(value="ok")],
            [call("write", name="a.txt", text="".join(second)), finish(value="ok")],
        )
    )
    Root.model = brain
    Root(workspace=workspace)()
    assert (workspace.path / "a.txt").read_text() == "".join(["first\n", *lines[1:-1], "last\n"])


def test_branches_of_branches(workspace: Workspace) -> None:
    class Inner(Module):
        """Be inside."""

        max_steps = 3
        final_output = Answer

    class Outer(Module):
        """Be outside."""

        workspace = "branch"
        branches = [Inner]
        max_steps = 4
        final_output = Answer

    class Top(Root):
        """Be the root."""

        branches = [Outer]

    def decide(asked: Asked) -> Any:
        own = asked.turn
        match asked.system:
            case "Be inside.":
                return [call("write", name="b.txt", text="from inside"), finish(value="in")][own]
            case "Be outside.":
                return [call("branch", name="Inner"), call("read", name="b.txt"), finish(value="out")][own]
        return [call("branch", name="Outer"), finish()][own]

    brain = Brain(decide=decide)
    Top.model = brain
    Top(workspace=workspace)()
    outer = [asked for asked in brain.asked if asked.system == "Be outside."]
    assert outer[-1].results[-1] == "from inside"
    assert (workspace.path / "b.txt").read_text() == "from inside"


def test_a_branch_shares_its_parents_files_by_default(workspace: Workspace) -> None:
    class Sharing(Root):
        """Be the root."""

        workspace: Any = None

    brain = Brain(decide=deciding([call("write", name="b.txt", text="b"), finish(value="ok")]))
    Sharing.model = brain
    Sharing(workspace=workspace)()
    assert next(a for a in brain.asked if a.turn == 1 and a.system == "Write.").results == [str(workspace.path)]


def test_a_module_without_files_has_no_file_tools() -> None:
    class Wanting(Writer):
        """Write."""

        workspace = "branch"

    class Bare(Module):
        """Be the root."""

        model = Brain(decide=lambda asked: call("branch", name="Wanting") if asked.turn == 0 else finish())
        branches = [Wanting]
        max_steps = 2

    bare = Bare()
    bare()
    assert bare.workspace is None
    assert "its parent has no workspace" in bare.history[3]["content"]


def test_a_module_that_is_told_how_but_not_on_which_works_here(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.path)
    Root.model = Brain(call("read", name="a.txt"), finish())
    root = Root()
    root()
    assert root.history[3]["content"] == "one\n"
    assert root.workspace.path == workspace.path


def test_a_workspace_is_a_directory() -> None:
    class Odd(Writer):
        workspace = 3

    Odd.model = Brain(finish(value="x"))
    with pytest.raises(ValueError, match="a workspace is a directory"):
        Odd()()
