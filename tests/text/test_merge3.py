"""The three-way merge, compared with git's own, and the properties of any merge."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise.text import diff as line_edits
from forkwise.text import merge3 as merging
from forkwise.text.diff import Edit, edits, lines_of
from forkwise.text.merge3 import ConflictHunk as Hunk
from forkwise.text.merge3 import Merge, is_text, merge
from tests.need import need

ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
LABELS = ["-L", "branch", "-L", "base", "-L", "parent"]

# No deadline: much of the time of an example is git's, and a busy machine is not a failure.

Git = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def git() -> Iterator[Git]:
    """Run git on files of the given contents, named ours, base and theirs."""
    need(shutil.which("git") is not None, "git, which the merge is held against, is not installed")
    with tempfile.TemporaryDirectory() as place:

        def run(*arguments: str, **files: bytes) -> subprocess.CompletedProcess[bytes]:
            for name, content in files.items():
                Path(place, name).write_bytes(content)
            return subprocess.run(["git", *arguments], cwd=place, env=ENVIRONMENT, capture_output=True, check=False)

        yield run


def merged_by_git(git: Git, base: bytes, ours: bytes, theirs: bytes) -> tuple[bytes, bool]:
    ran = git("merge-file", "-p", "--diff3", *LABELS, "ours", "base", "theirs", base=base, ours=ours, theirs=theirs)
    assert 0 <= ran.returncode < 128, ran.stderr
    return ran.stdout, ran.returncode == 0


def edits_by_git(git: Git, base: bytes, ours: bytes) -> list[Edit]:
    options = ["--no-index", "--no-color", "--text", "--diff-algorithm=myers", "--no-indent-heuristic", "-U1000000"]
    ran = git("diff", *options, "base", "ours", base=base, ours=ours)
    _, _, body = ran.stdout.partition(b" @@\n")
    found: list[Edit] = []
    i = j = 0
    for mark in (line[:1] for line in lines_of(body) if not line.startswith(b"\\")):
        next_i, next_j = i + (mark != b"+"), j + (mark != b"-")
        if mark != b" ":
            last = found.pop() if found and found[-1][1::2] == (i, j) else Edit(i, i, j, j)
            found.append(Edit(last.old_start, next_i, last.new_start, next_j))
        i, j = next_i, next_j
    return found


def cost(found: list[Edit]) -> int:
    return sum(edit.old_stop - edit.old_start + edit.new_stop - edit.new_start for edit in found)


def applied(found: list[Edit], old: list[bytes], new: list[bytes]) -> list[bytes]:
    built: list[bytes] = []
    at = 0
    for edit in found:
        built += old[at : edit.old_start] + new[edit.new_start : edit.new_stop]
        at = edit.old_stop
    return built + old[at:]


@st.composite
def texts(draw: st.DrawFn, lines: st.SearchStrategy[list[bytes]]) -> bytes:
    """Draw lines with equal or mixed endings, the last one perhaps without."""
    ending = draw(st.sampled_from([b"\n", b"\n", b"\r\n"]))
    text = b"".join(line + ending for line in draw(lines))
    return text.removesuffix(b"\n") if draw(st.booleans()) else text


few_lines = texts(st.lists(st.sampled_from([b"a", b"b", b"c", b""]), max_size=12))

BASE = [b"%d" % n for n in range(12)]
OURS = [b"our %d" % n for n in range(6)]
THEIRS = [b"their %d" % n for n in range(6)]
SHARED = [b"new %d" % n for n in range(3)]


@st.composite
def changed(draw: st.DrawFn, own: list[bytes], shared: list[bytes]) -> list[bytes]:
    """Draw BASE with lines removed and unique lines inserted, so that there is only one shortest diff."""
    lines = [line for line in BASE if draw(st.integers(0, 5))]
    for line in draw(st.lists(st.sampled_from([*own, *shared]), max_size=4, unique=True)):
        lines.insert(draw(st.integers(0, len(lines))), line)
    return lines


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "content"),
    [
        pytest.param(b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\n", b"A\nb\nC\n", id="apart"),
        pytest.param(b"a\nb\nc\n", b"A\nb\nc\n", b"A\nb\nC\n", b"A\nb\nC\n", id="alike taken once"),
        pytest.param(b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nC\r\n", id="crlf kept"),
        pytest.param(b"a\nb\nc", b"A\nb\nc", b"a\nb\nC", b"A\nb\nC", id="no final newline"),
        pytest.param(b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nc", b"A\nb\nc", id="final newline taken away"),
        pytest.param(b"\xff\nb\n\xfe\n", b"\xfd\nb\n\xfe\n", b"\xff\nb\n\n", b"\xfd\nb\n\n", id="not utf-8"),
        pytest.param(b"a\nb\nc\n", b"", b"a\nb\nc\n", b"", id="emptied"),
        pytest.param(b"", b"", b"a\n", b"a\n", id="filled"),
    ],
)
def test_merges_clean(base: bytes, ours: bytes, theirs: bytes, content: bytes) -> None:
    assert merge(base, ours, theirs) == Merge(content, ())
    assert merge(base, ours, theirs).clean


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "hunk"),
    [
        pytest.param(
            b"a\nb\n", b"A\nb\n", b"a\n", Hunk(0, 2, (b"a\n", b"b\n"), (b"A\n", b"b\n"), (b"a\n",)), id="touching"
        ),
        pytest.param(b"a\n", b"a\nb\n", b"a\nc\n", Hunk(1, 1, (), (b"b\n",), (b"c\n",)), id="put in at one place"),
        pytest.param(b"a\n", b"", b"b\n", Hunk(0, 1, (b"a\n",), (), (b"b\n",)), id="emptied and changed"),
        pytest.param(b"a", b"b", b"c\n", Hunk(0, 1, (b"a",), (b"b",), (b"c\n",)), id="no final newline"),
    ],
)
def test_conflicts_are_values(base: bytes, ours: bytes, theirs: bytes, hunk: Hunk) -> None:
    found = merge(base, ours, theirs)
    assert found.conflicts == (hunk,)
    assert not found.clean


def test_labels_and_line_endings_of_markers() -> None:
    found = merge(b"0\r\na\r\n", b"0\r\nb\r\n", b"0\r\nc", labels=("mine", "old", "caf\udce9"))
    assert found.content == (
        b"0\r\n<<<<<<< mine\r\nb\r\n||||||| old\r\na\r\n=======\r\nc\r\n>>>>>>> caf\xe9\r\n"
    )  # fmt: skip


def test_text_is_what_git_calls_text() -> None:
    assert is_text(b"")
    assert is_text(b"\xff\xfe\r\n\x01")
    assert not is_text(b"a\0")
    assert is_text(b"a" * 8000 + b"\0")


@given(ours=changed(OURS, SHARED), theirs=changed(THEIRS, SHARED), ending=st.sampled_from([b"\n", b"\r\n"]))
def test_same_bytes_as_git_if_there_is_only_one_shortest_diff(
    git: Git, ours: list[bytes], theirs: list[bytes], ending: bytes
) -> None:
    base, mine, other = (joined(lines).replace(b"\n", ending) for lines in (BASE, ours, theirs))
    found = merge(base, mine, other)
    assert (found.content, found.clean) == merged_by_git(git, base, mine, other)


@given(base=few_lines, ours=few_lines, theirs=few_lines)
def test_same_bytes_as_git_given_its_diff(git: Git, base: bytes, ours: bytes, theirs: bytes) -> None:
    """Use git's diff, because repeated lines allow several shortest ones; all else must be the same."""
    content, clean = merged_by_git(git, base, ours, theirs)
    by_git = {text: edits_by_git(git, base, text) for text in (ours, theirs)}
    by_us = {text: edits(lines_of(base), lines_of(text)) for text in (ours, theirs)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "edits", lambda _, new: by_git[b"".join(new)])
        found = merge(base, ours, theirs)
    assert (found.content, found.clean) == (content, clean)
    if by_us == by_git:
        assert merge(base, ours, theirs) == found
    for text in (ours, theirs):
        assert cost(by_us[text]) <= cost(by_git[text])


