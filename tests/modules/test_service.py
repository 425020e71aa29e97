"""Services: their descriptions, and the thread in which their code runs."""

# ruff: noqa: RUF012
from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from forkwise import Module, Service, ServiceError, tool
from forkwise.modules.tools import Tool
from tests.modules.brain import Asked, Brain, call, finish


class Memory(Service):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads: set[int] = set()

    async def setup(self) -> None:
        self.connection = sqlite3.connect(self.path)
        self.connection.execute("create table if not exists notes (text)")

    async def teardown(self) -> None:
        self.connection.commit()
        self.connection.close()

    async def health(self) -> bool:
        return self.connection.execute("select 1").fetchone() == (1,)

    def count(self) -> int:
        """Not a tool."""
        self.threads.add(threading.get_ident())
        [[number]] = self.connection.execute("select count(*) from notes")
        return int(number)

    @tool
    def save(self, text: str) -> int:
        """Save a note."""
        self.connection.execute("insert into notes values (?)", (text,))
        return self.count()

    @tool
    async def search(self, function: str = "") -> list[str]:
        """Search the notes."""
        await asyncio.sleep(0)
        self.threads.add(threading.get_ident())
        found = self.connection.execute("select text from notes where text like ?", (f"%{function}%",))
        return sorted(text for (text,) in found)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "memory.db")


def run(module: type[Module], *answers: Any, **attributes: Any) -> list[str]:
    """Call a module whose model gives these answers and then finishes; return the results of its tool calls."""
    brain = Brain(*answers, finish())
    type("Agent", (module,), {"model": brain, "max_steps": 10, **attributes})()()
    return brain.asked[-1].results


def cancel_when(started: threading.Event, module: type[Module], *answers: Any, **attributes: Any) -> None:
    """Call a module, and cancel the call when ``started`` is set."""

    async def main() -> None:
        work = asyncio.create_task(asyncio.to_thread(started.wait, 60))
        agent = type("Agent", (module,), {"model": Brain(*answers), "max_steps": 10, **attributes})()
        called = asyncio.ensure_future(agent())
        assert await work
        called.cancel()
        with pytest.raises(asyncio.CancelledError):
            await called

    asyncio.run(main())


def test_a_service_without_a_docstring_shows_none(memory: Memory) -> None:
    """ "`description` (docstring)": of the class itself, not of the class that it extends."""

    class Documented(Memory):
        """Remember notes.

        In a file.
        """

    class Undocumented(Documented):
        pass

    assert memory.description == ""
    assert Documented(memory.path).description == "Remember notes.\n\nIn a file."
    assert Undocumented(memory.path).description == ""


def test_a_connection_opened_in_setup_is_usable_in_the_tools(memory: Memory) -> None:
    """ "Module runs setup of all services before and teardown after every call"; the tools of Memory use "SQLite"."""
    results = run(
        Module,
        [call("memory__save", text="one"), call("memory__save", text="two")],
        call("memory__search", function="o"),
        tools=[memory],
    )
    assert sorted(results[:2]) == ["1", "2"]
    assert results[2] == '["one","two"]'
    assert len(memory.threads) == 1
    assert run(Module, call("memory__search", function="tw"), tools=[memory]) == ['["two"]']


class Note(BaseModel):
    number: int


def test_branches_share_the_thread_of_a_service(memory: Memory) -> None:
    class Noting(Module):
        """Note."""

        initial_input = Note
        final_output = Note
        max_steps = 3

    def decide(asked: Asked) -> Any:
        if asked.system == "Note.":
            if not asked.results:
                return call("memory__save", text=asked.prompts[-1])
            return finish(number=int(asked.results[0]))
        return [call("branch", name="Noting", number=n) for n in range(5)] if asked.turn == 0 else finish()

    brain = Brain(decide=decide)

    class Parent(Module):
        model = brain
        tools = [memory]
        branches = [Noting]
        max_steps = 3

    Parent()()
    numbers = sorted(result.partition("<number>")[2].partition("<")[0] for result in brain.asked[-1].results)
    assert numbers == ["1", "2", "3", "4", "5"]
    assert len(memory.threads) == 1


def test_methods_that_a_program_calls_run_in_the_same_thread(memory: Memory) -> None:
    async def main() -> None:
        async with memory as opened:
            assert await opened.health()
            assert opened.save("direct") == 1
            assert await asyncio.to_thread(opened.count) == 1
            assert await opened.search() == ["direct"]
            assert await run_in_agent()
        assert memory._thread is None

    async def run_in_agent() -> bool:
        return await asyncio.to_thread(run, Module, call("memory__save", text="x"), tools=[memory]) == ["2"]

    asyncio.run(main())
    assert len(memory.threads) == 1


