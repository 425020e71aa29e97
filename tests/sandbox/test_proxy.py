"""The network ``proxy``: what commands in it reach and how, what is denied, and that one client cannot harm another.

The servers of these tests are on 127.0.0.9, which the confinement names: there is no other address that every machine
has. Clients reach 127.0.0.1 and localhost without the proxy, which is their own.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, BranchContext, Confinement, NamespaceError, Workspace
from forkwise.sandbox.network import uplink
from forkwise.sandbox.network.gateway import open_network
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.sandbox.run import spawn
from tests.counts import rounds
from tests.need import need
from tests.sandbox.child import need_user_namespaces
from tests.unprivileged import as_unprivileged, interpreter, unprivileged_project

SERVER = "127.0.0.9"
PROXY = Confinement.standard(network="proxy", allowed_hosts=(SERVER, "*.invalid"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.command} {self.path} {self.headers['Host']}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_: Any) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def serve(host: str = SERVER, port: int = 0, handler: type[Handler] = Handler) -> Iterator[int]:
    server = Server((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def port() -> Iterator[int]:
    with serve() as number:
        yield number


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "connections"


@pytest.fixture
def space(log: Path) -> Iterator[NetworkSpace]:
    log_fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with open_network(PROXY, log_fd=log_fd) as opened:
        os.close(log_fd)
        yield opened


def read_log(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def connect(space: NetworkSpace) -> Callable[[], socket.socket]:
    """Connect to the proxy as a client inside does."""
    number = int(space.variables["http_proxy"].rpartition(":")[2])
    return lambda: space.connect(number, timeout=30)


def exchange(opened: socket.socket, request: bytes) -> bytes:
    with opened:
        opened.settimeout(30)
        opened.sendall(request)
        return read_all(opened)


def read_all(opened: socket.socket) -> bytes:
    received = b""
    while piece := opened.recv(1 << 16):
        received += piece
    return received


def test_python_reaches_a_server_with_the_variables(branch: Branch, space: NetworkSpace, log: Path, port: int) -> None:
    script = (
        "import urllib.request as r\n"
        f"print(r.urlopen('http://{SERVER}:{port}/a').read().decode())\n"
        f"print(r.urlopen('http://{SERVER}:{port}/', data=b'x' * 300000 + b'y').read()[:2])\n"
    )
    done = branch.run([sys.executable, "-c", script], space=space, text=True)
    assert done.stdout == f"GET /a {SERVER}:{port}\n\nb'yx'\n", done
    space.close()
    first, second = read_log(log)
    assert (first["host"], first["port"], first["kind"], first["allowed"]) == (SERVER, port, "http", True)
    assert second["sent"] > 300000
    assert second["received"] > 300000


def test_curl_reaches_a_server_in_every_way(branch: Branch, space: NetworkSpace, port: int) -> None:
    need(shutil.which("curl") is not None, "curl is not installed")
    script = (
        f"curl -sS http://{SERVER}:{port}/http; curl -sS -p http://{SERVER}:{port}/connect; "
        f"curl -sS --socks5-hostname ${{http_proxy#*//}} http://{SERVER}:{port}/socks"
    )
    done = branch.run(["sh", "-c", script], space=space, text=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["/http", "/connect", "/socks"], done


def test_a_denied_host_gets_a_reason_that_names_the_flag(
    connect: Callable[[], socket.socket], space: NetworkSpace, log: Path
) -> None:
    for request in (b"GET http://example.org/ HTTP/1.1\r\n\r\n", b"CONNECT example.org:443 HTTP/1.1\r\n\r\n"):
        answer = exchange(connect(), request)
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert b"Content-Type: text/plain" in answer
        assert answer.endswith(b"--allow-host example.org allows it\n")
    answer = exchange(connect(), b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbb")
    assert answer[:4] == b"\x05\x00\x05\x02"
    space.close()
    assert [(entry["host"], entry["allowed"]) for entry in read_log(log)] == [("example.org", False)] * 3


def test_no_spelling_reaches_the_loopback_of_the_host(connect: Callable[[], socket.socket]) -> None:
    with serve("127.0.0.1") as number:
        for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "0", "127.0.0.8"):
            for head in (f"GET http://{host}:{number}/ HTTP/1.1", f"CONNECT {host}:{number} HTTP/1.1"):
                assert b" 403 " in exchange(connect(), f"{head}\r\n\r\n".encode()), host
        for kind, raw in ((1, socket.inet_aton("127.0.0.1")), (4, socket.inet_pton(socket.AF_INET6, "::1"))):
            request = b"\x05\x01\x00\x05\x01\x00" + bytes((kind,)) + raw + number.to_bytes(2, "big")
            assert exchange(connect(), request)[:4] == b"\x05\x00\x05\x02"


def test_a_name_that_resolves_to_the_loopback_is_denied() -> None:
    name = socket.gethostname()
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)}
    except OSError:
        addresses = set()
    need(bool(addresses) and "." not in addresses and name != "localhost", "this machine's name cannot be resolved")
    with open_network(replace(PROXY, allowed_hosts=(name,))) as space:
        number = int(space.variables["http_proxy"].rpartition(":")[2])
        answer = exchange(space.connect(number), f"GET http://{name}/ HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 "), answer


@pytest.mark.parametrize("network", ["proxy", "private"])
def test_a_port_of_the_host_is_a_port_inside(branch: Branch, network: Any) -> None:
    need(network == "proxy" or shutil.which("pasta") or shutil.which("slirp4netns"), "there is no uplink program")
    with serve("127.0.0.1") as number:
        script = (
            "import sys, urllib.request as r\n"
            "for host in ('localhost', '127.0.0.1'):\n"
            "    print(r.urlopen(f'http://{host}:{sys.argv[1]}/x').read().decode().split()[1])"
        )
        confinement = Confinement.standard(network=network, host_ports=(number,))
        done = branch.run([sys.executable, "-c", script, str(number)], confinement=confinement, text=True)
        assert done.stdout.split() == ["/x", "/x"], done


def test_a_client_that_ignores_the_variables_is_redirected(branch: Branch, space: NetworkSpace, log: Path) -> None:
    need(not space.redirect_problem, space.redirect_problem)
    script = (
        "import socket, sys\n"
        "s = socket.create_connection(('denied.org', 80)); s.send(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "print(s.recv(9999).decode())\n"
        "for host in ('192.0.2.77', 'other.invalid'):\n"
        "    try:\n"
        "        s = socket.create_connection((host, 443)); s.send(b'x'); print(s.recv(99))\n"
        "    except ConnectionResetError: print('reset')\n"
        "try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.77', 5000))\n"
        "except OSError as e: print(e)\n"
    )
    done = branch.run([sys.executable, "-c", script], space=space, text=True)
    assert "403 Forbidden" in done.stdout, done
    assert "--allow-host denied.org allows it" in done.stdout
    assert done.stdout.split()[-2:] == ["reset", "reset"], done
    space.close()
    entries = sorted((entry["host"], entry["port"], entry["kind"], entry["allowed"]) for entry in read_log(log))
    denied = [("192.0.2.77", 443, "redirect", False), ("denied.org", 80, "redirect", False)]
    assert entries == [*denied, ("other.invalid", 443, "redirect", True)]


def test_a_redirected_client_reaches_an_address(branch: Branch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        except OSError:
            own = ""
    need(bool(own), "this machine has no address but its loopback")
    with serve(own) as number, open_network(replace(PROXY, allowed_hosts=(own,))) as space:
        need(not space.redirect_problem, space.redirect_problem)
        script = (
            "import http.client as h, sys; c = h.HTTPConnection(sys.argv[1]); c.request('GET', '/r'); "
            "print(c.getresponse().read().decode())"
        )
        done = branch.run([sys.executable, "-c", script, f"{own}:{number}"], space=space, text=True)
        assert done.stdout.split()[1:2] == ["/r"], done


def test_half_closed_connections_work_both_ways(connect: Callable[[], socket.socket]) -> None:
    with socket.create_server((SERVER, 0)) as server:
        number = server.getsockname()[1]
        with connect() as client:
            client.sendall(f"CONNECT {SERVER}:{number} HTTP/1.1\r\n\r\n".encode())
            accepted, _ = server.accept()
            with accepted:
                assert b" 200 " in client.recv(999)
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                assert read_all(accepted) == b"question"
                accepted.sendall(b"answer" * 100_000)
                accepted.shutdown(socket.SHUT_WR)
                assert read_all(client) == b"answer" * 100_000


def test_clients_and_servers_that_hang_delay_nobody(connect: Callable[[], socket.socket], port: int) -> None:
    with socket.create_server((SERVER, 0), backlog=64) as silent:
        hanging = [connect() for _ in range(40)]
        for number, client in enumerate(hanging):
            target = silent.getsockname()[1]
            client.sendall(
                [b"", b"GET http://", b"\x05", f"CONNECT {SERVER}:{target} HTTP/1.1\r\n\r\n".encode()][number % 4]
            )
        with connect() as stalled:  # a server that sends more than its client reads
            stalled.sendall(f"GET http://{SERVER}:{port}/stalled HTTP/1.1\r\n\r\n".encode())
            answer = exchange(connect(), f"GET http://{SERVER}:{port}/x HTTP/1.1\r\n\r\n".encode())
            assert answer.endswith(f"GET /x {SERVER}:{port}\n".encode())
        for client in hanging:
            client.close()


def test_200_connections_at_once(connect: Callable[[], socket.socket]) -> None:
    with socket.create_server((SERVER, 0), backlog=256) as server:
        request = f"CONNECT {SERVER}:{server.getsockname()[1]} HTTP/1.1\r\n\r\n".encode()
        clients, accepted = [], []
        for number in range(200):
            clients.append(connect())
            clients[-1].sendall(request + str(number).encode() + b"\n")
            accepted.append(server.accept()[0])
        seen = [opened.makefile("rb").readline() for opened in accepted]
        assert sorted(map(int, seen)) == list(range(200))
        for opened in accepted:
            opened.sendall(b"done")
            opened.close()
        for client in clients:
            with client:
                assert read_all(client).endswith(b"done")


def test_many_requests(connect: Callable[[], socket.socket], space: NetworkSpace, log: Path, port: int) -> None:
    count = rounds(200, 10_000)
    request = f"GET http://{SERVER}:{port}/ HTTP/1.1\r\n\r\n".encode()
    for _ in range(count):
        assert b" 200 OK" in exchange(connect(), request)
    space.close()
    entries = read_log(log)
    assert len(entries) == min(count, 5001)
    assert count <= 5000 or entries[-1] == {"left_out": count - 5000}


def test_oversized_and_malformed_requests_are_refused(connect: Callable[[], socket.socket], port: int) -> None:
    answer = exchange(connect(), b"GET http://a.org/ HTTP/1.1\r\nX: " + b"x" * 70_000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert exchange(connect(), b"\x16\x03\x01\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    smuggled = f"GET http://{SERVER}:{port}/1 HTTP/1.1\r\n\r\nGET http://example.org/2 HTTP/1.1\r\n\r\n".encode()
    answer = exchange(connect(), smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1, "one request per connection, to the host that was checked"


def test_a_network_is_closed_with_its_connections(connect: Callable[[], socket.socket], space: NetworkSpace) -> None:
    with socket.create_server((SERVER, 0)) as server, connect() as client:
        client.sendall(f"CONNECT {SERVER}:{server.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
        with closing(server.accept()[0]) as accepted:
            space.close()
            assert accepted.recv(9) == b""


def test_a_proxy_that_was_killed_is_replaced(branch: Branch, port: int) -> None:
    script = f"import urllib.request as r; print(r.urlopen('http://{SERVER}:{port}/').status)"
    with open_network(PROXY) as space:
        holder = int(Path(f"/proc/{space.pid}/stat").read_text().rpartition(")")[2].split()[1])
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        network = os.readlink("/proc/self/ns/net")
        proxies = [int(pid) for pid in children if os.readlink(f"/proc/{pid}/ns/net") == network and count_fds(pid) > 5]
        for pid in proxies:
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([ended], [], [])  # until then its sockets still accept connections
            os.close(ended)
    done = branch.run([sys.executable, "-c", script], confinement=PROXY, text=True)
    assert done.stdout == "200\n", done


def count_fds(pid: str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_rules_that_a_network_cannot_keep_are_an_error(branch: Branch) -> None:
    for network in ("host", "none", "private"):
        confinement = Confinement.standard(network=network, allowed_hosts=("a.org",))
        with pytest.raises(NamespaceError, match="only in the network 'proxy'"):
            branch.run(["true"], confinement=confinement)
    with pytest.raises(NamespaceError, match="--host-port"):
        branch.run(["true"], confinement=Confinement.standard(network="none", host_ports=(80,)))


def test_networks_share_one_proxy_and_not_each_others_rules(workspace: Workspace, port: int) -> None:
    one, other = workspace.branch("one"), workspace.branch("other")
    script = f"import urllib.request as r; print(r.urlopen('http://{SERVER}:{port}/').status)"
    assert one.run([sys.executable, "-c", script], confinement=PROXY, text=True).stdout == "200\n"
    denied = other.run([sys.executable, "-c", script], confinement=Confinement.standard(network="proxy"), text=True)
    assert "HTTP Error 403" in denied.stderr


UNPRIVILEGED_PROGRAM = """
import sys
from forkwise import Confinement, Workspace
from forkwise.linux.namespace import enter_namespace

