"""The local model's server: started by the first user, shared, stopped with the last user or the process."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.settings import ModelSettings

from forkwise import LocalModelError
from forkwise.local_model import local_model
from forkwise.local_model.server import ModelServer, acquire, release
from forkwise.local_model.weights import SIZE, weights_path
from tests.local_model.requirements import need_local_model

pytestmark = pytest.mark.integration

BRIEF = ModelSettings(max_tokens=4, temperature=0)


@pytest.fixture(autouse=True)
def alone() -> None:
    """Collect models of other tests, so that they are no longer users."""
    need_local_model()
    gc.collect()


@contextmanager
def server_of_now() -> Iterator[ModelServer]:
    """Yield the running server, as one more user."""
    user = object()
    yield acquire(user)
    release(user)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_users_share_one_and_the_last_stops_it() -> None:
    users = [object() for _ in range(8)]
    with ThreadPoolExecutor(len(users)) as pool:
        servers = set(pool.map(acquire, users))
    assert len(servers) == 1
    server = servers.pop()
    for user in users[1:]:
        release(user)
    assert server.is_alive
    assert server.key not in repr(server)
    release(users[0])
    assert is_gone(server.process.pid)


def test_a_model_is_a_user_until_it_is_collected() -> None:
    model = local_model()
    asyncio.run(Agent(model, model_settings=BRIEF).run("Hello"))
    with server_of_now() as server:
        pass
    assert server.is_alive
    del model
    gc.collect()
    assert is_gone(server.process.pid)


def test_a_model_is_a_user_until_its_block_ends() -> None:
    model = local_model()

    async def ask() -> ModelServer:
        async with model, Agent(model, model_settings=BRIEF) as agent:
            await agent.run("Hello")
            with server_of_now() as server:
                pass
            assert server.is_alive
        return server

    first = asyncio.run(ask())
    assert is_gone(first.process.pid)
    assert asyncio.run(ask()).process.pid != first.process.pid


def test_a_server_that_died_is_started_again() -> None:
    agent = Agent(local_model(), model_settings=BRIEF)
    asyncio.run(agent.run("Hello"))
    with server_of_now() as server:
        server.process.kill()
        server.process.wait()
    assert asyncio.run(agent.run("Hello")).usage.output_tokens > 0


TAKES = """
import os, sys
from forkwise.local_model.server import acquire, release
server = acquire("me")
print(server.process.pid, flush=True)
"""


@contextmanager
def run(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that acquires a server, prints its pid, and then runs ``code``."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TAKES + code], stdin=pipe, stdout=pipe, text=True) as process:
        yield process


def pid_from(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_it_dies_with_a_process_that_is_killed() -> None:
    with run("sys.stdin.read()") as process:
        server = os.pidfd_open(pid_from(process))
        process.send_signal(signal.SIGKILL)
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    assert waiting.poll(60_000)
    os.close(server)


def test_it_outlives_the_thread_that_started_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(acquire, "user").result()
    assert server.is_alive
    release("user")


FORKS = """
import signal, threading
inside, go_on = threading.Event(), threading.Event()

class Slow:
    def __hash__(self):  # asked for while the server is being taken
        inside.set()
        go_on.wait()
        return 1

slow = Slow()
thread = threading.Thread(target=acquire, args=(slow,))
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    own = acquire("child")
    print(own.process.pid, flush=True)
    release("child")
    os._exit(own.is_alive)
print(os.waitpid(child, 0)[1], server.is_alive, flush=True)
go_on.set()
thread.join()
release("me")
release(slow)
"""


def test_a_forked_child_has_its_own_whatever_the_parent_was_doing() -> None:
    with run(FORKS) as process:
        parents, childs = pid_from(process), pid_from(process)
        assert process.stdout is not None
        assert process.stdout.read() == "0 True\n"
    assert parents != childs
    assert is_gone(parents)
    assert is_gone(childs)
    assert process.returncode == 0


def test_weights_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    weights_path().parent.mkdir(parents=True)
    weights_path().touch()
    os.truncate(weights_path(), SIZE)
    with pytest.raises(LocalModelError, match=r"did not start: .*forkwise model fetch"):
        acquire("user")
    os.truncate(weights_path(), SIZE - 1)
    with pytest.raises(LocalModelError, match=r"damaged: .*forkwise model fetch"):
        acquire("user")
