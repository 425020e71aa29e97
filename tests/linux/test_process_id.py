"""The identity of a process, on this machine and on others."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from forkwise.linux import process_id as owner
from forkwise.linux.process_id import ProcessId, machine_id


def test_this_process_is_known_and_alive() -> None:
    me = ProcessId.current()
    assert ProcessId.load(me.dump()) == me == ProcessId.of(os.getpid())
    assert me.alive
    assert not me.is_elsewhere
    assert me.label == str(os.getpid())
    assert not replace(me, start=me.start + 1).alive, "another had the number before"


def test_a_reboot_ends_it_and_another_machine_does_not() -> None:
    before = replace(ProcessId.current(), boot="another boot")
    assert (before.alive, before.is_elsewhere) == (False, False)
    there = replace(before, machine="another machine", host="far")
    assert (there.alive, there.is_elsewhere) == (True, True)
    assert there.label == f"{os.getpid()} on far"
    container = replace(ProcessId.current(), machine="another machine")
    assert not container.is_elsewhere, "the boot is the same: it is a container of this machine"
    assert not replace(container, start=0).alive


def test_loading_an_older_dump_without_a_machine() -> None:
    old = ProcessId.load(ProcessId.current().dump()[:4])
    assert old.alive
    assert not replace(old, boot="another boot").alive


def test_a_machine_without_an_id_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_MACHINE_IDS", ("/nonexistent", os.devnull))
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="here"))
    machine_id.cache_clear()
    try:
        assert machine_id() == "here"
    finally:
        machine_id.cache_clear()
