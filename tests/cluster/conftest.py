from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_nodes import RayNodes, has_ray
from tests.need import need


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """Yield a cluster of a head and two nodes that run attempts."""
    need(has_ray(), "Ray is not installed")
    need(os.geteuid() == 0, "nodes of Ray share a directory in /tmp")
    cluster = RayNodes(tmp_path_factory.mktemp("ray"))
    try:
        cluster.add()
        cluster.add()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with a test that fails."""
    path = tmp_path / "project"
    path.mkdir()
    (path / "greeting.txt").write_text("hello\n")
    (path / "test_greeting.py").write_text(
        "import unittest\n\n\nclass GreetingTest(unittest.TestCase):\n    def test_greeting(self):\n"
        "        self.assertEqual(open('greeting.txt').read(), 'bye\\n')\n"
    )
    return path
