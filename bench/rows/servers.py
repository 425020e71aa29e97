"""Servers: eight branches of one PostgreSQL database, each with its own server, and what they take on the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import glob

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch
from forkwise import Branch, Workspace
from forkwise.files.store import trash
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.servers.server_file import find_data_directories, read_servers
from forkwise.servers.server_group import ServerGroup

__all__ = ["measure_servers"]

_BRANCHES = 8
_ROWS = 2_700_000  # about 200 MB
_LONGEST_S = 3.0
_MOST_BYTES = 20 << 20  # a segment of the write-ahead log, and little else
_SMALL_SHARE = 0.02
_IMAGE_BYTES = 4 << 30
_PORT = 54_328
_FILE = """
[servers.db]
command = ["{postgres}", "-D", "pgdata", "-k", "/tmp", "-p", "{port}"]
ready = {{ command = "psql -X -q -h localhost -p {port} -U postgres -c 'select 1'" }}
stop = {{ signal = "INT", timeout = 60 }}
data = "pgdata"
"""


def measure_servers(scratch: Scratch) -> list[Line]:
    """Measure branches that all answer a query against copies of the database by PostgreSQL itself."""
    postgres = _find("postgres")
    if postgres is None or shutil.which("psql") is None:
        scratch.report("PostgreSQL is not installed")
        return []
    os.chmod(scratch.path, 0o755)
    root = scratch.make_directory("database")
    database = _Database(root, postgres)
    scratch.report("filling a database of 200 MB")
    database.create(_ROWS)
    workspace = scratch.workspace(root)
    sizes: list[float] = []
    scratch.report(f"{_BRANCHES} branches of the database, and copies of it")
    figures = play(
        {
            "ours": partial(_serve_all, workspace, sizes),
            "createdb -T": partial(database.copy_all, "wal_log"),
            "createdb -T, file_copy": partial(database.copy_all, "file_copy"),
        },
        scratch.rounds(5, 2),
        warm=1,
    )
    line = Line(f"{_BRANCHES} branches of a 200 MB PostgreSQL, all answering", figures["ours"])
    line.peers = {name: figures[name] for name in ("createdb -T", "createdb -T, file_copy")}
    line.goals.append(Goal(f"< {_LONGEST_S:g} s", line.ours.median, _LONGEST_S))
    line.faster_than("createdb -T", 4)
    line.faster_than("createdb -T, file_copy", 1.5)
    disk = Line("disk of each before it writes", Figure(tuple(sizes), "B"))
    disk.goals.append(Goal("≤ 20 MB", disk.ours.median, _MOST_BYTES))
    return [line, disk, *_measure_clones(scratch, root)]


def _measure_clones(scratch: Scratch, root: str) -> list[Line]:
    """Measure the disk that branches of clones take on XFS; nothing without the right to mount an image of it."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        return []
    scratch.report("branches of clones on XFS")
    image, mounted = scratch.new_path("image"), scratch.make_directory("xfs")
    with open(image, "wb") as file:
        file.truncate(_IMAGE_BYTES)
    subprocess.run(["mkfs.xfs", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], check=False, stderr=subprocess.DEVNULL).returncode:
        return []
    try:
        before = _count_used(mounted)
        subprocess.run(["cp", "-a", root, f"{mounted}/database"], check=True)
        size = _count_used(mounted) - before
        os.environ["FORKWISE_STATE"] = f"{mounted}/state"
        used: list[float] = []
        workspace = Workspace(f"{mounted}/database", view="reflink", durable=False)
        _serve_all(workspace, used, lambda _branches: [float(_count_used(mounted) - before - size)])
        trash.wait_until_empty()
    finally:
        os.environ.pop("FORKWISE_STATE", None)
        subprocess.run(["umount", "--lazy", mounted], check=True)  # its last files are closed later
        os.unlink(image)
    line = Line(f"disk of {_BRANCHES} branches on XFS", Figure(tuple(used), "B"))
    line.goals.append(Goal(f"< 2 % of {_BRANCHES} copies", used[0] / (_BRANCHES * size), _SMALL_SHARE))
    return [line]


