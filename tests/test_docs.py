"""Every example in README.md and docs/ is run as it stands.

All blocks of a page are played in order, in one fresh project directory, like the story they tell:

``python``
    executed; the blocks of a page share their names.
``console``
    each ``$ command`` is run by sh, and what follows must be what it prints. ``...`` stands for anything, within a line
    or as a line of its own. ``[3]`` as the last line is the exit code, which is 0 otherwise. Where nothing follows a
    command, its output is not looked at.
``shell``
    set-up that cannot be played here; its ``make`` targets must exist.
``text``, ``mermaid``, ``json``
    shown, not run. Other languages, and blocks without one, are not allowed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.local_model.weights import weights_path
from tests.local_model.requirements import need_local_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md")])
SHOWN = {"text", "mermaid", "json"}
PROJECT = {
    "README.md": "# Greeter\n",
    "greeter.py": 'def hello(name):\n    return "Hello, " + name\n',
    "test_greeter.py": 'from greeter import hello\n\nassert hello("you") == "Hello, you"\n',
    "data/names.txt": "ada\ngrace\n",
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    for found in re.finditer(r"^( *)```([^\n]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        indent = len(found[1])
        body = "".join(line[indent:] for line in found[3].splitlines(keepends=True))
        yield Block(found[2].strip(), body, text[: found.start()].count("\n") + 1)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines expected from it."""
    command, expected = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line[2:], []
        else:
            expected.append(line)
    if command:
        yield command, expected


def matches(expected: list[str], printed: str) -> bool:
    """Whether what was printed is what the page says."""
    wanted = "\n".join(expected)
    pattern = re.escape(wanted).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project that the pages speak of, as current directory."""
    root = tmp_path / "project"
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in ("FORCE_COLOR", "COLORTERM", "NO_COLOR", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(weights_path().parents[2]))  # with what is fetched once for all tests
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(root)
    yield root
    for branch in reversed(Workspace(root).branches()):
        branch.abort()


def play_console(block: Block, place: str) -> None:
    """Run the commands of a block and compare what they print."""
    for command, expected in commands(block.text):
        done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        code = 0
        if expected and (found := re.fullmatch(r"\[(\d+)\]", expected[-1])):
            code, expected = int(found[1]), expected[:-1]
        assert done.returncode == code, f"{place}: {command!r} exited with {done.returncode}:\n{done.stdout}"
        if expected:
            assert matches(expected, done.stdout), f"{place}: {command!r} printed:\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_do_what_they_say(page: Path, project: Path) -> None:
    if page.name == "local-model.md":
        need_local_model()
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True), names)
        elif block.language == "console":
            play_console(block, place)
        elif block.language == "shell":
            targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            for target in re.findall(r"^make (\w+)", block.text, re.MULTILINE):
                assert target in targets, f"{place}: the Makefile has no {target}"
        else:
            assert block.language in SHOWN, f"{place}: what is a block of {block.language or 'no language'}?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: nothing at {target}"


def test_every_pitfall_is_listed() -> None:
    index = (ROOT / "docs/index.md").read_text()
    for page in (ROOT / "docs/pitfalls").glob("*.md"):
        assert f"(pitfalls/{page.name})" in index, f"docs/index.md does not name {page.name}"
