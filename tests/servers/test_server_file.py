"""``.forkwise/servers.toml``: what it may say, what is refused with which advice, and what needs acceptance."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.config.config_file import SERVERS, read_workspace_config
from forkwise.config.trust import Acceptances
from forkwise.errors import ConfigError
from forkwise.files.store.branch_info import DataDirectories
from forkwise.servers.server_file import Readiness, Shutdown, find_data_directories, list_widened_servers, read_servers

READY = "ready = { port = 5432 }\n"


def write(workspace: Path, text: str) -> None:
    (workspace / ".forkwise").mkdir(exist_ok=True)
    (workspace / ".forkwise/servers.toml").write_text(text)


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert read_servers(tmp_path) == ()


def test_all_keys(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [servers.db]
        command = ["postgres", "-D", "pgdata"]
        ready = { port = 5432 }
        timeout = 20
        env = { PGTZ = "UTC" }
        before = "test -d pgdata || initdb -D pgdata"
        after = [["psql", "-f", "schema.sql"], "make seed"]
        stop = { signal = "INT", timeout = 5 }
        keep = "drop"
        data = "pgdata"
        user = "postgres"

        [servers.web]
        command = "exec ./serve"
        ready = { url = "http://localhost:3000/health" }
        """,
    )
    db, web = read_servers(tmp_path)
    assert (db.name, db.command, db.ready, db.timeout) == ("db", ("postgres", "-D", "pgdata"), Readiness(port=5432), 20)
    assert db.before == (("sh", "-c", "test -d pgdata || initdb -D pgdata"),)
    assert db.after == (("psql", "-f", "schema.sql"), ("sh", "-c", "make seed"))
    assert (db.env, db.stop, db.keep) == ({"PGTZ": "UTC"}, Shutdown(signal.SIGINT, 5), "drop")
    assert (db.data, db.user) == ("pgdata", "postgres")
    assert (web.command, web.ready.served_port, web.data) == (("sh", "-c", "exec ./serve"), 3000, None)
    assert find_data_directories(tmp_path) == DataDirectories(dropped=("pgdata",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[servers.db]\ncomand = 'x'\n{READY}", "has no key 'comand'; did you mean 'command'?"),
        (f"[servers.db]\n{READY}", r"\[servers.db\] has no command"),
        ("[servers.db]\ncommand = 'x'", r"\[servers.db\] has no ready"),
        ("[servers.db]\ncommand = 'x'\nready = { prot = 1 }", "did you mean 'port'"),
        ("[servers.db]\ncommand = 'x'\nready = { port = 70000 }", "ready in .* takes a port from 1 to 65535"),
        ("[servers.db]\ncommand = 'x'\nready = { port = true }", "takes a port"),
        ("[servers.db]\ncommand = 'x'\nready = { url = 'http://example.com/' }", "takes a URL such as"),
        ("[servers.db]\ncommand = 'x'\nready = { url = 'http://localhost:99999/' }", "takes a URL such as"),
        ("[servers.db]\ncommand = 'x'\nready = { url = \"http://localhost/\\r\\nX: y\" }", "takes a URL such as"),
        (f"[servers.db]\ncommand = []\n{READY}", "takes a shell command, or a list of words"),
        (f"[servers.db]\ncommand = 'x'\ntimeout = 0\n{READY}", "takes a number of seconds"),
        (f"[servers.db]\ncommand = 'x'\ntimeout = inf\n{READY}", "takes a number of seconds"),
        (f"[servers.db]\ncommand = 'x'\nkeep = 'all'\n{READY}", "takes 'files' or 'drop', not 'all'"),
        (f"[servers.db]\ncommand = 'x'\nkeep = 'drop'\n{READY}", "name it with data"),
        (f"[servers.db]\ncommand = 'x'\ndata = '../other'\n{READY}", "a directory in the workspace"),
        (f"[servers.db]\ncommand = 'x'\ndata = '/var/lib/db'\n{READY}", "a commit changes the workspace alone"),
        (f"[servers.db]\ncommand = 'x'\ndata = '~/db'\n{READY}", 'Set keep = "drop"'),
        (f"[servers.db]\ncommand = 'x'\ndata = '~other/db'\n{READY}", "or an absolute path"),
        (f"[servers.db]\ncommand = 'x'\ndata = '.git/db'\n{READY}", "a directory in the workspace"),
        (f"[servers.db]\ncommand = 'x'\ndata = '.'\n{READY}", "a directory in the workspace"),
        (f"[servers.db]\ncommand = 'x'\nstop = {{ signal = 'STOP' }}\n{READY}", "as its signal one of TERM"),
        (f"[servers.db]\ncommand = 'x'\nenv = {{ 'A=B' = 'c' }}\n{READY}", "a table of variables"),
        (f"[servers.'../db']\ncommand = 'x'\n{READY}", "is not a valid name for a server"),
        (
            f"[servers.db]\ncommand = 'x'\n{READY}[servers.web]\ncommand = 'y'\n{READY}",
            "'db' and 'web' have the same port, 5432",
        ),
        (
            f"[servers.db]\ncommand = 'x'\ndata = 'd'\n{READY}[servers.w]\ncommand = 'y'\ndata = 'd/'\nready.log = 'x'",
            "'db' and 'w' have the same data directory",
        ),
        ("[server.db]\ncommand = 'x'", "has no table 'server'; did you mean 'servers'?"),
        ("servers = 3", "takes at most 20 tables"),
        ("[servers.db", "not valid TOML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as raised:
        read_servers(tmp_path)
    assert str(tmp_path / ".forkwise/servers.toml") in str(raised.value)


def test_what_reaches_outside_the_branch_needs_acceptance(tmp_path: Path) -> None:
    Workspace(tmp_path)
    write(tmp_path, f"[servers.db]\ncommand = 'x'\npasses = ['DATABASE_URL']\n{READY}")
    with pytest.raises(ConfigError, match="forkwise trust"):
        read_servers(tmp_path)
    file = read_workspace_config(tmp_path, SERVERS)
    assert file is not None
    assert len(list_widened_servers(file)) == 1
    Acceptances(tmp_path).accept(file.path, file.sha256)
    assert read_servers(tmp_path)[0].name == "db"


def test_a_data_directory_outside_of_the_workspace_needs_acceptance(tmp_path: Path) -> None:
    Workspace(tmp_path)
    write(tmp_path, f"[servers.db]\ncommand = 'x'\ndata = '/var/lib/db/'\nkeep = 'drop'\n{READY}")
    with pytest.raises(ConfigError, match=r"copy-on-write view of /var/lib/db\. Review and accept it"):
        read_servers(tmp_path)
    file = read_workspace_config(tmp_path, SERVERS)
    assert file is not None
    Acceptances(tmp_path).accept(file.path, file.sha256)
    assert read_servers(tmp_path)[0].outer_data == "/var/lib/db"
    assert find_data_directories(tmp_path) == DataDirectories()
