"""MariaDB in branches, by the recipe of the documentation: the winner's database is committed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import Workspace
from tests.need import need

pytestmark = pytest.mark.integration

DOCUMENTATION = Path(__file__).parents[2] / "docs/servers.md"


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a project with a database, in a directory that other users can reach."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    need(shutil.which("mariadbd") is not None, "mariadb-server is not installed")
    with tempfile.TemporaryDirectory(prefix="forkwise-mariadb-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        (directory / "mysql").mkdir(mode=0o700)
        switch: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(directory / "mysql", "mysql", "mysql")
            switch = ["setpriv", "--reuid=mysql", "--regid=mysql", "--clear-groups"]
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={directory}/mysql",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]
        subprocess.run([*switch, *install], cwd=directory, check=True, capture_output=True)
        recipe = re.search(r"### MariaDB\n\n```toml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
        assert recipe is not None
        (directory / ".forkwise").mkdir()
        (directory / ".forkwise/servers.toml").write_text(recipe[1])
        yield directory
        for branch in reversed(Workspace(directory).branches()):
            branch.abort()


def forkwise(project: Path, *words: str) -> str:
    program = [sys.executable, "-c", "from forkwise.cli import main; main()", *words]
    done = subprocess.run(program, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout


def test_the_winner_is_committed_with_its_database(project: Path) -> None:
    client = "mariadb -h 127.0.0.1 -u root -N"
    line = (
        f'{client} -e "create database shop; create table shop.own (n int); insert into shop.own values '
        '($FORKWISE_ATTEMPT)"; echo $FORKWISE_ATTEMPT > own; test $FORKWISE_ATTEMPT != 2 || echo 9 > "$FORKWISE_SCORE"'
    )
    test = f'test "$({client} -e "select n from shop.own")" = "$(cat own)"'
    forkwise(project, "best-of", "2", "--no-baseline", "--test", test, "-c", line)
    assert (project / "own").read_text() == "2\n"
    forkwise(project, "branch", "create", "look")
    assert (
        forkwise(project, "branch", "run", "look", "--servers", "--", *client.split(), "-e", "select n from shop.own")
        == "2\n"
    )
    forkwise(project, "branch", "abort", "look")
    forkwise(project, "undo")
    assert not (project / "mysql/shop").exists()
