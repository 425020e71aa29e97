"""How attempts share a provider that refuses some of them: turns, halved numbers, and waits."""

from __future__ import annotations

import asyncio

from forkwise.fork.limits.provider_limit import ProviderLimit, ProviderRules


async def try_to_enter(limit: ProviderLimit, *attempts: str) -> dict[str, asyncio.Task[None]]:
    tasks = {name: asyncio.create_task(limit.enter(name)) for name in attempts}
    await asyncio.sleep(0)
    return tasks


def list_waiting(tasks: dict[str, asyncio.Task[None]]) -> list[str]:
    return [name for name, task in tasks.items() if not task.done()]


async def pass_on() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_attempts_wait_for_their_turn_in_order() -> None:
    async def script() -> None:
        limit = ProviderLimit(2)
        tasks = await try_to_enter(limit, "a", "b", "c", "d")
        assert list_waiting(tasks) == ["c", "d"]
        tasks["c"].cancel()  # one that is not wanted any more takes no turn
        limit.leave("a")
        limit.leave("a")
        await pass_on()
        assert list_waiting(tasks) == []
        more = await try_to_enter(limit, "e")
        assert list_waiting(more) == ["e"]
        limit.leave("b")
        await more["e"]

    asyncio.run(script())


def test_a_refusal_halves_their_number_once_and_answers_restore_it() -> None:
    async def script() -> None:
        limit = ProviderLimit(None)
        names = [str(n) for n in range(8)]
        assert list_waiting(await try_to_enter(limit, *names)) == []
        for name in names:  # all of them had begun before the first was refused
            limit.leave(name, is_refused=True)
        tasks = await try_to_enter(limit, *names)
        assert list_waiting(tasks) == names[4:]
        limit.leave("0", is_refused=True)  # 2 at once
        limit.leave("1")  # 3 at once
        await pass_on()
        assert list_waiting(tasks) == names[5:]
        for task in tasks.values():
            task.cancel()

    asyncio.run(script())


def test_one_attempt_is_always_let_in() -> None:
    async def script() -> None:
        limit = ProviderLimit(1)
        for _ in range(5):
            await limit.enter("a")
            limit.leave("a", is_refused=True)
        await limit.enter("a")

    asyncio.run(script())


def test_waits_grow_and_end() -> None:
    rules = ProviderRules(retries=10)
    waits = [rules.find_delay(count, 0) or 0 for count in range(10)]
    assert 3 <= waits[0] <= 7
    assert 12 <= waits[2] <= 28
    assert max(waits) <= 750
    assert rules.find_delay(10, 0) is None
    assert rules.find_delay(10, 1) is None
    assert 30 <= (rules.find_delay(0, 30) or 0) <= 36  # what the provider asks for
    assert rules.find_delay(0, 3600) is None
    assert ProviderRules(retries=0).find_delay(0, 1) is None