@given(old=few_lines, new=few_lines)
def test_edits_turn_old_into_new(old: bytes, new: bytes) -> None:
    before, after = lines_of(old), lines_of(new)
    found = edits(before, after)
    assert applied(found, before, after) == after
    assert all(first.old_stop < second.old_start for first, second in pairwise(found))


@given(old=few_lines, new=few_lines, bits=st.integers(1, 40))
def test_edits_of_texts_too_large_for_one_table(old: bytes, new: bytes, bits: int) -> None:
    before, after = lines_of(old), lines_of(new)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(line_edits, "_TABLE_BITS", bits)
        assert applied(edits(before, after), before, after) == after


@given(ours=changed(OURS, SHARED))
def test_unique_lines_are_paired_without_a_table(ours: list[bytes]) -> None:
    whole = edits(BASE, ours)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(line_edits, "_TABLE_BITS", 1)
        assert edits(BASE, ours) == whole


@given(base=few_lines, ours=few_lines)
def test_a_side_that_changed_nothing_gives_way(base: bytes, ours: bytes) -> None:
    assert merge(base, ours, base) == merge(base, base, ours) == merge(base, ours, ours) == Merge(ours, ())


@given(base=few_lines, ours=few_lines, theirs=few_lines)
def test_symmetry(base: bytes, ours: bytes, theirs: bytes) -> None:
    here, there = merge(base, ours, theirs), merge(base, theirs, ours)
    mirrored = tuple(Hunk(hunk.start, hunk.stop, hunk.base, hunk.theirs, hunk.ours) for hunk in there.conflicts)
    assert here.conflicts == mirrored
    if here.clean:
        assert here.content == there.content


