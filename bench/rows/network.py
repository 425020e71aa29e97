"""The network ``proxy``: the start of a sandbox with it, and HTTPS through it, beside the same without it."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from typing import cast

from bench.line import Line
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise import Confinement
from forkwise.sandbox.network.gateway import open_network

__all__ = ["measure_network"]

_ADDRESS = "127.0.0.9"  # an address of the loopback that the confinement names
_SIZE = 128 << 20  # bytes of one answer
_SERVER = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
server, piece = socket.create_server((sys.argv[2], 0)), bytes(1 << 18)
print(server.getsockname()[1], flush=True)
while True:
    with context.wrap_socket(server.accept()[0], server_side=True) as client:
        client.recv(9)
        for _ in range(int(sys.argv[3]) // len(piece)):
            client.sendall(piece)
"""


def measure_network(scratch: Scratch) -> list[Line]:
    """Measure with a small tree, and with a server in a process of its own."""
    return [_start(scratch), _transfer(scratch)]


def _start(scratch: Scratch) -> Line:
    scratch.report("starting sandboxes with networks")
    root = scratch.make_directory("networked")
    branch = scratch.workspace(root).branch("networked")

    def run(confinement: Confinement) -> Contender:
        return lambda: timed(lambda: branch.run(["true"], confinement=confinement, check=True))

    proxied, bare = Confinement.standard(network="proxy"), Confinement.standard(network="none")
    figures = play({"ours": run(proxied), "none": run(bare)}, scratch.rounds(60, 20), warm=5)
    line = Line("true, with the network proxy (floor: with none)", figures["ours"], figures["none"])
    line.below_floor(1.3)
    branch.abort()
    return line


def _transfer(scratch: Scratch) -> Line:
    scratch.report("reading through the proxy")
    certificate = _make_certificate(scratch.make_directory("certificate"))
    with ExitStack() as stack:
        command = [sys.executable, "-c", _SERVER, certificate, _ADDRESS, str(_SIZE)]
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.kill)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        space = stack.enter_context(open_network(Confinement.standard(network="proxy", allowed_hosts=(_ADDRESS,))))
        proxy_port = int(space.variables["https_proxy"].rpartition(":")[2])

        def connect() -> socket.socket:
            opened = space.connect(proxy_port)
            opened.sendall(f"CONNECT {_ADDRESS}:{port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in opened.recv(999)
            return opened

        contenders: dict[str, Contender] = {
            "ours": lambda: timed(lambda: _read(connect(), certificate)),
            "direct": lambda: timed(lambda: _read(socket.create_connection((_ADDRESS, port)), certificate)),
        }
        figures = play(contenders, scratch.rounds(12, 4), warm=1)
    name = f"{_SIZE >> 20} MB over HTTPS through the network proxy (floor: directly, on the loopback)"
    line = Line(name, figures["ours"], figures["direct"])
    line.below_floor(round(1 / 0.6, 2))
    return line


def _read(opened: socket.socket, certificate: str) -> None:
    context = ssl.create_default_context(cafile=certificate)
    received, buffer = 0, bytearray(1 << 18)
    with context.wrap_socket(opened, server_hostname=_ADDRESS) as client:
        client.sendall(b"go")
        while received < _SIZE:
            received += cast("int", client.recv_into(buffer))


def _make_certificate(directory: str) -> str:
    """Make a certificate for the address, with its key in the same file."""
    path = os.path.join(directory, "certificate.pem")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench"
    command = [*words.split(), "-addext", f"subjectAltName=IP:{_ADDRESS}", "-keyout", path, "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    with open(path, "a") as file, open(f"{path}.crt") as public:
        file.write(public.read())
    return path
