"""deepagents' own file operations and shell, on a branch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Workspace
from forkwise.adapters.deepagents_backend import make_backend
from tests.need import need

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def branch(tmp_path: Path) -> Iterator[Branch]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    made = Workspace(project, state=tmp_path / "state").branch("try", None, None)
    yield made
    if made.status not in ("committed", "aborted"):
        made.abort()


@pytest.fixture
def backend(branch: Branch) -> Any:
    try:
        return make_backend(branch)
    except ImportError:
        need(False, "deepagents is not installed")


def test_files_and_commands_stay_in_the_branch_until_its_commit(branch: Branch, backend: Any, tmp_path: Path) -> None:
    project = branch.workspace.path
    assert backend.write(f"{project}/new/b.txt", "two\n").error is None
    assert backend.edit(f"{project}/a.txt", "one", "1").error is None
    assert "two" in str(backend.read(f"{project}/new/b.txt"))
    done = backend.execute(f"cat a.txt new/b.txt; touch {tmp_path}/outside; exit 3")
    assert done.output.startswith("1\ntwo\n")
    assert done.exit_code == 3
    assert not (tmp_path / "outside").exists()
    assert (project / "a.txt").read_text() == "one\n"
    found = backend.grep("two", str(project))
    assert "b.txt" in str(found)
    branch.commit()
    assert (project / "a.txt").read_text() == "1\n"
    assert (project / "new/b.txt").read_text() == "two\n"


def test_paths_outside_and_missing_files_are_errors_by_name(branch: Branch, backend: Any) -> None:
    project = branch.workspace.path
    backend.execute("ln -s /etc/hostname link")
    paths = [f"{project}/a.txt", f"{project}/gone", "/etc/passwd", f"{project}/link", str(project)]
    answers = backend.download_files(paths)
    assert [answer.error for answer in answers[:4]] == [
        None,
        "file_not_found",
        "permission_denied",
        "permission_denied",
    ]
    assert answers[0].content == b"one\n"
    assert answers[4].error
    sent = backend.upload_files([("/etc/forkwise-test", b"x"), (f"{project}/ok", b"y")])
    assert [answer.error for answer in sent] == ["permission_denied", None]


def test_output_is_bounded_and_a_command_ends_in_time(backend: Any) -> None:
    done = backend.execute("head -c 3000000 /dev/zero | tr '\\0' x")
    assert done.truncated
    assert len(done.output) == 1 << 20
    assert "ended after 1 seconds" in backend.execute("sleep 1000", timeout=1).output


def test_an_agent_works_in_the_branch(branch: Branch, backend: Any) -> None:
    from deepagents import create_deep_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Model(GenericFakeChatModel):
        def bind_tools(self, *_words: Any, **_options: Any) -> Any:
            return self

    path = f"{branch.workspace.path}/made.txt"
    call = {"name": "write_file", "args": {"file_path": path, "content": "by an agent\n"}, "id": "1"}
    model = Model(messages=iter([AIMessage(content="", tool_calls=[call]), AIMessage(content="done")]))
    agent = create_deep_agent(model=model, backend=backend)
    agent.invoke({"messages": [("user", "make a file")]})
    assert (branch.path / "made.txt").read_text() == "by an agent\n"
    assert not Path(path).exists()
