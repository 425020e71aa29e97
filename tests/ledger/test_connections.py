"""The connections of attempts in the ledger: hostile lines, bounds, and that pruning removes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkwise import LedgerError
from forkwise.ledger.connections import load_connections, open_connections, remove_connections

LINE = '{"at": %s, "host": "a.org", "port": 443, "kind": "connect", "allowed": true, "sent": 1, "received": 2}\n'


def test_connections_are_read_in_order_and_damaged_lines_counted(tmp_path: Path) -> None:
    log_fd = open_connections(tmp_path, "k3f9ab.1")
    lines = [
        LINE % 2.5,
        LINE % 1,
        '{"left_out": 7}\n',
        "{",
        "[]\n",
        "null\n",
        '{"kind": "x"}\n',
        "\xff\n",
        LINE[:-9] % 3,
    ]
    os.write(log_fd, "".join(lines).encode())
    os.close(log_fd)
    found = load_connections(tmp_path, "k3f9ab.1")
    assert [entry.at for entry in found.entries] == [1, 2.5]
    assert found.left_out > 7
    os.close(open_connections(tmp_path, "k3f9ab.1"))
    assert len(load_connections(tmp_path, "k3f9ab.1").entries) == 2, "a second run of the attempt appends"
    remove_connections(tmp_path, "k3f9ab.1")
    assert load_connections(tmp_path, "k3f9ab.1").entries == ()


def test_text_of_a_connection_is_cleaned(tmp_path: Path) -> None:
    log_fd = open_connections(tmp_path, "k3f9ab.1")
    os.write(log_fd, (LINE % 1).replace("a.org", "\\u001b[31m" + "x" * 9999).encode())
    os.close(log_fd)
    (entry,) = load_connections(tmp_path, "k3f9ab.1").entries
    assert "\x1b" not in entry.host
    assert len(entry.host) < 600


def test_only_ids_of_attempts_name_a_log(tmp_path: Path) -> None:
    with pytest.raises(LedgerError):
        load_connections(tmp_path, "../x.1")
