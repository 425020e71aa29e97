"""`Page`: the examples of one page, and the functions that run them. This module must not need pytest."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["WORKSPACE", "Block", "Example", "Page"]

#: The path that the examples name.
WORKSPACE = Path("/mnt/workspace")

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Block:
    """A code block of a page. ``name`` is its heading, followed by its number from the second block on."""

    name: str
    code: str
    line: int


class Page:
    """A page of examples, in which ``package`` is imported. Its name in the examples is replaced by ``forkwise``."""

    def __init__(self, name: str, package: str) -> None:
        self.name = name
        self.path = _HERE / f"{name}.md"
        self._import = re.compile(rf"^(\s*(?:from|import)\s+){re.escape(package)}\b", re.MULTILINE)
        self.blocks = {block.name: block for block in _parse(self.path.read_text())}
        self.examples: dict[str, Callable[[Example], None]] = {}

    def example(self, name: str) -> Callable[[Callable[[Example], None]], Callable[[Example], None]]:
        """Register the function that runs the block called ``name``."""
        if name not in self.blocks or name in self.examples:
            raise ValueError(f"{self.path.name} has no block {name!r}, or it has a function already")

        def register(function: Callable[[Example], None]) -> Callable[[Example], None]:
            self.examples[name] = function
            return function

        return register

    def run(self, name: str) -> None:
        """Run one example in an emptied workspace."""
        for entry in WORKSPACE.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        with contextlib.chdir(WORKSPACE), _restored_environment():
            example = Example(self, self.blocks[name])
            try:
                self.examples[name](example)
            finally:
                sys.modules.pop(example.module.__name__, None)

    def load(self, block: Block) -> str:
        """Return a block's code with the changed import, on the lines that it has in the page."""
        return "\n" * (block.line - 1) + self._import.sub(r"\1forkwise", block.code)

    def earlier_imports(self, block: Block) -> str:
        """Return the import statements of the blocks before ``block``, which a reader has run already."""
        found = []
        for other in self.blocks.values():
            if other.line >= block.line:
                break
            with contextlib.suppress(SyntaxError):  # a signature
                statements = ast.parse(self.load(other)).body
                found += [ast.unparse(s) for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
        return "\n".join(found)


class Example:
    """One example to run. ``code`` is its text in the page; ``module`` holds its names."""

    def __init__(self, page: Page, block: Block) -> None:
        self._page = page
        self._block = block
        self.code = block.code
        self.printed = ""
        self.module = ModuleType(f"example_of_{page.name}")
        sys.modules[self.module.__name__] = self.module

    def run(self, *, after: tuple[str, ...] = (), **assumed: Any) -> dict[str, Any]:
        """Run the example with the names that it assumes, after other blocks of the page; return all its names.

        Text that the example prints is in ``printed``.
        """
        names = vars(self.module)
        names.update(assumed)
        exec(self._page.earlier_imports(self._block), names)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for block in (*(self._page.blocks[name] for name in after), self._block):
                _execute(self._page.load(block), str(self._page.path), names)
                names.update(assumed)  # an assumed name wins over one of an earlier block
        self.printed = printed.getvalue()
        return names

    async def arun(self, **assumed: Any) -> dict[str, Any]:
        """Run the example, as `run` does, on the event loop that the caller runs on."""
        names = vars(self.module)
        names.update(assumed)
        exec(self._page.earlier_imports(self._block), names)
        compiled = _compile(self._page.load(self._block), str(self._page.path))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            awaitable = eval(compiled, names)
            if awaitable is not None:
                await awaitable
        self.printed = printed.getvalue()
        return names

    def add_program(self, name: str, script: str) -> None:
        """Put an executable script on the PATH."""
        directory = Path(os.environ["HOME"], "bin")
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(script)
        (directory / name).chmod(0o755)
        os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"


def _execute(code: str, filename: str, names: dict[str, Any]) -> None:
    """Execute code that may have ``await`` outside functions."""
    compiled = _compile(code, filename)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)


def _compile(code: str, filename: str) -> CodeType:
    return compile(code, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _parse(text: str) -> Iterator[Block]:
    heading, count, begin = "", 0, 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if begin and line == "```":
            name = heading if count == 1 else f"{heading} {count}"
            yield Block(name, "\n".join(lines[begin : number - 1]) + "\n", begin + 1)
            begin = 0
        elif not begin and line.startswith("```"):
            begin, count = number, count + 1
        elif not begin and line.startswith("## "):
            heading, count = line.removeprefix("## "), 0


@contextlib.contextmanager
def _restored_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
