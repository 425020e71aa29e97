"""The command without its start-up, which other tests use, behaves like the command."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkwise import Workspace
from tests.chat.scripted_chat import write_script
from tests.preloaded import preloaded_command


def test_it_passes_on_words_streams_directory_and_environment(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    environment = {**os.environ, "FORKWISE_STATE": str(tmp_path / "state")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        words = (str(preloaded_command()), *words)
        return subprocess.run(words, cwd=tmp_path / "project", env=environment, capture_output=True, text=True)

    assert run("nonsense").returncode == 2
    assert run("nonsense").stderr.startswith("forkwise: error: No such command 'nonsense'")
    assert run("branch", "create", "b").stderr == ""
    assert list((tmp_path / "state").iterdir())
    assert run("branch", "ls", "--json").stdout.count('"name": "b"') == 1
    assert run("branch", "abort", "b").returncode == 0
    assert Workspace(tmp_path / "project").branches() == []


@contextmanager
def running_chat(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "project").mkdir()
    environment = {**os.environ, "FORKWISE_STATE": str(tmp_path / "state")}
    words = [preloaded_command(), "chat", "--plain", "--model", write_script(tmp_path, []), tmp_path / "project"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("/branches\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("[new conversation")
        assert process.stdout.readline() == "branches:\n"  # it reads lines, so it handles signals as well
        yield process


def test_it_forwards_signals_and_ends_like_the_command(tmp_path: Path) -> None:
    with running_chat(tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143


def test_a_kill_ends_the_process_behind_it(tmp_path: Path) -> None:
    with running_chat(tmp_path) as process:
        process.kill()
        assert process.stdout is not None
        process.stdout.read()  # until nobody has the pipe open any more
        assert process.wait() == -signal.SIGKILL
