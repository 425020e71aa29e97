"""``forkwise doctor``: every row is true, and every failure has a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.files.store.state import locate
from forkwise.sandbox import doctor, probe
from tests.need import need

Run = Callable[..., Result]
Ask = Callable[..., Any]

MEANS = {
    "user namespaces",
    "mount namespaces",
    "PID namespaces",
    "private /proc",
    "network namespaces",
    "Landlock",
    "seccomp",
    "private overlay",
    "home view",
}


def test_the_document_has_every_row(ask: Ask, project: Path, state: Path) -> None:
    report = ask("doctor")
    assert report["workspace"] == str(project)
    assert report["state"].startswith(str(state))
    assert {"branchfs", "daxfs", "overlay", "btrfs", "fuse", "reflink", "copy"} <= {v["name"] for v in report["views"]}
    assert {*MEANS, "cgroups", "bwrap", "pasta", "slirp4netns"} == {c["name"] for c in report["confinement"]}


def test_the_chosen_view_is_the_one_a_workspace_takes(ask: Ask, project: Path) -> None:
    assert ask("doctor")["chosen"] == Workspace(project).fstype


def test_whatever_does_not_work_has_a_reason_and_a_remedy(project: Path) -> None:
    report = doctor.examine(project)
    for finding in [*report.views, *report.confinement]:
        assert finding.detail
        assert finding.works or finding.remedy, finding
        assert not (finding.works and finding.remedy), finding


def test_it_is_read_by_people_too(run: Run, tmp_path: Path, project: Path) -> None:
    said = run("doctor", str(project)).stdout
    assert "branches use:" in said
    assert "Landlock" in said
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert str(elsewhere) in run("doctor", "-C", str(elsewhere)).stdout


def test_the_probe_leaves_this_process_as_it_was(project: Path) -> None:
    before = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    doctor.examine_confinement(locate(project))
    assert before == {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}


def test_a_probe_that_cannot_run_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be run" in doctor.examine_confinement(locate(project))[0].detail


def test_a_refused_probe_is_a_finding() -> None:
    def refused() -> str:
        raise PermissionError(1, "Operation not permitted", "unshare")

    answer = probe.run_in_child(refused)
    assert (answer["works"], answer["detail"]) == (False, "unshare: Operation not permitted")


def test_a_probe_that_dies_is_a_finding() -> None:
    def dies() -> str:
        os.kill(os.getpid(), 9)
        return ""

    answer = probe.run_in_child(dies)
    assert answer["works"] is False
    assert "9" in str(answer["detail"])


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"user/max_user_namespaces": "0"}, "user.max_user_namespaces"),
        ({"kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, "apparmor_restrict_unprivileged_userns=0"),
        ({}, "seccomp profile"),
    ],
)
def test_the_sysctl_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], remedy: str) -> None:
    monkeypatch.setattr(doctor, "_read_setting", settings.get)
    finding = doctor._build_finding("user namespaces", {"works": False, "detail": "refused", "errno": 1})
    assert remedy in finding.remedy


def test_a_forbidden_namespace_is_found_out(tmp_path: Path) -> None:
    """The limit is set in a user namespace of its own, so that it affects no other process."""
    script = f"echo 0 > /proc/sys/user/max_net_namespaces && exec {sys.executable} -I -S {probe.__file__}"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    need(done.returncode == 0, f"no user namespace to try it in: {done.stderr}")
    assert '"network namespaces": {"works": false' in done.stdout
