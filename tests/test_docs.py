"""The examples in README.md, ARCHITECTURE.md, CONTRIBUTING.md and docs/ work exactly as written.

The blocks of a page run in order, in one new project directory:

``python``
    Executed. The blocks of a page share their variables.
``console``
    ``sh`` runs each ``$ command``, continued by lines that start with ``> ``. The other lines below it must be its
    output. ``...`` matches anything, within a line or as a line of its own. ``[3]`` as the last line is the exit code,
    which is 0 otherwise. If no lines follow a command, its output is ignored.
``shell``
    Setup that the tests do not run; its ``make`` targets must exist.
``text``, ``mermaid``, ``json``, ``toml``, ``yaml``
    Shown, not run. Other languages, and blocks without a language, are not allowed.

The project is a small greeter with a passing test. A page that needs another one names it in its first line:

``<!-- project: empty -->``
    An empty directory.
``<!-- project: broken -->``
    The greeter with a bug, so that its test fails.

On the pages that a newcomer reads first, ``forkwise`` is the installed command. On the others it is the same without
its start-up (``tests.preloaded``).
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once
from tools.docs_examples import parse_blocks, run_console

from forkwise import Workspace
from forkwise.local_model.weights import weights_path
from tests.local_model.requirements import need_local_model
from tests.need import need_recorded_changes
from tests.preloaded import preloaded_command

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")), *ROOT.glob("docs/**/*.md")]
)
SHOWN = {"sql", "text", "mermaid", "json", "toml", "yaml"}
GREETER = {
    "README.md": "# Greeter\n",
    "greeter.py": 'def hello(name):\n    return "Hello, " + name\n',
    "test_greeter.py": 'from greeter import hello\n\nassert hello("you") == "Hello, you"\n',
    "data/names.txt": "ada\ngrace\n",
}
PROJECTS: dict[str, dict[str, str]] = {
    "greeter": GREETER,
    "empty": {},
    "broken": {**GREETER, "greeter.py": 'def hello(name):\n    return "Hello " + name\n'},
}

LAYERED_PAGES = {"hard-links.md", "live-files.md", "live-forking.md"}
"""Pages with examples that behave otherwise where branches are whole copies; the pages say so."""

FIRST_PAGES = {ROOT / "README.md", ROOT / "docs/tutorial.md", ROOT / "docs/local-model.md"}

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def project_files(page: Path) -> dict[str, str]:
    """Return the files of the project that a page starts with."""
    found = re.match(r"<!-- project: (\S+) -->\n", page.read_text())
    return PROJECTS[found[1] if found else "greeter"]


@pytest.fixture
def project(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create the project of a page and make it the current directory."""
    root = tmp_path / "project"
    root.mkdir()
    for name, text in project_files(page).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in ("FORCE_COLOR", "COLORTERM", "NO_COLOR", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    programs = [Path(sys.executable).parent]
    if page not in FIRST_PAGES:
        programs.insert(0, preloaded_command().parent)
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, programs), os.environ["PATH"]]))
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(weights_path().parents[2]))  # all tests share the downloaded model
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(root)
    yield root
    for branch in reversed(Workspace(root).branches()):
        branch.abort()


# The local model, whole explorations with real test suites, and other frameworks.
LONG_PAGES = tuple(
    f"docs/{name}.md" for name in ("ci", "cli", "cookbook", "faq", "frameworks", "ledger", "local-model", "tutorial")
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=[pytest.mark.integration] if name in LONG_PAGES else [])
        for page in PAGES
        for name in [str(page.relative_to(ROOT))]
    ],
)
def test_examples_work_as_written(page: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "local-model.md":
        need_local_model()
    if page.name == "telemetry.md":  # the process has one provider, which may be set once
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    if page.name == "frameworks.md":
        warnings.simplefilter("ignore")  # those of other people's code
    if page.name in LAYERED_PAGES:
        need_recorded_changes(project)
    names: dict[str, Any] = {"__name__": "example"}
    for block in parse_blocks(page):
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True), names)
        elif block.language == "console":
            run_console(block, str(page.relative_to(ROOT)))
        elif block.language == "shell":
            targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            for target in re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE):
                assert target in targets, f"{place}: the Makefile has no target {target}"
        else:
            assert block.language in SHOWN, f"{place}: a block of {block.language or 'no language'} is not allowed"


@by_page
def test_links_point_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target} does not exist"


def test_every_pitfall_is_listed() -> None:
    index = (ROOT / "docs/index.md").read_text()
    for page in (ROOT / "docs/pitfalls").glob("*.md"):
        assert f"(pitfalls/{page.name})" in index, f"docs/index.md does not link to {page.name}"
