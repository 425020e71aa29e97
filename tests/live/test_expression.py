"""Regular expressions and shell patterns of a model: none of them blocks this process."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise import StateBackend
from forkwise.live.backends import expression
from forkwise.live.backends.expression import Expression, ExpressionError, compile_glob
from tests.sandbox.child import do


def cpu_limited(seconds: int = 20) -> None:
    """Let the kernel kill this process if it needs more CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expression, "CPU_PER_BATCH_S", 1)


def test_an_exponential_expression_is_stopped() -> None:
    def attempt() -> list[object]:
        cpu_limited()
        backend = StateBackend({"a.txt": "a" * 40 + "b\n", "b.txt": "def one():\n"})
        spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        answer = backend.grep_raw("(a+)+$")
        own = resource.getrusage(resource.RUSAGE_SELF).ru_utime - spent
        return [answer, own < 1, backend.grep_raw("def +one")]

    done = do(attempt)
    assert done.code == 0
    stopped, was_elsewhere, found = done.answer
    assert "took more than 1 seconds of CPU time" in stopped
    assert was_elsewhere
    assert found == [{"path": "b.txt", "line_number": 1, "line": "def one():"}]


@pytest.mark.parametrize(
    "pattern",
    ["(" * 5000 + ")" * 5000, "(?P<a>x)(?P=b)", "*", "(?z)"],
    ids=["deep", "unknown group", "nothing to repeat", "unknown flag"],
)
def test_an_expression_that_cannot_be_compiled_is_an_error(pattern: str) -> None:
    with pytest.raises(ExpressionError), Expression(pattern) as found:
        list(found.search([("a", b"a" * 100)]))


def test_the_process_of_a_search_is_gone_afterwards() -> None:
    with Expression("a+") as found:
        search = found.search((str(n), b"a\n" * 1000) for n in range(3000))
        assert next(search)[0] == "0"
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = file.read().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not [command for command in commands if b"expression.py" in command]


def test_many_files_are_searched_in_batches() -> None:
    contents = [(str(n), f"line {n}\nend\n".encode() * 100) for n in range(3000)]
    with Expression("line 1.*7$") as found:
        names = [name for name, lines in found.search(contents) if len(lines) == 100]
    assert names == [str(n) for n in range(3000) if re.search("^1.*7$", str(n))]


GLOBS = ["*a" * 100 + "b", "**/" * 60 + "b", "**a" * 60 + "b", "?*" * 100, "[a-z]*" * 60 + "/"]


@pytest.mark.parametrize("pattern", GLOBS)
def test_a_shell_pattern_takes_one_step_per_character(pattern: str) -> None:
    class CountedPath(str):
        """A path that counts the characters read of it."""

        __slots__ = ("read",)

        def __iter__(self):  # type: ignore[no-untyped-def]
            for character in str(self):
                self.read = getattr(self, "read", 0) + 1
                yield character

    def attempt() -> list[object]:
        cpu_limited()
        path = CountedPath("a" * 200 + "/a" * 200)
        return [bool(compile_glob(pattern)(path)), path.read]

    done = do(attempt)
    assert done.code == 0
    assert done.answer == [pattern.startswith("?"), 600] or done.answer == [False, 600]


def _translate(pattern: str) -> re.Pattern[str]:
    parts = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece)
        if translated is None and re.fullmatch(r"\[[^\]]+\]", piece):
            translated = "[" + piece[1:-1].replace("!", "^", piece[1] == "!") + "]"
        parts.append(translated or re.escape(piece))
    return re.compile("".join(parts), re.DOTALL)


@given(
    st.text("ab/*?", max_size=10) | st.sampled_from(["[ab]*", "[!a]?/**", "a[b]**/", "**/[a]"]),
    st.text("ab/", max_size=10),
)
def test_shell_patterns_mean_what_their_expressions_mean(pattern: str, path: str) -> None:
    assert compile_glob(pattern)(path) == bool(_translate(pattern).fullmatch(path))
