"""Networks that sandboxes share: what is inside, how the program outside reaches it, and that nothing of it is left."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forkwise import Branch, Confinement, ProcessBranchError, Workspace
from forkwise.linux.process_id import ProcessId
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.sandbox.run import spawn
from tests.sandbox.child import need_user_namespaces
from tests.unprivileged import as_unprivileged, interpreter, unprivileged_project

SERVE = """
import socket, sys
server = socket.create_server(("127.0.0.1", 3000))
print("ready", flush=True)
while True:
    server.accept()[0].send(sys.argv[1].encode())
"""
ASK = "import socket; print(socket.create_connection(('127.0.0.1', 3000)).recv(9).decode())"


@pytest.fixture
def space() -> Iterator[NetworkSpace]:
    with NetworkSpace() as opened:
        yield opened


def answer_once(server: socket.socket, answer: bytes) -> None:
    with server.accept()[0] as accepted:
        accepted.send(answer)


def receive(opened: socket.socket) -> bytes:
    with opened:
        return opened.recv(99)


def test_five_branches_serve_one_port_to_each_other_and_to_this_process(workspace: Workspace) -> None:
    spaces, servers = [], []
    try:
        for number in range(5):
            branch = workspace.branch(f"b{number}")
            spaces.append(NetworkSpace())
            reader, writer = os.pipe()
            servers.append(spawn(branch, [sys.executable, "-c", SERVE, str(number)], (0, writer, 2), space=spaces[-1]))
            os.close(writer)
            with open(reader) as ready:
                assert ready.readline() == "ready\n"
            done = branch.run([sys.executable, "-c", ASK], space=spaces[-1], text=True)
            assert done.stdout == f"{number}\n", done
        assert [receive(space.connect(3000)) for space in spaces] == [b"0", b"1", b"2", b"3", b"4"]
        for space in spaces:
            space.close()
        assert all(server.wait(10) for server in servers)  # it ends everything inside
    finally:
        for closed in (*servers, *spaces):
            closed.close()


def test_this_process_serves_a_port_inside(branch: Branch, space: NetworkSpace) -> None:
    with space.listen(3000) as server:
        thread = threading.Thread(target=lambda: answer_once(server, b"outside"))
        thread.start()
        assert branch.run([sys.executable, "-c", ASK], space=space, text=True).stdout == "outside\n"
        thread.join()
        refused = branch.run([sys.executable, "-c", ASK], confinement=Confinement.standard(network="none"), text=True)
        assert "ConnectionRefusedError" in refused.stderr


def test_a_space_reaches_nothing_of_the_host(branch: Branch, space: NetworkSpace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        knock = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"
        assert "ConnectionRefusedError" in branch.run([sys.executable, "-c", knock], space=space, text=True).stderr
    with pytest.raises(ConnectionRefusedError):
        space.connect(3000)


def test_a_command_has_no_rights_over_its_network(branch: Branch, space: NetworkSpace) -> None:
    script = "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)"
    assert "PermissionError" in branch.run([sys.executable, "-c", script], space=space, text=True).stderr


OTHER = """
import sys
from forkwise import Workspace
from forkwise.sandbox.network.space import NetworkSpace
branch = Workspace(sys.argv[1]).open("attempt")
with NetworkSpace.find(branch) as space:
    print(space.connect(3000).recv(9).decode())
    print(branch.run([sys.executable, "-c", sys.argv[2]], space=space, text=True).stdout)
"""


def test_another_process_finds_the_space_of_a_branch(branch: Branch, space: NetworkSpace) -> None:
    assert NetworkSpace.find(branch) is None
    space.register(branch)
    with space.listen(3000) as server:
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(branch.workspace.path), ASK], stdout=subprocess.PIPE, text=True
        )
        for answer in (b"first", b"second"):
            answer_once(server, answer)
        assert other.communicate()[0].split() == ["first", "second"]
    space.close()
    assert NetworkSpace.find(branch) is None
    assert not os.path.exists(f"{branch.home}/network")


def test_a_reused_process_number_is_never_entered(space: NetworkSpace) -> None:
    for process in (
        replace(space.process, start=space.process.start + 1),
        replace(space.process, boot="another"),
        replace(space.process, space="pid:[1]"),
        ProcessId.nobody(),
    ):
        with pytest.raises(ProcessBranchError, match="has ended"):
            NetworkSpace.attach(process)


@pytest.mark.parametrize("text", ["", "[", "{}", "[0]", '["x", 1]', "[-1, 0, 0, 0]", "null", "9" * 9999])
def test_a_forged_record_is_no_space(branch: Branch, text: str) -> None:
    Path(branch.home, "network").write_text(text)
    assert NetworkSpace.find(branch) is None


def test_the_namespace_ends_with_its_program() -> None:
    program = (
        "from forkwise.sandbox.network.space import NetworkSpace; s = NetworkSpace(); print(s.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        pidfd = os.pidfd_open(int(child.stdout.readline()))
        child.kill()
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(10_000)
    os.close(pidfd)


UNPRIVILEGED_PROGRAM = """
import socket, subprocess, sys, threading
from forkwise import Workspace
from forkwise.linux.namespace import enter_namespace
from forkwise.sandbox.network.space import NetworkSpace

if sys.argv[2] == "entered":
    enter_namespace()
branch = Workspace(sys.argv[1], view="overlay").branch("attempt", on_success=None, on_error=None)
with NetworkSpace() as space, space.listen(3000) as server:
    space.register(branch)
    def serve():
        for answer in (b"inside", b"other"):
            with server.accept()[0] as accepted:
                accepted.send(answer)
    thread = threading.Thread(target=serve)
    thread.start()
    print(branch.run([sys.executable, "-c", sys.argv[3]], space=space, text=True).stdout.strip(), flush=True)
    sys.stdin.readline()
    thread.join()
"""
UNPRIVILEGED_OTHER = """
import sys
from forkwise import Workspace
from forkwise.sandbox.network.space import NetworkSpace
with NetworkSpace.find(Workspace(sys.argv[1]).open("attempt")) as space:
    print(space.connect(3000).recv(9).decode())
"""


@pytest.mark.parametrize("mode", ["plain", "entered"])
def test_a_user_without_privileges_shares_a_network(mode: str) -> None:
    need_user_namespaces()
    with unprivileged_project(("rapidfuzz",)) as (home, environment):
        project = str(home / "project")
        command = as_unprivileged([interpreter(), "-c", UNPRIVILEGED_PROGRAM, project, mode, ASK])
        with subprocess.Popen(
            command, env=environment, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "inside\n"
            command = as_unprivileged([interpreter(), "-c", UNPRIVILEGED_OTHER, project])
            other = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True)
            assert other.stdout == "other\n", other
            program.communicate("\n")
