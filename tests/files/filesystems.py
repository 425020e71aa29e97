"""Directories for the tests' workspaces: for each view one on a filesystem that supports it.

The same suite runs as root and as a user without privileges. For the second run root has mounted the images before,
and environment variables name their directories.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.files.images import loop_image

__all__ = ["VIEWS", "new_project", "view_directories"]

#: The views to test; the run without privileges sets the variable.
VIEWS = os.environ.get("FORKWISE_TEST_VIEWS", "overlay,btrfs,fuse,reflink,copy").split(",")
_IMAGES = {"btrfs": ("btrfs", 256), "reflink": ("xfs", 400)}


@pytest.fixture(scope="session")
def view_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A directory for each view, created on first use, on a filesystem image if the view needs one."""
    with ExitStack() as images:
        yield _ViewDirectories(tmp_path_factory, images)


class _ViewDirectories(dict[str, Path]):
    def __init__(self, factory: pytest.TempPathFactory, images: ExitStack) -> None:
        super().__init__()
        self.factory = factory
        self.images = images

    def __missing__(self, view: str) -> Path:
        given = os.environ.get(f"FORKWISE_TEST_DIRECTORY_{view.upper()}")
        if given:
            self[view] = Path(given)
        elif view in _IMAGES:
            fstype, size = _IMAGES[view]
            where = self.factory.mktemp(view)
            self[view] = self.images.enter_context(loop_image(fstype, size, where))
        else:
            self[view] = self.factory.mktemp(view)
        return self[view]


def new_project(view: str, base: Path, name: str) -> Path:
    """Create an empty directory for one workspace; for btrfs it is a subvolume."""
    directory = base / name
    directory.mkdir()
    project = directory / "project"
    if view == "btrfs":
        subprocess.run(["btrfs", "subvolume", "create", str(project)], check=True, capture_output=True)
    else:
        project.mkdir()
    return project
