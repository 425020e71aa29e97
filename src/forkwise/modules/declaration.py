"""`Declaration`: the tools, services, prompt and files that a module declares, checked when it is instantiated.

It is separate from the module so that attributes of a subclass (a tool may have any name) cannot shadow it. Prompt
templates and the branches of a call's files are here too.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from forkwise.concurrency import call_any, finish, finish_then_cancel, run_in_thread
from forkwise.errors import BranchError, BranchStaleError, ConflictError
from forkwise.files.branch import Branch, Parent
from forkwise.files.workspace import Workspace
from forkwise.modules.models import check_cache, check_model
from forkwise.modules.service import Service
from forkwise.modules.tools import FINISH, SEARCH, Tool, index_tools, is_tool

if TYPE_CHECKING:
    from forkwise.modules.module import Module

__all__ = [
    "BRANCH",
    "ISOLATED",
    "PARENT_TOOL",
    "Declaration",
    "FileBranches",
    "Template",
    "open_files",
]


_PLACEHOLDER = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
_OTHER_SYNTAX = re.compile(r"\{\{|\{%|\{#")


class Template:
    """A text with placeholders ``{{ name }}`` and ``{{ name.part }}``.

    The text is ``template``, or the file at ``path``, relative to the source file that creates the template.

    >>> Template(template="You know {{ subject }}.", args={"subject": "birds"}).render()
    'You know birds.'
    """

    def __init__(
        self, path: str | Path | None = None, template: str | None = None, args: Mapping[str, Any] | None = None
    ) -> None:
        if (path is None) == (template is None):
            raise ValueError("a Template needs either a path or a template")
        self.args = dict(args or {})
        self.path: Path | None = None
        if path is not None:
            caller = Path(sys._getframe(1).f_globals.get("__file__", "")).parent
            self.path = caller / path
            if not self.path.is_file():
                raise FileNotFoundError(f"there is no template at {self.path}")
        self.template = template

    def render(self, **more: Any) -> str:
        """Return the text with the values filled in. Raise ValueError for a placeholder without a value."""
        text = self.path.read_text(encoding="utf-8") if self.path is not None else self.template or ""
        values = {**self.args, **more}
        if other := _OTHER_SYNTAX.search(_PLACEHOLDER.sub("", text)):
            raise ValueError(f"a template supports {{{{ name }}}} and nothing else; this one has {other[0]!r}")
        return _PLACEHOLDER.sub(lambda placeholder: str(_find_value(values, placeholder[1])), text)


def _find_value(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        try:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        except (KeyError, AttributeError):
            raise ValueError(f"the template has {{{{ {path} }}}}, but no value for it was given") from None
    return found


#: The ``workspace`` of a module whose branches, or which as a branch, have their own files.
ISOLATED = "branch"


def open_files(workspace: Any) -> Parent | None:
    """Return the workspace or branch that a module names; the current directory's for ``"branch"``."""
    match workspace:
        case None | Parent():
            return workspace
        case str() | Path():
            return Workspace("." if workspace == ISOLATED else workspace)
    raise ValueError(f"a workspace is a directory, a Workspace, a Branch, or {ISOLATED!r}; not {workspace!r}")


