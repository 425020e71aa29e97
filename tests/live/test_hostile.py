"""Inputs made to be slow to compare: the work grows with their size, counted in steps, not in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forkwise import Workspace, build_diff_report
from forkwise.live.backends.branch_overlay import BranchOverlay
from forkwise.live.backends.local import LocalBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.diff.diff_report import combination, measure_support
from forkwise.live.diff.renames import moved_blocks
from forkwise.live.diff.symbols import MODULE, branch_symbols, symbols_of
from forkwise.live.diff.tool_calls import diff_tool_calls
from forkwise.live.judging.judge import MAX_JUDGE_PROMPT_CHARS, build_judge_prompt
from tests.executed_lines import executed_lines
from tests.live.fork_scene import Scene, outcome, report_of


def must_be_linear(work: Callable[[int], object], size: int) -> None:
    """Assert that twice the input takes about twice the steps."""
    work(1)  # warm up: some work is done once, such as loading a grammar
    small, large = executed_lines(lambda: work(size)), executed_lines(lambda: work(2 * size))
    assert small > size, "nothing was counted"
    assert large < 2.6 * small, (small, large)


def renames(count: int, text: str = "line {n} of {file}") -> Scene:
    """Rename ``count`` files, each with a changed line."""
    parent = {f"old/{f}.txt": "\n".join(text.format(n=n, file=f) for n in range(6)).encode() for f in range(count)}
    moved: dict[str, bytes | None] = dict.fromkeys(parent)
    moved |= {path.replace("old", "new"): content + b"\nmore\n" for path, content in parent.items()}
    return Scene(parent, {"a": moved, "b": dict(moved)})


@pytest.mark.parametrize("text", ["line {n} of {file}", "line {n}"], ids=["all different", "all the same"])
def test_renames(text: str) -> None:
    def work(count: int) -> None:
        scene = renames(count, text)
        report = build_diff_report("fork", scene.runtimes)
        assert sum(change.renamed_from is not None for path in report.paths for change in path.branches.values()) in (
            0,  # lines that all files share do not identify a source
            2 * count,
        )
        moved_blocks(report, "a")
        measure_support(report, "a")

    must_be_linear(work, 60)


def test_five_thousand_renames_are_found() -> None:
    report = renames(5_000).report()
    found = [change for path in report.paths if (change := path.branches["a"]).renamed_from]
    assert len(found) == 5_000
    assert all(change.unified_diff_vs_parent.count("\n+") >= 7 for change in found[:3])


def test_definitions_of_one_name() -> None:
    must_be_linear(lambda count: symbols_of("python", "def f(): pass\n" * count), 150)
    report = report_of({}, a={"many.py": b"def f(): pass\n" * 20_000})
    names = [change.name for change in branch_symbols(report, "a")]
    assert {"f", "f#2", "f#20000"} <= set(names)
    assert len(names) == len(set(names))


def test_definitions_inside_each_other() -> None:
    def work(depth: int) -> dict[str, str]:
        return symbols_of("javascript", "class A { m() { " * depth + "} }" * depth)

    must_be_linear(work, 60)
    names = work(2_000)
    assert len(names) == 4_000
    assert max(map(len, names)) < 220


def test_lines_of_many_megabytes() -> None:
    old, new = b"x = '" + b"a" * 10_000_000 + b"'\n", b"x = '" + b"b" * 7_000_000 + b"'\n"
    report = report_of({"big.py": old, "big.js": new}, a={"big.py": new, "big.js": new + b"y\n"}, b={"big.py": None})
    assert [(change.path, change.name) for change in branch_symbols(report, "a")] == [
        ("big.js", MODULE),
        ("big.py", MODULE),
    ]
    for path in report.paths:
        for change in path.branches.values():
            assert len(change.unified_diff_vs_parent) < 10_000
    assert moved_blocks(report, "a") == []
    assert len(build_judge_prompt("goal", report, [outcome("a"), outcome("b")])) <= MAX_JUDGE_PROMPT_CHARS


def test_a_diff_of_lines_that_are_long_says_what_it_left_out() -> None:
    report = report_of({"a.txt": b"old\n"}, a={"a.txt": b"kept\n" + b"n" * 300_000 + b"\nend\n"})
    diff = report.paths[0].branches["a"].unified_diff_vs_parent
    assert "+kept\n" in diff
    assert "+end\n" in diff
    assert "... [298002 characters truncated] ...\n" in diff


def test_blocks_of_the_same_line_moved_everywhere() -> None:
    def work(count: int) -> None:
        same = b"the same line\n" * count
        others = b"".join(b"%d\n" % n for n in range(count))
        report = report_of({"a.py": same + others, "b.py": others}, a={"a.py": others, "b.py": others + same})
        blocks = moved_blocks(report, "a")
        assert sum(block.lines for block in blocks) == (count if count >= 3 else 0)

    must_be_linear(work, 200)


def test_a_prompt_reads_no_diff_that_it_has_no_room_for() -> None:
    def work(count: int) -> None:
        parent = {f"{n}.txt": b"old\n" for n in range(count)}
        report = report_of(parent, a={path: b"new %s\n" % path.encode() * 80 for path in parent})
        build_judge_prompt("goal", report, [outcome("a")])
        shown = [
            p.branches["a"] for p in report.paths if isinstance(vars(p.branches["a"])["unified_diff_vs_parent"], str)
        ]
        assert len(shown) < 30

    must_be_linear(work, 300)


def test_versions_that_all_differ_are_combined_one_by_one() -> None:
    def work(count: int) -> None:
        lines = [b"%d\n" % n for n in range(2 * count)]
        versions = {f"b{n}": {"f": b"".join([*lines[:n], b"new\n", *lines[n + 1 :]])} for n in range(0, 12, 2)}
        merged = combination(Scene({"f": b"".join(lines)}, versions).report().paths[0])
        assert merged is not None
        assert merged.clean

    must_be_linear(work, 100)


def test_calls_that_are_all_the_same() -> None:
    from pydantic_ai.messages import ModelResponse, ToolCallPart

    def work(count: int) -> None:
        def calls(tool: str) -> list[Any]:
            return [ModelResponse([ToolCallPart(tool, {"n": 1}, tool_call_id=f"{tool}{n}")]) for n in range(count)]

        assert {step.kind for step in diff_tool_calls(calls("read"), calls("read"))} == {"same"}
        assert len(diff_tool_calls(calls("read"), calls("write"))) == 2 * count

    must_be_linear(work, 200)


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_flushing(kind: str, workspace: Workspace) -> None:
    parent = StateBackend({}) if kind == "memory" else LocalBackend(workspace)

    def flush(count: int) -> int:
        branch = BranchOverlay(parent, f"branch {count}")
        for number in range(count):
            branch.write(f"{count}/{number % 7}/{number}", "new\n")
        return executed_lines(lambda: branch.flush_to(parent))

    flush(1)
    small, large = flush(100), flush(200)
    assert small > 100, "nothing was counted"
    assert large < 2.6 * small, (small, large)