if sys.argv[2] == "entered":
    enter_namespace()
serve = "import socket; s = socket.create_server(('127.0.0.1', 3000)); print('own')"
ask = f"import urllib.request as r; print(r.urlopen('http://{sys.argv[3]}/').status)"
ignore = "import http.client as h; c = h.HTTPConnection('denied.org'); c.request('GET', '/'); "
ignore += "print(c.getresponse().status)"
workspace = Workspace(sys.argv[1], view="overlay")
confinement = Confinement.standard(network="proxy", allowed_hosts=(sys.argv[3].partition(":")[0],))
for number in range(2):
    branch = workspace.branch(f"b{number}", on_success=None, on_error=None)
    for script in (serve, ask, ignore):
        done = branch.run([sys.executable, "-c", script], confinement=confinement, text=True)
        print(done.stdout.strip(), done.stderr[-300:])
"""


@pytest.mark.parametrize("mode", ["plain", "entered"])
def test_a_user_without_privileges_has_it_too(mode: str, port: int) -> None:
    need_user_namespaces()
    with unprivileged_project(("rapidfuzz",)) as (home, environment):
        command = [interpreter(), "-c", UNPRIVILEGED_PROGRAM, str(home / "project"), mode, f"{SERVER}:{port}"]
        done = subprocess.run(as_unprivileged(command), env=environment, cwd=home, capture_output=True, text=True)
        assert done.stdout.split() == ["own", "200", "403"] * 2, done


def test_a_private_network_without_a_program_for_it_is_an_error(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "find_uplink_program", lambda: None)
    private = Confinement.standard(network="private")
    with pytest.raises(NamespaceError, match="install the package passt"):
        branch.run(["true"], confinement=private)
    with (
        pytest.raises(NamespaceError, match="install the package passt"),
        BranchContext(lambda _: 1, branch, confinement=private) as context,
    ):
        context.wait(60)
    with pytest.raises(NamespaceError, match="which is for commands"):
        BranchContext(lambda _: 1, branch, confinement=PROXY)


REDIRECTED = """
import sys, urllib.error, urllib.request
for number, target in enumerate(sys.argv[2:]):
    try:
        print(urllib.request.urlopen(f"{sys.argv[1]}/{number}").status)
    except urllib.error.HTTPError as error:
        print(error.code)
    except urllib.error.URLError as error:
        print(error.reason.errno)
