"""Diffs in git's format, compared with git's own and applied by git and patch."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkwise.text.diff import FileDiff, FileVersion, chunks, unified
from tests.counts import examples
from tests.need import need

FILE, PROGRAM, LINK = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
DIRECTORY, PIPE = stat.S_IFDIR | 0o755, stat.S_IFIFO | 0o644

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", ""),
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}

Tree = dict[str, FileVersion]

# No deadline: most of the time of an example is git's, and a busy machine is not a failure.
unhurried = settings(max_examples=examples(50))

PLAIN_NAMES = ["a", "b", "caf\u00e9", 'quo"te', "-p"]
NAMES = [*PLAIN_NAMES, "space d", " ", "tab\tbed", "new\nline", "back\\slash", "\udcff\udcfe", "\x7f"]


@pytest.fixture(autouse=True)
def tools() -> None:
    need(shutil.which("git") is not None, "git, which has to accept the diffs, is not installed")


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


def run(place: Path, *command: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
    ran = subprocess.run(command, cwd=place, env=ENVIRONMENT, input=stdin, capture_output=True)
    if check:
        assert ran.returncode == 0, (ran.stderr, ran.stdout, stdin)
    return ran


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def write(place: Path, tree: Tree) -> None:
    for path, side in tree.items():
        assert side.content is not None
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(side.mode):
            os.symlink(side.content, os.fsencode(target))
        else:
            target.write_bytes(side.content)
            target.chmod(stat.S_IMODE(side.mode))


def read(place: Path) -> Tree:
    tree: Tree = {}
    for top, directories, files in os.walk(place):
        if ".git" in directories:
            directories.remove(".git")
        for name in [*files, *(name for name in directories if os.path.islink(os.path.join(top, name)))]:
            path = os.path.join(top, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                side = FileVersion(LINK, os.readlink(os.fsencode(path)))
            else:
                side = FileVersion(PROGRAM if mode & stat.S_IXUSR else FILE, Path(path).read_bytes())
            tree[os.path.relpath(path, place)] = side
    return tree


def empty(place: Path) -> None:
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            if entry.name != ".git":
                shutil.rmtree(entry)
        else:
            entry.unlink()


def between(old: Tree, new: Tree) -> list[FileDiff]:
    return [FileDiff(path, old.get(path), new.get(path)) for path in sorted(old.keys() | new.keys(), key=os.fsencode)]


def applied(place: Path, old: Tree, text: str, *options: str) -> Tree:
    write(place, old)
    if text:
        run(place, "git", "apply", "--whitespace=nowarn", *options, stdin=encoded(text))
    return read(place)


few_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"\r\n", b"a\r\n", b"\xff\n", b"-- \n", b"\n"]), max_size=20)
endings = st.sampled_from([b"", b"", b"end", b"a", b"\r"])
files = st.builds(
    lambda mode, lines, ending: FileVersion(mode, b"".join(lines) + ending),
    st.sampled_from([FILE, PROGRAM]),
    few_lines,
    endings,
)
# No link points to itself: git cannot replace such a link by a directory.
links = st.builds(FileVersion, st.just(LINK), st.sampled_from([b"none", b"../x", b"/none", b"two\nlines", b"\xff"]))
data = st.builds(FileVersion, st.sampled_from([FILE, PROGRAM]), st.binary(max_size=200).map(lambda tail: b"\0" + tail))


@st.composite
def trees(draw: st.DrawFn, sides: st.SearchStrategy[FileVersion], names: list[str]) -> Tree:
    """Draw a few files, some in directories; no file has the name of another's directory."""
    name = st.sampled_from(names)
    drawn = draw(st.dictionaries(st.one_of(name, st.tuples(name, name).map("/".join)), sides, max_size=4))
    return {path: side for path, side in drawn.items() if not any(other.startswith(f"{path}/") for other in drawn)}


