"""Helpers of the ledger tests: forks, attempts, a snapshot of a ledger, and forked processes."""

from __future__ import annotations

import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["Child", "attempt_in", "fork_in", "picture"]


def fork_in(ledger: Ledger, **options: Any) -> ForkRecord:
    """Add a fork."""
    return ledger.begin_fork("try", **{"workspace": "/project", "spec": {}, **options})


def attempt_in(ledger: Ledger, fork: str, key: str = "0", *, started: bool = True, **options: Any) -> AttemptRecord:
    """Add an attempt, and start it by default."""
    made = ledger.add_attempt(
        fork, key, **{"index": 0, "label": f"label of {key}", "branch": f"/main/{key}", **options}
    )
    if started:
        ledger.start_attempt(made.id)
    return ledger.attempt(made.id)


def picture(ledger: Ledger) -> list[Any]:
    """Return everything the ledger returns, as one value."""
    forks = ledger.forks()
    return [forks, [ledger.attempts(fork.id) for fork in forks], ledger.summaries()]


class Child:
    """A forked process that runs one function and reports its result as JSON."""

    def __init__(self, job: Callable[[], object]) -> None:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads: the child starts none
            self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reader)
                os.write(writer, json.dumps(job()).encode())
                os._exit(0)
            except BaseException:  # noqa: BLE001 - it is a process of its own, and the test sees how it ended
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(writer)
        self._reader = reader

    def result(self) -> Any:
        """Wait for its end and return the result."""
        with open(self._reader, "rb") as reader:
            text = reader.read()
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0
        return json.loads(text)

    def kill(self) -> None:
        """Kill it in the middle of its work."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reader)
