"""``--agent``: the command of an agent, its permissions, and the files that define it. The programs are fakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.agents.preset import Agent, load_agents
from forkwise.fork.fork import open_ledger
from tests.acceptance import write_accepted

Run = Callable[..., Result]

NAMES = ("aider", "claude", "codex", "gemini", "goose", "opencode")
OTHERS = ("cn", "copilot", "mini", "openhands", "pi", "qwen", "vibe")

FAKE = """\
#!{python}
import json, os, sys
report = {{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}
for name in os.environ.get("WRITES", "").split(":"):
    try:
        open(os.path.join(name, "written"), "w").close()
    except OSError as error:
        report[name] = error.strerror
json.dump(report, open("report.json", "w"))
sys.exit(int(os.environ.get("FAILS", "0")) and "fixed" not in " ".join(sys.argv))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a home directory, and a directory of programs at the front of PATH."""
    place = tmp_path / "home"
    (place / "bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    return place


@pytest.fixture
def install(home: Path) -> Callable[[str], None]:
    """Put a program on PATH that records its arguments and environment."""

    def install(name: str) -> None:
        program = home / "bin" / name
        program.write_text(FAKE.format(python="/usr/bin/env python3"))
        program.chmod(0o755)

    return install


def read_record(project: Path) -> Any:
    """Return what the program recorded."""
    return json.loads((project / "report.json").read_text())


PROMPT = """fix "it"; rm -rf $HOME `x` 'y' \\ {prompt}"""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("claude", ["-p"], ["--dangerously-skip-permissions", "--output-format=stream-json", "--verbose"]),
        ("codex", ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"], []),
        ("gemini", ["--approval-mode=yolo", "--output-format=stream-json", "-p"], []),
        ("aider", ["--chat-history-file", "/dev/null", "--message"], []),
        ("opencode", ["run", "--format=json"], []),
        ("goose", ["run", "--no-session", "--output-format=stream-json", "--text"], []),
    ],
)
def test_presets(
    run: Run, project: Path, install: Callable[[str], None], name: str, before: list[str], after: list[str]
) -> None:
    install(name)
    run("run", "--agent", name, PROMPT)
    given = read_record(project)
    at = given["argv"].index(PROMPT)
    assert given["argv"][:at][-len(before) :] == before
    assert [word for word in given["argv"][at + 1 :] if not word.startswith("--session-id=")] == after
    assert given["cwd"] == str(project)
    assert {"FORKWISE_ATTEMPT", "FORKWISE_FEEDBACK"} <= set(given["env"])


def test_there_is_a_preset_for_each(project: Path, home: Path) -> None:
    agents = load_agents(project)
    assert sorted(agents) == sorted(NAMES + OTHERS)
    assert not any(agent.untested for agent in agents.values())


def test_words_of_a_prompt_are_one_prompt(run: Run, project: Path, install: Callable[[str], None]) -> None:
    install("claude")
    run("run", "--agent", "claude", "fix", "the", "tests")
    assert read_record(project)["argv"][1] == "fix the tests"


def test_an_agent_has_its_keys_its_caches_and_a_network(
    run: Run, project: Path, home: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("claude")
    (home / ".claude").mkdir()
    (home / "other").mkdir()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k3y-of-claude")
    monkeypatch.setenv("OTHER_API_KEY", "other")
    monkeypatch.setenv("WRITES", f"{home}/.claude:{home}/other:{home}/.cache/claude")
    # Tests have a view of the home directory too, and not that of the attempt.
    check = 'test -z "$ANTHROPIC_API_KEY" && ! test -e "$HOME/.claude/written" && touch "$HOME/.claude/by-a-test"\n'
    (project / "check.sh").write_text(check)
    run(
        "best-of",
        "1",
        "--confinement",
        "strict",
        "--env",
        "WRITES",
        "--test",
        "sh check.sh",
        "--agent",
        "claude",
        "fix it",
    )
    given = read_record(project)
    assert given["env"]["ANTHROPIC_API_KEY"] == "k3y-of-claude"
    assert given["env"]["IS_SANDBOX"] == "1"
    assert "OTHER_API_KEY" not in given["env"]
    assert f"{home}/.claude" not in given  # it could write there, to a view of its own
    assert f"{home}/other" not in given
    assert not list(home.glob("*/written"))
    assert not list(home.glob("*/by-a-test"))
    with open_ledger(Workspace(project)) as ledger:
        assert "k3y-of-claude" not in "".join(str(event) for event in ledger.events())
        assert ledger.forks()[0].spec["allowance"]["network"] == "auto"


def test_what_holds_in_a_sandbox_is_not_said_outside_one(
    run: Run, project: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IS_SANDBOX", raising=False)
    install("claude")
    run("run", "--confinement", "open", "--agent", "claude", "fix it")
    assert "IS_SANDBOX" not in read_record(project)["env"]


def test_an_agent_gets_feedback_on_failures(
    run: Run, project: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    install("codex")
    program = Path(os.environ["PATH"].partition(":")[0]) / "codex"
    program.write_text(program.read_text().replace("import json", "print('it is to be fixed')\nimport json", 1))
    run("reflexion", "--agent", "codex", "do it")
    prompt = read_record(project)["argv"][-1]
    assert prompt.startswith("do it\n\n")
    assert "exit code 1" in prompt
    assert "it is to be fixed" in prompt


def test_several_agents_compete(run: Run, project: Path, install: Callable[[str], None]) -> None:
    install("claude")
    install("codex")
    run("speculate", "--all", "--agent", "claude", "--agent", "codex", "-c", "true", "fix it")
    with open_ledger(Workspace(project)) as ledger:
        assert [a.label for a in ledger.attempts(ledger.forks()[0].id)] == ["true", "claude", "codex"]


def test_each_of_several_agents_has_its_own_keys_and_login(
    run: Run, project: Path, home: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("claude", "codex"):
        install(name)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k3y-of-claude")
    monkeypatch.setenv("OPENAI_API_KEY", "k3y-of-codex")
    words = ("speculate", "--all", "--confinement", "strict", "--agent", "claude", "--agent", "codex", "-c")
    run(*words, 'echo "{$ANTHROPIC_API_KEY$OPENAI_API_KEY}" > keys', "--no-commit", "fix it")
    with open_ledger(Workspace(project)) as ledger:
        own = ledger.forks()[0].spec["own_allowances"]
        assert {command[3]: allowance["shown"][0] for command, allowance in own} == {
            "claude": "~/.claude/.credentials.json", "codex": "~/.codex/auth.json",
        }  # fmt: skip
    found = {}
    for branch in Workspace(project).branches():
        if (branch.path / "keys").exists():
            found["sh"] = (branch.path / "keys").read_text()
        else:
            record = read_record(branch.path)
            found["claude" if "-p" in record["argv"] else "codex"] = {k for k in record["env"] if k.endswith("API_KEY")}
    assert found == {"claude": {"ANTHROPIC_API_KEY"}, "codex": {"OPENAI_API_KEY"}, "sh": "{}\n"}


@pytest.fixture
def tables(project: Path, home: Path) -> Callable[[str, str], Path]:
    """Write a table of the user, or an accepted one of the workspace."""

    def tables(whose: str, text: str) -> Path:
        place = home / ".config/forkwise" if whose == "user" else project / ".forkwise"
        place.mkdir(parents=True, exist_ok=True)
        if whose == "user":
            (place / "agents.toml").write_text(text)
        else:
            write_accepted(place / "agents.toml", text)
        return place / "agents.toml"

    return tables


def test_users_add_and_workspaces_change(
    run: Run, project: Path, tables: Callable[[str, str], Path], install: Callable[[str], None]
) -> None:
    install("helper")
    tables(
        "user",
        '[helper]\ncommand = ["helper", "--do={prompt}"]\nenvironment = { MOOD = "good" }\n[claude]\nwritable = []',
    )
    source = tables("workspace", '[helper]\nenvironment = { MOOD = "better" }')
    agents = load_agents(project)
    assert agents["claude"].writable == ()
    assert agents["claude"].command[0] == "claude"
    said = run("run", "--agent", "helper", "fix it").stderr
    assert said == "forkwise: warning: agent 'helper' is defined by .forkwise/agents.toml\n"
    assert agents["helper"].source == source
    assert read_record(project)["argv"] == ["--do=fix it"]
    assert read_record(project)["env"]["MOOD"] == "better"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not valid TOML"),
        ("helper = 1", "helper is not a table"),
        ('[helper]\ncommand = ["helper"]', "invalid command in [helper]"),
        ('[helper]\ncommand = "helper {prompt}"', "invalid command in [helper]"),
        ("[helper]\nwritable = []", "[helper] needs a command"),
        ("[helper]\ncomand = []", "unknown key 'comand' in [helper]; known keys: command,"),
        ("[helper]\nenvironment = { A = 1 }", "invalid environment in [helper]"),
        ('[helper]\nlitter = [".helper", "**/*"]', "invalid litter in [helper]"),
        ('[helper]\nlitter = [".helper\\u0000"]', "invalid litter in [helper]"),
    ],
)
def test_a_table_that_is_wrong_is_named(run: Run, tables: Callable[[str, str], Path], text: str, said: str) -> None:
    source = tables("user", text)
    refused = run("run", "--agent", "helper", "fix it", code=1).stderr
    assert refused.startswith(f"forkwise: error: {source}")
    assert said in refused


def test_litter_is_not_part_of_the_changes(
    run: Run, project: Path, tables: Callable[[str, str], Path], home: Path
) -> None:
    tables("user", '[sloppy]\ncommand = ["sloppy", "{prompt}"]\nlitter = [".sloppy*"]')
    program = home / "bin/sloppy"
    program.write_text("#!/bin/sh\necho x > .sloppy.log\nmkdir .sloppy.d\necho y > .sloppy.d/y\n$1\n")
    program.chmod(0o755)
    assert "1 file" in run("run", "--agent", "sloppy", "touch made").stdout
    assert (project / "made").exists()
    assert not list(project.glob(".sloppy*"))
    assert "no change" in run("run", "--agent", "sloppy", "true", code=7).stdout
    run("run", "--agent", "sloppy", "--include-ignored", "true")
    assert len(list(project.glob(".sloppy*"))) == 2


def test_a_workspace_cannot_hide_changes_as_litter(
    run: Run, project: Path, tables: Callable[[str, str], Path], install: Callable[[str], None]
) -> None:
    install("helper")
    tables("user", '[helper]\ncommand = ["helper", "{prompt}"]\nlitter = [".a*", ".b*"]')
    (project / ".forkwise").mkdir()
    (project / ".forkwise/agents.toml").write_text('[helper]\nlitter = [".b*", "report.json"]')
    assert load_agents(project)["helper"].litter == (".b*",)
    said = run("run", "--agent", "helper", "fix it").stderr
    assert "litter of [helper]" in said
    assert (project / "report.json").exists()
    assert "[helper] litter = ['.b*', 'report.json']" in run("trust", "--json").stdout


def test_an_option_goes_with_the_model_that_is_its_value() -> None:
    agent = Agent(name="helper", command=("helper", "--mode", "json", "--model", "{model}", "-p", "{prompt}"))
    assert agent.argv("x")[2].splitlines()[-1] == 'exec helper --mode json -p "$1"'
    assert agent.argv("x", "big")[2].splitlines()[-1] == 'exec helper --mode json --model big -p "$1"'


def test_an_agent_that_is_not_there(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home / "bin"))
    said = run("run", "--agent", "claud", "fix it", code=2).stderr
    assert f"unknown agent 'claud'; known agents: {', '.join(sorted(NAMES + OTHERS))}\n" in said
    said = run("run", "--agent", "claude", "fix it", code=2).stderr
    assert "needs the program 'claude', which is not on the PATH" in said
    assert "npm install" in said


def test_an_agent_needs_a_prompt(run: Run, install: Callable[[str], None]) -> None:
    install("claude")
    assert "--agent claude 'what to do'" in run("best-of", "2", "--agent", "claude", code=2).stderr


def test_quotes_around_a_prompt() -> None:
    agent = Agent(name="x", command=("my prog", "a={prompt}=b", "{prompt}", "$HOME"))
    assert agent.argv("p")[2].splitlines()[-1] == """exec 'my prog' a="$1"=b "$1" '$HOME'"""


LOADED_BEFORE = """
import json, sys
from forkwise.cli import exploration
from forkwise.sandbox import launcher
exploration._LOAD_DELAY_S = 3600
ask = launcher.ForkserverConnection.start_sandbox
def start_sandbox(*arguments):
    with open({found!r}, "w") as file:
        json.dump(sorted(sys.modules), file)
    return ask(*arguments)
launcher.ForkserverConnection.start_sandbox = start_sandbox
from forkwise.cli import main
sys.argv = ["forkwise", "-C", {project!r}, "run", "--agent", "claude", "fix it"]
main()
"""
MOST_MODULES = 360
"""Modules, the standard library's included, that may be loaded before an agent starts; 343 when this was written."""
AT_THE_END = (
    *("forkwise.files.commit", "forkwise.files.rebase", "forkwise.files.versions", "forkwise.fork.resolve"),
    "forkwise.fork.land",
    *("forkwise.explore.judges", "forkwise.explore.evidence", "forkwise.git.result", "forkwise.text.merge3"),
    *(
        "forkwise.testing.report",
        "opentelemetry",
        "pydantic",
        "pydantic_core",
        "rich",
        "decimal",
        "email",
        "urllib.request",
    ),
)


def test_an_agent_starts_before_what_its_end_needs_is_loaded(
    project: Path, home: Path, install: Callable[[str], None]
) -> None:
    install("claude")
    found = home / "modules.json"
    code = LOADED_BEFORE.format(found=str(found), project=str(project))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    loaded = json.loads(found.read_text())
    assert not [name for name in loaded if name.startswith(AT_THE_END)]
    assert len(loaded) <= MOST_MODULES