@unhurried
@given(old=trees(files | links, NAMES), new=trees(files | links, NAMES), context=st.integers(1, 4))
def test_git_applies_it(old: Tree, new: Tree, context: int) -> None:
    with TemporaryDirectory() as name:
        run(Path(name), "git", "init", "-q")
        assert applied(Path(name), old, unified(between(old, new), context=context)) == new


@unhurried
@given(old=trees(files | links, NAMES), new=trees(files | links, NAMES))
def test_git_applies_it_backwards(old: Tree, new: Tree) -> None:
    with TemporaryDirectory() as name:
        assert applied(Path(name), new, unified(between(old, new)), "-R") == old


# Without context git confuses a last line without a newline with any line that begins like it, in its own diffs too.
ended_files = files.map(lambda side: FileVersion(side.mode, (side.content or b"") + b"\n"))


@unhurried
@given(old=trees(ended_files, ["f"]), new=trees(ended_files, ["f"]))
def test_git_applies_it_without_context(old: Tree, new: Tree) -> None:
    with TemporaryDirectory() as name:
        assert applied(Path(name), old, unified(between(old, new), context=0), "--unidiff-zero") == new


@unhurried
@given(old=trees(files | data | links, NAMES), new=trees(files | data | links, NAMES))
def test_git_applies_binary_content(old: Tree, new: Tree) -> None:
    with TemporaryDirectory() as name:
        assert applied(Path(name), old, unified(between(old, new), binary=True)) == new


def patched(place: Path, old: Tree, text: str) -> Tree:
    need(shutil.which("patch") is not None, "GNU patch is not installed")
    write(place, old)
    if text:
        run(place, "patch", "-p1", "-s", "--no-backup-if-mismatch", stdin=encoded(text))
    return read(place)


flat_trees = st.dictionaries(st.sampled_from([*PLAIN_NAMES, "sub/a", "sub/b"]), files, max_size=4)


@unhurried
@given(old=flat_trees, new=flat_trees)
def test_patch_applies_it(old: Tree, new: Tree) -> None:
    """Apply with `patch`, which deletes last and therefore cannot replace a file by a directory, whatever the diff."""
    with TemporaryDirectory() as name:
        assert patched(Path(name), old, unified(between(old, new))) == new


def test_patch_finds_a_name_with_spaces_by_its_tab(place: Path) -> None:
    """Use files with content: `patch` cannot read git's own diffs of empty files either."""
    old, new = (
        {"a b/c d": FileVersion(FILE, b"old\n")},
        {"a b/c d": FileVersion(FILE, b"new\n"), " e": FileVersion(FILE, b"made\n")},
    )
    assert patched(place, old, unified(between(old, new))) == new


LINES = [b"%d\n" % n for n in range(30)]


@st.composite
def distinct(draw: st.DrawFn) -> FileVersion:
    """Draw a file of LINES whose diff against any other such file is unique."""
    lines = [line for line in LINES if draw(st.integers(0, 9))]
    return FileVersion(draw(st.sampled_from([FILE, PROGRAM])), b"".join(lines) + draw(endings))


# Without the one name that git quotes in a way that it cannot parse.
READABLE = [name for name in NAMES if not name.endswith(" ")]


@unhurried
@given(old=trees(distinct() | links | data, READABLE), new=trees(distinct() | links | data, READABLE))
def test_it_is_what_git_writes(old: Tree, new: Tree) -> None:
    with TemporaryDirectory() as name:
        place = Path(name)
        run(place, "git", "init", "-q")
        for tree in (old, new):
            empty(place)
            write(place, tree)
            run(place, "git", "add", "-A")
            run(place, "git", "commit", "-q", "--allow-empty", "-m", "tree")
        options = ["--full-index", "--no-renames", "--no-indent-heuristic"]
        theirs = run(place, "git", "diff", *options, "HEAD~", "HEAD").stdout
    # Git shows a function's name after the range of a hunk, which is for readers only.
    theirs = re.sub(rb"(?m)^(@@ -\S+ \+\S+ @@).*$", rb"\1", theirs)
    assert encoded(unified(between(old, new))) == theirs


