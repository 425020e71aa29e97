"""What the state of a workspace occupies, and the automatic collection by age and size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.config.gc_limits import GcLimits, read_gc_limits
from forkwise.errors import ConfigError
from forkwise.fork.control import collect_by_limits
from forkwise.ledger.disk_use import KINDS, DiskUse, list_disk_use, measure_disk_use
from tests.need import need

MB = 1 << 20
DAY = 86400.0


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    return Workspace(root, state=tmp_path / "state", durable=False)


def commit(workspace: Workspace, size: int, name: str = "a.bin") -> None:
    with workspace.branch(f"to-{name}") as branch:
        (branch.path / name).write_bytes(os.urandom(size))


def age(workspace: Workspace, number: int, days: float, now: float) -> None:
    os.utime(workspace.state_dir.history(number), (now - days * DAY, now - days * DAY))


def test_each_kind_is_counted_and_nothing_twice(workspace: Workspace) -> None:
    before = measure_disk_use(workspace)
    branch = workspace.branch("b", on_success=None, on_error=None)
    (branch.path / "large").write_bytes(os.urandom(MB))
    with open(branch.path / "sparse", "wb") as file:
        file.truncate(1 << 33)
    os.link(branch.path / "large", branch.path / "same")
    commit(workspace, MB)
    commit(workspace, 10)  # the undo record now holds the first content
    logs = workspace.state / "ledger/output"
    logs.mkdir(parents=True)
    (logs / "abc.1.log").write_bytes(os.urandom(MB))
    use = measure_disk_use(workspace)
    grown = {kind: use.kinds[kind] - before.kinds[kind] for kind in KINDS}
    assert set(grown) == set(KINDS)
    for kind in ("branches", "undo", "logs"):
        assert MB <= grown[kind] < 1.3 * MB, grown
    assert grown["other"] < MB // 10
    assert use.total == sum(use.kinds.values())
    assert MB <= use.branches["b"] < 1.3 * MB
    assert MB <= use.undo[2] < 1.3 * MB
    assert use.workspace == str(workspace.path)
    branch.abort()


def test_all_workspaces_of_one_place(workspace: Workspace, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    small = Workspace(other, state=tmp_path / "state", durable=False)
    commit(small, 10)
    commit(workspace, MB)
    commit(workspace, 10)
    (tmp_path / "state/not-a-state").mkdir()
    os.symlink("/", tmp_path / "state/link")
    found = list_disk_use(small)
    assert [use.workspace for use in found] == [str(workspace.path), str(other)]
    assert isinstance(found[0], DiskUse)


def test_hostile_trees_are_measured(workspace: Workspace) -> None:
    branch = workspace.branch("b", on_success=None, on_error=None)
    program = "import os\nfor _ in range(300): os.mkdir('d' * 50); os.chdir('d' * 50)\nopen('f', 'w').write('x' * 5000)"
    subprocess.run([sys.executable, "-c", program], cwd=branch.path, check=True)
    os.symlink("/", branch.path / "link")
    os.mkfifo(branch.path / "fifo")
    assert 5000 < measure_disk_use(workspace).branches["b"] < 8 * MB
    branch.abort()


NOW = 2_000_000_000.0


def test_old_undo_records_are_removed_and_younger_ones_kept(workspace: Workspace) -> None:
    for number, days in enumerate((40, 31, 29, 0), 1):
        commit(workspace, 10, f"{number}.bin")
        age(workspace, number, days, NOW)
    assert collect_by_limits(workspace, GcLimits(), now=NOW) is None
    report = collect_by_limits(workspace, GcLimits(max_age=30 * DAY), now=NOW)
    assert report is not None
    removed = [name for name in report.collected.removed if name.startswith("commit ")]
    assert sorted(removed) == ["commit 1", "commit 2"]
    assert workspace.state_dir.numbers() == [4, 3]
    assert collect_by_limits(workspace, GcLimits(max_age=1), now=NOW + 60) is None  # once a day
    assert workspace.undo().undoes == 4


def test_size_takes_the_oldest_first_and_nothing_young(workspace: Workspace) -> None:
    commit(workspace, MB)
    for number, days in enumerate((0, 40, 30, 20, 1), 1):
        if number > 1:
            commit(workspace, MB)
        age(workspace, number, days or 50, NOW)
    need(sum(measure_disk_use(workspace).undo.values()) >= 4 * MB, "commits share their content here")
    report = collect_by_limits(workspace, GcLimits(max_size=int(2.5 * MB), min_age=7 * DAY), now=NOW)
    assert report is not None
    assert sorted(report.collected.removed) == ["commit 1", "commit 2", "commit 3"]
    report = collect_by_limits(workspace, GcLimits(max_size=1, min_age=7 * DAY), now=NOW + 2 * DAY)
    assert report is not None
    assert sorted(report.collected.removed) == ["commit 4"]
    assert workspace.state_dir.numbers() == [5]


def test_records_that_an_open_branch_may_need_and_branches_stay(workspace: Workspace) -> None:
    commit(workspace, 10, "1.bin")
    branch = workspace.branch("open", on_success=None, on_error=None)
    (branch.path / "new").write_text("x")
    commit(workspace, 10, "2.bin")
    for number in (1, 2):
        age(workspace, number, 100, NOW)
    report = collect_by_limits(workspace, GcLimits(max_age=DAY, max_size=1, min_age=0.0), now=NOW)
    assert report is not None
    assert report.collected.removed == ("commit 1",)
    assert [found.name for found in workspace.branches()] == ["open"]
    branch.abort()


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", GcLimits()),
        ("[gc]\nmax_age = '30d'\n", GcLimits(max_age=30 * DAY)),
        ("[gc]\nmax_size = '1.5 GiB'\nmin_age = '12h'\n", GcLimits(max_size=3 << 29, min_age=DAY / 2)),
    ],
)
def test_limits_are_read_from_the_users_own_file(
    text: str, limits: GcLimits, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/forkwise").mkdir(parents=True)
    (tmp_path / "config/forkwise/config.toml").write_text(text)
    (workspace.path / ".forkwise").mkdir()
    (workspace.path / ".forkwise/config.toml").write_text("[gc]\nmax_age = '1m'\n")
    assert read_gc_limits(workspace.path) == limits


@pytest.mark.parametrize(
    "line", ["max_age = 30", "max_age = '30'", "max_size = '5 d'", "keep = '1d'", "max_age = '-1d'"]
)
def test_invalid_limits_are_an_error(
    line: str, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/forkwise").mkdir(parents=True)
    (tmp_path / "config/forkwise/config.toml").write_text(f"[gc]\n{line}\n")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        read_gc_limits(workspace.path)
