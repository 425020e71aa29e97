"""Diff reports: their documented fields, known pitfalls, and patches that apply."""

from __future__ import annotations

import json
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import to_json

from forkwise import BranchDiffReport, DiffSummary, build_diff_report
from forkwise.live.diff.diff_report import combination, measure_support
from tests.counts import examples
from tests.live.fork_scene import Files, Scene, report_of

APP = b"one\ntwo\nthree\n"


def test_a_split_path() -> None:
    report = report_of({"app.py": APP}, a={"app.py": b"one\n2\nthree\n"}, b={"app.py": b"one\nII\nthree\n"})
    assert report.fork_id == "fork"
    assert report.summary.agreement_score == 0.0
    [path] = report.paths
    assert (path.path, path.agreement, path.parent_content) == ("app.py", "split", APP.decode())
    assert list(path.branches) == ["a", "b"]
    change = path.branches["a"]
    assert (change.branch_id, change.branch_label, change.operation) == ("a", "the a", "modified")
    assert (change.new_content, change.size_bytes, change.is_binary) == ("one\n2\nthree\n", 12, False)
    assert "--- a/app.py\n+++ b/app.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" in change.unified_diff_vs_parent


@pytest.mark.parametrize(
    ("a", "b", "agreement"),
    [
        ({"x": b"new"}, {"x": b"new"}, "unanimous_change"),
        ({"x": b"new"}, {"x": b"other"}, "split"),
        ({"x": b"new"}, {}, "unique"),
        ({"x": None}, {"x": None}, "unanimous_change"),
        ({"x": None}, {"x": b"new"}, "split"),
        ({"x": None}, {}, "unique"),
    ],
)
def test_agreement(a: dict[str, bytes | None], b: dict[str, bytes | None], agreement: str) -> None:
    [path] = report_of({"x": b"old"}, a=a, b=b).paths
    assert path.agreement == agreement


def test_the_summary_counts() -> None:
    parent = dict.fromkeys("wxyz", b"old")
    report = report_of(
        parent,
        a={"w": b"1", "x": b"1", "y": b"1", "a1": b"", "a2": b""},
        b={"w": b"1", "x": b"2", "b1": b""},
        c={"w": b"1", "x": b"1"},
    )
    summary = report.summary
    assert [path.path for path in report.paths] == ["a1", "a2", "b1", "w", "x", "y"]
    assert (summary.total_paths_touched, summary.unanimous_paths, summary.split_paths) == (6, 1, 1)
    assert summary.per_branch_unique == {"a": 3, "b": 1, "c": 0}
    assert summary.agreement_score == pytest.approx(1 - 1 / 6)


def test_nothing_touched_is_full_agreement() -> None:
    summary = report_of({"x": b"old"}, a={}, b={}).summary
    assert (summary.total_paths_touched, summary.agreement_score, summary.content_agreement) == (0, 1.0, None)


def test_operations() -> None:
    report = report_of({"x": b"old", "gone": b"old"}, a={"x": b"new", "gone": None, "made": b"new"}, b={})
    operations = {path.path: [c.operation for c in path.branches.values()] for path in report.paths}
    assert operations == {
        "gone": ["deleted", "untouched"], "made": ["created", "untouched"], "x": ["modified", "untouched"],
    }  # fmt: skip
    made = next(path for path in report.paths if path.path == "made")
    assert made.parent_content is None
    gone = next(path for path in report.paths if path.path == "gone").branches["a"]
    assert (gone.new_content, gone.size_bytes) == (None, 0)


def test_a_restored_file_is_untouched() -> None:
    assert report_of({"x": b"old"}, a={"x": b"old", "passing": None}, b={}).paths == []


def test_a_branch_whose_files_are_gone_has_changed_nothing() -> None:
    [path] = report_of({"x": b"old"}, a={"x": b"new"}, b=None).paths
    assert path.branches["b"].operation == "untouched"
    assert path.agreement == "unique"


def test_the_same_id_twice_is_refused() -> None:
    one = Scene(branches={"a": {}}).runtimes
    with pytest.raises(ValueError, match="same id"):
        build_diff_report("fork", [*one, *one])


