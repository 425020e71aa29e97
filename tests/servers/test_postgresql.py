"""PostgreSQL in branches: eight branches of one database, the winner's is committed, and kills lose nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from forkwise import Branch, CommitError, Confinement, Workspace
from forkwise.files.store.branch_info import DataDirectories
from forkwise.linux.directory_user import list_directory_users
from forkwise.servers.data_branch import hold_data, record_data
from forkwise.servers.server_file import find_data_directories, read_servers
from forkwise.servers.server_group import BranchNetwork, ServerGroup
from tests.counts import rounds
from tests.files.images import loop_image
from tests.need import need

pytestmark = pytest.mark.integration

BRANCHES = 8
ROWS = 2_000_000  # about 200 MB with the index
PSQL = "psql -X -q -A -t -v ON_ERROR_STOP=1 -h localhost -U postgres"
THERE = ["psql", "-X", "-q", "-A", "-t", "-h", "localhost", "-p", "54329", "-U", "postgres"]
WRITE = """
do $$ begin for i in 1..100000000 loop
    insert into pairs values (i, repeat('x', 500)); commit; end loop; end $$
"""
KILLED_COMMIT = """
import signal, sys
from forkwise import Workspace
from forkwise.files import commit, undo, rebase
branch = Workspace(sys.argv[1]).open("round")
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # SIGALRM ends the process at once, like SIGKILL
branch.commit(durable=False)
"""


@cache
def find_program(name: str) -> str:
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(newest[-1]) if newest else shutil.which(name) or ""


def own(command: Sequence[str]) -> list[str]:
    """Return a command that runs as the owner of the database: PostgreSQL refuses to run as root."""
    switch = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    return [*switch, *command]


@pytest.fixture
def project() -> Iterator[Path]:
    """Create a project with a small database, in a directory that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="forkwise-postgresql-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        create_database(directory)
        yield directory
        drop_branches(directory)


