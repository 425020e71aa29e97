"""Requirements of the local model's tests."""

from __future__ import annotations

from importlib.util import find_spec

from forkwise.errors import LocalModelError
from forkwise.local_model.weights import weights
from tests.need import need

__all__ = ["need_local_model"]


def need_local_model() -> None:
    """Skip the test if the local model is not installed, or its weights were not fetched."""
    need(find_spec("xllamacpp") is not None, "there is no xllamacpp: pip install 'forkwise[local]'")
    try:
        weights()
    except LocalModelError as error:
        need(False, str(error))
