"""Agents' own directories: each attempt changes a view of them, and only sessions and refreshed logins return.

The agents are stand-ins that run the shell script in $SCRIPT, in which $FORKWISE_ATTEMPT tells attempts apart.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.agents.preset import load_agents
from forkwise.cli.app import Exit
from forkwise.fork import runner
from tests.cli.test_agents import NAMES
from tests.cli.test_agents import home as home  # noqa: PLC0414 - a fixture
from tests.cli.test_unprivileged import NAMESPACES, place, python, readable, run_unprivileged
from tests.need import need
from tests.unprivileged import UNPRIVILEGED

__all__ = ["place", "readable", "run_unprivileged"]

Run = Callable[..., Result]
HOUR_MS = 3600_000
SESSIONS = {
    "claude": "~/.claude/projects/{project}/{0}.jsonl",
    "codex": "~/.codex/sessions/2030/01/02/rollout-{0}.jsonl",
    "gemini": "~/.gemini/tmp/abc/chats/session-{0}.json",
    "opencode": "~/.local/share/opencode/storage/session/p/{0}.json",
}


def slug(project: Path) -> str:
    """Return the name of claude's directory for the sessions of a project."""
    return re.sub("[^A-Za-z0-9]", "-", str(project))


def install(home: Path, *names: str) -> None:
    """Put stand-ins on PATH. They change a file: an agent that changes nothing has not succeeded."""
    for name in names:
        (home / "bin").mkdir(exist_ok=True)
        (home / "bin" / name).write_text('#!/bin/sh\necho >> work.txt\nexec sh -c "$SCRIPT"\n')
        (home / "bin" / name).chmod(0o755)


def read_tree(directory: Path) -> dict[str, Any]:
    """Return the content, mode and times of everything below a directory."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def list_views(state: Path) -> list[Path]:
    """List the views of agents' directories in branches, and in commits that can be undone."""
    return [*state.glob("*/branches/**/paths"), *state.glob("*/history/*/home/paths")]


def write_login(home: Path, expires: float, token: str = "old") -> Path:
    """Write a login of claude's, with a value that no attempt may change."""
    (home / ".claude").mkdir(exist_ok=True)
    path = home / ".claude/.credentials.json"
    path.write_text(format_login(expires, token, "max"))
    path.chmod(0o600)
    return path


