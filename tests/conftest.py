"""What is so for every test: Ctrl-C means what it means on a terminal, also where the run itself was put into the
background by a shell, which has its children ignore it."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
