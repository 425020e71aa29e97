"""Prompts from files and standard input, and what varies between attempts: ``--vary`` and ``--variations``."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from forkwise.cli import forkwise_command
from tests.need import need

Run = Callable[..., Result]

FAKE = """\
#!/bin/sh
cat > stdin.txt
for word; do printf '%s\\n' "$word"; done > words.txt
echo "$FORKWISE_MODEL" > model.txt
cat "$FORKWISE_PROMPT" > prompt.txt
echo done >> a.txt
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install an agent ``helper`` that records what it is given; return its table."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helper").write_text(FAKE)
    (programs / "helper").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    table = tmp_path / "config/forkwise/agents.toml"
    table.parent.mkdir(parents=True)
    table.write_text(
        '[helper]\ncommand = ["helper", "--model={model}", "{prompt}"]\n'
        'long_command = ["helper", "--long", "--model={model}"]\n'
        '[filer]\ncommand = ["helper", "{prompt}"]\nlong_command = ["helper", "--from", "{prompt_file}"]\n'
        '[plain]\ncommand = ["helper", "{prompt}"]\n'
    )
    return table


def outcome(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])["outcome"]


def test_prompt_file(run: Run, project: Path, agent: Path, tmp_path: Path) -> None:
    (tmp_path / "task.md").write_bytes(b"\xef\xbb\xbf* first line\n\nsecond $line 'x'\n\n")
    run("run", "--agent", "helper", "--prompt-file", str(tmp_path / "task.md"))
    assert (project / "words.txt").read_text() == "* first line\n\nsecond $line 'x'\n"
    assert (project / "prompt.txt").read_text() == "* first line\n\nsecond $line 'x'"


@pytest.mark.parametrize("words", [("-",), ("--prompt-file", "-")])
def test_standard_input(project: Path, agent: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(forkwise_command, ["run", "--agent", "helper", *words], input=b"from a pipe\n")
    need("and may have only one" not in result.stderr, "a process with threads cannot enter a user namespace")
    assert result.exit_code == 0, result.output
    assert (project / "words.txt").read_text() == "from a pipe\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"a\0b", "NUL byte"),
        (b"caf\xe9", "is not UTF-8: byte 3 is 0xe9"),
        (b"x" * ((16 << 20) + 1), "more than 16 MiB"),
    ],
)
def test_impossible_prompts(run: Run, agent: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "task").write_bytes(content)
    assert message in run("run", "--agent", "helper", "--prompt-file", str(tmp_path / "task"), code=2).stderr


def test_prompt_of_two_sources(run: Run, agent: Path, tmp_path: Path) -> None:
    said = run("run", "--agent", "helper", "--prompt-file", str(tmp_path / "task"), "do it", code=2).stderr
    assert "not from both" in said
    assert "No such file" in run("run", "--agent", "helper", "--prompt-file", str(tmp_path / "x"), code=2).stderr


