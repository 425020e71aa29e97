"""Fork helper: a small process that forks the children to be killed, because forking pytest itself is slow.

It has the necessary modules loaded. It ends with ``stop_helper``, or when the test process ends.
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

__all__ = ["run_in_helper", "stop_helper"]

_VARIABLES = ("XDG_STATE_HOME", "FORKWISE_STATE")
_PROGRAM = "from tests.files.fork_helper import serve; import tests.files.crash_scenes; serve()"

_helper: subprocess.Popen[bytes] | None = None


def run_in_helper(job: Callable[[], Any], steps: Steps, *, kill_after: float = -1) -> Outcome:
    """Run a job like ``in_child``, in a child of the helper process."""
    global _helper
    if _helper is None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        _helper = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
    assert _helper.stdin is not None
    assert _helper.stdout is not None
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    pickle.dump((job, steps, kill_after, variables, warnings.filters), _helper.stdin)
    _helper.stdin.flush()
    outcome: Outcome = pickle.load(_helper.stdout)
    return outcome


def stop_helper() -> None:
    """End the helper process, if there is one."""
    global _helper
    if _helper is not None:
        _helper.communicate()
        _helper = None


def serve() -> None:
    """Run jobs one after the other; the main function of the helper process."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of children must not mix with the answers
    while True:
        try:
            job, steps, kill_after, variables, filters = pickle.load(requests)
        except EOFError:
            answers.close()
            return
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        pickle.dump(in_child(job, steps, kill_after=kill_after), answers)
        answers.flush()
