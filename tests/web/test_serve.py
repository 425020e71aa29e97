"""The command ``forkwise serve``: what it refuses, and the page that it exports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from forkwise import Workspace
from forkwise.cli import forkwise_command


def test_beyond_loopback_it_needs_tls_or_says_so(workspace: Workspace, tmp_path: Path) -> None:
    run = CliRunner()
    where = ["-C", str(workspace.path)]
    done = run.invoke(forkwise_command, ["serve", "--host", "0.0.0.0", *where])
    assert done.exit_code == 2
    assert "--tls" in done.stderr
    assert "--plain-http" in done.stderr
    done = run.invoke(forkwise_command, ["serve", "--host", "example.org", *where])
    assert "not an IP address" in done.stderr
    (tmp_path / "cert").write_text("no certificate")
    done = run.invoke(forkwise_command, ["serve", "--tls", str(tmp_path / "cert"), str(tmp_path / "cert"), *where])
    assert done.exit_code == 2
    assert "--tls cannot use" in done.stderr


def test_a_fork_is_exported_as_one_file(workspace: Workspace, fork: str, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    words = ["serve", "--export", fork, str(target), "-C", str(workspace.path), "--json"]
    done = CliRunner().invoke(forkwise_command, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"exported": {"fork": fork, "file": str(target)}}
    page = target.read_text()
    assert "notes.md" in page
    assert "1.2" in page
    assert "default-src &#x27;none&#x27;" in page
    words = ["serve", "--export", fork, str(tmp_path / "no/page.html"), "-C", str(workspace.path)]
    assert CliRunner().invoke(forkwise_command, words).exit_code == 2
    words = ["serve", "--export", "zzzzzz", str(target), "-C", str(workspace.path)]
    assert CliRunner().invoke(forkwise_command, words).exit_code == 5


@pytest.mark.integration
def test_it_serves_until_it_is_interrupted(workspace: Workspace, fork: str) -> None:
    words = [
        sys.executable,
        "-c",
        "from forkwise.cli import main; main()",
        "serve",
        "--json",
        "-C",
        str(workspace.path),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["serving"]["url"]
        port = url.split(":")[2].split("/")[0]
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