def _count_used(mounted: str) -> int:
    """Return the bytes that are used on a filesystem, with everything written out."""
    os.sync()
    found = os.statvfs(mounted)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _find(name: str) -> str | None:
    newest = sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return newest[-1] if newest else shutil.which(name)


class _Database:
    """A PostgreSQL database in a directory, which belongs to a user that is not root."""

    def __init__(self, root: str, postgres: str) -> None:
        self._root = root
        self._postgres = postgres
        self._bin = os.path.dirname(postgres)

    def create(self, rows: int) -> None:
        """Create and fill it."""
        data = f"{self._root}/pgdata"
        os.mkdir(data, 0o700)
        if os.geteuid() == 0:
            shutil.chown(data, "postgres", "postgres")
        self._run([f"{self._bin}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"])
        os.mkdir(f"{self._root}/.forkwise")
        with open(f"{self._root}/.forkwise/servers.toml", "w") as file:
            file.write(_FILE.format(postgres=self._postgres, port=_PORT))
        self._start()
        try:
            self._query(f"create table big as select i, repeat('x', 40) t from generate_series(1, {rows}) i")
            self._query("vacuum (freeze, analyze) big")
            self._query("checkpoint")
        finally:
            self._stop()

    def copy_all(self, strategy: str) -> float:
        """Copy the database as often as there are branches, in one server, and query each. Return the seconds."""
        self._start()
        try:
            return timed(lambda: self._copy_and_query(strategy))
        finally:
            for number in range(_BRANCHES):
                self._query(f"drop database if exists copy{number}")
            self._query("checkpoint")
            self._stop()

    def _copy_and_query(self, strategy: str) -> None:
        for number in range(_BRANCHES):
            self._query(f"create database copy{number} template postgres strategy {strategy}", "template1")
            self._query("select 1", f"copy{number}")

    def _start(self) -> None:
        options = f"-k /tmp -p {_PORT}"
        words = [f"{self._bin}/pg_ctl", "-D", f"{self._root}/pgdata", "-o", options, "-w", "-l", "/dev/null", "start"]
        self._run(words)

    def _stop(self) -> None:
        self._run([f"{self._bin}/pg_ctl", "-D", f"{self._root}/pgdata", "-m", "fast", "-w", "stop"])

    def _query(self, sql: str, database: str = "postgres") -> None:
        words = ["psql", "-X", "-q", "-h", "localhost", "-p", str(_PORT), "-U", "postgres", "-d", database, "-c", sql]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def _run(self, words: Sequence[str]) -> None:
        switch = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        subprocess.run([*switch, *words], check=True, stdout=subprocess.DEVNULL, cwd="/")


def _serve_all(
    workspace: Workspace, sizes: list[float], measure: Callable[[Sequence[Branch]], list[float]] | None = None
) -> float:
    """Create the branches and start their servers at the same time. Return the seconds until all have answered.

    What ``measure`` finds then, by default the size of each branch, is added to ``sizes``.
    """
    made: list[tuple[Branch, NetworkSpace, ServerGroup]] = []
    servers = read_servers(workspace.path)

    def serve(number: int) -> None:
        branch = workspace.branch(f"database-{number}", None, None)
        branch.set_data_directories(find_data_directories(workspace.path))
        space = NetworkSpace()
        group = ServerGroup(servers, branch, space=space)
        made.append((branch, space, group))
        group.start()

    try:
        with ThreadPoolExecutor(_BRANCHES) as pool:
            taken = timed(lambda: list(pool.map(serve, range(_BRANCHES))))
        branches = [branch for branch, _, _ in made]
        sizes += [float(_count_bytes(b.target)) for b in branches] if measure is None else measure(branches)
        return taken
    finally:
        for branch, space, group in made:
            group.kill()
            space.close()
            branch.abort()


def _count_bytes(directory: str) -> int:
    """Return the bytes that the files below a directory take on the disk."""
    found = 0
    for path, _, names in os.walk(directory):
        found += sum(os.lstat(os.path.join(path, name)).st_blocks * 512 for name in names)
    return found
