"""Semantic diffs: renames, copies, moved blocks, definitions, and sequences of tool calls."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.live.diff.renames import MovedBlock, Origin, find_origins, moved_blocks
from forkwise.live.diff.symbols import MODULE, branch_symbols, symbols_of
from forkwise.live.diff.tool_calls import diff_tool_calls, tool_calls_of
from tests.live.fork_scene import report_of

TEXT = b"".join(b"line %d of many\n" % n for n in range(20))


def test_a_rename_is_known_by_both_its_paths() -> None:
    report = report_of({"old.py": TEXT}, a={"old.py": None, "new.py": TEXT.replace(b"line 3 ", b"LINE 3 ")}, b={})
    found = {path.path: path.branches["a"] for path in report.paths}
    assert (found["new.py"].operation, found["new.py"].renamed_from) == ("created", "old.py")
    assert (found["old.py"].operation, found["old.py"].renamed_to) == ("deleted", "new.py")
    assert found["new.py"].similarity == pytest.approx(0.95, abs=0.01)
    assert report.paths[0].branches["b"].renamed_from is None


def test_a_copy_leaves_its_source_alone() -> None:
    report = report_of({"x.py": TEXT}, a={"x.py": TEXT + b"more\n", "y.py": TEXT}, b={"z.py": TEXT})
    found = {path.path: path.branches for path in report.paths}
    assert (found["y.py"]["a"].copied_from, found["y.py"]["a"].similarity) == ("x.py", 1.0)
    assert found["x.py"]["a"].renamed_to is None
    assert found["z.py"]["b"].copied_from == "x.py"


def test_files_that_have_nothing_in_common_are_no_rename() -> None:
    report = report_of({"old.py": TEXT}, a={"old.py": None, "new.py": b"something else\n" * 9})
    assert all(path.branches["a"].similarity is None for path in report.paths)


def test_empty_files_have_no_origin() -> None:
    report = report_of({"a/__init__.py": b""}, a={"a/__init__.py": None, "b/__init__.py": b""})
    assert all(path.branches["a"].similarity is None for path in report.paths)


def test_a_file_is_renamed_once_and_to_the_one_most_like_it() -> None:
    near, far = TEXT.replace(b"line 1 ", b"x"), TEXT[: len(TEXT) * 2 // 3]
    found = find_origins({"near": near, "far": far}, {"old": TEXT}, {})
    assert found["near"].is_rename
    assert not found["far"].is_rename
    assert found["far"].path == "old"


def test_among_identical_files_the_one_with_the_same_name_is_the_origin() -> None:
    olds = {f"old/{n}.py": TEXT for n in range(5)}
    found = find_origins({f"new/{n}.py": TEXT for n in reversed(range(5))}, olds, {})
    assert found == {f"new/{n}.py": Origin(f"old/{n}.py", 1.0, is_rename=True) for n in range(5)}


def test_only_identical_binary_files_are_renames() -> None:
    assert find_origins({"b": b"\0one"}, {"a": b"\0one"}, {})["b"].is_rename
    assert find_origins({"b": b"\0one" * 9 + b"x"}, {"a": b"\0one" * 9}, {}) == {}


def test_not_all_pairs_of_files_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    olds = {f"old{n}": b"".join(b"%d %d\n" % (n, k) for k in range(9)) + b"common\n" for n in range(300)}
    news = {f"new{n}": content + b"x\n" for n, content in enumerate(olds.values())}
    compared = []

    def similarity(mine: Counter[bytes], its: Counter[bytes], size: int) -> float:
        compared.append(size)
        return (mine & its).total() / max(mine.total(), its.total())

    monkeypatch.setattr("forkwise.live.diff.renames._measure_similarity", similarity)
    found = find_origins(news, olds, {})
    assert [found[f"new{n}"].path for n in range(300)] == [f"old{n}" for n in range(300)]
    assert len(compared) == 300


BLOCK = b"def moved():\n    first = 1\n    second = 2\n    return first + second\n"


def test_a_block_that_moved_to_another_file() -> None:
    report = report_of(
        {"a.py": b"import os\n" + BLOCK + b"print(os)\n", "b.py": b"import sys\n"},
        a={"a.py": b"import os\nprint(os)\n", "b.py": b"import sys\n" + BLOCK},
        b={},
    )
    assert moved_blocks(report, "a") == [MovedBlock("a.py", 2, "b.py", 2, 4)]
    assert moved_blocks(report, "b") == []


def test_a_moved_block_with_another_indentation() -> None:
    indented = b"".join(b"    " + line for line in BLOCK.splitlines(keepends=True))
    report = report_of({"a.py": BLOCK + b"x = 1\n"}, a={"a.py": b"x = 1\nclass A:\n" + indented})
    assert moved_blocks(report, "a") == [MovedBlock("a.py", 1, "a.py", 3, 4)]


def test_a_renamed_file_is_no_moved_block_and_neither_are_two_lines() -> None:
    renamed = report_of({"a.py": TEXT}, a={"a.py": None, "b.py": TEXT})
    assert moved_blocks(renamed, "a") == []
    short = report_of({"a.py": b"one\ntwo\nkeep\n"}, a={"a.py": b"keep\none\ntwo\n"})
    assert moved_blocks(short, "a") == []
    assert len(moved_blocks(short, "a", least=1)) == 1


def test_definitions_that_were_changed_added_and_removed() -> None:
    old = b"import os\nclass A:\n    def f(self):\n        return 1\n    def g(self): pass\ndef gone(): pass\n"
    new = b"import os\nclass A:\n    def f(self):\n        return 2\n    def g(self): pass\n@cached\ndef made(): pass\n"
    report = report_of({"x.py": old, "notes.txt": b"a"}, a={"x.py": new, "notes.txt": b"b"})
    found = {(change.change, change.name, change.kind) for change in branch_symbols(report, "a")}
    assert found == {("changed", "A.f", "function"), ("added", "made", "function"), ("removed", "gone", "function")}


@pytest.mark.parametrize(
    ("new", "names"),
    [
        (b"# why\ndef f(a):\n\n    if a:  # when\n        b()\n        c()\n", set()),
        (b"def f(a):\n    if a:\n        b()\n    c()\n", {"f"}),
        (b"import x\ndef f(a):\n    if a:\n        b()\n        c()\n", {MODULE}),
    ],
)
def test_layout_and_comments_do_not_count_and_nesting_does(new: bytes, names: set[str]) -> None:
    report = report_of({"x.py": b"def f(a):\n    if a:\n        b()\n        c()\n"}, a={"x.py": new})
    assert {change.name for change in branch_symbols(report, "a")} == names


@pytest.mark.parametrize(
    ("language", "source", "names"),
    [
        ("javascript", "class A { m(){} }\nconst g = () => 1;\nexport function k(){}", "A A.m g k"),
        ("typescript", "interface I {a: number}\nexport class A { m(): void {} }\nenum E {B}", "A A.m E I"),
        ("go", "package a\nfunc f() {}\nfunc (s *S) m() {}\ntype S struct{}", "S f m"),
        (
            "rust",
            "fn f(){}\nstruct S{}\nimpl S { fn m(&self){} }\nimpl T for S { fn x(){} }",
            "S S#2 S#2.m T S T S.x f",
        ),
        ("java", "class A { int f(){return 1;} A(){} }", "A A.A A.f"),
        ("c", "int f(int a){return 1;}\nstruct S {int x;};\nint *g(void){return 0;}", "S f g"),
        ("cpp", "class A { void f(){} };\nvoid A::g(){}\nnamespace n { int h(){} }", "A A.f A::g n n.h"),
        ("ruby", "class A\n def f\n end\n def self.g\n end\nend", "A A.f A.g"),
        ("bash", "f() { :; }", "f"),
        ("php", "<?php function f(){} class A { function g(){} }", "A A.g f"),
        ("kotlin", "fun f(){}\nclass A { fun g(){} }", "A A.g f"),
    ],
)
def test_languages(language: str, source: str, names: str) -> None:
    assert " ".join(sorted(symbols_of(language, source))) == names


def test_overloads_are_numbered() -> None:
    assert list(symbols_of("java", "class A { void f(){} void f(int a){} }")) == ["A", "A.f", "A.f#2"]


def test_source_nested_without_end_is_read() -> None:
    depth = sys.getrecursionlimit() * 2
    assert symbols_of("python", f"def f():\n    return {'(' * depth}{')' * depth}\n") == {"f": "function"}


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_language_pack", None)
    with pytest.raises(ImportError, match=r"forkwise\[code\]"):
        symbols_of("lua", "")


def conversation(*calls: tuple[str, object]) -> list[ModelMessage]:
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart("go")])]
    for number, (tool, args) in enumerate(calls):
        messages.append(ModelResponse([ToolCallPart(tool, args, tool_call_id=f"c{number}")]))  # type: ignore[arg-type]
        messages.append(ModelRequest([ToolReturnPart(tool, "ok", tool_call_id=f"c{number}")]))
    return messages


def test_sequences_of_tool_calls() -> None:
    left = conversation(("read", {"path": "x"}), ("write", {"path": "x", "text": "1"}), ("test", {}))
    right = conversation(("read", '{"path": "x"}'), ("write", {"text": "2", "path": "x"}), ("grep", {}), ("test", {}))
    steps = [(step.kind, (step.left or step.right).tool) for step in diff_tool_calls(left, right)]  # type: ignore[union-attr]
    assert steps == [("same", "read"), ("changed", "write"), ("right", "grep"), ("same", "test")]
    assert [step.kind for step in diff_tool_calls(right, left)] == ["same", "changed", "left", "same"]
    assert diff_tool_calls([], []) == []


def test_a_call_that_was_sent_back_failed() -> None:
    messages = conversation(("read", {"path": "x"}))
    messages[-1] = ModelRequest([ToolReturnPart("read", "no such file", tool_call_id="c0", outcome="retried")])
    [call] = tool_calls_of(messages)
    assert call.failed
    assert not tool_calls_of(conversation(("read", {"path": "x"})))[0].failed


def test_arguments_that_are_not_json_are_compared_as_text() -> None:
    left, right = conversation(("read", '{"path": ')), conversation(("read", '{"path": "'))
    assert [step.kind for step in diff_tool_calls(left, right)] == ["changed"]
