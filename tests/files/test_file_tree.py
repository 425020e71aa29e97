"""Files addressed at another path: links resolve as for a process that sees them there, and never lead out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forkwise.files.file_tree import FileTree
from tests.counts import examples

NAMES = ["a", "b", "c"]
parts = st.lists(st.sampled_from([*NAMES, "..", "."]), min_size=1, max_size=5).map("/".join)
targets = st.tuples(st.sampled_from(["", "WHERE/", "/"]), parts).map("".join)
entries = st.dictionaries(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join),
    st.one_of(st.none(), st.just("file"), targets),
    max_size=8,
)


@contextmanager
def twins(parent_directory: Path, made: dict[str, str | None]) -> Iterator[tuple[Path, FileTree]]:
    """Create a directory, and another with the same names and links that is addressed as the first."""
    directory = Path(os.path.realpath(tempfile.mkdtemp(dir=parent_directory)))
    where, root = directory / "where", directory / "deep" / "root"
    try:
        for top in (where, root):
            top.mkdir(parents=True)
            for path, what in made.items():
                _make(top / path, what, str(where))
        yield where, FileTree(str(root), str(where))
    finally:
        shutil.rmtree(directory)


def _make(path: Path, what: str | None, where: str) -> None:
    """Create an entry, if that is possible in both directories."""
    if os.path.lexists(path) or os.path.realpath(path.parent) != str(path.parent):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # a file, or a link to itself, is in the way
        return
    if what is None:
        path.mkdir()
    elif what == "file":
        path.write_text(str(path))
    else:
        path.symlink_to(what.replace("WHERE", where))


@settings(max_examples=examples(300))
@given(made=entries, path=parts)
@example(made={"c": "c"}, path="a/../c")
@example(made={"c": "c", "b": "file"}, path="a/../c/../b")
@example(made={"c": "a/../c"}, path="c")
def test_links_resolve_as_for_a_process_that_sees_them(
    memory_directory: Path, made: dict[str, str | None], path: str
) -> None:
    with twins(memory_directory, made) as (where, tree):
        if _is_loop(where / path):
            with pytest.raises(OSError, match="symbolic links"):
                tree.realpath(path)
        else:
            assert tree.realpath(path) == os.path.realpath(f"{where}/{path}")


def _is_loop(path: Path, links_left: int = 40) -> bool:
    """Return whether resolving a path meets a loop of links.

    It goes name by name, because ``os.stat("missing/../loop")`` fails at the missing directory, while
    ``os.path.realpath``, and an agent that writes such a path, mean ``loop``.
    """
    here = Path("/")
    for name in path.parts[1:]:
        step = here / name
        if step.is_symlink() and (links_left == 0 or _is_loop(here / os.readlink(step), links_left - 1)):
            return True
        here = Path(os.path.realpath(step))
    return False


@settings(max_examples=examples(300))
@given(made=entries, path=parts)
@example(made={"c": "c"}, path="a/../c")
def test_reads_and_writes_its_own_and_nothing_else(
    memory_directory: Path, made: dict[str, str | None], path: str
) -> None:
    with twins(memory_directory, made) as (where, tree):
        before = _everything(where)
        if _is_loop(where / path):
            return
        inside = os.path.relpath(os.path.realpath(f"{where}/{path}"), where)
        if inside.split("/")[0] == "..":
            for use in (tree.read, tree.stat, tree.list_directory, lambda p: tree.write(p, b"")):
                with pytest.raises(PermissionError):
                    use(path)
        elif os.path.isfile(where / path):
            assert tree.read(path).decode() == f"{tree.root}/{inside}"
            tree.write(path, b"written")
            assert Path(tree.root, inside).read_text() == "written"
        assert _everything(where) == before
        assert sorted(os.listdir(where.parent)) == ["deep", "where"]


def _everything(top: Path) -> dict[str, str]:
    """Return all entries below a directory, with their content."""
    found = {}
    for place, directories, files in os.walk(top):
        for path in (Path(place, name) for name in (*directories, *files)):
            found[str(path)] = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
    return found


def test_takes_over_what_another_tree_has(tmp_path: Path) -> None:
    one, two = FileTree(str(tmp_path / "one"), "/w"), FileTree(str(tmp_path / "two"), "/w")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one.write("d/script", b"#!", 0o755)
    (tmp_path / "one/link").symlink_to("/w/d")
    two.write("gone", b"x")
    for path in ("d", "link", "gone"):
        two.copy_from(one, path)
    assert (tmp_path / "two/d/script").stat().st_mode & 0o777 == 0o755
    assert os.readlink(tmp_path / "two/link") == "/w/d"
    assert [path for path, _ in two.list_entries("")] == ["d", "link"]
    assert two.content("link") == b"/w/d"
    assert two.read("link/script") == b"#!"
    assert two.content("d") is None
    assert two.content("gone") is None


def test_a_path_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    tree = FileTree(str(tmp_path), "/w")
    path = "/".join(["n" * 200] * 30) + "/file"
    tree.write(path, b"deep")
    assert tree.read(f"/w/{path}") == b"deep"
    tree.remove("n" * 200)
    assert tree.list_entries("") == []
