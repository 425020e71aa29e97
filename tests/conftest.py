"""What is so for every test: nothing is kept in, or found in, the state directory of whoever runs the tests; and Ctrl-C
means what it means on a terminal, also where the run itself was put into the background by a shell, which has its
children ignore it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STATE = tempfile.mkdtemp(prefix="forkwise-tests-")
os.environ["XDG_STATE_HOME"] = _STATE


def pytest_unconfigure() -> None:
    shutil.rmtree(_STATE, ignore_errors=True)