"""


def test_a_redirection_by_an_allowed_server_leads_nowhere_that_is_denied(branch: Branch, log: Path) -> None:
    with serve("127.0.0.1") as own, serve("127.0.0.8") as other:
        denied = [
            f"http://127.0.0.8:{other}/",
            "http://169.254.169.254/latest/meta-data/",
            "http://metadata.google.internal/computeMetadata/v1/",
            "http://[::ffff:169.254.169.254]/",
            "http://2130706433/",
            "http://denied.org/",
        ]
        targets = [*denied, f"http://127.0.0.1:{own}/", f"http://localhost:{own}/"]

        class Redirector(Handler):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", targets[int(self.path[1:])])
                self.send_header("Content-Length", "0")
                self.end_headers()

        with serve(handler=Redirector) as number:
            confinement = Confinement.standard(network="proxy", allowed_hosts=(SERVER, "*.internal"))
            command = [sys.executable, "-c", REDIRECTED, f"http://{SERVER}:{number}", *targets]
            done = branch.run(command, confinement=confinement, text=True)
    # 127.0.0.1 and localhost are the command's own, where nobody listens.
    assert done.stdout.split() == ["403"] * len(denied) + [str(errno.ECONNREFUSED)] * 2, done


REACHED = """
import socket, sys
def reach(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(20)
        try:
            client.connect(address)
        except OSError:
            return "no"
        return "yes"
print(*(reach(socket.AF_INET, (host, 3000)) for host in sys.argv[1:]), reach(socket.AF_UNIX, "\\0of-the-other"))
"""
HELD = """
import socket, sys
servers = [socket.create_server(("0.0.0.0", 3000))]
servers.append(socket.socket(socket.AF_UNIX))
servers[1].bind("\\0of-the-other")
servers[1].listen()
print(socket.gethostname(), flush=True)
sys.stdin.read()
"""


def test_one_attempt_does_not_reach_the_ports_of_another(workspace: Workspace) -> None:
    one, other = workspace.branch("one"), workspace.branch("other")
    with open_network(PROXY) as served, open_network(PROXY) as space:
        reader, writer = os.pipe()
        in_reader, in_writer = os.pipe()
        process = spawn(one, [sys.executable, "-c", HELD], (in_reader, writer, 2), space=served)
        try:
            for fd in (writer, in_reader):
                os.close(fd)
            with open(reader) as ready:
                assert ready.readline()
            served.connect(3000, timeout=20).close()
            addresses = ["127.0.0.1", "127.0.0.2", "198.18.0.1", "198.18.0.2"]
            done = other.run([sys.executable, "-c", REACHED, *addresses], space=space, text=True)
            assert done.stdout.split()[:2] == ["no", "no"], done
            assert done.stdout.split()[-1] == "no"
            again = one.run([sys.executable, "-c", REACHED, "127.0.0.1"], space=served, text=True)
            assert again.stdout.split()[0] == "yes", again
            number = int(space.variables["http_proxy"].rpartition(":")[2])
            for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::1]", socket.gethostname()):
                answer = exchange(space.connect(number), f"CONNECT {host}:3000 HTTP/1.1\r\n\r\n".encode())
                assert answer.startswith(b"HTTP/1.1 403 "), (host, answer)
        finally:
            os.close(in_writer)
            process.close()
