"""Expressions that a model or a file wrote: regular expressions and shell patterns, which must not block this process.

Python's engine needs exponential time for some expressions, holds the GIL meanwhile, and cannot be interrupted. So an
expression with repetitions or groups is searched in a process of its own, this very file run as a program, whose CPU
time and memory the kernel limits. Shell patterns are matched here, in linear time.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO

__all__ = ["CPU_PER_BATCH_S", "Expression", "ExpressionError", "compile_glob"]

CPU_PER_BATCH_S = 5
"""Seconds of CPU time that the search of about 1 MiB of text may take."""
_CPU_IN_ALL_S = 60
_MEMORY = 2 << 30
_BATCH_SIZE = 1 << 20  # bytes of content that are sent together
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_REPEATS = frozenset("*+?{(|")  # without these, a search takes at most O(length of text x length of expression)


class ExpressionError(Exception):
    """An expression that is invalid, or that takes too much time or memory."""


class Expression:
    """A regular expression that a model wrote.

    >>> with Expression("(a+)+$") as expression:
    ...     list(expression.search([("one.txt", b"b\\naa\\n"), ("two.txt", b"b")]))
    [('one.txt', [(2, 'aa')])]
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._process: subprocess.Popen[bytes] | None = None
        self._compiled: re.Pattern[str] | None = None
        if _REPEATS.isdisjoint(_ESCAPED.sub("", pattern)):
            try:
                self._compiled = re.compile(pattern)
            except re.error as error:
                raise ExpressionError(f"{pattern!r} is not a regular expression: {error}") from None

    def __enter__(self) -> Expression:
        if self._compiled is None:
            try:
                self._process = _start_process()
            except OSError as error:  # such as too many processes
                raise ExpressionError(
                    f"the search for {self.pattern!r} could not be started: {error.strerror}"
                ) from error
            try:
                answer = self._ask([self.pattern], b"")
                if isinstance(answer, str):
                    raise ExpressionError(f"{self.pattern!r} is not a regular expression: {answer}")
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process of the search, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def search(self, contents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
        """Yield the name, and the numbers and the texts of the matching lines, of each content that has some.

        Raise ExpressionError if the search needs more time or memory than it may use.
        """
        batch: list[tuple[str, bytes]] = []
        size = 0
        for name, content in contents:
            batch.append((name, content))
            size += len(content)
            if size >= _BATCH_SIZE:
                yield from self._search_batch(batch)
                batch, size = [], 0
        if batch:
            yield from self._search_batch(batch)

    def is_found_in(self, text: str) -> bool:
        """Return whether the expression is found in a text as a whole. Raises ExpressionError as ``search`` does."""
        if self._compiled is not None:
            return self._compiled.search(text) is not None
        content = text.encode(errors="replace")
        answer = self._ask({"whole": len(content)}, content)
        if not isinstance(answer, bool):
            raise ExpressionError(f"the search for {self.pattern!r} failed: {answer}")
        return answer

    def _search_batch(self, batch: list[tuple[str, bytes]]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
        if self._compiled is not None:
            numbers: object = [_find_lines(self._compiled, content) for _, content in batch]
        else:
            numbers = self._ask([len(content) for _, content in batch], b"".join(content for _, content in batch))
        if not isinstance(numbers, list):
            raise ExpressionError(f"the search for {self.pattern!r} failed: {numbers}")
        for (name, content), found in zip(batch, numbers, strict=True):
            if found:
                lines = _split(content)
                yield name, [(number, lines[number - 1]) for number in found]

    def _ask(self, header: object, content: bytes) -> object:
        """Send a request to the process and return its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(header).encode() + b"\n" + content)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise ExpressionError(
                f"the search for {self.pattern!r} took more than {CPU_PER_BATCH_S} seconds of CPU time: use an "
                "expression without nested repetitions, such as a+ instead of (a+)+, or search fewer files"
            )
        return json.loads(answer)


def _start_process() -> subprocess.Popen[bytes]:
    from forkwise.linux import fds  # noqa: PLC0415 - not importable in the process of a search

    # Under the lock: a child process forked at the same time would keep the ends of the pipes open.
    with fds.fork_lock():
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-W", "ignore", os.path.abspath(__file__), str(CPU_PER_BATCH_S)],
            cwd="/",
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


def _split(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()


def _find_lines(expression: re.Pattern[str], content: bytes) -> list[int]:
    return [number for number, line in enumerate(_split(content), 1) if expression.search(line)]


def _serve(requests: IO[bytes], answers: IO[bytes], cpu_s: int) -> None:
    """Compile the expression of the first request, then search the contents of all others."""
    expression: re.Pattern[str] | None = None
    for header in requests:
        _limit_time(cpu_s)
        answer: object
        try:
            if expression is None:
                expression = re.compile(json.loads(header)[0])
                answer = []
            elif isinstance(asked := json.loads(header), dict):
                answer = expression.search(requests.read(asked["whole"]).decode(errors="replace")) is not None
            else:
                answer = [_find_lines(expression, requests.read(size)) for size in asked]
        except (re.error, MemoryError, RecursionError, OverflowError) as error:
            answer = f"{error}" or type(error).__name__
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _limit_time(cpu_s: int) -> None:
    """Let the kernel kill this process if the next request takes too much CPU time."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(spent.ru_utime + spent.ru_stime) + cpu_s
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Compile a shell pattern for paths, in which ``*`` stays within a name and ``**`` crosses directories.

    Matching takes one step per character of the path, whatever the pattern.

    >>> [compile_glob(p)("src/deep/a.py") for p in ("**/*.py", "src/*.py", "src/**", "*.py", "src/*/[ab].py")]
    [True, False, True, False, True]
    """
    return _Glob(pattern).is_match


class _Glob:
    """A shell pattern as an automaton: bit n of a number is set if the first n tokens can match what was read."""

    def __init__(self, pattern: str) -> None:
        self._tokens: list[str] = []
        for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
            if len(piece) > 1 and piece[0] == "[" and piece[-1] == "]" and _compile_class(piece):
                self._add(piece)
            elif piece == "**/":
                self._add("**/", "/loop")  # optional: nothing, or anything that ends with a slash
            elif piece in ("**", "*", "?"):
                self._add(piece)
            else:
                for character in piece:
                    self._add(f"={character}")
        self._optional = self._select("*", "**", "**/")
        self._optional_pairs = self._select("**/")
        self._steps: dict[str, tuple[int, int]] = {}
        self._start = self._close(1)

    def _add(self, *tokens: str) -> None:
        is_repeated = tokens[0] in ("*", "**", "**/") and self._tokens[-len(tokens) :] == list(tokens)
        if not is_repeated:
            self._tokens += tokens

    def _select(self, *tokens: str) -> int:
        return sum(1 << n for n, token in enumerate(self._tokens) if token in tokens)

    def _close(self, states: int) -> int:
        """Add the states that are reached without reading a character."""
        while True:
            closed = states | (states & self._optional) << 1 | (states & self._optional_pairs) << 2
            if closed == states:
                return states
            states = closed

    def is_match(self, path: str) -> bool:
        """Return whether the pattern matches a path."""
        states = self._start
        for character in path:
            step = self._steps.get(character)
            if step is None:
                step = self._steps[character] = self._find_step(character)
            advancing, staying = step
            states = self._close((states & advancing) << 1 | states & staying)
        return bool(states >> len(self._tokens))

    def _find_step(self, character: str) -> tuple[int, int]:
        """Return the tokens that a character completes, and those that it continues."""
        advancing = [f"={character}", "/loop" if character == "/" else "?"]
        advancing += [
            t for t in self._tokens if t[0] == "[" and (found := _compile_class(t)) and found.match(character)
        ]
        staying = ["**", "/loop"] if character == "/" else ["**", "/loop", "*"]
        return self._select(*advancing), self._select(*staying)


def _compile_class(piece: str) -> re.Pattern[str] | None:
    """Compile a character class such as ``[a-z]`` or ``[!a]``; None if it is invalid and therefore literal text."""
    inside = piece[1:-1].replace("\\", r"\\").replace("!", "^", piece[1] == "!")
    try:
        return re.compile(f"[{inside}]", re.DOTALL)
    except re.error:
        return None


if __name__ == "__main__":
    _limit(resource.RLIMIT_AS, _MEMORY)
    _limit(resource.RLIMIT_CPU, _CPU_IN_ALL_S)
    _limit(resource.RLIMIT_CORE, 0)
    _serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
