"""Servers in branches: started, checked from outside, stopped cleanly, and clear words if that fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Confinement, ServerError, Workspace
from forkwise.errors import CommitError
from forkwise.files.store.branch_info import DataDirectories
from forkwise.linux.syscalls import mount, umount2
from forkwise.servers.server_file import Readiness, Server, Shutdown
from forkwise.servers.server_group import BranchNetwork, ServerGroup, serve
from tests.need import need

PORT = 3000
PYTHON = (sys.executable, "-ISc")
LISTEN = f"""
import socket, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (open("stopped", "w").write("cleanly"), sys.exit(0)))
server = socket.create_server(("127.0.0.1", {PORT}))
print("listening on port", {PORT}, flush=True)
while True:
    client = server.accept()[0]
    client.recv(4096)
    client.sendall(b"HTTP/1.0 STATUS OK\\r\\n\\r\\n" + open("greeting", "rb").read())
    client.close()
"""
CONNECTED = (*PYTHON, f"import socket; socket.create_connection(('127.0.0.1', {PORT}))")


def build(command: tuple[str, ...] | str = LISTEN, **options: Any) -> Server:
    if isinstance(command, str):
        command = (*PYTHON, command.replace("STATUS", "200"))
    return Server(**{"name": "web", "command": command, "ready": Readiness(port=PORT), "timeout": 20.0, **options})


@pytest.fixture
def branch(tmp_path: Path) -> Iterator[Branch]:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "greeting").write_text("hello")
    made = Workspace(directory).branch("try", on_success=None, on_error=None)
    yield made
    for left in reversed(Workspace(directory).branches()):
        left.abort()


@pytest.fixture
def network() -> Iterator[BranchNetwork]:
    made = BranchNetwork(Confinement.standard(network="none"))
    yield made
    made.close()


@pytest.mark.parametrize(
    "ready",
    [
        Readiness(port=PORT),
        Readiness(url=f"http://localhost:{PORT}/health?now"),
        Readiness(log="listening * 3000"),
        Readiness(command=CONNECTED),
    ],
    ids=["port", "url", "log", "command"],
)
def test_a_server_is_ready_serves_its_branch_and_is_stopped_cleanly(
    branch: Branch, network: BranchNetwork, ready: Readiness
) -> None:
    (branch.path / "greeting").write_text("of the branch")
    group = ServerGroup([build(ready=ready)], branch, space=network.space)
    group.start()
    with network.space.connect(PORT, timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.makefile("rb").read().endswith(b"of the branch")
    group.check()
    group.stop()
    assert (branch.path / "stopped").read_text() == "cleanly"
    with pytest.raises(ConnectionRefusedError):
        network.space.connect(PORT, timeout=20)


def test_two_branches_serve_the_same_port(branch: Branch) -> None:
    other = branch.workspace.branch("other", on_success=None, on_error=None)

    async def main() -> None:
        async with serve([build()], branch) as one, serve([build()], other) as two:
            assert one.space is not None
            assert two.space is not None
            assert one.space.pid != two.space.pid

    asyncio.run(main())
    other.abort()


def test_commands_before_and_after(branch: Branch, network: BranchNetwork) -> None:
    printed: list[tuple[str, bytes]] = []
    server = build(
        before=(("sh", "-c", "echo made > greeting; echo preparing"),),
        after=((*CONNECTED,), ("sh", "-c", "echo seeded > seed")),
        env={"COLOUR": "blue"},
    )
    group = ServerGroup(
        [server], branch, space=network.space, on_output=lambda name, _, piece: printed.append((name, piece))
    )
    group.start()
    group.stop()
    assert (branch.path / "greeting").read_text() == "made\n"
    assert (branch.path / "seed").read_text() == "seeded\n"
    assert printed[0] == ("web", b"preparing\n")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (build(("sh", "-c", "echo no disk >&2; exit 3")), r"ended before it was ready \(exit code 3\).*\nno disk"),
        (build(("sh", "-c", "sleep 9 & exit 0")), "has to stay in the foreground"),
        (build(("sh", "-c", "echo thinking; exec sleep 60"), timeout=0.3), r"not ready after 0.3 s.*\nthinking"),
        (build(("sh", "-c", "kill -9 $$")), "ended before it was ready .*SIGKILL"),
        (build(("does-not-exist",)), "'does-not-exist' could not be started: No such file"),
        (build(before=(("sh", "-c", "echo broken; exit 4"),)), r"before it was started, failed \(exit 4\).*\nbroken"),
        (build(after=(("sh", "-c", "exit 5"),)), r"after it was ready, failed \(exit 5\)"),
        (build(before=(("sleep", "60"),), timeout=0.2), r"before it was started, did not end within 0.2 s"),
        (
            build(LISTEN.replace("STATUS", "500"), ready=Readiness(url=f"http://localhost:{PORT}/"), timeout=0.5),
            "it waits for http://localhost:3000/",
        ),
        (build(user="nobody-has-this-name"), "there is no such user"),
    ],
    ids=["ends", "detaches", "late", "killed", "missing", "before", "after", "long before", "status", "user"],
)
def test_a_server_that_does_not_get_ready(branch: Branch, network: BranchNetwork, server: Server, message: str) -> None:
    need(server.user is None or os.geteuid() == 0, "only root can run a server as another user")
    group = ServerGroup([server], branch, space=network.space)
    with pytest.raises(ServerError, match=f"(?s){message}") as raised:
        group.start()
    assert raised.value.server == "web"
    with pytest.raises(ConnectionRefusedError):
        network.space.connect(PORT, timeout=20)


def test_a_port_that_another_server_has(branch: Branch, network: BranchNetwork) -> None:
    greedy = build(name="first", ready=Readiness(log="listening"))
    with pytest.raises(ServerError, match="'web' was not started: port 3000 is taken already, by one of first"):
        ServerGroup([greedy, build()], branch, space=network.space).start()


def test_a_server_that_ends_while_it_is_needed(branch: Branch) -> None:
    line = "echo up; until [ -e go ]; do sleep 0.01; done; echo crashed; exit 7"

    async def run() -> None:
        async with serve([build(("sh", "-c", line), ready=Readiness(log="up"))], branch) as group:
            group.check()
            (branch.path / "go").touch()
            with suppress(ServerError):
                while True:
                    group.check()

    with pytest.raises(ServerError, match=r"(?s)ended while it was needed \(exit code 7\).*\ncrashed"):
        asyncio.run(run())


def test_cancellation_kills_what_was_started(branch: Branch) -> None:
    async def main() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()
        slow = build(("sh", "-c", "echo up; exec sleep 60"))

        async def use() -> None:
            async with serve([slow], branch, on_output=lambda *_: loop.call_soon_threadsafe(started.set)):
                raise AssertionError("it never gets ready")

        task = asyncio.create_task(use())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    branch.abort()


def test_a_stubborn_server_is_killed(branch: Branch, network: BranchNetwork) -> None:
    stubborn = build(
        ("sh", "-c", "trap '' TERM INT; echo up; while :; do sleep 1; done"),
        ready=Readiness(log="up"),
        stop=Shutdown(signal.SIGINT, 0.2),
    )
    group = ServerGroup([stubborn], branch, space=network.space)
    group.start()
    group.stop()
    branch.abort()


def test_data_that_a_process_of_the_workspace_uses(branch: Branch, network: BranchNetwork) -> None:
    need(branch.view != "btrfs", "a snapshot of btrfs is consistent")
    (branch.workspace.path / "data").mkdir()
    wait = "import os, sys; os.chdir(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    command = [*PYTHON, wait, str(branch.workspace.path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(ServerError, match=rf"data is in use by .*\(process {user.pid}\).*Stop that process"):
            ServerGroup([build(data="data")], branch, space=network.space).start()
        user.communicate()
    group = ServerGroup([build(data="data")], branch, space=network.space)
    group.start()
    group.stop()


def test_data_of_another_branch_is_not_that_of_the_workspace(branch: Branch, network: BranchNetwork) -> None:
    """Copies have the same device, and a sandbox shows them at the same path."""
    (branch.workspace.path / "data").mkdir()
    workspace = Workspace(branch.workspace.path, view="copy")
    one, two = (workspace.branch(name, on_success=None, on_error=None) for name in ("one", "two"))
    server = build(("sh", "-c", "cd data; echo up; exec sleep 60"), ready=Readiness(log="up"), data="data")
    groups = [ServerGroup([server], made, space=network.space) for made in (one, two)]
    for group in groups:
        group.start()
    two.set_data_directories(DataDirectories(whole=("data",)))
    groups[1].kill()
    (two.path / "data/new").write_text("new")
    two.commit()
    groups[0].kill()
    one.abort()


def test_data_behind_a_link_is_not_part_of_the_branch(branch: Branch, network: BranchNetwork, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (branch.workspace.path / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServerError, match="data is reached through a symbolic link"):
        ServerGroup([build(data="data")], branch, space=network.space).start()


def test_data_on_another_filesystem(branch: Branch, network: BranchNetwork) -> None:
    need(os.geteuid() == 0, "only root can mount a filesystem")
    place = branch.workspace.path / "data"
    place.mkdir()
    mount("tmpfs", str(place), "tmpfs")
    try:
        with pytest.raises(ServerError, match="data is on another filesystem"):
            ServerGroup([build(data="data")], branch, space=network.space).start()
    finally:
        umount2(str(place))


def test_a_branch_is_not_committed_while_servers_run_on_its_data(branch: Branch, network: BranchNetwork) -> None:
    branch.set_data_directories(DataDirectories(whole=("data",)))
    group = ServerGroup([build(before=(("sh", "-c", "mkdir data; echo 1 > data/file"),))], branch, space=network.space)
    group.start()
    with pytest.raises(CommitError, match="servers still run in it, on data"):
        branch.commit()
    group.stop()
    assert "data/file" in branch.commit().added


COUNT = f"""
import os, socket, sys
rows = os.path.join(sys.argv[1], "rows")
with open(rows, "a") as file: file.write("one more\\n")
server = socket.create_server(("127.0.0.1", {PORT}))
while True:
    client = server.accept()[0]
    client.sendall(open(rows, "rb").read())
    client.close()
