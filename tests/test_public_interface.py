"""Review rules as tests: the shape of the source tree, its names, its language and its public surface."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_origin

import pytest

import forkwise
from forkwise import errors

ROOT = Path(forkwise.__file__).parent
PROJECT = Path(__file__).parents[1]
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent.name != "injected")  # programs, not modules
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])

MOST_MODULES = 15
SMALLEST_MODULE = 100
"""Lines below which a module with one neighbouring importer belongs to that neighbour."""

SHARED = {
    "app",
    "branch",
    "combine",
    "completion",
    "decide",
    "doctor",
    "forks",
    "model",
    "resume",
    "snapshot",
    "trust",
    "walk",
    "worktree",
}
"""Basenames that may occur twice: a command or a screen over the thing of the same name one floor down."""

EXTENSION_POINTS = {"files/views", "testing/formats", "agents/formats", "explore", "cli/commands"}
"""Folders with one module for each view, format, pattern or command, however small it is."""

REEXPORTS = {
    "types",
    "capabilities/forking",
    *(f"toolsets/forking/{name}" for name in ("coordinator", "isolation", "editor", "judge", "materializer")),
}
"""Modules that only re-export names under a path that a seed documents; the rules on names and size exempt them."""

FIELDS = {"testing", "live/judging"}
"""Folders that may have a gerund as their name: that of a field, which holds more than one noun."""

VAGUE = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "base", "core"}
IDIOMS = re.compile(
    r"\b(whoever|somebody|for who|who (is|has|looks|asks|waits|wants|leaves|forks)|gone on with|had back|be had|"
    r"(is|was|are|were) told|goes on|comes? to rest|at it|what (is|was) said)\b"
)
"""Phrases of a private English that readers had to translate. Plain words say the same: see CONTRIBUTING.md."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def find_imports(module: ast.Module) -> Iterator[ast.ImportFrom]:
    """Yield the imports of a module that are executed, so not those for type checkers only."""
    nodes: list[ast.AST] = [module]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        else:
            nodes += ast.iter_child_nodes(node)


def is_program(path: Path) -> bool:
    """Return whether a module can be run by itself."""
    tests = [ast.unparse(node.test) for node in parse(path).body if isinstance(node, ast.If)]
    return "__name__ == '__main__'" in tests


def load_glossary() -> set[str]:
    """Return the words that ARCHITECTURE.md defines: those in first columns, and what a meaning lists by kind."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", (PROJECT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    kinds = [names for _, meaning in rows for names in re.findall(r"(?:Formats|Patterns): ([^.|]*)", meaning)]
    terms = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", " ".join([*(term for term, _ in rows), *kinds]))
    return set(re.findall(r"[a-z0-9]+", terms.lower()))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


by_module = pytest.mark.parametrize("path", MODULES, ids=name_of)
RULED = [path for path in MODULES if path.stem != "__init__" and relative(path) not in REEXPORTS]


# --- the tree -------------------------------------------------------------------------------------------------------


def test_a_folder_holds_at_most_fifteen_modules() -> None:
    folders = Counter(path.parent for path in RULED)
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > MOST_MODULES}
    assert not crowded, "a package is hiding in these folders"


def test_a_basename_is_used_once() -> None:
    stems = Counter(path.stem for path in RULED if path.stem != "__main__")
    assert {stem for stem, count in stems.items() if count > 1} <= SHARED


def test_a_module_is_named_after_a_noun_or_an_infinitive() -> None:
    folders = {path.parent for path in RULED} - {ROOT}
    names = {relative(path): path.stem for path in [*RULED, *folders]}
    assert not [path for path, name in names.items() if name.endswith("ing") and path not in FIELDS]
    assert not [path for path, name in names.items() if name.strip("_").lower() in VAGUE]


def test_every_word_of_a_module_name_is_in_the_glossary() -> None:
    words = {word for path in RULED for word in path.stem.strip("_").split("_")}
    assert words - load_glossary() == set(), "a new word needs a line in the glossary of ARCHITECTURE.md"


def test_a_fragment_belongs_to_its_only_importer() -> None:
    importers = defaultdict(set)
    modules = {name_of(path): path for path in MODULES}
    for path in MODULES:
        for node in find_imports(parse(path)):
            for alias in node.names:
                as_module = f"{node.module}.{alias.name}"
                importers[as_module if as_module in modules else node.module].add(path)
    fragments = []
    for path in RULED:
        if str(path.parent.relative_to(ROOT)) in EXTENSION_POINTS or is_program(path):
            continue  # an extension point, or a program of its own
        users = importers[name_of(path)] - {path}
        if len(path.read_text().splitlines()) < SMALLEST_MODULE and len(users) == 1:
            fragments += [relative(path)] if users.pop().parent == path.parent else []
    assert not fragments, "move each of these into the one module that imports it"


def test_a_class_name_is_defined_once() -> None:
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in classes.items() if count > 1} <= set()


BRIDGES = {
    "Runner",
    "call_soon_threadsafe",
    "new_event_loop",
    "run_coroutine_threadsafe",
    "run_in_executor",
    "run_until_complete",
    "to_thread",
}
"""What ``asyncio`` and its loops offer to cross between threads; ``concurrency`` has a function for each case."""

PROGRAMS = {
    "agents/acp_client",
    "cli/commands/agent/chat",
    "cli/stop_signal",
    "cluster/node_program",
    "fork/runner",
    "mcp/job",
}
"""Modules that start an event loop in a thread or process of their own, as a program does."""


@by_module
def test_only_one_module_bridges_threads_and_event_loops(path: Path) -> None:
    if relative(path) == "concurrency":
        return
    used = {node.attr for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute)}
    assert not used & BRIDGES
    starts = [
        node for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.run"
    ]
    assert bool(starts) == (relative(path) in PROGRAMS)


# --- the language ---------------------------------------------------------------------------------------------------


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every docstring, message and comment of a source file, with its line."""
    source = path.read_text()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@by_module