class _FileBranch:
    """The state of a branch of files: its work is done; it was committed or aborted."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.closed = asyncio.Event()


class FileBranches:
    """The branches of one call's files.

    A commit into the parent can become visible in its other branches. So branches that run at the same time are
    committed when all of them are done, in the order of their creation.
    """

    def __init__(self) -> None:
        self._live: list[_FileBranch] = []

    @asynccontextmanager
    async def branch(self, parent: Parent | None, name: str) -> AsyncIterator[Branch]:
        """Provide a branch of ``parent`` for the block. Commit it if the block succeeds, else abort it.

        A branch that is not the first to be committed is rebased. Raises ConflictError if another branch changed the
        same content in a way that cannot be merged.
        """
        if parent is None:
            message = f"{name} needs its own files, but its parent has no workspace: set the parent's workspace"
            raise BranchError(message, branch=name)
        state = _FileBranch()
        self._live.append(state)
        creation = run_in_thread(parent.branch, f"{name.lower()}-{secrets.token_hex(4)}", None, None)
        try:
            yield await asyncio.shield(creation)
            state.done.set()
            await self._wait_for_turn(state)
            await finish_then_cancel(run_in_thread(_commit, creation.result()))
        except BaseException:
            state.done.set()
            await finish(run_in_thread((await finish(creation))._abort_if_open))
            raise
        finally:
            self._live.remove(state)
            state.closed.set()

    async def _wait_for_turn(self, state: _FileBranch) -> None:
        while running := [other for other in self._live if not other.done.is_set()]:
            await running[0].done.wait()
        while (first := self._live[0]) is not state:
            await first.closed.wait()


def _commit(branch: Branch) -> None:
    while True:
        try:
            branch.commit()
            return
        except BranchStaleError:
            conflicts = branch.rebase().conflicts
            if conflicts:
                paths = ", ".join(sorted({c.path for c in conflicts}))
                message = f"conflict with another branch that was committed first: {paths}"
                raise ConflictError(message, branch=branch.name, conflicts=conflicts) from None


BRANCH = "branch"
PARENT_TOOL = "call_parent_tool"


class Declaration:
    """The tools, services, prompt and files of a module."""

    def __init__(self, module: Module, workspace: Any) -> None:
        _check(module)
        self.module = module
        self.workspace = workspace
        self.services = [tool for tool in module.tools if isinstance(tool, Service)]
        self.tools = _collect_tools(module)
        if module.max_steps is None and module.final_output is None and not module.branches and not self.tools:
            raise ValueError(
                "a module without tools and branches has one turn (max_steps=None) and needs a final_output"
            )

    @property
    def isolates_files(self) -> bool:
        """Whether its branches, and the module itself as a branch, have their own files."""
        return bool(type(self.module).declared_workspace == ISOLATED)

    def files(self, inherited: Parent | None) -> Parent | None:
        """Return the files of a call: those of the instance, else of the class, else the inherited ones."""
        named = self.workspace if self.workspace is not None else type(self.module).declared_workspace
        return inherited if inherited is not None and named in (None, ISOLATED) else open_files(named)

    async def prompt(self) -> str:
        """Return the system prompt."""
        prompt = self.module.system_prompt
        if isinstance(prompt, Template):
            return prompt.render()
        if isinstance(prompt, Path):
            source = vars(sys.modules[type(self.module).__module__]).get("__file__", "")
            return (Path(source).parent / prompt).read_text(encoding="utf-8")
        if callable(prompt):
            return str(await call_any(prompt))
        return str(prompt) or inspect.cleandoc(type(self.module).__doc__ or "")


def _collect_tools(module: Module) -> list[Tool]:
    """Return the module's listed tools, those of its services, and its methods marked as tools."""
    classes = reversed(type(module).__mro__)
    marked = {name: None for cls in classes for name, value in vars(cls).items() if is_tool(value)}
    own = [getattr(module, name) for name in marked if is_tool(getattr(module, name))]
    reserved = {FINISH, PARENT_TOOL} | ({BRANCH} if module.branches else set())
    reserved |= {SEARCH} if module.tool_discovery else set()
    listed = [tool for item in module.tools for tool in (item.build_tools() if isinstance(item, Service) else [item])]
    return list(index_tools([*listed, *own], reserved).values())


def _check(module: Module) -> None:
    """Raise ValueError if a class declares something invalid."""
    check_model(module.model)
    for fallback in module.model_fallbacks:
        check_model(fallback)
    check_cache(module.cache)
    for name in ("initial_input", "final_output"):
        declared = getattr(module, name)
        if declared is not None and not (isinstance(declared, type) and issubclass(declared, BaseModel)):
            raise ValueError(f"{name} must be a pydantic model, not {declared!r}")
    if module.tool_discovery not in (None, "search"):
        raise ValueError(f"tool_discovery must be None or 'search', not {module.tool_discovery!r}")
