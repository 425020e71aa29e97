"""Registered descriptors."""

from __future__ import annotations

import os

from forkwise.linux import fds


def test_second_close_does_nothing_and_spares_a_reused_number() -> None:
    """An interrupted caller may close a descriptor twice."""
    reader, writer = fds.pipe()
    fds.close(reader, writer, -1)
    reused = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # gets the lowest free number
    try:
        fds.close(reader, writer)
        assert os.read(reused, 1) == b""
    finally:
        os.close(reused)