def format_login(expires: float, token: str, plan: str = "stolen") -> str:
    """Return a login as claude writes it."""
    login = {"accessToken": f"a-{token}", "refreshToken": f"r-{token}", "expiresAt": expires, "subscriptionType": plan}
    return json.dumps({"claudeAiOauth": login})


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_attempt_leaves_nothing_in_them(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(home, name)
    for path in load_agents(project)[name].paths.branched:
        directory = Path(path.replace("~", str(home)))
        if directory.suffix == ".json":
            directory.write_text("{}")
        else:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "settings.json").write_text("{}")
            (directory / "old").write_text("old")
    before = read_tree(home)
    script = ["set -e"]
    for path in load_agents(project)[name].paths.branched:
        at = path.replace("~", str(home))
        script.append(
            f"echo hook > {at}"
            if at.endswith(".json")
            else f"echo hook > {at}/settings.json; mkdir {at}/new; mv {at}/old {at}/new; ln -s /etc {at}/link"
        )
        script.append(f"cat {at} 2>/dev/null || cat {at}/settings.json")
    if name in SESSIONS:
        session = SESSIONS[name].format(1, project=slug(project)).replace("~", str(home))
        script.append(f"mkdir -p $(dirname {session}); echo lost > {session}")
    monkeypatch.setenv("SCRIPT", "\n".join([*script, "exit 1"]))
    said = run("best-of", "1", "--json", "--agent", name, "fix it", code=Exit.NO_WINNER).stdout
    assert "exit code 1" in said
    assert read_tree(home) == before


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_the_sessions_of_the_winner_are_kept_and_nothing_else(
    run: Run, project: Path, home: Path, state: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(home, name)
    session = Path(SESSIONS[name].format("$FORKWISE_ATTEMPT", project=slug(project)).replace("~", str(home)))
    branched = next(p for p in load_agents(project)[name].paths.branched if SESSIONS[name].startswith(f"{p}/"))
    directory = Path(branched.replace("~", str(home)))
    directory.mkdir(parents=True)
    monkeypatch.setenv(
        "SCRIPT",
        f"mkdir -p {session.parent} && echo mine > {session} && ls {session.parent} > seen.txt\n"
        f"echo hook > {directory}/settings.json; echo $FORKWISE_ATTEMPT > $FORKWISE_SCORE",
    )
    run("best-of", "3", "--agent", name, "fix it")
    kept = Path(str(session).replace("$FORKWISE_ATTEMPT", "3"))
    assert [p for p in directory.rglob("*") if p.is_file()] == [kept]
    assert kept.read_text() == "mine\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert (project / "seen.txt").read_text() == f"{kept.name}\n"  # nothing of the attempts beside it
    assert Workspace(project).branches() == []
    assert list_views(state) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_first_run_creates_them_in_its_view(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Directories that the agent does not have yet: it has them, the user does not."""
    install(home, name)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    branched = [Path(path.replace("~", str(home))) for path in load_agents(project)[name].paths.branched]
    directories = [path for path in branched if path.suffix != ".json"]
    writes = "".join(
        f'test -z "$(ls -A {path})"\nmkdir {path}/deep\necho x > {path}/deep/file\n' for path in directories
    )
    checks = "".join(f"test $(stat -c %a {path}) = 700\n" for path in directories)
    monkeypatch.setenv("SCRIPT", f"set -e\n{writes}{checks}exit 9")
    assert "exit code 9" in run("best-of", "2", "--json", "--agent", name, "fix it", code=Exit.NO_WINNER).stdout
    assert [path for path in directories if path.exists()] == []
    monkeypatch.setenv("SCRIPT", f"set -e\n{writes}")
    run("run", "--agent", name, "fix it")
    assert sorted(path.name for path in home.iterdir()) in (["bin"], [".local", "bin"])


def test_a_first_run_keeps_the_winner_s_sessions_and_login(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    sessions, login = home / ".claude/projects" / slug(project), home / ".claude/.credentials.json"
    content = format_login(1.0, "$FORKWISE_ATTEMPT").replace('"', '\\"')
    monkeypatch.setenv(
        "SCRIPT",
        f'mkdir -p {sessions}; echo mine > {sessions}/$FORKWISE_ATTEMPT.jsonl; echo "{content}" > {login}\n'
        f"echo hook > {home}/.claude/settings.json; echo $FORKWISE_ATTEMPT > $FORKWISE_SCORE",
    )
    run("best-of", "2", "--agent", "claude", "fix it")
    found = sorted(str(p.relative_to(home / ".claude")) for p in (home / ".claude").rglob("*") if p.is_file())
    assert found == [".credentials.json", f"projects/{slug(project)}/2.jsonl"]
    assert json.loads(login.read_text())["claudeAiOauth"]["accessToken"] == "a-2"
    assert stat.S_IMODE(login.stat().st_mode) == 0o600


def test_a_moved_directory_outside_of_the_home_is_created(
    run: Run, project: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "codex")
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "elsewhere/codex"))
    monkeypatch.setenv("SCRIPT", "echo x > $CODEX_HOME/x")
    run("run", "--agent", "codex", "fix it")
    assert list((tmp_path / "elsewhere").rglob("*")) == [tmp_path / "elsewhere/codex"]


def test_a_dangling_link_is_not_followed(run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(home, "codex")
    (home / ".codex").symlink_to(home / "elsewhere")
    monkeypatch.setenv("SCRIPT", "touch made")
    run("run", "--agent", "codex", "go")
    assert not (home / "elsewhere").exists()


DATABASE = ".local/share/opencode/opencode.db"


def write_rows(path: Path, *rows: str) -> None:
    """Write a database with some rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS session (name TEXT)")
        database.executemany("INSERT INTO session VALUES (?)", [(row,) for row in rows])
        database.commit()


def read_rows(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row for (row,) in database.execute("SELECT name FROM session")]


ADD = "import sqlite3; d = sqlite3.connect('{0}'); {1}; d.execute('CREATE TABLE IF NOT EXISTS session (name TEXT)'); "
ADD += "d.execute('INSERT INTO session VALUES (\\'new\\')'); d.commit(); {2}"


SPILL = "d.execute('PRAGMA cache_size=1'); d.execute('BEGIN'); d.executemany('INSERT INTO session VALUES (?)', "
SPILL += "[('x' * 2000,)] * 500); "


@pytest.mark.parametrize(
    "case",
    [
        *("changed", "new", "unclosed", "new unclosed", "uncommitted", "torn log", "no log", "journal"),
        *("edited", "in use", "not a database", "link", "loser"),
    ],
)
def test_a_database_of_sessions_is_kept_whole_or_not_at_all(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    install(home, "opencode")
    path = home / DATABASE
    if "new" not in case:
        write_rows(path, "old")
    wal, end = "d.execute('PRAGMA journal_mode=WAL')", "d.close()"
    if case in ("unclosed", "new unclosed", "uncommitted", "torn log", "no log", "journal"):
        end = f"{SPILL if case == 'uncommitted' else ''}import os; os._exit(0)"
    script = f'/usr/bin/python3 -c "{ADD.format(path, wal, end)}"'
    script += {"not a database": f"; echo x > {path}", "link": f"; rm {path}; ln -s /etc/passwd {path}"}.get(case, "")
    script += {"torn log": f"; head -c 3000 /dev/urandom >> {path}-wal", "no log": f"; echo x > {path}-wal"}.get(
        case, ""
    )
    script += f"; echo x > {path}-journal" if case == "journal" else ""
    script += "; exit 1" if case == "loser" else ""
    if case in ("edited", "in use"):  # by the user, while the attempt runs: once it has begun
        target = f"{path}-wal" if case == "in use" else str(path)
        real = runner.arun_in_branch

        async def edit(*arguments: Any, **options: Any) -> Any:
            done = await real(*arguments, **options)
            if case == "edited":
                write_rows(path, "mine")
            else:
                Path(target).write_bytes(b"x")
            return done

        monkeypatch.setattr(runner, "arun_in_branch", edit)
    monkeypatch.setenv("SCRIPT", script)
    said = run("run", "--agent", "opencode", "go", code=Exit.NO_WINNER if case == "loser" else 0).stderr
    Path(f"{path}-wal").unlink(missing_ok=True) if case == "in use" else None
    kept = {"changed", "unclosed", "uncommitted", "torn log"}
    expected = {"new": ["new"], "new unclosed": ["new"], "edited": ["old", "mine"]}.get(
        case, ["old", "new"] if case in kept else ["old"]
    )
    assert read_rows(path) == expected
    reasons = {
        "journal": "did not close it",
        "no log": "its log is not",
        "edited": "changed since the fork",
        "in use": "changed since the fork",
    }
    reasons |= {"not a database": "not an SQLite database", "link": "symbolic link"}
    assert (reasons.get(case, "were not kept") in said) == (case in reasons)
    assert not path.is_symlink()


def test_a_session_is_continued_but_not_rewritten(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    sessions = home / ".claude/projects" / slug(project)
    sessions.mkdir(parents=True)
    for name in ("longer", "shorter", "other", "same"):
        (sessions / f"{name}.jsonl").write_text("one\ntwo\n")
    monkeypatch.setenv(
        "SCRIPT",
        f"cd {sessions}; echo three >> longer.jsonl; echo one > shorter.jsonl; touch same.jsonl; "
        "printf 'one\\nTWO\\nthree\\n' > other.jsonl",
    )
    said = run("run", "--agent", "claude", "go on").stderr
    content = {path.stem: path.read_text() for path in sessions.iterdir()}
    old = "one\ntwo\n"
    assert content == {"longer": f"{old}three\n", "shorter": old, "other": old, "same": old}
    assert "shorter.jsonl': it is shorter than the session was" in said
    assert "other.jsonl': it does not begin with what the session was" in said


def test_the_newest_login_is_taken_over_also_from_a_loser(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    now = int(time.time() * 1000)
    path = write_login(home, now)
    logins = {n: format_login(now + n * HOUR_MS, str(n)) for n in (1, 2)}
    monkeypatch.setenv(
        "SCRIPT",
        f"case $FORKWISE_ATTEMPT in 1) echo '{logins[1]}' > {path};; 2) echo '{logins[2]}' > {path}; exit 1;; "
        f"3) echo '{format_login(now - HOUR_MS, 'older')}' > {path}.new; mv {path}.new {path};; esac",
    )
    run("best-of", "4", "--agent", "claude", "fix it")
    login = json.loads(path.read_text())["claudeAiOauth"]
    expected = {"accessToken": "a-2", "refreshToken": "r-2", "expiresAt": now + 2 * HOUR_MS, "subscriptionType": "max"}
    assert login == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "damage",
    [
        "echo garbage > {0}",
        ": > {0}",
        "rm {0}; ln -s {1}/.ssh/id {0}",
        "rm {0}; mkfifo {0}",
        "truncate -s 1T {0}",
        "head -c 200000 /dev/zero | tr '\\0' '[' > {0}",
        "rm {0}; ln {1}/.claude/other {0}; echo '{{}}' > {0}",
        "rm {0}; mkdir {0}",
        "rm {0}",
        "echo '{far}' > {0}",
        "echo '{empty}' > {0}",
        "echo '{control}' > {0}",
        "echo '{other}' > {0}",
        "echo '{number}' > {0}",
    ],
)
def test_a_login_that_is_not_valid_is_not_taken_over(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    install(home, "claude")
    now = int(time.time() * 1000)
    path = write_login(home, now)
    (home / ".ssh").mkdir()
    (home / ".ssh/id").write_text(format_login(now + HOUR_MS, "key"))
    (home / ".claude/other").write_text("")
    before = path.read_bytes()
    texts = {
        "far": format_login(now * 1000, "far"),
        "empty": format_login(now + HOUR_MS, "x").replace("r-x", ""),
        "control": format_login(now + HOUR_MS, "\\u001b[2J"),
        "other": '{"claudeAiOauth": ["accessToken"]}',
        "number": format_login(float("inf"), "x"),
    }
    monkeypatch.setenv("SCRIPT", damage.format(path, home, **texts))
    run("run", "--agent", "claude", "fix it")
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, "other"]


@pytest.mark.parametrize(
    ("name", "file", "before", "after"),
    [
        (
            "codex",
            "~/.codex/auth.json",
            {
                "OPENAI_API_KEY": None,
                "tokens": {"id_token": "i", "access_token": "a", "refresh_token": "r", "account_id": "me"},
                "last_refresh": "2026-01-01T00:00:00.123456789Z",
            },
            {
                "OPENAI_API_KEY": "planted",
                "tokens": {"id_token": "I", "access_token": "A", "refresh_token": "R", "account_id": "you"},
                "last_refresh": "2026-01-02T00:00:00.123456789Z",
            },
        ),
        (
            "gemini",
            "~/.gemini/oauth_creds.json",
            {"access_token": "a", "refresh_token": "r", "expiry_date": 1769159945362.7791, "scope": "s"},
            {"access_token": "A", "refresh_token": "r", "expiry_date": 1769159999999.5, "scope": "S"},
        ),
        (
            "opencode",
            "~/.local/share/opencode/auth.json",
            {"one": {"type": "oauth", "access": "a", "refresh": "r", "expires": 5}, "two": {"type": "api", "key": "k"}},
            {"one": {"type": "o", "access": "A", "refresh": "R", "expires": 6}, "two": {"type": "api", "key": "K"}},
        ),
        (
            "goose",
            "~/.config/goose/databricks/oauth/0123.json",
            {"access_token": "a", "refresh_token": "r", "expires_at": "2026-01-01T00:00:00Z"},
            {"access_token": "A", "refresh_token": "R", "expires_at": "2026-01-01T01:00:00Z"},
        ),
    ],
)
def test_the_logins_of_each_agent(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, before: Any, after: Any
) -> None:
    install(home, name)
    path = Path(file.replace("~", str(home)))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(before, indent=2) + "\n")
    monkeypatch.setenv("SCRIPT", f"echo '{json.dumps(after)}' > {path}; exit 1")
    run("run", "--agent", name, "fix it", code=Exit.NO_WINNER)
    text = path.read_text()

    def take(old: Any, new: Any) -> Any:
        """Return what is expected: values that only the user may set are in lower case in both."""
        if isinstance(old, dict):
            return {key: take(old[key], new[key]) for key in old}
        return old if new in ("planted", "you", "S", "o", "K") else new

    assert json.loads(text) == take(before, after)
    assert text.startswith("{\n  ")
    assert text.endswith("}\n")


def test_hostile_session_files_change_nothing(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    own = home / ".claude/projects" / slug(project)
    own.mkdir(parents=True)
    (home / ".ssh").mkdir()
    (home / ".ssh/id").write_text("secret\n")
    (home / "other").mkdir()
    (own / "link.jsonl").symlink_to(home / "other/target")
    (own / "outside").symlink_to(home / "other")
    before = read_tree(home)
    monkeypatch.setenv(
        "SCRIPT",
        f"cd {own}\n"
        f"ln -s {home}/.ssh/id a.jsonl; mkfifo b.jsonl; truncate -s 1T c.jsonl; mkdir d.jsonl\n"
        f"ln -s {home}/.ssh e; ln -s ../../.. f\n"
        "rm link.jsonl; echo planted > link.jsonl\n"
        "rm outside; mkdir outside; echo planted > outside/x.jsonl\n"
        "mkdir ../-other-project; echo planted > ../-other-project/x.jsonl\n"
        "echo x > \"$(printf 'g\\033[2J.jsonl')\"\n"
        "echo '#!/bin/sh' > run.sh; echo x > note.md; mkdir memory; echo x > memory/MEMORY.md\n"
        "echo x > h; ln h h.jsonl; mkdir -m 0 shut\n"
        "n=0; while [ $n -lt 40 ]; do mkdir -p deep && cd deep; n=$((n+1)); done; echo x > y.jsonl",
    )
    said = run("run", "--agent", "claude", "fix it").stderr
    assert read_tree(home) == before
    for part in (
        "a.jsonl': it is a symbolic link",
        "b.jsonl': it is not",
        "c.jsonl': it is larger than",
        "; and ",
    ):
        assert part in said
    assert "\033" not in said


def test_sessions_that_would_fill_the_disk_are_not_kept(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    own = home / ".claude/projects" / slug(project)
    own.mkdir(parents=True)
    script = f"cd {own}; n=0; while [ $n -lt 1100 ]; do : > $n.jsonl; n=$((n+1)); done"
    monkeypatch.setenv("SCRIPT", script)
    said = run("run", "--agent", "claude", "fix it").stderr
    assert "they are more than 1000 files" in said
    assert len(list(own.iterdir())) == 1000


def test_an_agents_directory_inside_the_workspace_is_its_own(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    (project / "claude").mkdir()
    (project / "claude/settings.json").write_text("{}")
    (home / ".claude").symlink_to(project / "claude")
    monkeypatch.setenv("SCRIPT", f"echo hook > {home}/.claude/settings.json; echo x > a.txt")
    said = run("run", "--agent", "claude", "fix it").stderr
    assert f"{home}/.claude is inside the workspace and the agent's own" in said
    assert (project / "claude/settings.json").read_text() == "{}"
    assert (project / "a.txt").read_text() == "x\n"


def test_a_user_defines_what_is_branched_and_kept(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "helper")
    (home / ".config/forkwise").mkdir(parents=True)
    (home / ".config/forkwise/agents.toml").write_text(
        '[helper]\ncommand = ["helper", "{prompt}"]\nbranched = ["~/.helper"]\nsessions = ["~/.helper/log/*.txt"]\n'
        'moved_by = { HELPER_HOME = "~/.helper" }\nwritable = ["~/.cache/helper"]\n'
        '[[helper.logins]]\nfile = "~/.helper/key.json"\nkeys = ["token"]\n'
    )
    moved = tmp_path / "moved"
    for directory in (moved, home / ".helper", home / ".cache/helper"):
        directory.mkdir(parents=True)
        (directory / "key.json").write_text('{"token":"old","plan":1}')
        os.utime(directory / "key.json", (1, 1))
    monkeypatch.setenv("HELPER_HOME", str(moved))
    monkeypatch.setenv(
        "SCRIPT",
        f"cd {moved} && mkdir -p log/sub && echo x > log/a.txt && echo x > log/sub/b.txt && echo x > c.txt && "
        f"""echo '{{"token":"new","plan":2}}' > key.json && touch {home}/.cache/helper/here""",
    )
    run("run", "--agent", "helper", "fix it")
    assert sorted(str(p.relative_to(moved)) for p in moved.rglob("*")) == ["key.json", "log", "log/a.txt"]
    assert (moved / "key.json").read_text() == '{"token":"new","plan":1}'
    assert (home / ".helper/key.json").read_text() == '{"token":"old","plan":1}'
    assert (home / ".cache/helper/here").exists()  # writable: on the host itself


def test_what_is_kept_must_be_branched(run: Run, home: Path) -> None:
    (home / ".config/forkwise").mkdir(parents=True)
    (home / ".config/forkwise/agents.toml").write_text('[claude]\nsessions = ["~/.ssh/*"]\n')
    said = run("run", "--agent", "claude", "fix it", code=1).stderr
    assert "~/.ssh/* in [claude] is not below one of its branched paths" in said


def test_a_path_that_the_user_makes_writable_is_not_branched(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    (home / ".claude").mkdir()
    monkeypatch.setenv("SCRIPT", f"touch {home}/.claude/here; exit 1")
    run("run", "--writable", str(home / ".claude"), "--agent", "claude", "fix it", code=Exit.NO_WINNER)
    assert (home / ".claude/here").exists()


def test_a_pick_keeps_the_sessions_of_the_attempt_that_was_picked(
    run: Run, ask: Callable[..., Any], project: Path, home: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    sessions = home / ".claude/projects" / slug(project)
    sessions.mkdir(parents=True)
    monkeypatch.setenv("SCRIPT", f"echo x > {sessions}/$FORKWISE_ATTEMPT.jsonl; echo x > $FORKWISE_ATTEMPT.txt")
    run("best-of", "2", "--no-commit", "--agent", "claude", "fix it")
    assert list(sessions.iterdir()) == []
    fork = ask("ls")["forks"][0]["id"]
    run("pick", f"{fork}.2")
    assert [path.name for path in sessions.iterdir()] == ["2.jsonl"]
    assert list_views(state) == []


def test_a_winner_that_cannot_be_committed_keeps_its_sessions_until_it_is(
    run: Run, project: Path, home: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    sessions = home / ".claude/projects" / slug(project)
    sessions.mkdir(parents=True)
    monkeypatch.setenv("SCRIPT", f"echo x > {sessions}/1.jsonl; echo mine > a.txt")
    run("run", "--no-commit", "--agent", "claude", "fix it")
    (project / "a.txt").write_text("theirs\n")
    fork = json.loads(run("ls", "--json").stdout)["forks"][0]["id"]
    run("pick", f"{fork}.1", code=Exit.CONFLICT)
    assert list(sessions.iterdir()) == []
    run("pick", f"{fork}.1", "--on-conflict", "ours")
    assert [path.name for path in sessions.iterdir()] == ["1.jsonl"]
    assert list_views(state) == []


def test_views_that_a_killed_commit_set_aside_are_removed(run: Run, project: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        aside = Workspace(project).state / f".paths-{ended.pid}-0"
    aside.mkdir()
    (aside / "agent.json").write_text("{}")
    run("gc")
    assert not aside.exists()


def test_levels_of_a_tree_keep_the_sessions_of_each_winner(
    run: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "claude")
    sessions = home / ".claude/projects" / slug(project)
    sessions.mkdir(parents=True)
    monkeypatch.setenv(
        "SCRIPT",
        "level=$(cat level 2>/dev/null || echo 0); echo $((level+1)) > level\n"
        "echo $FORKWISE_ATTEMPT > $FORKWISE_SCORE\n"
        f"echo x > {sessions}/$level-$FORKWISE_ATTEMPT.jsonl",
    )
    run("tree", "--depth", "2", "--agent", "claude", "--agent", "claude", "fix it")
    assert sorted(path.name for path in sessions.iterdir()) == ["0-2.jsonl", "1-2.jsonl"]


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_ended_leaves_nothing_but_the_refreshed_login(
    run: Run,
    project: Path,
    home: Path,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    install(home, "claude")
    now = int(time.time() * 1000)
    path = write_login(home, now)
    mark = tmp_path / "started"
    mark.mkdir()
    new = format_login(now + HOUR_MS, "new")
    sessions = home / ".claude/projects" / slug(project)
    monkeypatch.setenv(
        "SCRIPT",
        f"mkdir -p {sessions}; echo x > {sessions}/x.jsonl; echo '{new}' > {path}; touch {mark}/it; sleep 600",
    )
    program = [sys.executable, "-c", "from forkwise.cli import main; main()"]
    words = ["run", "--writable", str(mark), "--agent", "claude", "fix it"]
    ended = subprocess.Popen([*program, *words], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while not (mark / "it").exists():
            assert ended.poll() is None, ended.communicate()
            time.sleep(0.01)
        ended.send_signal(number)
    finally:
        if sys.exc_info()[0] is not None:
            ended.kill()
        ended.communicate()
    assert ("a-old" if number == signal.SIGKILL else "a-new") in path.read_text()
    run("gc", "--force")
    assert json.loads(path.read_text())["claudeAiOauth"]["accessToken"] == "a-new"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert Workspace(project).branches() == []
    assert list_views(state) == []


def test_an_attempt_that_timed_out_leaves_its_login_and_nothing_else(
    command: Callable[..., subprocess.CompletedProcess[str]],
    project: Path,
    home: Path,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(home, "claude")
    now = int(time.time() * 1000)
    path = write_login(home, now)
    new = format_login(now + HOUR_MS, "new")
    (home / ".claude/projects").mkdir()
    monkeypatch.setenv("SCRIPT", f"echo x > {home}/.claude/projects/x.jsonl; echo '{new}' > {path}; sleep 600")
    done = command("run", "--timeout", "1", "--agent", "claude", "fix it")
    assert done.returncode == Exit.NO_WINNER, done.stderr
    assert json.loads(path.read_text())["claudeAiOauth"]["accessToken"] == "a-new"
    assert list((home / ".claude/projects").iterdir()) == []
    assert list_views(state) == []


def test_without_privileges(place: Path, run_unprivileged: Callable[..., tuple[int, str, str]]) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    now = int(time.time() * 1000)
    login = write_login(place, now)
    sessions = place / ".claude/projects" / slug(place / "project")
    sessions.mkdir(parents=True)
    (place / ".claude.json").write_text("{}")
    (place / ".claude/settings.json").write_text("{}")
    new = format_login(now + HOUR_MS, "new")
    (place / "project/agent.sh").write_text(
        "set -e\n"
        f"echo x > {sessions}/$FORKWISE_ATTEMPT.jsonl; ls {sessions} > seen.txt\n"
        "echo $FORKWISE_ATTEMPT > $FORKWISE_SCORE\n"
        f"echo hook > {place}/.claude/settings.json; echo hook > {place}/.claude.json; cat {place}/.claude.json\n"
        f"echo '{new}' > {login}\n"
    )
    subprocess.run(["chown", "-R", f"{UNPRIVILEGED}:{UNPRIVILEGED}", str(place)], check=True)
    table = '[claude]\ncommand = ["sh", "agent.sh", "{prompt}"]\n'
    (place / ".config/forkwise").mkdir(parents=True)
    (place / ".config/forkwise/agents.toml").write_text(table)
    code, out, err = run_unprivileged("best-of", "2", "--agent", "claude", "fix it")
    assert code == 0, (out, err)
    assert [p.name for p in sessions.iterdir()] == ["2.jsonl"]
    assert (place / "project/seen.txt").read_text() == "2.jsonl\n"
    assert json.loads(login.read_text())["claudeAiOauth"]["refreshToken"] == "r-new"
    assert (place / ".claude/settings.json").read_text() == (place / ".claude.json").read_text() == "{}"