def test_a_service_set_up_by_hand_is_used_where_that_was(memory: Memory) -> None:
    async def main() -> None:
        await memory.setup()
        assert memory.save("one") == 1
        await memory.teardown()

    asyncio.run(main())
    assert memory.threads == {threading.get_ident()}


def test_a_tool_that_waits_for_a_branch_does_not_wait_for_itself(memory: Memory) -> None:
    class Nested(Module):
        """Nested."""

        final_output = Note
        max_steps = 3

    class Delegating(Memory):
        agent: Module

        @tool
        def delegate(self) -> str:
            """Run a branch, which has the tools of this service."""
            return str(self.agent.branch(Nested).number)

        @tool
        async def look(self) -> str:
            """Look from inside the branch."""
            return "seen"

        @tool
        def ponder(self) -> str:
            """Look from inside the branch, plainly."""
            return "pondered"

    def decide(asked: Asked) -> Any:
        if asked.system == "Nested.":
            if not asked.results:
                return [call("delegating__look"), call("delegating__ponder")]
            assert asked.results == ["seen", "pondered"]
            return finish(number=7)
        return call("delegating__delegate") if asked.turn == 0 else finish()

    brain = Brain(decide=decide)
    service = Delegating(memory.path)

    class Agent(Module):
        model = brain
        tools = [service]
        max_steps = 3
        timeout = 60

    service.agent = Agent()
    service.agent()
    assert "7" in brain.asked[-1].results


def test_a_tool_that_never_ends_does_not_hold_up_its_caller() -> None:
    started, released, torn_down = threading.Event(), threading.Event(), threading.Event()

    class Slow(Service):
        async def setup(self) -> None:
            self.is_up = True

        async def teardown(self) -> None:
            self.is_up = False
            torn_down.set()

        @tool
        def wait(self) -> str:
            """Wait."""
            started.set()
            released.wait(60)
            return f"up: {self.is_up}"

    service = Slow()
    cancel_when(started, Module, call("slow__wait"), tools=[service])
    assert not torn_down.is_set()
    released.set()
    assert run(Module, call("slow__wait"), tools=[service]) == ["up: True"]
    assert torn_down.is_set()


def test_functions_of_a_service_run_in_its_thread(memory: Memory) -> None:
    class Listing(Memory):
        def get_tools(self) -> list[Any]:
            def tell(service: str) -> str:
                """Tell the number of notes."""
                return f"{service}: {self.connection.execute('select count(*) from notes').fetchone()[0]}"

            async def tell_later() -> int:
                """Tell it too."""
                return int(self.connection.execute("select count(*) from notes").fetchone()[0])

            return [tell, Tool.of(tell_later)]

    calls = [call("tell", service="notes"), call("tell_later")]
    assert run(Module, calls, tools=[Listing(memory.path)]) == ["notes: 0", "0"]


def test_a_service_of_coroutines_runs_on_the_loop_of_its_caller() -> None:
    class Async(Service):
        async def setup(self) -> None:
            self.loop = asyncio.get_running_loop()

        @tool
        async def look(self) -> bool:
            """Look where this runs."""
            return self.loop is asyncio.get_running_loop()

    assert run(Module, call("async__look"), tools=[Async()]) == ["True"]


@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError("no disk"), "no disk"), (StopIteration("odd"), "StopIteration: odd"), (ValueError(), "")],
)
def test_setup_that_fails_in_the_thread(error: Exception, message: str) -> None:
    class Failing(Service):
        def setup(self) -> None:  # type: ignore[override]
            raise error

    service = Failing()
    with pytest.raises(ServiceError, match=f"Service 'Failing' setup failed: {message}"):
        run(Module, tools=[service])
    assert service._thread is None


def test_a_cancelled_coroutine_of_a_service_is_cancelled_in_its_thread() -> None:
    started, ended = threading.Event(), threading.Event()

    class Sleepy(Service):
        @tool
        def nap(self) -> None:
            """Be plain, so that the service has a thread."""

        @tool
        async def sleep(self) -> None:
            """Sleep."""
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    cancel_when(started, Module, call("sleepy__sleep"), tools=[Sleepy()])
    assert ended.wait(60)
