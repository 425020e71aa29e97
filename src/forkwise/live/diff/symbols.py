"""Symbols: which functions, classes and other definitions of a source file were changed, added or removed.

Comments, blank lines and layout do not count. Reading source takes ``forkwise[code]``, and whatever language
tree-sitter-language-pack has a grammar for will do: definitions are told by how grammars name their nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from forkwise.live.diff.diff_report import BranchDiffReport

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = [
    "MODULE",
    "SymbolChange",
    "SymbolChangeKind",
    "branch_symbols",
    "each_symbol",
    "has_grammars",
    "language_of",
    "symbols_of",
]

#: The name that stands for all of a file that is in no definition.
MODULE = "<module>"

SymbolChangeKind = Literal["added", "removed", "changed"]

_LANGUAGES = {
    "bash": "sh bash", "c": "c h", "cpp": "cc cpp cxx hh hpp hxx", "csharp": "cs", "dart": "dart",
    "go": "go", "haskell": "hs", "java": "java", "javascript": "js mjs cjs jsx", "kotlin": "kt kts", "lua": "lua",
    "objc": "m mm", "perl": "pl pm", "php": "php", "python": "py pyi", "ruby": "rb", "rust": "rs",
    "scala": "scala sc", "swift": "swift", "tsx": "tsx", "typescript": "ts mts cts",
}  # fmt: skip
_BY_SUFFIX = {f".{suffix}": language for language, suffixes in _LANGUAGES.items() for suffix in suffixes.split()}

_DEFINITION = re.compile(
    r"(?:abstract_|singleton_|generator_)?(?:function|method|class|interface|struct|enum|trait|impl|mod|module|namespace"
    r"|constructor|record|protocol|subroutine|macro|union|type_alias|extension)"
    r"(?:_(?:definition|declaration|declaration_statement|item|specifier|signature_item))?"
    r"|object_(?:definition|declaration)|type_spec|data_type"
)
_KINDS = {
    "method": "method", "function": "function", "subroutine": "function", "variable": "function",
    "constructor": "constructor", "class": "class", "interface": "interface", "struct": "struct", "enum": "enum",
    "trait": "trait", "impl": "implementation", "mod": "module", "namespace": "namespace", "macro": "macro",
    "object": "object",
}  # fmt: skip
# A source longer than this was made by a machine: that it changed is all that is told.
_LONGEST_SOURCE = 1_000_000
# Of a name that is longer only both ends count, so that names nested without end do not grow with every level.
_LONGEST_NAME = 200
# Nodes that hold a definition with something before it: the field it is in.
_WRAPPERS = {"decorated_definition": "definition", "export_statement": "declaration"}
_ASSIGNED = {"arrow_function", "function_expression", "function", "generator_function", "class"}


@dataclass(frozen=True, slots=True)
class SymbolChange:
    """A definition that was changed, added or removed. ``name`` says where it stands too, as in ``Class.method``."""

    path: str
    name: str
    kind: str
    change: SymbolChangeKind


@dataclass(slots=True)
class _Symbol:
    kind: str
    tokens: list[str]


def has_grammars() -> bool:
    """Whether source can be read: whether ``forkwise[code]`` is installed."""
    return find_spec("tree_sitter_language_pack") is not None


def language_of(path: str) -> str | None:
    """The language of a file by its name; None where it is none that is read.

    >>> language_of("src/app.py"), language_of("notes.txt")
    ('python', None)
    """
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())


def branch_symbols(report: BranchDiffReport, branch_id: str) -> list[SymbolChange]:
    """The definitions that a branch changed, added or removed, in the files whose language is known."""
    return list(each_symbol(report, branch_id))


def each_symbol(report: BranchDiffReport, branch_id: str) -> Iterator[SymbolChange]:
    """The same one after the other: no file is read that nobody asks for."""
    for path, change in report.changes_of(branch_id):
        language = language_of(path.path)
        if language and not change.is_binary:
            yield from _compared(path.path, language, path.parent_content or "", change.new_content or "")


def symbols_of(language: str, source: str) -> dict[str, str]:
    """The definitions in a source, by name, with what kind they are.

    Raises ImportError where ``forkwise[code]`` is not installed, LookupError where there is no such grammar.
    """
    return {name: symbol.kind for name, symbol in _symbols(language, source).items() if name != MODULE}


def _compared(path: str, language: str, old: str, new: str) -> Iterator[SymbolChange]:
    if max(len(old), len(new)) > _LONGEST_SOURCE:
        yield SymbolChange(path, MODULE, "module", "added" if not old else "changed" if new else "removed")
        return
    before, after = _symbols(language, old), _symbols(language, new)
    for name, symbol in after.items():
        if name not in before:
            yield SymbolChange(path, name, symbol.kind, "added")
        elif before[name].tokens != symbol.tokens:
            yield SymbolChange(path, name, symbol.kind, "changed")
    for name, symbol in before.items():
        if name not in after:
            yield SymbolChange(path, name, symbol.kind, "removed")


@lru_cache(maxsize=32)
def _parser(language: str) -> Parser:
    try:
        from tree_sitter_language_pack import get_parser  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("source is read with tree-sitter: install it with pip install 'forkwise[code]'") from error
    return get_parser(language)  # type: ignore[arg-type]  # a name the pack does not know is a LookupError


def _symbols(language: str, source: str) -> dict[str, _Symbol]:
    """Every definition with its own tokens: those of definitions inside it are theirs alone."""
    found = {MODULE: _Symbol("module", [])}
    cursor = _parser(language).parse(source.encode()).walk()
    owners = [(MODULE, -1)]  # of definitions that are open: their names, and how deep they are
    depth = 0
    wrapped: set[int] = set()
    named: Counter[str] = Counter()
    while True:
        node = cursor.node
        assert node is not None
        own = found[owners[-1][0]].tokens
        is_comment = "comment" in node.type
        if not is_comment and node.id not in wrapped and (definition := _definition(node, wrapped)) is not None:
            name = _numbered(_qualified(owners[-1][0], _name(definition)), named)
            found[name] = _Symbol(_kind(definition), [])
            owners.append((name, depth))
        elif not is_comment:
            own.append(f"({node.type}" if node.child_count else _text(node))
        if not is_comment and cursor.goto_first_child():
            depth += 1
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return found if found[MODULE].tokens[1:] else {n: s for n, s in found.items() if n != MODULE}
            depth -= 1
            _close(found, owners, depth)
        _close(found, owners, depth, is_leaf=True)


def _close(found: dict[str, _Symbol], owners: list[tuple[str, int]], depth: int, *, is_leaf: bool = False) -> None:
    """Leave a node: the definition it is ends, or its owner notes where it ended, for nesting counts."""
    if len(owners) > 1 and owners[-1][1] == depth:
        owners.pop()
    elif not is_leaf:
        found[owners[-1][0]].tokens.append(")")


def _definition(node: Node, wrapped: set[int]) -> Node | None:
    """The definition that a node is or wraps; that inside a wrapper is remembered, lest it be found again."""
    if field := _WRAPPERS.get(node.type):
        inner = node.child_by_field_name(field)
        if inner is None or _definition(inner, wrapped) is None:
            return None
        wrapped.add(inner.id)
        return inner
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        return node if value is not None and value.type in _ASSIGNED else None
    return node if node.is_named and _DEFINITION.fullmatch(node.type) and _name(node) else None


def _name(node: Node) -> str:
    """What a definition defines: its name, or for languages that bury it the identifier of its declarator."""
    if node.type == "impl_item":
        return " ".join(_text(node.child_by_field_name(field)) for field in ("trait", "type")).strip()
    name = node.child_by_field_name("name")
    if name is None and (name := node.child_by_field_name("declarator")) is not None:
        while (deeper := name.child_by_field_name("declarator")) is not None:
            name = deeper
    if name is None:
        name = next((child for child in node.named_children if child.type.endswith("identifier")), None)
    return _text(name)


def _text(node: Node | None) -> str:
    return "" if node is None else (node.text or b"").decode("utf-8", "replace")


def _kind(node: Node) -> str:
    return next((kind for word, kind in _KINDS.items() if word in node.type), "type")


def _qualified(owner: str, name: str) -> str:
    whole = name if owner == MODULE else f"{owner}.{name}"
    return whole if len(whole) <= _LONGEST_NAME else f"{whole[: _LONGEST_NAME // 2]}…{whole[-_LONGEST_NAME // 2 :]}"


def _numbered(name: str, named: Counter[str]) -> str:
    """The name, numbered where a definition of the same name came before: overloads."""
    named[name] += 1
    return name if named[name] == 1 else f"{name}#{named[name]}"
