"""The bridges between blocking and asynchronous code: threads, awaiting to completion, and the shared loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forkwise.concurrency import finish_then_cancel, run_in_thread, run_sync


def test_results_and_errors() -> None:
    def fail() -> None:
        raise KeyError("cause")

    async def main() -> None:
        assert await run_in_thread(divmod, 7, 2) == (3, 1)
        assert await run_in_thread(int, "ff", base=16) == 255
        with pytest.raises(KeyError, match="cause"):
            await run_in_thread(fail)

    asyncio.run(main())


def test_stop_iteration_does_not_leave_the_future_pending() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await run_in_thread(next, iter(()))

    asyncio.run(main())


def test_context_variables_are_those_of_the_task() -> None:
    variable = contextvars.ContextVar("variable", default="outside")

    async def main() -> None:
        variable.set("inside")
        assert await run_in_thread(variable.get) == "inside"
        await run_in_thread(variable.set, "thread")
        assert variable.get() == "inside"

    asyncio.run(main())


def test_many_threads_run_at_once() -> None:
    many = 100
    meeting = threading.Barrier(many, timeout=60)

    async def main() -> None:
        await asyncio.gather(*(run_in_thread(meeting.wait) for _ in range(many)))

    asyncio.run(main())


def test_starting_a_thread_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, iter(["once", "twice"])

    def refuse(thread: threading.Thread) -> None:
        if next(refused, None):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        assert await run_in_thread(divmod, 7, 2) == (3, 1)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    asyncio.run(main())
    assert next(refused, None) is None


def test_a_cancelled_thread_runs_on_and_its_error_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    gate, done = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait()
        done.set()
        raise KeyError("ignored")

    async def main() -> None:
        job = asyncio.create_task(asyncio.wait_for(run_in_thread(work), None))
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        gate.set()
        await run_in_thread(done.wait)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert caplog.records == []


@pytest.mark.filterwarnings("error")
def test_a_thread_that_outlives_its_loop() -> None:
    gate = threading.Event()
    before = set(threading.enumerate())

    async def main() -> None:
        run_in_thread(gate.wait)
        run_in_thread(lambda: [gate.wait(), 1 / 0])

    asyncio.run(main())  # waits for neither
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    gate.set()
    for thread in threads:
        thread.join()


def test_finish_then_cancel_raises_after_the_work_is_done() -> None:
    gate, done = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(60)
        done.set()

    async def main() -> None:
        waiter = asyncio.create_task(_finish(run_in_thread(work)))
        await asyncio.sleep(0)
        for _ in range(3):  # however often
            waiter.cancel()
            await asyncio.sleep(0.01)
            assert not waiter.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert done.is_set()

    asyncio.run(main())


def test_finish_then_cancel_without_cancellation() -> None:
    async def main() -> None:
        assert await finish_then_cancel(run_in_thread(divmod, 7, 2)) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await finish_then_cancel(run_in_thread(divmod, 7, 0))

    asyncio.run(main())


async def _finish(work: asyncio.Future[None]) -> None:
    await finish_then_cancel(work)


async def _thread_name() -> str:
    return threading.current_thread().name


def test_all_threads_share_one_loop() -> None:
    async def loop_id() -> int:
        return id(asyncio.get_running_loop())

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(lambda _: run_sync(loop_id()), range(8))}) == 1
    assert run_sync(_thread_name()) == "forkwise loop"


def test_a_coroutine_runs_with_the_callers_context_and_raises_its_error() -> None:
    variable = contextvars.ContextVar("variable", default="outside")

    async def read() -> str:
        return variable.get()

    async def fail() -> None:
        raise KeyError("cause")

    variable.set("inside")
    assert run_sync(read()) == "inside"
    with pytest.raises(KeyError, match="cause"):
        run_sync(fail())


def test_blocking_the_shared_loop_does_not_deadlock() -> None:
    """A coroutine on the shared loop blocks it, and a thread of what it waits for calls ``run_sync`` again."""

    async def inner() -> str:
        return await run_in_thread(lambda: run_sync(_thread_name()))

    async def outer() -> str:
        return run_sync(inner())

    before = threading.active_count()
    assert run_sync(outer()) == "forkwise nested loop"
    assert run_sync(_thread_name()) == "forkwise loop"
    assert threading.active_count() <= before + 1  # the shared loop, if this test started it


def test_the_tasks_left_on_a_nested_loop_are_cancelled() -> None:
    ended: list[str] = []

    async def sleep() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def inner() -> None:
        tasks.append(asyncio.create_task(sleep()))
        await asyncio.sleep(0)

    async def outer() -> None:
        run_sync(inner())

    tasks: list[asyncio.Task[None]] = []
    run_sync(outer())
    assert ended == ["cancelled"]


def test_a_running_loop_of_the_callers_is_not_used() -> None:
    async def main() -> str:
        return run_sync(_thread_name())

    assert asyncio.run(main()) == "forkwise loop"


def test_a_coroutine_that_runs_alone_leaves_no_task_behind() -> None:
    ended = threading.Event()

    async def linger() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(linger())
        await asyncio.sleep(0)
        return task

    assert run_sync(main(), alone=True).cancelled()
    assert ended.is_set()
