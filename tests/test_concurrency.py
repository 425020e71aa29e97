"""Work in threads, awaited: as many at once as there are, and a thread may outlive whoever wanted to know."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from forkwise.concurrency import finish_then_cancel, run_in_thread


def test_what_comes_of_it() -> None:
    def fail() -> None:
        raise KeyError("told")

    async def main() -> None:
        assert await run_in_thread(divmod, 7, 2) == (3, 1)
        assert await run_in_thread(int, "ff", base=16) == 255
        with pytest.raises(KeyError, match="told"):
            await run_in_thread(fail)

    asyncio.run(main())


def test_the_end_of_an_iterator_is_no_end_without_an_answer() -> None:
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


def test_all_of_many_are_under_way_at_once() -> None:
    many = 100
    meeting = threading.Barrier(many, timeout=60)

    async def main() -> None:
        await asyncio.gather(*(run_in_thread(meeting.wait) for _ in range(many)))

    asyncio.run(main())


def test_where_no_more_threads_can_be_had_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_cancelled_the_thread_goes_on_unheard(caplog: pytest.LogCaptureFixture) -> None:
    gate, gone = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait()
        gone.set()
        raise KeyError("nobody asked")

    async def main() -> None:
        job = asyncio.create_task(asyncio.wait_for(run_in_thread(work), None))
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        gate.set()
        await run_in_thread(gone.wait)
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


def test_who_is_cancelled_before_leaving_leaves_when_it_is_done() -> None:
    gate, done = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(60)
        done.set()

    async def main() -> None:
        leaving = asyncio.create_task(_leave(run_in_thread(work)))
        await asyncio.sleep(0)
        for _ in range(3):  # however often
            leaving.cancel()
            await asyncio.sleep(0.01)
            assert not leaving.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert done.is_set()

    asyncio.run(main())


def test_who_is_not_cancelled_before_leaving_is_told_what_came_of_it() -> None:
    async def main() -> None:
        assert await finish_then_cancel(run_in_thread(divmod, 7, 2)) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await finish_then_cancel(run_in_thread(divmod, 7, 0))

    asyncio.run(main())


async def _leave(work: asyncio.Future[None]) -> None:
    await finish_then_cancel(work)
