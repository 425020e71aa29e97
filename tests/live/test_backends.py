"""All backends: in memory, of a directory, and of branches of both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import BranchOverlay, FilesOverlay, MemoryOverlay
from forkwise.live.backends.local import DiskBackend, LocalBackend, ReadOnlyBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.deep_agent import create_deep_agent
from forkwise.live.deps import DeepAgentDeps
from tests.executed_lines import executed_lines
from tests.leftovers import processes_about
from tests.modules.brain import Asked, Brain, call

FILES = {"a.txt": "one\ntwo\n", "src/main.py": "import os\n", "src/deep/util.py": "x = 1\n", ".hidden/x": "two\n"}
KINDS = ["memory", "directory", "overlay in memory", "overlay of a directory", "nested in memory", "nested on disk"]


@pytest.fixture
def make(workspace: Workspace) -> Iterator[Callable[[str], Backend]]:
    """Create backends of all kinds with the same files."""
    overlays: list[BranchOverlay] = []

    def over(parent: Backend) -> BranchOverlay:
        overlays.append(BranchOverlay(parent))
        return overlays[-1]

    def make_one(kind: str) -> Backend:
        if kind == "memory":
            return StateBackend(FILES)
        if kind == "directory":
            for name, content in FILES.items():
                (workspace.path / name).parent.mkdir(parents=True, exist_ok=True)
                (workspace.path / name).write_text(content)
            return LocalBackend(workspace)
        if kind.startswith("overlay"):
            return over(make_one("memory" if "memory" in kind else "directory"))
        return over(make_one("overlay in memory" if "memory" in kind else "overlay of a directory"))

    yield make_one
    for overlay in reversed(overlays):
        overlay.discard()


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, make: Callable[[str], Backend]) -> Backend:
    return make(request.param)


def test_the_kind_of_an_overlay_is_that_of_its_parent(make: Callable[[str], Backend]) -> None:
    assert isinstance(make("nested on disk"), FilesOverlay)
    assert isinstance(make("nested in memory"), MemoryOverlay)


class TestReading:
    def test_lines_are_numbered(self, backend: Backend) -> None:
        assert backend.read("a.txt") == "     1\tone\n     2\ttwo"
        assert backend.read("/a.txt" if not isinstance(backend, DiskBackend) else "a.txt", 1) == "     2\ttwo"

    def test_omitted_lines_are_reported(self, backend: Backend) -> None:
        assert backend.read("a.txt", 0, 1) == "     1\tone\n... 1 more lines; continue with offset=1"
        assert backend.read("a.txt", 5).startswith("Error: 'a.txt' has 2 lines")

    def test_what_is_not_there(self, backend: Backend) -> None:
        assert backend.read("none.txt") == "Error: File 'none.txt' not found"
        assert not backend.exists("none.txt")
        with pytest.raises(FileNotFoundError):
            backend.read_bytes("none.txt")

    def test_a_directory(self, backend: Backend) -> None:
        assert backend.exists("src")
        assert backend.read("src").startswith("Error: 'src': Is a directory")

    def test_binary(self, backend: Backend) -> None:
        backend.write("b.bin", b"\0\1")
        assert backend.read("b.bin") == "Error: 'b.bin' is binary (2 bytes)"
        assert backend.read_bytes("b.bin") == b"\0\1"


class TestWriting:
    def test_a_new_file(self, backend: Backend) -> None:
        assert backend.write("new/deep/file.txt", "text").path == "new/deep/file.txt"
        assert backend.read_bytes("./new/deep/../deep/file.txt") == b"text"

    def test_a_path_that_cannot_be_a_file(self, backend: Backend) -> None:
        assert backend.write("a.txt/below", "x").error is not None
        assert backend.write("src", "x").error is not None
        assert backend.read_bytes("a.txt") == b"one\ntwo\n"
        assert backend.exists("src/main.py")

    def test_a_file_may_replace_a_deleted_directory(self, backend: Backend) -> None:
        assert backend.delete("src")
        assert not backend.exists("src")
        assert backend.write("src", "now a file").error is None
        assert backend.read_bytes("src") == b"now a file"

    @pytest.mark.parametrize("path", ["../outside", "src/../../outside", "/../outside"])
    def test_what_leads_out_is_refused(self, backend: Backend, path: str, tmp_path: Path) -> None:
        assert backend.write(path, "x").error is not None
        assert not (tmp_path / "outside").exists()
        with pytest.raises(PermissionError):
            backend.delete(path)

    def test_replaces_all_or_nothing(self, backend: Backend) -> None:
        with pytest.raises(OSError, match="directory"):
            backend.replace({"new": b"x", "a.txt": None, "src": b"x"})
        assert not backend.exists("new")
        assert backend.read_bytes("a.txt") == b"one\ntwo\n"
        backend.replace({"new": b"x", "a.txt": None, "none": None})
        assert backend.exists("new")
        assert not backend.exists("a.txt")


class TestEditing:
    def test_one_occurrence(self, backend: Backend) -> None:
        assert backend.edit("a.txt", "two", "2").occurrences == 1
        assert backend.read_bytes("a.txt") == b"one\n2\n"

    def test_several_occurrences_need_replace_all(self, backend: Backend) -> None:
        backend.write("many", "x x x")
        assert "3 times" in (backend.edit("many", "x", "y").error or "")
        assert backend.edit("many", "x", "y", replace_all=True).occurrences == 3
        assert backend.read_bytes("many") == b"y y y"

    @pytest.mark.parametrize("old", ["none of this", ""])
    def test_what_is_not_there(self, backend: Backend, old: str) -> None:
        assert backend.edit("a.txt", old, "x").error is not None
        assert backend.edit("none", "x", "y").error == "File 'none' not found"

    def test_invalid_utf_8_stays_unchanged(self, backend: Backend) -> None:
        backend.write("latin", b"caf\xe9 one")
        assert backend.edit("latin", "one", "two").occurrences == 1
        assert backend.read_bytes("latin") == b"caf\xe9 two"


class TestConcurrency:
    """An agent may call several tools in one response."""

    def test_no_edit_of_a_file_is_lost(self, backend: Backend) -> None:
        names = [f"line-{n:02}" for n in range(12)]
        backend.write("many.txt", "".join(f"{name} old\n" for name in names))

        def work(name: str) -> tuple[str | None, str | None]:
            return backend.edit("many.txt", f"{name} old", f"{name} new").error, backend.write(name, name).error

        with ThreadPoolExecutor(len(names)) as threads:
            assert list(threads.map(work, names)) == [(None, None)] * len(names)
        assert backend.read_bytes("many.txt").decode() == "".join(f"{name} new\n" for name in names)
        assert {name: backend.read_bytes(name).decode() for name in names} == {name: name for name in names}

    def test_concurrent_listings_are_consistent(self) -> None:
        backend = StateBackend({"start": "here"})
        overlay = BranchOverlay(backend)

        def work(number: int) -> int:
            overlay.write(f"d/{number}", "x")
            backend.replace({f"e/{number}": b"y", "start": None})
            return len(list(overlay.walk())) + len(list(backend.walk())) + len(overlay.changes())

        with ThreadPoolExecutor(8) as threads:
            assert all(found > 0 for found in threads.map(work, range(200)))
        assert len(overlay.ls_info("d")) == len(backend.ls_info("e")) == len(overlay.changes()) == 200


@pytest.mark.anyio
async def test_parallel_tool_calls_of_an_agent_all_take_effect(workspace: Workspace) -> None:
    (workspace.path / "a.txt").write_text("one\ntwo\nthree\n")

    def think(asked: Asked) -> Any:
        if asked.results:
            return "done"
        words = {"one": "1", "two": "2", "three": "3"}
        return [call("edit", path="a.txt", old_string=old, new_string=new) for old, new in words.items()]

    agent = create_deep_agent(Brain(decide=think))
    await agent.run("number them", deps=DeepAgentDeps(backend=LocalBackend(workspace)))
    assert (workspace.path / "a.txt").read_text() == "1\n2\n3\n"


class TestDeleting:
    def test_a_file_and_a_directory(self, backend: Backend) -> None:
        assert backend.delete("a.txt")
        assert backend.delete("src")
        assert not backend.delete("a.txt")
        assert not backend.delete("src/main.py")
        assert [i["path"] for i in backend.glob_info("**")] == [".hidden/x"]

    def test_rewritten_files_exist(self, backend: Backend) -> None:
        backend.delete("a.txt")
        backend.write("a.txt", "again")
        assert backend.read_bytes("a.txt") == b"again"


class TestFinding:
    def test_ls(self, backend: Backend) -> None:
        backend.write("src/z.py", "")
        found = [(i["name"], i["path"], i["is_dir"], i["size"]) for i in backend.ls_info("src")]
        assert found == [
            ("deep", "src/deep", True, None),
            ("main.py", "src/main.py", False, 10),
            ("z.py", "src/z.py", False, 0),
        ]
        assert [i["name"] for i in backend.ls_info("/")] == [".hidden", "a.txt", "src"]
        assert backend.ls_info("none") == []

    @pytest.mark.parametrize(
        ("pattern", "path", "found"),
        [
            ("*.txt", "/", ["a.txt"]),
            ("**/*.py", "/", ["src/deep/util.py", "src/main.py"]),
            ("*.py", "src", ["src/main.py"]),
            ("src/?ain.py", "/", ["src/main.py"]),
            ("*.rs", "/", []),
        ],
    )
    def test_glob(self, backend: Backend, pattern: str, path: str, found: list[str]) -> None:
        assert [i["path"] for i in backend.glob_info(pattern, path)] == found

    def test_grep(self, backend: Backend) -> None:
        assert backend.grep_raw("tw.") == [{"path": "a.txt", "line_number": 2, "line": "two"}]
        both = backend.grep_raw("two", ignore_hidden=False)
        assert isinstance(both, list)
        assert sorted(m["path"] for m in both) == [".hidden/x", "a.txt"]
        assert backend.grep_raw("import", glob="*.py") == [
            {"path": "src/main.py", "line_number": 1, "line": "import os"}
        ]
        assert backend.grep_raw("import", glob="*.txt") == []
        assert backend.grep_raw("one", "a.txt") == [{"path": "a.txt", "line_number": 1, "line": "one"}]
        assert backend.grep_raw("one", "none") == []
        assert "not a regular expression" in str(backend.grep_raw("("))
        assert "not a regular expression" in str(backend.grep_raw("[z-a]"))
        assert backend.grep_raw("(t)w+o$", "a.txt") == [{"path": "a.txt", "line_number": 2, "line": "two"}]


@pytest.mark.parametrize("kind", ["directory", "overlay of a directory", "nested on disk"])
class TestOnDisk:
    def test_commands_run_at_the_workspaces_own_path(
        self, make: Callable[[str], Backend], kind: str, workspace: Workspace
    ) -> None:
        backend = make(kind)
        assert backend.execute_enabled
        done = backend.execute(f"pwd; cat {workspace.path}/a.txt; echo new > {workspace.path}/new; exit 3")
        assert (done.output, done.exit_code, done.truncated) == (f"{workspace.path}\none\ntwo\n", 3, False)
        assert backend.read_bytes(f"{workspace.path}/new") == b"new\n"
        assert (workspace.path / "new").exists() == (kind == "directory")

    def test_a_command_that_takes_too_long(self, make: Callable[[str], Backend], kind: str) -> None:
        done = make(kind).execute("echo begun; sleep 3604", timeout=0.3)
        assert done.exit_code == 124
        assert done.output.startswith("begun\n")

    def test_too_much_output_is_cut(self, make: Callable[[str], Backend], kind: str) -> None:
        done = make(kind).execute("yes é | head -c 3000000")
        assert (len(done.output), done.truncated, done.exit_code) == (100_000, True, 0)

    def test_a_file_keeps_its_mode(self, make: Callable[[str], Backend], kind: str) -> None:
        backend = make(kind)
        backend.execute("chmod 750 a.txt")
        backend.write("a.txt", "new")
        assert backend.execute("stat -c %a a.txt").output == "750\n"

    def test_names_and_contents_that_are_not_utf_8(self, make: Callable[[str], Backend], kind: str) -> None:
        backend = make(kind)
        name = os.fsdecode(b"caf\xe9.txt")
        backend.write(name, b"two \xff\n")
        assert name in [i["path"] for i in backend.ls_info()]
        assert backend.read_bytes(name) == b"two \xff\n"
        assert name in [m["path"] for m in backend.grep_raw("two")]  # type: ignore[index]

    def test_links_are_listed_and_do_not_lead_outside(self, make: Callable[[str], Backend], kind: str) -> None:
        backend = make(kind)
        backend.execute("ln -s a.txt link; ln -s /etc out; ln -s src way")
        assert backend.read_bytes("link") == b"one\ntwo\n"
        assert backend.write("link", "x").path == "a.txt"
        assert [i["path"] for i in backend.glob_info("**/main.py")] == ["src/main.py"]
        assert backend.read("out/passwd").startswith("Error:")
        assert backend.delete("link")
        assert backend.read_bytes("a.txt") == b"x"


class TestADirectory:
    @pytest.mark.usefixtures("recorded_changes")
    def test_each_change_can_be_undone(self, make: Callable[[str], Backend], workspace: Workspace) -> None:
        backend = make("directory")
        backend.write("a.txt", "changed")
        backend.edit("a.txt", "changed", "edited")
        backend.execute("rm a.txt; echo b > b.txt")
        backend.replace({"c": b"c", "b.txt": None})
        for content, names in ((None, ["b.txt"]), ("edited", []), ("changed", []), ("one\ntwo\n", [])):
            workspace.undo()
            there = workspace.path / "a.txt"
            assert (there.read_text() if there.exists() else None) == content
            assert [p.name for p in workspace.path.glob("[bc]*")] == names

    @pytest.mark.usefixtures("recorded_changes")
    def test_a_command_whose_agent_is_killed_did_nothing(self, workspace: Workspace) -> None:
        code = "import os; from forkwise import LocalBackend; LocalBackend('.').execute(os.environ['COMMAND'])"
        command = {"COMMAND": "echo two > a.txt; sleep 3608"}
        with subprocess.Popen([sys.executable, "-c", code], cwd=workspace.path, env=os.environ | command) as agent:
            try:
                while not processes_about("sleep 3608"):
                    assert agent.poll() is None
                    time.sleep(0.01)
                (branch,) = workspace.branches()
                while (branch.path / "a.txt").read_text() != "two\n":
                    time.sleep(0.01)
            finally:
                agent.kill()
        while processes_about("sleep 3608"):
            time.sleep(0.01)
        assert (workspace.path / "a.txt").read_text() == "one\n"
        workspace.gc(force=True)
        assert workspace.branches() == []
        assert workspace.history() == []

    def test_no_files_are_left_out(self, make: Callable[[str], Backend]) -> None:
        """.git, build and dist are files like others, in a branch as well."""
        parent = make("directory")
        parent.execute("mkdir .git build dist; echo x | tee .git/HEAD build/out dist/pkg")
        branch = BranchOverlay(parent)
        assert branch.execute("cat .git/HEAD build/out dist/pkg").output == "x\nx\nx\n"
        branch.execute("echo y | tee .git/HEAD build/out dist/pkg; rm dist/pkg")
        report = branch.flush_to(parent)
        assert report.applied_paths == [".git/HEAD", "build/out"]
        assert report.deleted_paths == ["dist/pkg"]
        assert parent.execute("cat .git/HEAD build/out").output == "y\ny\n"


class TestInMemory:
    def test_no_command_can_be_run(self) -> None:
        backend = StateBackend()
        assert not backend.execute_enabled
        assert backend.execute("true").exit_code == 126

    def test_files_returns_a_copy(self) -> None:
        backend = StateBackend({"/a": "x"})
        backend.files["b"] = b"y"
        assert backend.files == {"a": b"x"}

    def test_many_writes_cost_no_more_each_than_few(self) -> None:
        """Count the executed lines for the last of 2,000 writes and of 20."""
        counts = []
        for number in (20, 2_000):
            parent = StateBackend({f"src/d{n % 7}/{n}": "x" for n in range(number)})
            overlay = BranchOverlay(parent)
            for n in range(number):
                overlay.write(f"new/d{n % 7}/{n}", "y")
            counts.append(executed_lines(lambda o=overlay: o.write("new/d0/last", "z")))  # type: ignore[misc]
        assert counts[1] <= counts[0] + 10


class TestReadOnly:
    def test_can_be_read_and_not_changed(self) -> None:
        shared = ReadOnlyBackend(StateBackend(FILES))
        assert shared.read("a.txt").startswith("     1\tone")
        assert [i["path"] for i in shared.glob_info("src/*")] == ["src/main.py"]
        assert shared.write("a.txt", "x").error is not None
        assert shared.edit("a.txt", "one", "x").error is not None
        with pytest.raises(PermissionError):
            shared.delete("a.txt")
        assert shared.execute("rm a.txt").exit_code == 126
        assert shared.wrapped.read_bytes("a.txt") == b"one\ntwo\n"
