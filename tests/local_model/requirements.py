"""What the tests of the local model need before they can ask it anything."""

from __future__ import annotations

from importlib.util import find_spec

from forkwise.errors import LocalModelError
from forkwise.local_model.weights import weights
from tests.need import need

__all__ = ["need_local_model"]


def need_local_model() -> None:
    """Skip where the local model is not installed, or its weights were not fetched."""
    need(find_spec("xllamacpp") is not None, "there is no xllamacpp: pip install 'forkwise[local]'")
    try:
        weights()
    except LocalModelError as error:
        need(False, str(error))
