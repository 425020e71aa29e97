"""The process that serves the local model: llama.cpp on the loopback, until its parent process ends.

It runs as a script and imports nothing from forkwise. It reads its settings as JSON from stdin, so that the key appears
in no process list, and writes its address to stdout once it responds.
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
"""The number of requests served at once; more wait for a slot."""

MAX_THREADS = 2


def main() -> None:
    """Serve until the parent process ends."""
    settings = json.load(sys.stdin)
    parent = os.pidfd_open(settings["parent"])
    if os.getppid() != settings["parent"]:
        return  # the parent ended before its pidfd was open
    # llama.cpp may write to stdout at any time, so the address goes to a copy of it.
    address_fd = os.dup(1)
    os.dup2(2, 1)
    server = _start(settings)
    _check_health(server.listening_address)
    os.write(address_fd, server.listening_address.encode())
    os.close(address_fd)
    select.select([parent], [], [])
    os._exit(0)  # without waiting for responses that no client reads


def _start(settings: dict[str, Any]) -> Any:
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
    params.verbosity = 1  # log level: errors only
    params.n_ctx = settings["context"] * SLOTS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _thread_count()
    params.cache_ram_mib = 0  # the default caches up to 8 GiB of old prompts
    return xllamacpp.Server(params)


def _thread_count() -> int:
    """Return at most half of the processors: llama.cpp's threads spin, and starve on a busy machine."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))


def _check_health(address: str) -> None:
    """Raise unless the server responds. No proxy is used for the loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}/health", timeout=10) as response:
        response.read()


if __name__ == "__main__":
    main()
