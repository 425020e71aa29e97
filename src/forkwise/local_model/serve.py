"""The process that serves the local model: llama.cpp on the loopback, for as long as the process that started it lives.

It is run as a file and loads nothing of forkwise. Its settings come as JSON on stdin, so that its key is in no process
list; on stdout it says where it listens, once it answers.
"""

from __future__ import annotations

import json
import os
import select
import sys
import urllib.request
from importlib import import_module
from typing import Any

__all__ = ["main"]

SLOTS = 4
"""How many requests are answered at once; more wait for their turn."""

MOST_THREADS = 2


def main() -> None:
    """Serve until the parent is gone."""
    settings = json.load(sys.stdin)
    parent = os.pidfd_open(settings["parent"])
    if os.getppid() != settings["parent"]:
        return  # it died before it was watched
    # llama.cpp may write to stdout whenever it likes, so that is not where the answer goes.
    answer = os.dup(1)
    os.dup2(2, 1)
    server = _serve(settings)
    _check(server.listening_address)
    os.write(answer, server.listening_address.encode())
    os.close(answer)
    select.select([parent], [], [])
    os._exit(0)  # without waiting for answers that nobody reads


def _serve(settings: dict[str, Any]) -> Any:
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.cors_origins = ""
    params.ui = False
    params.offline = True
    params.verbosity = 1  # errors
    params.n_ctx = settings["context"] * SLOTS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.cache_ram_mib = 0  # else it keeps up to 8 GiB of old prompts
    return xllamacpp.Server(params)


def _threads() -> int:
    """Half of the processors at most: llama.cpp's threads spin for each other, and starve where others compute too."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // 2))


def _check(address: str) -> None:
    """Raise unless the server answers. No proxy is asked about the loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}/health", timeout=10) as response:
        response.read()


if __name__ == "__main__":
    main()