def test_binary_content() -> None:
    content = b"\x7fELF\0" + b"x" * 10
    digest = sha256(content).hexdigest()
    [path] = report_of({"x": b"\0old"}, a={"x": content}, b={"x": b"text\n"}).paths
    assert path.parent_content is None
    change = path.branches["a"]
    assert (change.is_binary, change.new_content, change.binary_sha256) == (True, None, digest)
    assert change.unified_diff_vs_parent == f"[binary · 15 bytes · sha256:{digest[:12]}]"
    assert not path.branches["b"].is_binary


@pytest.mark.parametrize(("at", "is_binary"), [(8191, True), (8192, False)])
def test_a_nul_counts_within_the_first_8_kb(at: int, is_binary: bool) -> None:
    [path] = report_of({}, a={"x": b"y" * at + b"\0"}).paths
    assert path.branches["a"].is_binary is is_binary


def test_large_diffs_are_previewed() -> None:
    content = "".join(f"line {n}\n" for n in range(1000)).encode()
    [path] = report_of({}, a={"x": content}).paths
    lines = path.branches["a"].unified_diff_vs_parent.splitlines()
    assert len(lines) == 401
    left_out = 1000 + 6 - 400  # six lines are the heading
    assert lines[200] == f"... [{left_out} lines truncated] ..."
    assert lines[-1] == "+line 999"


def test_500_lines_are_whole() -> None:
    [path] = report_of({}, a={"x": b"".join(b"%d\n" % n for n in range(494))}).paths
    assert "truncated" not in path.branches["a"].unified_diff_vs_parent
    assert len(path.branches["a"].unified_diff_vs_parent.splitlines()) == 500


def test_a_filter_lists_untouched_paths_and_does_not_change_the_summary() -> None:
    scene = Scene({"x": b"old", "y": b"old"}, {"a": {"x": b"1"}, "b": {"x": b"2"}})
    report = scene.report(["y", "x", "nowhere", "y"])
    assert [(path.path, path.agreement) for path in report.paths] == [
        ("nowhere", "unanimous_no_change"), ("x", "split"), ("y", "unanimous_no_change"),
    ]  # fmt: skip
    assert [path.parent_content for path in report.paths] == [None, "old", "old"]
    assert scene.report(["y"]).summary == scene.report().summary
    assert scene.report([]).paths == []


def test_two_different_texts_that_are_not_utf8_are_no_agreement() -> None:
    [path] = report_of({"x": b"caf\xe9\n"}, a={"x": b"caf\xe8\n"}, b={"x": b"caf\xe7\n"}).paths
    assert path.agreement == "split"
    assert path.branches["a"].new_content == "caf\ufffd\n"


def test_any_report_can_be_serialized() -> None:
    report = report_of({"x": b"caf\xe9\n"}, a={"x": b"\xff\xfe\n"}, b={"x": b"\0"})
    assert json.loads(to_json(report))["paths"][0]["agreement"] == "split"


def test_lazily_computed_fields_are_serialized() -> None:
    """pydantic reads the fields through a schema, so lazy ones must be computed for it as well."""
    adapter = TypeAdapter(BranchDiffReport)
    report = report_of({"x": b"1\n"}, a={"x": b"two\n"}, b={"x": b"two\nthree\n"})
    dumped = json.loads(adapter.dump_json(report))
    assert dumped["summary"]["content_agreement"] == report.summary.content_agreement == 0.5
    assert "+two\n" in dumped["paths"][0]["branches"]["a"]["unified_diff_vs_parent"]
    assert report == report_of({"x": b"1\n"}, a={"x": b"two\n"}, b={"x": b"two\nthree\n"})
    assert adapter.validate_json(adapter.dump_json(report)) == report
    assert DiffSummary(0, 0, 0, {}, 1.0).content_agreement is None


class Moded(Files):
    def old_mode(self, path: str) -> int | None:
        return 0o100644

    def new_mode(self, path: str) -> int | None:
        return 0o100755


def test_a_mode_is_a_change() -> None:
    scene = Scene({"run.sh": b"true\n"}, {"a": {}, "b": {"run.sh": b"true\n"}})
    runtimes = scene.runtimes
    runtimes[0].overlay = Moded(scene.parent, {"run.sh": b"true\n"})  # type: ignore[misc]
    [path] = build_diff_report("fork", runtimes).paths
    assert path.branches["a"].operation == "modified"
    assert "old mode 100644\nnew mode 100755\n" in path.branches["a"].unified_diff_vs_parent
    assert path.agreement == "unique"


_LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "é\n", "end"]), max_size=12)


