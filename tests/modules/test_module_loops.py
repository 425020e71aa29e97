"""Event loops: blocking calls from any thread run in one loop, and can be interrupted."""
# ruff: noqa: RUF012 - a module's lists are declared as the specification shows

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from forkwise import Module, Workspace, tool
from tests.modules.brain import Brain, call, finish
from tests.provider import Cases
from tests.provider import call as provider_call
from tests.provider.fixtures import StartProvider

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


class Outer(Module):
    max_steps = 3
    inner: Any = None

    @tool
    def work(self) -> str:
        """Call another module, from plain code."""
        return f"inner gave {self.inner()}"


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_one_model_in_many_threads_and_in_calls_inside_calls(provider: StartProvider, kind: str) -> None:
    """The model's client keeps connections, which belong to one event loop."""
    server = provider(
        Cases((lambda request: request.turn == 0, provider_call("work")), otherwise=provider_call("__finish__")),
        latency=0.005,
    )
    made: Model = (
        AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="none", base_url=server.url))
        if kind == "anthropic"
        else OpenAIChatModel("gpt-5.2", provider=OpenAIProvider(api_key="none", base_url=f"{server.url}/v1"))
    )

    class Inner(Module):
        model = made
        max_steps = 3

    class Both(Outer):
        model = made
        inner = Inner()

    both = Both()

    def run(_: int) -> None:
        assert both() is None

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(12)))

    async def main() -> None:
        await asyncio.gather(*(both() for _ in range(4)))

    asyncio.run(main())
    assert "inner gave None" in [entry["content"] for entry in both.history]
    assert len(server.seen) == 16 * 4


def test_a_module_that_waits_inside_its_own_loop() -> None:
    class Inner(Module):
        model = Brain(decide=lambda asked: finish())
        max_steps = 2

    class Waiting(Module):
        model = Brain(decide=lambda asked: finish() if asked.turn else call("work"))
        max_steps = 3

        @tool
        async def work(self) -> str:
            """Wait where nothing may wait."""
            return f"inner gave {Inner().run()}"

    waiting = Waiting()
    waiting()
    assert waiting.history[3]["content"] == "inner gave None"


def test_a_tool_that_ends_the_program_ends_the_call_and_no_other() -> None:
    class Ending(Module):
        model = Brain(decide=lambda asked: call("leave"))
        max_steps = 3

        @tool
        def leave(self) -> None:
            """Leave."""
            raise SystemExit(3)

    for _ in range(2):
        with pytest.raises(SystemExit):
            Ending()()


FORKED = """
import os
from forkwise import Module
from tests.modules.brain import Brain, finish

class One(Module):
    model = Brain(decide=lambda asked: finish())
    max_steps = 2

One()()
child = os.fork()
One()()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os._exit(7)
"""


def test_a_fork_has_a_loop_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "7\n"


def test_a_call_that_is_cancelled_is_over_and_leaves_nothing(workspace: Workspace) -> None:
    begun = asyncio.Event()

    class Slow(Module):
        """Be slow."""

        max_steps = 3

    def decide(asked: Any) -> Any:
        if asked.system == "Be slow.":
            return call("sleep")
        return [call("branch", name="Slow"), call("branch", name="Slow")]

    class Parent(Module):
        model = Brain(decide=decide)
        branches = [Slow]
        max_steps = 3

        @tool
        async def sleep(self) -> None:
            """Sleep."""
            (self.workspace.path / "a.txt").write_text("changed")
            begun.set()
            await asyncio.sleep(60)

    Parent.declared_workspace = "branch"

    async def main() -> None:
        task = asyncio.create_task(Parent(workspace=workspace)())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (workspace.path / "a.txt").read_text() == "one\n"


INTERRUPTED = """
import sys, threading
from pathlib import Path
from forkwise import Module, Workspace, tool
from tests.modules.brain import Brain, call

class Slow(Module):
    "Be slow."
    max_steps = 3

class Parent(Module):
    model = Brain(decide=lambda asked: call("sleep") if asked.system else call("branch", name="Slow"))
    branches = [Slow]
    max_steps = 3
    workspace = "branch"

    @tool
    def sleep(self) -> None:
        "Sleep."
        (self.workspace.path / "new.txt").write_text("x")
        print("asleep", flush=True)
        threading.Event().wait(60)

workspace = Workspace(sys.argv[1], durable=False)
try:
    Parent(workspace=workspace)()
except KeyboardInterrupt:
    print("interrupted", [b.name for b in workspace.branches()], flush=True)
"""


def test_ctrl_c_ends_a_plain_call_and_its_branches(workspace: Workspace) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(workspace.path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asleep\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted []\n"
    assert process.returncode == 0


def test_background_tasks_end_with_the_program() -> None:
    code = "from forkwise.concurrency import run_sync as run\nimport asyncio\nprint(run(asyncio.sleep(0, 3)))"
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60)
    warned = [line for line in done.stderr.splitlines() if "Executing <Handle" not in line]  # on a busy machine
    assert (done.stdout, warned, done.returncode) == ("3\n", [], 0)


def test_the_loop_runs_in_a_thread_of_its_own() -> None:
    class Where(Module):
        model = Brain(decide=lambda asked: finish() if asked.turn else call("where"))
        max_steps = 3

        @tool
        async def where(self) -> str:
            """Say where."""
            return threading.current_thread().name

    where = Where()
    where()
    assert where.history[3]["content"] == "forkwise loop"
