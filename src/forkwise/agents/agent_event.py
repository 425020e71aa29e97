"""Events of a coding agent, as values: what it does, says, uses and costs.

The formats build them from lines that an agent printed. Everything in such a line is untrusted: the functions below
return text without control codes, of bounded length, and counts that are possible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from forkwise.text.clean import clean_text, truncate_line, truncate_middle

__all__ = [
    "AgentEvent",
    "Tokens",
    "build_result_event",
    "build_tool_event",
    "format_step",
    "to_amount",
    "to_count",
    "to_line",
    "to_table",
    "to_text",
]

Kind = Literal["session", "step", "tool", "result", "message", "usage", "limit", "failure", "end", "note"]

_MAX_LINE = 200  # characters of a target or a name
_MAX_TEXT = 50_000  # characters of a message
_MAX_TARGET = 2000
_MAX_COUNT = 10**12
_MAX_TIME_MS = 10**13
_MAX_USD = 10**6


@dataclass(slots=True)  # a frozen one takes three times as long to build, and each line of a stream may have one
class Tokens:
    """The tokens of one request or of all; ``cached`` and ``written`` are the cache reads and writes in ``input``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0

    @classmethod
    def read(cls, usage: Mapping[str, Any], *names: str) -> Tokens:
        """Read them from a JSON object; ``names`` are its keys, in the order of the fields."""
        return cls(*[to_count(usage.get(name)) for name in names])

    @property
    def total(self) -> int:
        """All tokens."""
        return self.input + self.output

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.written + other.written,
        )


class AgentEvent(NamedTuple):
    """One event of an agent.

    ``text`` is the id of a session, the target of a tool, a message, or the reason of a failure. A ``message`` with
    ``is_part`` continues the one before. ``usage`` has the tokens and the cost of the ``request`` that it names, which
    may be reported again with higher numbers; without a name they are those of the whole run. ``end`` has the closing
    message. ``result`` says that the ``tool`` event with the same ``call`` has ended; ``at_ms`` is the time by the
    agent's own clock, if the line has both events. ``limit`` says that the provider refuses requests, for ``delay_s``
    seconds from now on if it is known.
    """

    kind: Kind
    text: str = ""
    tool: str = ""
    model: str = ""
    request: str = ""
    tokens: Tokens | None = None
    usd: float | None = None
    is_part: bool = False
    delay_s: float | None = None
    call: str = ""
    is_failed: bool = False
    at_ms: int | None = None


_NAMES = {
    **dict.fromkeys(("bash", "shell", "run_shell_command", "exec_command", "shell_command", "local_shell"), "bash"),
    **dict.fromkeys(("edit", "multiedit", "replace", "str_replace", "text_editor", "notebookedit", "patch"), "edit"),
    **dict.fromkeys(("write", "write_file", "create_file"), "write"),
    **dict.fromkeys(("read", "read_file", "read_many_files", "view"), "read"),
}
_TARGETS = (
    ("command", "cmd", "script"),
    ("file_path", "filePath", "path", "notebook_path", "file", "absolute_path"),
    ("pattern", "query", "url", "description", "prompt", "name"),
)
_ESCAPED = re.compile(r"\\([\\$`\"])")
_WRAPPERS = ("/bin/bash -lc ", "/usr/bin/bash -lc ", "bash -lc ", "/bin/sh -c ", "sh -c ", "/bin/zsh -lc ", "zsh -lc ")


def build_tool_event(tool: object, arguments: object, call: object = None, at_ms: object = None) -> AgentEvent:
    """Build the event of a tool call: a short name of the tool and what it is applied to.

    >>> event = build_tool_event("run_shell_command", {"command": "/bin/bash -lc 'pytest -q'"})
    >>> event.tool, event.text
    ('bash', 'pytest -q')
    """
    name = to_line(tool)
    values = to_table(arguments)
    found = (values.get(key) for keys in _TARGETS for key in keys)
    target = next((value for value in found if isinstance(value, str | list) and value), "")
    if isinstance(target, list):
        target = " ".join(word for word in target[:100] if isinstance(word, str))
    return AgentEvent(
        kind="tool",
        tool=_NAMES.get(name.lower(), name),
        text=to_line(_unwrap(target[:_MAX_TARGET])),
        call=to_line(call),
        at_ms=_to_time(at_ms),
    )


def build_result_event(call: object, *, is_failed: bool, at_ms: object = None) -> AgentEvent:
    """Build the event of a tool call's end."""
    return AgentEvent(kind="result", call=to_line(call), is_failed=is_failed, at_ms=_to_time(at_ms))


def _to_time(value: object) -> int | None:
    """Return a time in milliseconds; None if the value is not one."""
    return value if type(value) is int and 0 < value <= _MAX_TIME_MS else None


def _unwrap(command: str) -> str:
    """Return the command inside ``bash -lc 'COMMAND'``."""
    if not command.startswith(_WRAPPERS):
        return command
    script = command[command.index("c ") + 2 :].strip()
    if len(script) > 1 and script[0] == script[-1] == "'":
        return script[1:-1].replace("'\\''", "'")
    if len(script) > 1 and script[0] == script[-1] == '"':
        return _ESCAPED.sub(r"\1", script[1:-1])
    return script


def to_line(value: object, limit: int = _MAX_LINE) -> str:
    """Return a text as one printable line; empty if the value is not a text."""
    if not isinstance(value, str):
        return ""
    if len(value) <= limit and value.isprintable() and "  " not in value:
        return value.strip()  # nearly always; the rest takes ten times as long
    line = truncate_line(clean_text(value[: 4 * limit]), limit)
    return line if line.isprintable() else "".join(c for c in line if c.isprintable())


def to_text(value: object, limit: int = _MAX_TEXT) -> str:
    """Return a text without control codes, shortened in its middle; empty if the value is not a text."""
    if not isinstance(value, str):
        return ""
    return value if len(value) <= limit and value.isprintable() else clean_text(truncate_middle(value, limit))


def to_count(value: object) -> int:
    """Return a number of tokens; 0 if the value is not one."""
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else 0


def to_amount(value: object) -> float | None:
    """Return an amount in dollars; None if the value is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= _MAX_USD else None


def to_table(value: object) -> Mapping[str, Any]:
    """Return a JSON object; empty if the value is not one."""
    return value if isinstance(value, dict) else {}


def format_step(step: Mapping[str, Any]) -> str:
    """Format a recorded step as a line.

    >>> format_step({"kind": "tool", "tool": "bash", "text": "pytest -q"})
    'bash: pytest -q'
    >>> format_step({"kind": "tool", "tool": "edit", "text": "src/a.py"})
    'edit src/a.py'
    """
    text = str(step.get("text") or "")
    tool = str(step.get("tool") or "")
    if not tool:
        return text
    return f"{tool}: {text}" if tool == "bash" and text else f"{tool} {text}".rstrip()