"""


def ask_for_rows(branch: Branch, network: BranchNetwork, data: Path) -> list[bytes]:
    server = build((*PYTHON, COUNT, str(data)), data=str(data), keep="drop", before=(("touch", f"{data}/prepared"),))
    group = ServerGroup([server], branch, space=network.space)
    try:
        group.start()
        with network.space.connect(PORT, timeout=20) as connection:
            return connection.makefile("rb").read().splitlines()
    finally:
        group.stop()


def test_a_data_directory_outside_of_the_workspace_is_branched_and_dropped(
    branch: Branch, network: BranchNetwork, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows").write_text("of the base\n")
    other = branch.workspace.branch("other", on_success=None, on_error=None)
    assert ask_for_rows(branch, network, data) == [b"of the base", b"one more"]
    assert ask_for_rows(branch, network, data) == [b"of the base", b"one more", b"one more"]
    assert ask_for_rows(other, network, data) == [b"of the base", b"one more"]
    (branch.path / "result").write_text("1")
    assert branch.commit().paths == ("result",)
    assert (data / "rows").read_text() == "of the base\n"
    assert sorted(os.listdir(data)) == ["rows"]


def test_a_data_directory_outside_that_cannot_be_branched_is_refused(branch: Branch, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (tmp_path / "link").symlink_to(used)
    inside = branch.workspace.path / "inside"
    inside.mkdir()
    refused = {
        tmp_path / "missing": "there is no such directory",
        tmp_path: "it contains",
        Path("/"): "it contains",
        inside: "name it relative to that",
        tmp_path / "link": f"through a symbolic link: name {used}",
    }
    for data, reason in refused.items():
        with pytest.raises(ServerError, match=rf"was not started on a view .*{reason}"):
            ServerGroup([build(data=str(data), keep="drop")], branch).start()
    command = [*PYTHON, f"import os; os.chdir({str(used)!r}); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(ServerError, match=rf"in use by .*process {user.pid}"):
            ServerGroup([build(data=str(used), keep="drop")], branch).start()
        user.communicate(b"\n")