def test_words_of_the_field(path: Path) -> None:
    found = [f"{path}:{line}: {match[0]}" for line, text in texts_of(path) for match in IDIOMS.finditer(text)]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_words_of_the_field_in_documents(page: Path) -> None:
    if page.name == "CONTRIBUTING.md":
        return  # it lists the idioms
    assert not [match[0] for match in IDIOMS.finditer(page.read_text())]


# --- what a module says and offers ----------------------------------------------------------------------------------


@by_module
def test_a_module_has_a_docstring(path: Path) -> None:
    docstring = ast.get_docstring(parse(path))
    assert docstring, f"{path} needs a docstring that says what the module or folder holds"
    assert docstring.splitlines()[0].strip()


@by_module
def test_exported_names_are_sorted_documented_and_defined(path: Path) -> None:
    module = importlib.import_module(name_of(path))
    names: list[str] = getattr(module, "__all__", [])
    assert names == sorted(names, key=_isort_style), f"{module.__name__}.__all__ is not sorted"
    assert len(names) == len(set(names))
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or (inspect.isfunction(value) and "<locals>" not in value.__qualname__):
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


@pytest.mark.parametrize("name", [n for n in forkwise.__all__ if not n.startswith("__")])
def test_public_classes_and_their_members_are_documented(name: str) -> None:
    value = getattr(forkwise, name)
    if get_origin(value) is Literal:
        return  # an alias has no place for a docstring
    assert inspect.getdoc(value)
    if not inspect.isclass(value):
        return
    for member, thing in vars(value).items():
        if not member.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property | classmethod)):
            assert inspect.getdoc(thing), f"{name}.{member} has no docstring"


def test_every_exception_is_exported() -> None:
    assert set(errors.__all__) <= set(forkwise.__all__)


def test_the_tree_of_exceptions() -> None:
    parents = {
        "MountError": "BranchingError",
        "BranchError": "BranchingError",
        "BranchStaleError": "ConflictError",
        "BranchNotFoundError": "BranchError",
        "CommitError": "BranchError",
        "ConflictError": "CommitError",
        "RetestError": "CommitError",
        "AbortError": "BranchError",
        "ProcessBranchError": "BranchingError",
        "ForkError": "ProcessBranchError",
        "NamespaceError": "ProcessBranchError",
        "MemoryBranchError": "BranchingError",
    }
    for child, parent in parents.items():
        assert getattr(errors, child).__base__ is getattr(errors, parent)
    assert errors.ForkwiseError is errors.BranchingError


def _isort_style(name: str) -> tuple[int, str]:
    """Sort constants first, then classes, then the rest, as the linter does."""
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[:1].isupper() else 2), name