def create_database(directory: Path) -> None:
    need(bool(find_program("postgres")), "PostgreSQL is not installed")
    need(shutil.which("psql") is not None, "psql is not installed")
    (directory / "pgdata").mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(directory / "pgdata", "postgres", "postgres")
    initdb = [find_program("initdb"), "-D", "pgdata", "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run(own(initdb), cwd=directory, check=True, stdout=subprocess.DEVNULL)
    (directory / ".forkwise").mkdir()
    (directory / ".forkwise/servers.toml").write_text(
        f"[servers.db]\ncommand = ['{find_program('postgres')}', '-D', 'pgdata', '-k', '/tmp', '-c', 'fsync=off']\n"
        "ready = { command = 'pg_isready -q -h localhost' }\nstop = { signal = 'INT', timeout = 60 }\ndata = 'pgdata'\n"
    )


def drop_branches(directory: Path) -> None:
    for branch in reversed(Workspace(directory).branches()):
        branch.abort()


@contextmanager
def running_server(project: Path) -> Iterator[None]:
    """Run a server on the database of the workspace itself."""
    words = [find_program("postgres"), "-D", str(project / "pgdata"), "-k", "/tmp", "-p", "54329"]
    server = subprocess.Popen(own(words), stderr=subprocess.DEVNULL)
    try:
        while subprocess.run(["pg_isready", "-q", "-h", "localhost", "-p", "54329"], check=False).returncode != 0:
            assert server.poll() is None
        yield
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def ask(project: Path, sql: str) -> str:
    """Run SQL on the server of the workspace itself."""
    done = subprocess.run([*THERE, "-c", sql], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def fork(project: Path, name: str) -> Branch:
    branch = Workspace(project, durable=False).branch(name, on_success=None, on_error=None)
    branch.set_data_directories(find_data_directories(project))
    return branch


def query(branch: Branch, sql: str) -> str:
    """Run SQL on the database of a branch, with a server that is started for it and stopped cleanly."""
    network = BranchNetwork(Confinement.standard(network="none"))
    group = ServerGroup(read_servers(branch.workspace.path), branch, space=network.space)
    try:
        group.start()
        done = branch.run(["sh", "-c", f'{PSQL} -c "$1"', "sh", sql], space=network.space, text=True)
        group.check()
        group.stop()
    finally:
        group.kill()
        network.close()
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def change(project: Path, sql: str) -> None:
    branch = fork(project, "change")
    query(branch, sql)
    branch.commit()


def read(project: Path, sql: str) -> str:
    branch = fork(project, "read")
    try:
        return query(branch, sql)
    finally:
        branch.abort()


def forkwise(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from forkwise.cli import main; main()", *words]
    return subprocess.run(program, cwd=project, capture_output=True, text=True, check=False)


def test_eight_branches_change_the_schema_and_the_winner_is_committed(project: Path) -> None:
    rows = rounds(ROWS // 10, ROWS)
    change(project, f"create table big as select i, repeat('x', 40) t from generate_series(1, {rows}) i")
    line = (
        f'{PSQL} -c "create table own_$FORKWISE_ATTEMPT as select count(*) n from big"; '
        'echo "$FORKWISE_ATTEMPT" > own; test "$FORKWISE_ATTEMPT" != 3 || echo 9 > "$FORKWISE_SCORE"'
    )
    test = f'test "$({PSQL} -c "select n from own_$(cat own)")" = {rows}'
    done = forkwise(project, "best-of", str(BRANCHES), "--no-baseline", "--test", test, "--json", "-c", line)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])["outcome"]
    assert [attempt["state"] for attempt in outcome["attempts"]] == ["succeeded"] * BRANCHES
    assert (project / "own").read_text() == "3\n"
    assert read(project, "select relname from pg_class where relname like 'own_%'") == "own_3"
    assert read(project, "select count(*) from big") == str(rows)
    assert Workspace(project).branches() == []


def test_a_database_outside_of_the_workspace_is_branched_and_stays_as_it_is(project: Path) -> None:
    workspace = project / "inner"
    workspace.mkdir()
    change(project, "create table numbers as select generate_series(1, 10) n")
    data = project / "pgdata"
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    (workspace / ".forkwise").mkdir()
    text = (project / ".forkwise/servers.toml").read_text()
    (workspace / ".forkwise/servers.toml").write_text(text.replace("'pgdata'", f"'{data}'") + "keep = 'drop'\n")
    line = f'{PSQL} -c "insert into numbers values (11); select count(*) from numbers" > seen'
    test = f'test "$({PSQL} -c "select count(*) from numbers")" = 10'
    refused = forkwise(workspace, "best-of", "2", "-C", ".", "--test", test, "-c", line)
    assert "forkwise trust" in refused.stderr
    digest = hashlib.sha256((workspace / ".forkwise/servers.toml").read_bytes()).hexdigest()
    assert forkwise(workspace, "trust", "-C", ".", "--sha256", digest).returncode == 0
    done = forkwise(workspace, "best-of", "2", "-C", ".", "--test", test, "-c", line)
    assert done.returncode == 0, done
    assert (workspace / "seen").read_text() == "11\n"
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    assert read(project, "select count(*) from numbers") == "10"


def test_a_server_in_the_workspace_is_in_the_way(project: Path) -> None:
    branch = fork(project, "try")
    query(branch, "create table mine (a int)")
    with running_server(project):
        done = forkwise(project, "branch", "commit", "try")
        assert done.returncode != 0
        assert "uses pgdata, which the branch changed. Stop it" in " ".join(done.stderr.split())
        refused = forkwise(project, "run", "--test", "true", "--", "true")
        assert refused.returncode != 0
        assert "--frozen" in refused.stderr
        assert "pgdata is in use by postgres" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("view", ["btrfs", "reflink"])
def test_a_branch_of_a_running_database_recovers(monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    filesystem = "btrfs" if view == "btrfs" else "xfs"
    with tempfile.TemporaryDirectory(prefix="forkwise-postgresql-") as made:
        Path(made).chmod(0o755)
        with loop_image(filesystem, 1200, Path(made)) as mounted:
            mounted.chmod(0o755)
            monkeypatch.setenv("FORKWISE_STATE", str(mounted / "state"))
            project = mounted / "project"
            if view == "btrfs":
                subprocess.run(["btrfs", "subvolume", "create", str(project)], check=True, capture_output=True)
            else:
                project.mkdir(mode=0o755)
            create_database(project)
            with running_server(project), ExitStack() as stack:
                ask(project, "create table numbers as select generate_series(1, 1000) n")
                before = ask(project, "select checkpoint_lsn from pg_control_checkpoint()")
                ask(project, "create table pairs (n int unique, t text)")
                writer = subprocess.Popen([*THERE, "-c", WRITE], stderr=subprocess.DEVNULL)
                stack.callback(writer.wait)
                stack.callback(writer.kill)
                for number in range(rounds(2, 10)):
                    branch = fork_as(project, view, f"try-{number}")
                    assert branch.data_directories.still == ("pgdata",)
                    assert query(branch, "select count(*) from numbers") == "1000"
                    assert query(branch, "select count(*) = count(distinct n) from pairs") == "t"
                assert ask(project, "select checkpoint_lsn from pg_control_checkpoint()") != before
                assert writer.poll() is None, "the server of the workspace goes on"
                assert list_traced(project) == []
                line = f'{PSQL} -c "select count(*) from numbers" > made'
                done = forkwise(project, "run", "--frozen", "--no-commit", "--test", "grep 1000 made", "-c", line)
                assert done.returncode == 0, done
                with pytest.raises(CommitError, match="uses pgdata"):
                    branch.commit()
                stack.close()
            drop_branches(project)


def list_traced(project: Path) -> list[int]:
    """List the processes that use the database and are traced."""
    statuses = {pid: Path(f"/proc/{pid}/status").read_text() for pid in list_directory_users(str(project / "pgdata"))}
    return [pid for pid, status in statuses.items() if "TracerPid:\t0\n" not in status]


def fork_as(project: Path, view: str, name: str) -> Branch:
    workspace = Workspace(project, view=view)
    with hold_data(workspace) as data:
        branch = workspace.branch(name, on_success=None, on_error=None)
    record_data(branch, data)
    return branch


@pytest.mark.crash
def test_kills_lose_nothing_that_was_committed(project: Path) -> None:
    change(project, "create table numbers (n int primary key)")
    started = time.monotonic()
    change(project, "insert into numbers values (0)")
    taken = time.monotonic() - started
    committed = [0]
    count = rounds(3, 50)
    for number in range(1, count + 1):
        branch = fork(project, "round")
        query(branch, f"insert into numbers values ({number})")
        delay = 0.001 + taken * (number / count) ** 2
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_COMMIT, str(project), str(delay)], capture_output=True, check=False
        )
        assert killed.returncode in (0, -signal.SIGALRM), killed.stderr
        left = [branch for branch in Workspace(project).branches() if branch.name == "round"]
        found = list(map(int, read(project, "select n from numbers order by n").split()))
        assert found == (committed if left else [*committed, number])
        for branch in left:
            branch.commit(durable=False)
        committed.append(number)
    assert read(project, "select count(*) from numbers") == str(count + 1)
    assert DataDirectories(whole=("pgdata",)) == find_data_directories(project)
