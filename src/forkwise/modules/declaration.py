"""Declaration: what an instance of a module declares, checked and worked out once, when it is made.

It is apart from the module so that nothing a subclass defines there (a tool may have any name) gets in its way.
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

from forkwise.concurrency import call_any, finish, run_in_thread
from forkwise.errors import BranchError, BranchStaleError, ConflictError
from forkwise.files.branch import Branch, Parent
from forkwise.files.workspace import Workspace
from forkwise.modules.models import check_cache, check_model
from forkwise.modules.service import Service
from forkwise.modules.tools import FINISH, SEARCH, Tool, by_name, is_tool

if TYPE_CHECKING:
    from forkwise.modules.module import Module

__all__ = [
    "BRANCH",
    "ISOLATED",
    "PARENT_TOOL",
    "Declaration",
    "Forks",
    "Template",
    "files_named",
]


_PLACE = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
_OTHER = re.compile(r"\{\{|\{%|\{#")


class Template:
    """A text in which ``{{ name }}`` and ``{{ name.part }}`` stand for values.

    It is given as ``template``, or lies at ``path``, which is relative to the file of whoever makes the template.

    >>> Template(template="You know {{ subject }}.", args={"subject": "birds"}).render()
    'You know birds.'
    """

    def __init__(
        self, path: str | Path | None = None, template: str | None = None, args: Mapping[str, Any] | None = None
    ) -> None:
        if (path is None) == (template is None):
            raise ValueError("a Template has either a path or a template")
        self.args = dict(args or {})
        self.path: Path | None = None
        if path is not None:
            caller = Path(sys._getframe(1).f_globals.get("__file__", "")).parent
            self.path = caller / path
            if not self.path.is_file():
                raise FileNotFoundError(f"there is no template at {self.path}")
        self.template = template

    def render(self, **more: Any) -> str:
        """The text with the values in their places. A place without a value is a ValueError."""
        text = self.path.read_text(encoding="utf-8") if self.path is not None else self.template or ""
        values = {**self.args, **more}
        if odd := _OTHER.search(_PLACE.sub("", text)):
            raise ValueError(f"a template knows {{{{ name }}}} and nothing else; this one has {odd[0]!r}")
        return _PLACE.sub(lambda place: str(_value(values, place[1])), text)


def _value(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        try:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        except (KeyError, AttributeError):
            raise ValueError(f"the template has {{{{ {path} }}}}, and no value for it was given") from None
    return found


#: What a module says that wants its branches, or itself as a branch, to have files of their own.
ISOLATED = "branch"


def files_named(workspace: Any) -> Parent | None:
    """The files that a module says it works on; those of the current directory where it says how but not on which."""
    match workspace:
        case None | Parent():
            return workspace
        case str() | Path():
            return Workspace("." if workspace == ISOLATED else workspace)
    raise ValueError(f"a workspace is a directory, a Workspace, a Branch, or {ISOLATED!r}; not {workspace!r}")


class _Fork:
    """A branch of files: whether its work is over, and whether it is gone."""

    def __init__(self) -> None:
        self.worked = asyncio.Event()
        self.ended = asyncio.Event()


class Forks:
    """The branches that are made of the files of one call.

    What is committed into a parent may be seen by whoever works on another branch of it. So those that are at work at
    the same time are committed when all of them are done, in the order in which they were made.
    """

    def __init__(self) -> None:
        self._live: list[_Fork] = []

    @asynccontextmanager
    async def branch(self, parent: Parent | None, name: str) -> AsyncIterator[Branch]:
        """A branch of a parent's files for as long as the block runs: committed where it ends well, else gone.

        Who is not the first to be committed is rebased; ConflictError where another branch changed the same in a way
        that cannot be merged.
        """
        if parent is None:
            message = f"{name} wants files of its own, and its parent has no workspace: give that one"
            raise BranchError(message, branch=name)
        fork = _Fork()
        self._live.append(fork)
        making = run_in_thread(parent.branch, f"{name.lower()}-{secrets.token_hex(4)}", None, None)
        try:
            yield await asyncio.shield(making)
            fork.worked.set()
            await self._turn_of(fork)
            await _completed(run_in_thread(_commit, making.result()))
        except BaseException:
            fork.worked.set()
            await finish(run_in_thread(_abort, await finish(making)))
            raise
        finally:
            self._live.remove(fork)
            fork.ended.set()

    async def _turn_of(self, fork: _Fork) -> None:
        while working := [other for other in self._live if not other.worked.is_set()]:
            await working[0].worked.wait()
        while (first := self._live[0]) is not fork:
            await first.ended.wait()


async def _completed(work: asyncio.Future[None]) -> None:
    """Wait for what must not be left halfway; who is cancelled meanwhile is cancelled after it."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await finish(work)
        raise


def _commit(branch: Branch) -> None:
    while True:
        try:
            branch.commit()
            return
        except BranchStaleError:
            conflicts = branch.rebase().conflicts
            if conflicts:
                paths = ", ".join(sorted({c.path for c in conflicts}))
                message = f"another branch changed the same and was committed first: {paths}"
                raise ConflictError(message, branch=branch.name, conflicts=conflicts) from None


def _abort(branch: Branch) -> None:
    if branch.status not in ("committed", "aborted"):
        branch.abort()


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
