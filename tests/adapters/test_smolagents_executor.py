"""smolagents' own CodeAgent, whose model is scripted, with code that runs in a branch."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Workspace
from forkwise.adapters.smolagents_executor import make_executor
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
def executor(branch: Branch) -> Iterator[Any]:
    try:
        made = make_executor(branch, timeout_s=60)
    except ImportError:
        need(False, "smolagents is not installed")
    with made:
        yield made


def test_code_runs_in_the_branch_and_names_last(branch: Branch, executor: Any, tmp_path: Path) -> None:
    executor("x = 20\nprint('hello')")
    done = executor("open('b.txt', 'w').write('two')\nimport os\nprint(os.getcwd())\nx + 22")
    assert done.output == 42
    assert done.logs.strip() == str(branch.workspace.path)
    assert (branch.path / "b.txt").read_text() == "two"
    assert not (branch.workspace.path / "b.txt").exists()
    executor(f"import contextlib\nwith contextlib.suppress(OSError): open({str(tmp_path / 'outside')!r}, 'w')")
    assert not (tmp_path / "outside").exists()
    assert executor("object").output == "<class 'object'>"
    assert "from a program" in executor("import subprocess\nsubprocess.run(['echo', 'from a program'])").logs
    executor.cleanup()
    branch.commit()
    assert (branch.workspace.path / "b.txt").read_text() == "two"


def test_errors_and_endings_are_the_agents_to_see(executor: Any) -> None:
    from smolagents.utils import AgentError

    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("print('before')\n1/0")
    with pytest.raises(AgentError, match="SyntaxError"):
        executor("def")
    with pytest.raises(AgentError, match="SystemExit"):
        executor("import sys\nsys.exit(3)")
    assert executor("1 + 1").output == 2, "the interpreter goes on"
    with pytest.raises(AgentError, match="plain values only, not object"):
        executor("final_answer(object())")
    with pytest.raises(AgentError, match=r"interpreter ended.*are gone"):
        executor("import os\nos._exit(1)")
    assert executor("2 + 2").output == 4, "another interpreter takes over"


def test_a_step_ends_in_time_and_tools_come_back(branch: Branch) -> None:
    from smolagents import FinalAnswerTool
    from smolagents.utils import AgentError

    with make_executor(branch, timeout_s=3) as executor:
        executor.send_variables({"word": ["kept", 1]})
        executor.send_tools({"final_answer": FinalAnswerTool()})
        with pytest.raises(AgentError, match="ended after 3 seconds"):
            executor("while True: pass")
        done = executor("final_answer({'word': word, 'set': {1}, 'tuple': (b'x', {2: None})})")
        assert done.is_final_answer
        assert done.output == {"word": ["kept", 1], "set": {1}, "tuple": (b"x", {2: None})}


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_that_comes_out_is_unpickled_or_trusted(executor: Any, tmp_path: Path) -> None:
    from smolagents.utils import AgentError

    packed = __import__("base64").b64encode(pickle.dumps(Bomb(tmp_path / "owned"))).decode()
    raised = "class FinalAnswerException(BaseException):\n    value = {!r}\nraise FinalAnswerException()"
    for value in (f"pickle:{packed}", packed, "safe:{", "safe:" + "[" * 100_000, 'safe:{"__type__": "set"}'):
        with pytest.raises(AgentError, match="final answer cannot be read"):
            executor(raised.format(value))
    assert not (tmp_path / "owned").exists()
    # Answers forged on the interpreter's own descriptor are data, too: whatever they say, nothing is executed.
    forge = "import os\nfor fd in range(3, 20):\n    try: os.write(fd, {!r})\n    except OSError: pass"
    for line in (b"[1]\n", b"no json\n", b"[" * 100_000 + b"\n"):
        with pytest.raises(AgentError, match="no readable answer"):
            executor(forge.format(line))
    with pytest.raises(AgentError, match="longer than"):
        executor(
            "import os\nfor fd in range(3, 20):\n    try:\n        while True: os.write(fd, b'x' * 65536)\n"
            "    except OSError: pass"
        )
    assert executor("'still here'").output == "still here"


def test_secrets_and_missing_packages(executor: Any, branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    from smolagents.utils import AgentError

    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    with make_executor(branch) as other:
        assert other("import os\nos.environ.get('SOME_API_KEY')").output is None
        with pytest.raises(AgentError, match="No module named 'no_such_package'"):
            other("import no_such_package")
        assert len(other("print('x' * 3_000_000)").logs) <= 1 << 20
        assert other(f"len({'y' * 5_000_000!r})").output == 5_000_000


def test_an_agent_works_in_the_branch(branch: Branch, executor: Any) -> None:
    from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

    steps = iter(
        [
            "Thought: write it\n<code>\nn = double(21)\nopen('made.txt', 'w').write(str(n))\nprint(n)\n</code>",
            "Thought: done\n<code>\nfinal_answer(n)\n</code>",
        ]
    )

    class Scripted(Model):
        def generate(self, messages: Any, **_: Any) -> ChatMessage:
            return ChatMessage(role=MessageRole.ASSISTANT, content=next(steps))

    @tool
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: The number.
        """
        return number * 2

    with CodeAgent(tools=[double], model=Scripted(), executor=executor, verbosity_level=0) as agent:
        assert agent.run("double 21") == 42
    assert (branch.path / "made.txt").read_text() == "42"
    assert not (branch.workspace.path / "made.txt").exists()
