"""The examples of a Markdown page: its fenced blocks, and the commands of a console block with their output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "is_expected_output", "parse_blocks", "parse_commands", "run_console"]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. ``line`` is the number of its opening line."""

    language: str
    text: str
    line: int


def parse_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    text = page.read_text()
    for found in re.finditer(r"^( *)```([^\n]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        indent = len(found[1])
        body = "".join(line[indent:] for line in found[3].splitlines(keepends=True))
        yield Block(found[2].strip(), body, text[: found.start()].count("\n") + 1)


def parse_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a console block, each with the lines of output that the page shows.

    Lines that start with ``> `` continue the command above them, as a shell shows it.
    """
    command, expected = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line[2:], []
        elif command and not expected and re.match(r">( |$)", line):
            command += f"\n{line[2:]}"
        else:
            expected.append(line)
    if command:
        yield command, expected


def is_expected_output(expected: Sequence[str], output: str) -> bool:
    """Return whether ``output`` matches the lines of the page, in which ``...`` matches anything."""
    pattern = re.escape("\n".join(expected)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, output.rstrip("\n"), re.DOTALL) is not None


def run_console(
    block: Block, page: str, *, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Run the commands of a console block. Raise AssertionError if an exit code or the output differs from the page."""
    for command, expected in parse_commands(block.text):
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        code = 0
        if expected and (found := re.fullmatch(r"\[(\d+)\]", expected[-1])):
            code, expected = int(found[1]), expected[:-1]
        if done.returncode != code:
            raise AssertionError(f"{page}:{block.line}: {command!r} exited with {done.returncode}:\n{done.stdout}")
        if expected and not is_expected_output(expected, done.stdout):
            raise AssertionError(f"{page}:{block.line}: {command!r} printed:\n{done.stdout}")
