"""Declaration: what an instance of a module declares, checked and worked out once, when it is made.

It is apart from the module so that nothing a subclass defines there (a tool may have any name) gets in its way.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from forkwise.agents.discovery import SEARCH
from forkwise.agents.finish import FINISH
from forkwise.agents.isolation import ISOLATED, files_named
from forkwise.agents.models import check_cache, check_model
from forkwise.agents.service import Service
from forkwise.agents.template import Template
from forkwise.agents.tool import Tool, by_name, is_tool
from forkwise.files.parent import Parent
from forkwise.sandbox.threads import call as call_any

if TYPE_CHECKING:
    from forkwise.agents.module import Module

__all__ = ["BRANCH", "PARENT_TOOL", "Declaration"]

BRANCH = "branch"
PARENT_TOOL = "call_parent_tool"


class Declaration:
    """The tools, services, prompt and files of a module."""

    def __init__(self, module: Module, workspace: Any) -> None:
        _check(module)
        self.module = module
        self.workspace = workspace
        self.services = [tool for tool in module.tools if isinstance(tool, Service)]
        self.tools = _collected(module)
        if module.max_steps is None and module.final_output is None and not module.branches and not self.tools:
            raise ValueError("a module that calls nothing has one turn (max_steps=None), and must have a final_output")

    @property
    def isolates_files(self) -> bool:
        """Whether branches of it, and itself as a branch, have files of their own."""
        return bool(type(self.module).declared_workspace == ISOLATED)

    def files(self, inherited: Parent | None) -> Parent | None:
        """What a call works on: what the instance was given, else what its class says, else what it inherits."""
        named = self.workspace if self.workspace is not None else type(self.module).declared_workspace
        return inherited if inherited is not None and named in (None, ISOLATED) else files_named(named)

    async def prompt(self) -> str:
        """The system prompt."""
        prompt = self.module.system_prompt
        if isinstance(prompt, Template):
            return prompt.render()
        if isinstance(prompt, Path):
            source = vars(sys.modules[type(self.module).__module__]).get("__file__", "")
            return (Path(source).parent / prompt).read_text(encoding="utf-8")
        if callable(prompt):
            return str(await call_any(prompt))
        return str(prompt) or inspect.cleandoc(type(self.module).__doc__ or "")


def _collected(module: Module) -> list[Tool]:
    """The tools of the list, of the services in it, and the methods that are marked as tools."""
    marked = {name: None for cls in reversed(type(module).__mro__) for name, it in vars(cls).items() if is_tool(it)}
    own = [getattr(module, name) for name in marked if is_tool(getattr(module, name))]
    reserved = {FINISH, PARENT_TOOL} | ({BRANCH} if module.branches else set())
    reserved |= {SEARCH} if module.tool_discovery else set()
    given = [tool for it in module.tools for tool in (it.get_tools() if isinstance(it, Service) else [it])]
    return list(by_name([*given, *own], reserved).values())


def _check(module: Module) -> None:
    """Raise ValueError where what a class declares cannot be."""
    check_model(module.model)
    for fallback in module.model_fallbacks:
        check_model(fallback)
    check_cache(module.cache)
    for name in ("initial_input", "final_output"):
        declared = getattr(module, name)
        if declared is not None and not (isinstance(declared, type) and issubclass(declared, BaseModel)):
            raise ValueError(f"{name} must be a pydantic model, not {declared!r}")
    if module.tool_discovery not in (None, "search"):
        raise ValueError(f"tool_discovery is None or 'search', not {module.tool_discovery!r}")
