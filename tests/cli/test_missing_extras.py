"""Commands that need an extra which is not installed: one line that says what is missing, and one that installs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration  # each starts Python anew

WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from forkwise.cli import main
main()
"""


def run_without(
    modules: str, *words: str, directory: Path, terminal: bool = False, text: str = ""
) -> tuple[int, str, str]:
    """Run the command line in a process that cannot import ``modules``, on a terminal if ``terminal`` is set."""
    command = [sys.executable, "-c", WITHOUT, modules, *words]
    if not terminal:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, input=text)
        return done.returncode, done.stdout, done.stderr
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, cwd=directory, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(theirs)
    os.write(ours, b"\x04")  # the end of the input, for commands that fall back to reading lines
    _, errors = process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, "", errors


@pytest.mark.parametrize(
    ("modules", "words", "extra"),
    [
        ("pydantic_ai", ("chat",), "agents"),
        ("pydantic_ai", ("chat", "--plain", "--model", "local"), "agents"),
        ("acp", ("acp",), "acp"),
        ("pydantic_ai", ("walk", "talk.json"), "agents"),
        ("pydantic_ai", ("walk", "talk.json", "show"), "agents"),
        ("pydantic_ai,textual", ("walk", "talk.json", "--tui"), "agents"),
        ("pydantic_ai", ("judges",), "agents"),
        ("pydantic_ai", ("model", "ask", "hello"), "local"),
        ("xllamacpp", ("model", "ask", "hello"), "local"),
        ("openai", ("model", "ask", "hello"), "local"),
        ("xllamacpp,pydantic_ai,openai", ("model", "ask", "hello"), "local"),
        ("blake3", ("snapshot", "ls", "--store", "x"), "snapshots"),
        pytest.param(
            "backports.zstd",
            ("snapshot", "ls", "--store", "x"),
            "snapshots",
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has zstd itself"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_command_names_its_extra(project: Path, modules: str, words: tuple[str, ...], extra: str) -> None:
    code, output, errors = run_without(modules, *words, directory=project)
    assert (code, output) == (2, "")
    error, hint = errors.splitlines()
    assert error.startswith("forkwise: error: ")
    assert error.endswith("not installed")
    assert hint == f"forkwise: hint: pip install 'forkwise[{extra}]'"


def test_as_json(project: Path) -> None:
    code, output, errors = run_without("pydantic_ai", "walk", "talk.json", "--json", directory=project)
    assert (code, errors) == (2, "")
    assert json.loads(output)["error"] == {
        "type": "MissingExtraError",
        "message": "forkwise walk needs pydantic-ai, which is not installed",
        "exit_code": 2,
        "remedy": "pip install 'forkwise[agents]'",
    }


def exported(directory: Path) -> str:
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.store import export_conversation

    talk = Conversation()
    talk.reply("yes", talk.say("no?"))
    export_conversation(talk, directory / "talk.json")
    return "talk.json"


def test_walk_in_panels(project: Path) -> None:
    code, _, errors = run_without("textual", "walk", exported(project), "--tui", directory=project, terminal=True)
    assert code == 2
    assert errors.splitlines() == [
        "forkwise: error: forkwise walk --tui needs Textual, which is not installed",
        "forkwise: hint: pip install 'forkwise[tui]'",
    ]


def test_the_local_model_for_a_conversation(project: Path) -> None:
    words = ("walk", exported(project), "--model", "local", "prompt", "why?")
    code, _, errors = run_without("xllamacpp", *words, directory=project)
    assert code in (1, 2)
    assert "pip install 'forkwise[local]'" in errors
    assert "Traceback" not in errors


def test_a_chat_with_the_local_model(project: Path) -> None:
    code, _, errors = run_without("xllamacpp", "chat", "--plain", "--model", "local", directory=project)
    assert code in (1, 2)
    assert "pip install 'forkwise[local]'" in errors
    assert "Traceback" not in errors


def test_a_model_whose_provider_is_not_installed(project: Path) -> None:
    words = ("walk", exported(project), "--model", "anthropic:claude-sonnet-4-6", "prompt", "why?")
    code, _, errors = run_without("anthropic", *words, directory=project)
    assert code == 2
    assert errors.splitlines()[-1] == "forkwise: hint: pip install 'pydantic-ai-slim[anthropic]'"


def test_a_session_continues_without_the_model_s_provider(project: Path) -> None:
    """Seed: "API errors (proper error propagation)"."""
    words = ("walk", exported(project), "--model", "anthropic:claude-sonnet-4-6")
    code, printed, errors = run_without("anthropic", *words, directory=project, text="prompt why?\nroot\n")
    assert code == 0
    assert "[0] depth 0" in printed
    assert errors.splitlines()[-1] == "forkwise: hint: pip install 'pydantic-ai-slim[anthropic]'"


def test_a_model_that_does_not_exist(project: Path) -> None:
    words = ("walk", exported(project), "--model", "nonsense", "prompt", "why?")
    code, _, errors = run_without("nothing_at_all", *words, directory=project)
    assert code == 1
    assert errors.startswith("forkwise: error: model 'nonsense' is not available: ")


@pytest.mark.parametrize(
    ("words", "benefit"),
    [(("watch",), "shows the fork in panels"), (("chat", "--model", "script:none"), "shows the chat in panels")],
    ids=lambda value: value[0],
)
def test_panels_are_optional(project: Path, words: tuple[str, ...], benefit: str) -> None:
    code, _, errors = run_without("textual", *words, directory=project, terminal=True)
    assert errors.splitlines()[0] == f"forkwise: hint: pip install 'forkwise[tui]' {benefit}"
    assert "Traceback" not in errors
    assert code == 1  # there is no fork to watch, and no such script


def test_a_plain_installation_explores(project: Path) -> None:
    modules = "pydantic_ai,textual,xllamacpp,openai,anthropic,tree_sitter"
    for words in (("run", "-q", "--", "touch", "new"), ("ls",), ("log",), ("undo",), ("gc",), ("branch", "ls")):
        code, _, errors = run_without(modules, *words, directory=project)
        assert (code, errors) == (0, ""), words