def test_pieces_make_the_whole() -> None:
    changes = [FileDiff("a", None, FileVersion(FILE, b"a\n")), FileDiff("b", FileVersion(FILE, b"b\n"), None)]
    assert "".join(chunks(iter(changes))) == unified(changes)


def test_a_change_of_mode_alone() -> None:
    change = FileDiff("run", FileVersion(FILE, b"\0"), FileVersion(PROGRAM, b"\0"))
    assert unified([change]) == "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"


def test_only_the_owners_right_to_execute_counts() -> None:
    assert (
        unified([FileDiff("a", FileVersion(stat.S_IFREG | 0o600, b"x"), FileVersion(stat.S_IFREG | 0o674, b"x"))]) == ""
    )


def test_a_file_that_becomes_a_link_is_deleted_and_made() -> None:
    text = unified([FileDiff("a", FileVersion(FILE, b"x\n"), FileVersion(LINK, b"there"))])
    modes = re.findall(r"(?m)^(?:deleted|new) file mode \d+$", text)
    assert modes == ["deleted file mode 100644", "new file mode 120000"]
    assert text.endswith("+there\n\\ No newline at end of file\n")


@pytest.mark.parametrize("mode", [DIRECTORY, PIPE])
def test_what_git_has_no_form_for_is_left_out(mode: int) -> None:
    thing = FileVersion(mode, None)
    assert unified([FileDiff("a", None, thing), FileDiff("b", thing, None), FileDiff("c", thing, thing)]) == ""


def test_a_directory_that_becomes_a_file_is_a_new_file() -> None:
    made = FileVersion(FILE, b"x\n")
    assert unified([FileDiff("a", FileVersion(DIRECTORY, None), made)]) == unified([FileDiff("a", None, made)])


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (FileVersion(FILE, b"x" * 9), FileVersion(FILE, b"x"), "Files a/f (9 bytes) and b/f (1 bytes) differ"),
        (None, FileVersion(FILE, b"x" * 9), "Files /dev/null and b/f (9 bytes) differ"),
        (FileVersion(FILE, None, 70), None, "Files a/f (70 bytes) and /dev/null differ"),
        (FileVersion(FILE, None), FileVersion(FILE, b"x"), "Files a/f (of unknown size) and b/f (1 bytes) differ"),
    ],
)
def test_large_content_is_reported_by_its_size_and_refused(
    place: Path, old: FileVersion | None, new: FileVersion | None, line: str
) -> None:
    text = unified([FileDiff("f", old, new)], limit=8, binary=True)
    assert text.splitlines()[-1] == line
    if old:
        write(place, {"f": FileVersion(FILE, old.content or b"")})
    before = read(place)
    assert run(place, "git", "apply", stdin=encoded(text), check=False).returncode != 0
    assert read(place) == before


def test_a_side_at_the_limit_is_shown() -> None:
    change = FileDiff("f", None, FileVersion(FILE, b"x" * 8))
    assert "+xxxxxxxx\n" in unified([change], limit=8)
    assert "+xxxxxxxx\n" in unified([change], limit=None)


def test_large_content_that_only_changed_its_mode_is_not_reported_to_differ() -> None:
    assert "differ" not in unified(
        [FileDiff("f", FileVersion(FILE, b"x" * 9), FileVersion(PROGRAM, b"x" * 9))], limit=8
    )


def test_binary_content_that_was_not_requested_is_refused(place: Path) -> None:
    text = unified([FileDiff("f", None, FileVersion(FILE, b"\0"))])
    assert text.endswith("Binary files /dev/null and b/f differ\n")
    assert run(place, "git", "apply", stdin=encoded(text), check=False).returncode != 0
    assert read(place) == {}


def test_context_is_not_negative() -> None:
    with pytest.raises(ValueError, match="-1"):
        unified([], context=-1)


def test_looking_at_new_files_loads_no_library() -> None:
    code = """
import sys
from forkwise.text.diff import FileDiff, FileVersion, unified
assert unified([FileDiff("a", None, FileVersion(0o100644, b"a"))])
assert "rapidfuzz" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
