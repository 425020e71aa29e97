"""A connection to PostgreSQL that is slow, and can be cut: a proxy between two Unix sockets."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

__all__ = ["SlowProxy"]


class SlowProxy:
    """Passes bytes on, each piece after ``delay_s``; ``turns`` counts how often the server answered the client.

    After ``cut_after`` pieces of the client, if it is set, the connection is closed; the last piece is passed on.
    """

    def __init__(self, server: Path, delay_s: float = 0.0) -> None:
        self._server = f"{server}/.s.PGSQL.5432"
        self.directory = Path(tempfile.mkdtemp(prefix="forkwise-proxy-"))
        self.url = f"postgresql:///postgres?host={self.directory}&user=postgres"
        self.delay_s = delay_s
        self.turns = 0
        self.cut_after: int | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self.directory}/.s.PGSQL.5432")
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> SlowProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        shutil.rmtree(self.directory)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._pass_on, args=(client,)))
            self._threads[-1].start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            is_asked = False
            while True:
                for source in select.select([client, server], [], [])[0]:
                    try:
                        piece = source.recv(1 << 16)
                    except ConnectionError:
                        piece = b""
                    if not piece:
                        return
                    time.sleep(self.delay_s)
                    self.turns += source is server and is_asked  # before the client can see the answer
                    is_asked = source is client
                    try:
                        (server if source is client else client).sendall(piece)
                    except OSError:
                        return
                    if source is client and self.cut_after is not None:
                        self.cut_after -= 1
                        if self.cut_after <= 0:
                            self.cut_after = None
                            return
