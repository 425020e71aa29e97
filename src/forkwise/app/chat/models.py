"""Models of a chat by their names: any that pydantic-ai knows, ``local``, and ``script:FILE``."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model

from forkwise.agents.models import model_named
from forkwise.app.chat.script import load_script
from forkwise.errors import BranchingError

__all__ = ["ChatModelError", "ChatModels", "is_own"]

_SCRIPT = "script:"


class ChatModelError(BranchingError):
    """A model cannot be had; ``model`` is what it was asked for by, ``remedy`` what would help."""

    def __init__(self, message: str, *, model: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.model = model
        self.remedy = remedy


class ChatModels:
    """The models of one chat, each opened when it is first asked for. Files of scripts are sought in ``place``."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[str, Model] = {}

    def open(self, name: str) -> Model:
        """A model; ChatModelError where there is none of that name, or its key is missing."""
        if name not in self._known:
            self._known[name] = self._made(name)
        return self._known[name]

    async def aclose(self) -> None:
        """Let go of what models hold: connections, and the server of the local one."""
        for model in self._known.values():
            async with model:  # which is closed at the end of the last such block
                pass
        self._known.clear()

    def _made(self, name: str) -> Model:
        if name.startswith(_SCRIPT):
            return load_script(self._place / name.removeprefix(_SCRIPT))
        try:
            return model_named(name)
        except UserError as error:
            message = str(error).splitlines()[0].partition(". ")[0]  # what follows is for who writes programs
            remedy = "set its key in the environment, or name another with --model: provider:name, or local"
            raise ChatModelError(f"{name}: {message}", model=name, remedy=remedy) from error
        except ImportError as error:
            raise ChatModelError(f"{name}: {error}", model=name, remedy="install what its provider needs") from error
        except ValueError as error:
            remedy = "say provider:name (such as anthropic:claude-sonnet-4-6), local, or script:FILE"
            raise ChatModelError(f"{name}: {error}", model=name, remedy=remedy) from error


def is_own(name: str) -> bool:
    """Whether it is one that only a chat knows by that name, and no provider."""
    return name == "local" or name.startswith(_SCRIPT)
