"""Den: a small process that forks those that are to be killed, in place of the test's own with all its memory.

It has loaded what they need and does nothing else. It ends when it is dismissed, or when the test's process has ended.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tests.files.steps import Outcome, Steps, in_child

__all__ = ["dismiss", "in_den"]

_KEPT = ("XDG_STATE_HOME", "FORKWISE_STATE")
_PROGRAM = "from tests.files.fork_helper import serve; import tests.files.crash_scenes; serve()"

_den: subprocess.Popen[bytes] | None = None


def in_den(job: Callable[[], Any], steps: Steps, *, kill_after: float = -1) -> Outcome:
    """``in_child``, by way of the den."""
    global _den
    if _den is None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        _den = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
    assert _den.stdin is not None
    assert _den.stdout is not None
    told = {name: os.environ.get(name) for name in _KEPT}
    pickle.dump((job, steps, kill_after, told, warnings.filters), _den.stdin)
    _den.stdin.flush()
    outcome: Outcome = pickle.load(_den.stdout)
    return outcome


def dismiss() -> None:
    """Let it go, if there is one."""
    global _den
    if _den is not None:
        _den.communicate()
        _den = None


def serve() -> None:
    """What it does: one job after the other."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what children print is not an answer
    while True:
        try:
            job, steps, kill_after, told, filters = pickle.load(requests)
        except EOFError:
            answers.close()
            return
        for name, value in told.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        pickle.dump(in_child(job, steps, kill_after=kill_after), answers)
        answers.flush()
