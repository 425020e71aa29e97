"""A program that runs pieces of Python code one after another, inside a sandbox, and answers in lines of JSON.

It uses only the standard library, because its text is passed to whatever interpreter the user chose. Names that the
code defines stay until the program ends, and the value of a last expression is the result.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import traceback
from typing import Any

__all__ = ["main"]

_MAX_LOGS = 1 << 20


class _Logs(io.TextIOBase):
    """The beginning of the code's output."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.size < _MAX_LOGS:
            self.pieces.append(text[: _MAX_LOGS - self.size])
        self.size += len(text)
        return len(text)


def _run(code: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<code>", "exec"), names)
        return None
    del tree.body[-1]
    exec(compile(tree, "<code>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<code>", "eval"), names)


class FinalAnswerException(BaseException):
    """Raised by ``final_answer``; ``value`` is smolagents' encoding of the answer."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


def _final_answer(answer: Any) -> None:
    raise FinalAnswerException("safe:" + json.dumps(_encode(answer)))


def _encode(value: Any) -> Any:
    """Return a value of plain types in smolagents' JSON notation."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _encode(item) for key, item in value.items()}
        pairs = [[_encode(key), _encode(item)] for key, item in value.items()]
        return {"__type__": "dict_with_complex_keys", "data": pairs}
    if isinstance(value, (tuple, set, frozenset)):
        return {"__type__": type(value).__name__, "data": [_encode(item) for item in value]}
    if isinstance(value, bytes):
        return {"__type__": "bytes", "data": base64.b64encode(value).decode()}
    raise TypeError(f"a final answer can have plain values only, not {type(value).__name__}")


def _answer(code: str, names: dict[str, Any]) -> dict[str, Any]:
    logs = _Logs()
    answer: dict[str, Any] = {}
    with contextlib.redirect_stdout(logs), contextlib.redirect_stderr(logs):
        try:
            value = _run(code, names)
            try:
                answer["output"] = json.loads(json.dumps(value))
            except (TypeError, ValueError, RecursionError):
                answer["output"] = repr(value)
        except BaseException as error:  # noqa: BLE001 - also of an exit: the next piece of code runs all the same
            if type(error).__name__ == "FinalAnswerException":
                answer["final"] = str(getattr(error, "value", ""))
            else:
                answer["error"] = "".join(traceback.format_exception(error))[-_MAX_LOGS:]
    answer["logs"] = "".join(logs.pieces)
    return answer


def main() -> None:
    """Answer pieces of code from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of programs that the code starts must not be taken for an answer
    names: dict[str, Any] = {"__name__": "__main__", "final_answer": _final_answer}
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_answer(json.loads(line)["code"], names)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
