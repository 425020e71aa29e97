"""Attempts by a coding agent beside the agent alone.

The agent is Claude Code or Codex, if one is installed, and asks a scripted model on the loopback: it always does the
same, and costs nothing. Otherwise it is a program that prints a recorded stream.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.agents.scripted_model import BROKEN, PROMPTS, serve_model
from tools.agents.trial import SETUPS

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play
from bench.scratch import Scratch
from forkwise.agents.preset import load_agents

__all__ = ["measure_agents"]

_FORKWISE = (sys.executable, "-c", "from forkwise.cli import main; main()")
_STREAMS = Path(__file__).parents[2] / "tests/agents/streams"
_MORE = 4  # attempts, one after the other
_AT_ONCE = 8
_BOUND = 150  # ms
_TWICE = """\
import contextlib, sys, time
from pathlib import Path
from forkwise.cli.verbs import forkwise_command
for _ in range(2):
    Path("calc.py").write_text(sys.argv[1])
    started = time.perf_counter()
    with contextlib.suppress(SystemExit):
        forkwise_command.main(sys.argv[2:], "forkwise")
    taken = time.perf_counter() - started
print(taken, file=sys.stderr)
"""  # the second time, everything is loaded, as in a server or in a program of the user's
_STAND_IN = "#!/bin/sh\nsed -i s/-/+/ calc.py\ncat stream.jsonl\n"


@dataclass(frozen=True)
class _Subject:
    """An agent in a project: its name, and how it is started."""

    name: str
    project: Path
    environment: Mapping[str, str]
    words: tuple[str, ...]

    @property
    def bare(self) -> tuple[str, ...]:
        return load_agents(self.project)[self.name].argv(PROMPTS[0])

    def run(self, *words: str) -> str:
        return self.start(*words).stdout

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        (self.project / "calc.py").write_text(BROKEN)
        done = subprocess.run(
            words,
            cwd=self.project,
            env={**self.environment, "FORKWISE_UUID": str(uuid.uuid4())},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def time(self, *words: str) -> float:
        started = time.perf_counter()
        self.run(*words)
        return time.perf_counter() - started

    def time_loaded(self) -> float:
        """Time one attempt in a process that has run one before."""
        command = self.explore(1)[len(_FORKWISE) :]
        done = self.start(sys.executable, "-c", _TWICE, BROKEN, *command)
        return float(done.stderr.splitlines()[-1])

    def explore(self, count: int, *options: str) -> tuple[str, ...]:
        return (*_FORKWISE, "best-of", str(count), *options, "--agent", self.name, *self.words, PROMPTS[0])


def measure_agents(scratch: Scratch) -> list[Line]:
    """Measure one attempt, by the command and in a running process, one more, and several at once."""
    with ExitStack() as stack:
        subject = _prepare(scratch, stack.enter_context(serve_model()))
        scratch.report(f"attempts by {subject.name}")
        turns: dict[str, Callable[[], float]] = {
            "bare": lambda: subject.time(*subject.bare),
            "one": lambda: subject.time(*subject.explore(1)),
            "loaded": subject.time_loaded,
            "several": lambda: subject.time(*subject.explore(1 + _MORE, "-j", "1")),
        }
        figures = play(turns, scratch.rounds(9, 3))
        pairs = zip(figures["several"].samples, figures["one"].samples, strict=True)
        more = Figure(tuple((several - one) / _MORE for several, one in pairs))
        name = subject.name
        lines = [
            Line(f"forkwise best-of 1 --agent {name} (floor: it alone)", figures["one"], figures["bare"]),
            Line(
                f"the same in a process that has loaded forkwise (floor: {name} alone)",
                figures["loaded"],
                figures["bare"],
            ),
            Line(f"each further attempt by {name} (floor: it alone)", more, figures["bare"]),
        ]
        for line in lines:
            over = (line.ours.median - figures["bare"].median) * 1000
            line.goals.append(Goal(f"≤ floor + {_BOUND} ms", over, _BOUND))
        return [*lines, _measure_together(subject)]


def _measure_together(subject: _Subject) -> Line:
    started = time.perf_counter()
    said = subject.run(*subject.explore(_AT_ONCE, "-j", str(_AT_ONCE), "--json"))
    taken = time.perf_counter() - started
    attempts = json.loads(said.splitlines()[-1])["outcome"]["attempts"]
    line = Line(f"{_AT_ONCE} attempts by {subject.name} at once", Figure((taken,)))
    succeeded = sum(attempt["state"] == "succeeded" for attempt in attempts)
    line.goals.append(Goal(f"{_AT_ONCE} succeed", succeeded, _AT_ONCE, at_least=True))
    return line


def _prepare(scratch: Scratch, url: str) -> _Subject:
    place = Path(scratch.make_directory("agents"))
    home, project = place / "home", place / "project"
    (place / "bin").mkdir()
    home.mkdir()
    project.mkdir()
    name = next((name for name in ("claude", "codex") if shutil.which(name)), None)
    compiled = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**compiled, "HOME": str(home), "FORKWISE_STATE": str(place / "state"), "IS_SANDBOX": "1"}
    words = [f"--host-port={url.rpartition(':')[2]}"]
    if name is None:
        name, environment["PATH"] = "claude", f"{place / 'bin'}:{environment['PATH']}"
        (place / "bin/claude").write_text(_STAND_IN)
        (place / "bin/claude").chmod(0o755)
        shutil.copy(_STREAMS / "claude.jsonl", project / "stream.jsonl")
    for file, content in SETUPS[name].files.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(content.replace("{url}", url))
    environment |= {key: value.replace("{url}", url) for key, value in SETUPS[name].environment.items()}
    return _Subject(name, project, environment, tuple(words))
