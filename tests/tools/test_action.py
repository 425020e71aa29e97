"""``action.yml`` and the jobs in docs/ci.md: their shell parts run here, in the environment of a runner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
PAGE = (ROOT / "docs/ci.md").read_text()
AGENT = """#!/bin/sh
env | grep -E '^(GITHUB|RUNNER|ACTIONS|INPUT|PUSH)_' | grep -v GITHUB_STEP_SUMMARY && exit 9
echo '::set-output name=winner::forged'
for word; do printf '%s\\n' "$word"; done > prompt.txt
"""


@dataclass
class Job:
    """A runner: a checkout, a remote, and the files by which steps speak to it."""

    root: Path
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    @property
    def checkout(self) -> Path:
        return self.root / "checkout"

    def git(self, *words: str, directory: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *words], cwd=directory or self.checkout, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def expand(self, text: str) -> str:
        """Replace the expressions that the action uses."""

        def find(match: re.Match[str]) -> str:
            kind, _, rest = match[1].partition(".")
            if kind == "inputs":
                return self.inputs[rest]
            if kind == "github":
                return {
                    "action_path": str(ROOT),
                    "server_url": str(self.root),
                    "repository": "remote.git",
                    "token": "",
                }[rest]
            step, _, name = rest.partition(".outputs.")
            return self.outputs.get(step, {}).get(name, "")

        return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", find, text)

    def holds(self, condition: str) -> bool:
        parts = [part.partition("!=" if "!=" in part else "==") for part in condition.split("&&")]
        values = [
            (self.expand(f"${{{{ {left.strip()} }}}}"), sign, right.strip().strip("'")) for left, sign, right in parts
        ]
        return all((left == right) == (sign == "==") for left, sign, right in values)

    def run(self) -> int:
        """Run the steps as a runner does, and return the exit code of the first that fails."""
        for number, step in enumerate(ACTION["runs"]["steps"]):
            if not self.holds(step.get("if", "inputs.attempts != ''")):
                continue
            assert "run" in step, "actions of others are not run here"
            files = {name: self.root / f"{name}-{number}" for name in ("output", "path", "summary")}
            for path in files.values():
                path.touch()
            environment = {
                **os.environ,
                **{name: self.expand(value) for name, value in step.get("env", {}).items()},
                "GITHUB_OUTPUT": str(files["output"]),
                "GITHUB_PATH": str(files["path"]),
                "GITHUB_STEP_SUMMARY": str(files["summary"]),
                "GITHUB_TOKEN": "a-token-of-the-job",
                "RUNNER_TEMP": str(self.root),
                "ACTIONS_RUNTIME_TOKEN": "another-token",
                "FORKWISE_STATE": str(self.root / "state"),
                "HOME": str(self.root),
                "PATH": os.pathsep.join([str(self.root / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            }
            script = self.root / f"step-{number}.sh"
            script.write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self.checkout,
                env=environment,
                capture_output=True,
                text=True,
            )
            self.log += done.stdout + done.stderr
            lines = files["output"].read_text().splitlines()
            self.outputs[step.get("id", str(number))] = dict(line.split("=", 1) for line in lines)
            if done.returncode:
                return done.returncode
        return 0

    def output(self, name: str) -> str:
        return self.expand(ACTION["outputs"][name]["value"])


def make_job(root: Path, **given: str) -> Job:
    """Make a checkout with a remote, and an agent called ``claude`` that writes its arguments to a file."""
    inputs = {name: str(declared["default"]) for name, declared in ACTION["inputs"].items()}
    inputs |= {"package": "none", "user-namespaces": "false", "token": "", "attempts": "2", "test": ""}
    job = Job(root, inputs | {name.replace("_", "-"): value for name, value in given.items()})
    job.checkout.mkdir()
    (root / "bin").mkdir()
    (root / "bin/claude").write_text(AGENT)
    (root / "bin/claude").chmod(0o755)
    (job.checkout / "a.txt").write_text("one\n")
    job.git("init", "-q", "-b", "main")
    job.git("config", "user.name", "t")
    job.git("config", "user.email", "t@example.com")
    job.git("add", "-A")
    job.git("commit", "-qm", "base")
    job.git("clone", "-q", "--bare", str(job.checkout), str(root / "remote.git"), directory=root)
    return job


def test_inputs_are_never_shell_text() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) != ("uses" in step)
    assert set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text())) == set(ACTION["inputs"])


def test_the_winner_becomes_a_branch(tmp_path: Path) -> None:
    job = make_job(tmp_path, command="echo two >> a.txt", test="grep -q two a.txt", branch="agent/two")
    marker = tmp_path / "hooked"
    hook = job.checkout / ".git/hooks/pre-push"  # one of the checkout does not run
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    assert job.run() == 0, job.log
    assert job.output("branch") == "agent/two"
    assert re.fullmatch(r"[a-z0-9]{6}\.[12]", job.output("winner"))
    assert job.output("winner").startswith(job.output("fork"))
    assert job.output("exit-code") == "0"
    remote = tmp_path / "remote.git"
    assert job.git("show", "agent/two:a.txt", directory=remote) == "one\ntwo"
    assert job.git("rev-parse", "agent/two^", directory=remote) == job.git("rev-parse", "main", directory=remote)
    assert not marker.exists()
    assert sorted(os.listdir(job.output("report"))) == ["index.html", "junit.xml", "report.json", "summary.md"]
    [summary] = [path.read_text() for path in tmp_path.glob("summary-*") if path.stat().st_size]
    assert "was the best" in summary
    assert (job.checkout / "a.txt").read_text() == "one\n"  # the checkout itself is not changed


@pytest.mark.parametrize(
    "prompt",
    [
        "--writable=/",
        "--",
        "$(touch PWNED) `touch PWNED`; touch PWNED #",
        "two\nlines '\"",
        "${{ secrets.X }} ::set-output name=winner::x",
    ],
)
def test_a_hostile_prompt_is_a_prompt(tmp_path: Path, prompt: str) -> None:
    job = make_job(tmp_path, agent="claude", prompt=prompt)
    assert job.run() == 0, job.log
    assert prompt in (job.checkout / "prompt.txt").read_text()
    assert not list(tmp_path.rglob("PWNED"))
    assert job.output("winner") != "forged"
    # What attempts print lies between the line that stops commands and the one that resumes them.
    token = re.search(r"^::stop-commands::(\w{32})$", job.log, re.MULTILINE)
    assert token is not None
    assert job.log.count(f"::{token[1]}::") == 1


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"command": "false"}, 7),
        ({"command": "false", "fail": "false"}, 0),
        ({}, 2),
        ({"command": "true", "attempts": "2; touch PWNED"}, 2),
        ({"command": "touch x", "branch": "a..b"}, 1),
        ({"command": "touch x", "report": "out\nwinner=x"}, 2),
        ({"agent": "no-such-agent", "prompt": "x"}, 2),
    ],
)
def test_without_a_winner(tmp_path: Path, inputs: Mapping[str, str], code: int) -> None:
    job = make_job(tmp_path, **inputs)
    assert job.run() == code, job.log
    assert job.output("winner") == job.output("branch") == ""
    assert job.git("branch", "--list", directory=tmp_path / "remote.git") == "* main"
    assert not list(tmp_path.rglob("PWNED"))


def find_example(title: str) -> Any:
    section = PAGE.partition(f"\n## {title}\n")[2]
    return yaml.safe_load(section.partition("```yaml\n")[2].partition("```")[0])


def test_the_workflow_in_the_documentation() -> None:
    [step] = [step for step in find_example("GitHub")["jobs"]["fix"]["steps"] if "forkwise" in step.get("uses", "")]
    assert set(step["with"]) <= set(ACTION["inputs"])
    listed = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", PAGE.partition("## GitHub")[2]))))
    assert listed == set(ACTION["inputs"])


def test_the_gitlab_job_in_the_documentation(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (job.checkout / "test_a.py").write_text("def test_a():\n    assert True\n")
    environment = {
        **os.environ,
        "PROMPT": "--writable=/ $(touch PWNED)",
        "CI_JOB_ID": "42",
        "CI_SERVER_HOST": "gitlab.example",
        "CI_PROJECT_PATH": "group/project",
        "PUSH_TOKEN": "secret",
        "FORKWISE_STATE": str(tmp_path / "state"),
        "HOME": str(tmp_path),
        "PATH": os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        # The server is the bare repository of this test.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{tmp_path / 'remote.git'}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://agent:secret@gitlab.example/group/project.git",
    }
    example = find_example("GitLab")["fix"]
    script = "\n".join(example["script"])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=job.checkout, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--writable=/" in job.git("show", "agent/42:prompt.txt", directory=tmp_path / "remote.git")
    assert (job.checkout / example["artifacts"]["reports"]["junit"]).is_file()
    assert not list(tmp_path.rglob("PWNED"))