@given(ours=changed(OURS, []), theirs=changed(THEIRS, []))
def test_a_clean_merge_holds_both_sides_changes(ours: list[bytes], theirs: list[bytes]) -> None:
    found = merge(joined(BASE), joined(ours), joined(theirs))
    if found.clean:
        lines = found.content.split(b"\n")[:-1]
        assert [line for line in lines if line in OURS] == [line for line in ours if line in OURS]
        assert [line for line in lines if line in THEIRS] == [line for line in theirs if line in THEIRS]
        assert [line for line in lines if line in BASE] == [line for line in BASE if line in ours and line in theirs]


@given(base=few_lines, ours=few_lines, theirs=few_lines)
def test_hunks_have_the_right_positions(base: bytes, ours: bytes, theirs: bytes) -> None:
    found = merge(base, ours, theirs)
    assert found.content.count(b"<<<<<<< branch") == len(found.conflicts)
    at = -1
    for hunk in found.conflicts:
        assert at < hunk.start <= hunk.stop
        assert hunk.base == tuple(lines_of(base)[hunk.start : hunk.stop])
        assert hunk.ours != hunk.theirs
        at = hunk.stop


class Counted(list[int]):
    """A list that counts how often it was written to."""

    moves = 0

    def __setitem__(self, *arguments: object) -> None:
        self.moves += 1
        super().__setitem__(*arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("step", [3, 50, 1000])
def test_gaps_are_moved_in_linear_time(period: int, step: int) -> None:
    size = 20_000
    lines = [n % period for n in range(size)]
    bounds = Counted([-1, *(n for n in range(size) if n % step), size])
    other = [n - 1 for n in range(len(bounds))]
    line_edits._place_gaps(lines, bounds, other)
    assert bounds.moves <= 4 * size


def test_lines_only_one_side_has_need_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_edits, "_TABLE_BITS", 0)
    base, ours, theirs = (joined([b"%s %d" % (name, n) for n in range(20_000)]) for name in (b"b", b"o", b"t"))
    assert len(merge(base, ours, theirs).conflicts) == 1


def test_large_files_of_equal_lines() -> None:
    base = b"\n" * 20_000
    found = merge(base, b"\n" * 9_000 + b"ours\n" + b"\n" * 11_000, b"\n" * 15_000 + b"theirs\n" + b"\n" * 5_000)
    assert found.clean
    assert found.content == b"\n" * 9_000 + b"ours\n" + b"\n" * 6_000 + b"theirs\n" + b"\n" * 5_000
