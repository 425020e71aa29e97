"""Where the tests' workspaces stand: for each view a directory on a filesystem that can have it.

The same suite runs as root and as a user with no privileges; in the second run the images were mounted by root
beforehand and are found through the environment.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.files.images import loop_image

__all__ = ["VIEWS", "ground_of", "grounds"]

#: In the run without privileges this names the views to be tested.
VIEWS = os.environ.get("FORKWISE_TEST_VIEWS", "overlay,btrfs,fuse,reflink,copy").split(",")
_IMAGES = {"btrfs": ("btrfs", 256), "reflink": ("xfs", 400)}


@pytest.fixture(scope="session")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Directories for the views that need a filesystem of their own, made when first asked for."""
    with ExitStack() as images:
        yield _Grounds(tmp_path_factory, images)


class _Grounds(dict[str, Path]):
    def __init__(self, factory: pytest.TempPathFactory, images: ExitStack) -> None:
        super().__init__()
        self.factory = factory
        self.images = images

    def __missing__(self, view: str) -> Path:
        given = os.environ.get(f"FORKWISE_TEST_GROUND_{view.upper()}")
        if given:
            self[view] = Path(given)
        elif view in _IMAGES:
            fstype, size = _IMAGES[view]
            where = self.factory.mktemp(view)
            self[view] = self.images.enter_context(loop_image(fstype, size, where))
        else:
            self[view] = self.factory.mktemp(view)
        return self[view]


def ground_of(view: str, base: Path, name: str) -> Path:
    """A new, empty directory for one workspace; for btrfs it is a subvolume."""
    room = base / name
    room.mkdir()
    project = room / "project"
    if view == "btrfs":
        subprocess.run(["btrfs", "subvolume", "create", str(project)], check=True, capture_output=True)
    else:
        project.mkdir()
    return project
