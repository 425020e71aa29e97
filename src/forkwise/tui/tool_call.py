"""Tool calls and their results as text for people: a title on one line, and the code of the call as a block.

It is a module of its own because both the transcript and the approval screens show calls.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any

from forkwise.text.clean import truncate_line

__all__ = [
    "CallText",
    "format_call",
    "format_result",
]

_LONGEST_TITLE = 160
_LONGEST_WORD = 80
_MOST_CODE_LINES = 60
_MOST_RESULT_LINES = 10
_LONGEST_RESULT_LINE = 300
_CODE = {"code": "python", "command": "bash", "diff": "diff", "patch": "diff", "script": "bash"}  # argument: language


@dataclass(frozen=True, slots=True)
class CallText:
    """A tool call as text. ``code`` is empty if all arguments fit into ``title``; ``language`` is Pygments' name."""

    title: str
    code: str = ""
    language: str = "text"


def format_call(tool: str, arguments: str, most_lines: int = _MOST_CODE_LINES) -> CallText:
    """Format a tool call whose ``arguments`` are JSON.

    >>> format_call("write", '{"path": "src/store.py", "content": "rows = {}\\\\n"}')
    CallText(title='write src/store.py', code='rows = {}', language='python')
    >>> format_call("grep", '{"pattern": "rows", "path": "store.py"}').title
    'grep rows path=store.py'
    """
    try:
        values = json.loads(arguments)
    except ValueError:
        values = arguments
    if not isinstance(values, dict):
        return CallText(truncate_line(f"{tool} {values}", _LONGEST_TITLE))
    words, blocks, language = [tool], [], "text"
    if {"old_string", "new_string"} <= values.keys():
        blocks.append(_diff_lines(str(values.pop("old_string")), str(values.pop("new_string"))))
        language = "diff"
    for name, value in values.items():
        if _is_code(name, value):
            blocks.append(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
            language = _language(name, value, values.get("path"))
        else:
            word = value if isinstance(value, str) else json.dumps(value)
            words.append(f"{name}={word}" if len(words) > 1 else word)
    code = _limit_lines("\n\n".join(block.expandtabs(4).rstrip() for block in blocks), most_lines)
    return CallText(truncate_line(" ".join(words), _LONGEST_TITLE), code, language if len(blocks) == 1 else "text")


def format_result(text: str) -> str:
    """Keep the first lines of a tool's result.

    >>> format_result("wrote store.py\\n")
    'wrote store.py'
    """
    lines = [line[:_LONGEST_RESULT_LINE] for line in text.expandtabs(4).strip("\n").split("\n")]
    return _limit_lines("\n".join(lines), _MOST_RESULT_LINES)


def _is_code(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return name in _CODE or name == "content" or "\n" in value or len(value) > _LONGEST_WORD
    return isinstance(value, dict | list) and bool(value)


def _language(name: str, value: Any, path: Any) -> str:
    if not isinstance(value, str):
        return "json"
    if name in _CODE or not isinstance(path, str):
        return _CODE.get(name, "text")
    from rich.syntax import Syntax

    return Syntax.guess_lexer(path)


def _diff_lines(old: str, new: str) -> str:
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    return "\n".join(f"{line[0]}{line[2:]}" for line in lines if not line.startswith("?"))


def _limit_lines(text: str, most: int) -> str:
    lines = text.split("\n")
    if len(lines) <= most:
        return text
    return "\n".join([*lines[:most], f"… {len(lines) - most} more lines"])