@pytest.mark.parametrize(("name", "words"), [("helper", "--long\n"), ("filer", "--from\n")])
def test_long_prompt(run: Run, project: Path, agent: Path, tmp_path: Path, name: str, words: str) -> None:
    """A prompt of 10 MB reaches the agent through a file or its standard input."""
    text = "do it\n" * (10 * 1024 * 1024 // 6)
    (tmp_path / "task").write_text(text)
    run("run", "--agent", name, "--prompt-file", str(tmp_path / "task"), "-q")
    assert (project / "words.txt").read_text().startswith(words)
    assert (project / "prompt.txt").read_text() == text.rstrip("\n")
    if name == "helper":
        assert (project / "stdin.txt").read_text() == text.rstrip("\n")


def test_long_prompt_of_an_agent_that_takes_arguments(run: Run, agent: Path, tmp_path: Path) -> None:
    (tmp_path / "task").write_text("x" * 200_000)
    said = run("run", "--agent", "plain", "--prompt-file", str(tmp_path / "task"), code=2).stderr
    assert "the prompt has 200000 bytes" in said
    assert "long_command" in said


def test_feedback_is_added_to_a_long_prompt(run: Run, project: Path, agent: Path, tmp_path: Path) -> None:
    (tmp_path / "task").write_text("x" * 100_000)
    test = "sh -c 'grep -q \"tried before\" stdin.txt || { echo why; false; }'"
    run("reflexion", "--agent", "helper", "--prompt-file", str(tmp_path / "task"), "--test", test, "--no-baseline")
    text = (project / "stdin.txt").read_text()
    assert text.startswith("x" * 100_000 + "\n\nThis was tried before")


def test_prompt_for_a_command(run: Run, project: Path, tmp_path: Path) -> None:
    (tmp_path / "task").write_text("the task")
    script = 'cat "$FORKWISE_PROMPT" > got; echo "$1" >> got'
    run("run", "--prompt-file", str(tmp_path / "task"), "--", "sh", "-c", script, "sh", "<{prompt}>")
    assert (project / "got").read_text() == "the task<the task>\n"


def test_models_in_turn(run: Run, project: Path, agent: Path) -> None:
    result = run("best-of", "4", "--agent", "helper", "--vary", "model=opus,sonnet", "--json", "fix it")
    attempts = outcome(result)["attempts"]
    assert [a["variation"] for a in attempts] == [{"model": m} for m in ("opus", "sonnet", "opus", "sonnet")]
    assert {a["agent"] for a in attempts} == {"helper"}
    assert [a["label"] for a in attempts][:2] == ["helper model=opus", "helper model=sonnet"]
    assert (project / "words.txt").read_text() == f"--model={(project / 'model.txt').read_text()}fix it\n"


def test_product_without_a_number(run: Run, agent: Path) -> None:
    words = ("--agent", "helper", "--vary", "model=a,b", "--vary", "prompt=x, y", "--vary", "prompt=-z", "--json")
    for verb in (("best-of",), ("speculate", "--all")):
        attempts = outcome(run(*verb, *words))["attempts"]
        found = [(a["variation"]["model"], a["variation"]["prompt"]) for a in attempts]
        assert found == [("a", "x, y"), ("b", "x, y"), ("a", "-z"), ("b", "-z")]


def test_prompts_of_a_file(run: Run, agent: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n\ntwo, three\n")
    (tmp_path / "blocks").write_text("one\nmore\n---\n\ntwo\n---\n")
    for name, prompts in (("lines", ["one", "two, three"]), ("blocks", ["one more", "two"])):
        found = outcome(run("best-of", "--agent", "helper", "--vary", f"prompt=@{tmp_path / name}", "--json"))
        assert [a["variation"]["prompt"] for a in found["attempts"]] == prompts
    shown = json.loads(run("show", f"{found['fork']}.1", "--json").stdout)["attempt"]
    assert shown["prompt"] == "one\nmore"


def test_agents_in_turn(run: Run, agent: Path) -> None:
    found = outcome(run("best-of", "--vary", "agent=helper,plain", "--json", "fix", "it"))["attempts"]
    assert [a["agent"] for a in found] == ["helper", "plain"]


def test_variables_and_arguments_of_commands(run: Run, project: Path) -> None:
    line = 'printf "%s %s %s\\n" "$LEVEL" "$1" "$2" > got; test "$2" = "b c"'
    run("best-of", "-c", line, "--vary", "env.LEVEL=,9", "--vary", "args=--x 'b c'", "--stop-when", "no-gain:9")
    assert (project / "got").read_text() in (" --x b c\n", "9 --x b c\n")
    run("run", "--vary", "args=--y", "--", "sh", "-c", 'echo "$1" > got', "sh")
    assert (project / "got").read_text() == "--y\n"


def test_escalation(run: Run, project: Path, agent: Path) -> None:
    """Attempts of reflexion take the models in turn, so that a stronger one follows a weaker one."""
    run("reflexion", "--agent", "helper", "--vary", "model=small,large", "--retries", "2", "--no-baseline", "--test",
        "grep -q large model.txt", "fix it")  # fmt: skip
    assert (project / "model.txt").read_text() == "large\n"


FILE = {
    "toml": '[[attempt]]\nmodel = "a"\nargs = ["--x", "y z"]\n[[attempt]]\nprompt_file = "task"\nenv = {LEVEL = "1"}\n',
    "yaml": "attempt:\n- model: a\n  args: [--x, y z]\n- prompt_file: task\n  env: {LEVEL: '1'}\n",
}


@pytest.mark.parametrize("suffix", FILE)
def test_variations_of_a_file(run: Run, agent: Path, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"v.{suffix}").write_text(FILE[suffix])
    (tmp_path / "task").write_text("other\n")
    found = outcome(
        run("best-of", "--agent", "helper", "--variations", str(tmp_path / f"v.{suffix}"), "--json", "common")
    )
    assert [a["variation"] for a in found["attempts"]] == [
        {"model": "a", "args": "--x 'y z'"},
        {"prompt": "other", "env.LEVEL": "1"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attempt = 3", "must have a list 'attempt'"),
        ("[[attempt]]\nmodle = 'a'", "attempt 1: unknown key 'modle'; known keys: prompt"),
        ("[[attempt]]\nmodel = 3", "attempt 1: model must be a string"),
        ("[[attempt]]\nenv = { 'A=B' = 'x' }", "env.A=B is not a variable"),
        ("[[attempt]]\nprompt = 'a'\nprompt_file = 'b'", "exclude each other"),
        ("[[attempt]]\nmodel = 'x", "is not TOML"),
    ],
)
def test_invalid_files(run: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.toml").write_text(text)
    assert message in run("best-of", "--variations", str(tmp_path / "v.toml"), "--", "true", code=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("best-of", "--vary", "model", "--", "true"), "is not KEY=VALUE"),
        (("best-of", "--vary", "temperature=1,2", "--", "true"), "env.temperature=..."),
        (("best-of", "--vary", "model=a,,b", "--", "true"), "model has an empty value"),
        (("best-of", "--vary", "args='x", "--", "true"), "cannot be split into words"),
        (("best-of", "--vary", "prompt=@missing", "--", "true"), "No such file"),
        (("best-of", "--", "true"), "Missing argument 'N'"),
        (("best-of", "0", "--", "true"), "0 is not in the range x>=1"),
        (("run", "--vary", "model=a,b", "--", "true"), "run makes one attempt, but 2 variations"),
        (("run", "--agent", "plain", "--model", "a", "x"), "does not say how it is given a model"),
        (("best-of", "--agent", "plain", "--vary", "agent=helper,plain", "x"), "not from both"),
        (("run", "--agent", "plain", "--", "-x"), "--prompt-file"),
        (("best-of", *(f"--vary=env.A{i}=" + ",".join("abcde") for i in range(5)), "--", "true"), "3125 variations"),
    ],
)
def test_usage(run: Run, agent: Path, words: tuple[str, ...], message: str) -> None:
    assert message in run(*words, code=2).stderr


def test_too_few_attempts(run: Run) -> None:
    said = run("best-of", "2", "--vary", "env.A=1,2,3", "--", "sh", "-c", "echo $A > new").stderr
    assert "only the first 2 of 3 variations are tried" in said


def test_prompt_and_agent_are_shown(run: Run, agent: Path) -> None:
    found = outcome(run("best-of", "--agent", "helper", "--vary", "model=a,b", "--json", "fix the\nparser please"))
    listed = run("ls").stdout
    assert "helper: fix the parser please" in listed
    (record,) = json.loads(run("ls", "--json").stdout)["forks"]
    assert (record["agents"], record["prompt"]) == (["helper"], "fix the\nparser please")
    shown = run("show", found["fork"]).stdout
    assert "agent:      helper" in shown
    assert "prompt:     fix the\n            parser please" in shown
    shown = run("show", f"{found['fork']}.2").stdout
    assert "varied:     model=b" in shown
    assert "parser please" in shown


def test_secrets_of_variations(run: Run) -> None:
    words = (
        "--vary",
        "env.API_TOKEN=correct-horse-1,correct-horse-2",
        "--",
        "sh",
        "-c",
        "echo $API_TOKEN > /dev/null; touch n",
    )
    result = run("best-of", *words[:2], "--json", *words[2:])
    shown = run("show", outcome(result)["fork"], "--json").stdout
    assert "correct-horse" not in result.stdout + shown + run("show", outcome(result)["fork"]).stdout


def test_reader_of_the_terminal_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from forkwise.cli.variation import read_prompt

    terminal = io.TextIOWrapper(io.BytesIO(b"typed\n"))
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    assert read_prompt("-") == "typed"
    assert "Ctrl-D" in capsys.readouterr().err