@settings(max_examples=examples(25))
@given(old=_LINES, new=_LINES)
def test_a_diff_applies(old: list[str], new: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    before, after = "".join(old).encode(), "".join(new).encode()
    if before == after:
        return
    [path] = report_of({"dir/x y": before}, a={"dir/x y": after}).paths
    root = tmp_path_factory.mktemp("applied")
    (root / "dir").mkdir()
    (root / "dir/x y").write_bytes(before)
    diff = path.branches["a"].unified_diff_vs_parent.encode()
    subprocess.run(["git", "apply", "--unsafe-paths", "-"], cwd=root, input=diff, check=True)
    assert (root / "dir/x y").read_bytes() == after


@pytest.mark.parametrize("tool", [["git", "apply", "-"], ["patch", "-p1", "-s"]])
def test_diffs_of_created_and_deleted_files_apply(tool: list[str], tmp_path: Path) -> None:
    report = report_of({"gone": b"x\n", "/abs": b"y\n"}, a={"gone": None, "made": b"new\n", "/abs": b"z\n"})
    (tmp_path / "gone").write_bytes(b"x\n")
    (tmp_path / "abs").write_bytes(b"y\n")
    diff = "".join(path.branches["a"].unified_diff_vs_parent for path in report.paths)
    subprocess.run(tool, cwd=tmp_path, input=diff.encode(), check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["abs", "made"]
    assert (tmp_path / "abs").read_bytes() == b"z\n"


def test_agreement_by_content_of_work_that_does_not_overlap() -> None:
    function = b"def helper():\n    return compute()\n"
    alike = report_of({}, a={"one.py": function}, b={"two.py": function})
    apart = report_of({}, a={"one.py": function}, b={"two.py": b"class Other:\n    pass\n"})
    assert alike.summary.agreement_score == apart.summary.agreement_score == 1.0
    assert (alike.summary.content_agreement, apart.summary.content_agreement) == (1.0, 0.0)


def test_binary_work_agrees_by_content_too() -> None:
    report = report_of({}, a={"one": b"\0x"}, b={"two": b"\0x"})
    assert report.summary.content_agreement == 1.0


def test_changes_of_different_lines_of_a_file_can_be_merged() -> None:
    base = b"".join(b"%d\n" % n for n in range(9))
    [path] = report_of({"x": base}, a={"x": base.replace(b"1\n", b"A\n")}, b={"x": base.replace(b"7\n", b"B\n")}).paths
    assert path.agreement == "split"
    merged = combination(path)
    assert merged is not None
    assert merged.clean
    assert merged.content == base.replace(b"1\n", b"A\n").replace(b"7\n", b"B\n")
    [clash] = report_of({"x": b"1\n"}, a={"x": b"A\n"}, b={"x": b"B\n"}).paths
    both = combination(clash)
    assert both is not None
    assert not both.clean
    [gone] = report_of({"x": b"1\n"}, a={"x": None}, b={"x": b"B\n"}).paths
    assert combination(gone) is None


def test_support_is_the_share_of_others_that_did_the_same() -> None:
    report = report_of({"x": b"old"}, a={"x": b"1"}, b={"x": b"1"}, c={"x": b"2"}, d={})
    assert measure_support(report, "a") == pytest.approx(1 / 3)
    assert measure_support(report, "c") == 0.0
    assert measure_support(report, "d") == 0.0
    assert measure_support(report_of({"x": b"old"}, a={"x": b"1"}), "a") == 1.0


@settings(max_examples=examples(50))
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.dictionaries(st.sampled_from("xyz"), st.none() | st.sampled_from([b"", b"1\n", b"2\n", b"\0"]), max_size=3),
        min_size=1,
    )
)
def test_the_counts_are_consistent(branches: dict[str, dict[str, bytes | None]]) -> None:
    report = Scene({"x": b"1\n", "y": b"old\n"}, branches).report()
    summary = report.summary
    labels = [path.agreement for path in report.paths]
    assert summary.total_paths_touched == len(labels)
    assert summary.unanimous_paths + summary.split_paths + sum(summary.per_branch_unique.values()) == len(labels)
    assert 0.0 <= summary.agreement_score <= 1.0
    assert summary.content_agreement is None or 0.0 <= summary.content_agreement <= 1.0
    for path in report.paths:
        assert set(path.branches) == set(branches)
        assert any(change.operation != "untouched" for change in path.branches.values())
