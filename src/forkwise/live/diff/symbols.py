"""Changed symbols: the functions, classes and other definitions that a branch added, changed or removed.

Comments, blank lines and layout are ignored. Sources are parsed with tree-sitter (``forkwise[code]``). Definitions are
recognised by the names that grammars give to their nodes, so most languages need no code of their own.
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
    "has_grammars",
    "iter_symbols",
    "language_of",
    "symbols_of",
]

#: The name of the code of a file that is outside any definition.
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
# A source longer than this is probably generated, so it is not parsed: only the file counts as changed.
_MAX_SOURCE = 1_000_000
# The middle of a longer name is cut, so that deeply nested names do not grow with every level.
_MAX_NAME = 200
# Nodes that wrap a definition, such as a decorated one, and the field that has the definition.
_WRAPPERS = {"decorated_definition": "definition", "export_statement": "declaration"}
_FUNCTION_VALUES = {"arrow_function", "function_expression", "function", "generator_function", "class"}


@dataclass(frozen=True, slots=True)
class SymbolChange:
    """A definition that was changed, added or removed. ``name`` is qualified, as in ``Class.method``."""

    path: str
    name: str
    kind: str
    change: SymbolChangeKind


@dataclass(slots=True)
class _Symbol:
    kind: str
    tokens: list[str]


def has_grammars() -> bool:
    """Return whether sources can be parsed, which needs ``forkwise[code]``."""
    return find_spec("tree_sitter_language_pack") is not None


def language_of(path: str) -> str | None:
    """Return the language of a file by its suffix; None if it is unknown.

    >>> language_of("src/app.py"), language_of("notes.txt")
    ('python', None)
    """
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())


def branch_symbols(report: BranchDiffReport, branch_id: str) -> list[SymbolChange]:
    """Return the definitions that a branch changed, added or removed, in files of known languages."""
    return list(iter_symbols(report, branch_id))


def iter_symbols(report: BranchDiffReport, branch_id: str) -> Iterator[SymbolChange]:
    """Iterate over the changes of `branch_symbols`, parsing each file only when it is reached."""
    for path, change in report.changes_of(branch_id):
        language = language_of(path.path)
        if language and not change.is_binary:
            yield from _compare(path.path, language, path.parent_content or "", change.new_content or "")


def symbols_of(language: str, source: str) -> dict[str, str]:
    """Return the kind of each definition in a source, by name.

    Raises ImportError if ``forkwise[code]`` is not installed, LookupError if there is no grammar for the language.
    """
    return {name: symbol.kind for name, symbol in _find_symbols(language, source).items() if name != MODULE}


def _compare(path: str, language: str, old: str, new: str) -> Iterator[SymbolChange]:
    if max(len(old), len(new)) > _MAX_SOURCE:
        yield SymbolChange(path, MODULE, "module", "added" if not old else "changed" if new else "removed")
        return
    before, after = _find_symbols(language, old), _find_symbols(language, new)
    for name, symbol in after.items():
        if name not in before:
            yield SymbolChange(path, name, symbol.kind, "added")
        elif before[name].tokens != symbol.tokens:
            yield SymbolChange(path, name, symbol.kind, "changed")
    for name, symbol in before.items():
        if name not in after:
            yield SymbolChange(path, name, symbol.kind, "removed")


@lru_cache(maxsize=32)
def _load_parser(language: str) -> Parser:
    try:
        from tree_sitter_language_pack import get_parser  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("parsing source needs tree-sitter: install it with pip install 'forkwise[code]'") from error
    return get_parser(language)  # type: ignore[arg-type]  # raises LookupError for an unknown name


def _find_symbols(language: str, source: str) -> dict[str, _Symbol]:
    """Return every definition with its tokens, except those of definitions nested in it."""
    found = {MODULE: _Symbol("module", [])}
    cursor = _load_parser(language).parse(source.encode()).walk()
    owners = [(MODULE, -1)]  # the enclosing definitions: name and depth of each
    depth = 0
    wrapped: set[int] = set()
    counts: Counter[str] = Counter()
    while True:
        node = cursor.node
        assert node is not None
        own = found[owners[-1][0]].tokens
        is_comment = "comment" in node.type
        if not is_comment and node.id not in wrapped and (definition := _find_definition(node, wrapped)) is not None:
            name = _number(_qualify(owners[-1][0], _find_name(definition)), counts)
            found[name] = _Symbol(_find_kind(definition), [])
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
    """Leave a node: end the definition, or record the end of the node, because nesting is significant."""
    if len(owners) > 1 and owners[-1][1] == depth:
        owners.pop()
    elif not is_leaf:
        found[owners[-1][0]].tokens.append(")")


def _find_definition(node: Node, wrapped: set[int]) -> Node | None:
    """Return the definition that a node is or wraps, and add a wrapped one to ``wrapped``, to find it only once."""
    if field := _WRAPPERS.get(node.type):
        inner = node.child_by_field_name(field)
        if inner is None or _find_definition(inner, wrapped) is None:
            return None
        wrapped.add(inner.id)
        return inner
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        return node if value is not None and value.type in _FUNCTION_VALUES else None
    return node if node.is_named and _DEFINITION.fullmatch(node.type) and _find_name(node) else None


def _find_name(node: Node) -> str:
    """Return the name of a definition; in C-like languages, the identifier inside its declarator."""
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


def _find_kind(node: Node) -> str:
    return next((kind for word, kind in _KINDS.items() if word in node.type), "type")


def _qualify(owner: str, name: str) -> str:
    qualified = name if owner == MODULE else f"{owner}.{name}"
    if len(qualified) <= _MAX_NAME:
        return qualified
    return f"{qualified[: _MAX_NAME // 2]}…{qualified[-_MAX_NAME // 2 :]}"


def _number(name: str, counts: Counter[str]) -> str:
    """Return the name, with a number if a definition of the same name came before (an overload)."""
    counts[name] += 1
    return name if counts[name] == 1 else f"{name}#{counts[name]}"
