"""The local model: SmolLM2-135M behind a llama.cpp server on the loopback, for a first try without an API key.

It is a real but very small model. Importing this package loads neither pydantic-ai nor llama.cpp; ``local_model`` does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from forkwise.errors import LocalModelError

if TYPE_CHECKING:
    from forkwise.local_model.model import LocalModel

__all__ = ["NAME", "is_local", "local_model"]

NAME = "local"
"""The model's name for agents: ``model="local"``."""

_REQUIRED = ("xllamacpp", "pydantic_ai", "openai")


def is_local(spec: object) -> bool:
    """Return whether ``spec`` names the local model.

    >>> is_local("local"), is_local("openai:gpt-5")
    (True, False)
    """
    return spec == NAME


def local_model() -> LocalModel:
    """Return the local model. Raise `LocalModelError` if the extra is not installed or the weights were not fetched.

    The first request starts its server, which all local models of this process share.
    """
    if missing := [name for name in _REQUIRED if find_spec(name) is None]:
        raise LocalModelError(
            "the local model is not installed",
            reason=f"there is no {' and no '.join(missing)}",
            remedy="run: pip install 'forkwise[local]'",
        )
    from forkwise.local_model.model import LocalModel  # noqa: PLC0415
    from forkwise.local_model.weights import weights  # noqa: PLC0415

    weights()
    return LocalModel()
