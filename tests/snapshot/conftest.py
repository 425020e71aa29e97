"""Workspaces and stores for the tests of snapshots."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from forkwise import ObjectStore, Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace with one of everything that a snapshot keeps."""
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print('hello')\n")
    (root / "src" / "deep" / "empty").touch()
    (root / "src" / "deep" / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"\0\1\2")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "link").symlink_to("src/main.py")
    (root / "outside").symlink_to("/etc/passwd")
    os.link(root / "src" / "main.py", root / "same.py")
    os.setxattr(root / "run.sh", "user.colour", b"blue")
    with open(root / "sparse", "wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
        file.truncate(5 << 20)
    (root / "large").write_bytes(bytes(range(256)) * 12_000 + Random(1).randbytes(1 << 20))
    os.utime(root / "src", ns=(1, 1_000_000_000_000_000_001))
    (root / "src" / "deep").chmod(0o700)
    return Workspace(root, state=tmp_path / "state")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "store")
