"""Settings of every test run: state in a temporary directory, Ctrl-C as on a terminal, and fixed examples."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

from tests.counts import IS_FUZZ

try:
    from hypothesis import settings
except ImportError:  # the tests of views also run for an unprivileged user, with few packages
    pass
else:
    settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=50)
    settings.register_profile("fuzz", derandomize=False, deadline=None, max_examples=2000, print_blob=True)
    settings.load_profile("fuzz" if IS_FUZZ else "fixed")

os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background processes that way
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STATE = tempfile.mkdtemp(prefix="forkwise-tests-")
os.environ["XDG_STATE_HOME"] = _STATE


def pytest_unconfigure() -> None:
    shutil.rmtree(_STATE, ignore_errors=True)
