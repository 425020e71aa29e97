"""``forkwise doctor``: report what works on this machine, and how to enable the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise import progress
from forkwise.cli.app import Exit, Verb, json_option, workspace_option
from forkwise.cli.options import check_cluster
from forkwise.display.output import Output, report_record

if TYPE_CHECKING:
    from forkwise.sandbox.doctor import Finding, Report

__all__ = ["doctor"]


@click.command("doctor", cls=Verb, example=("forkwise doctor ~/project --json", "forkwise doctor --repair --dry-run"))
@click.argument(
    "target", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--repair", is_flag=True, help="Find damaged parts of the workspace's state, and set them aside.")
@click.option("--dry-run", is_flag=True, help="With --repair: print what would be done, and change nothing.")
@click.option("--on", metavar="ray[://HOST:PORT]", callback=check_cluster, help="Check the nodes of a cluster instead.")
@workspace_option
@json_option
def doctor(target: Path | None, repair: bool, dry_run: bool, on: str | None, directory: Path, output: Output) -> int:
    """Check which views, sandbox features and networks work here.

    Each of them is tried for real, as the current user and in DIR (default: the current directory). If one does not
    work, the report says why and how to enable it. The exit code is 6 if no view works.

    With --repair, the state of the workspace is examined instead: a damaged branch, commit or row of the ledger is set
    aside or rebuilt, and nothing is deleted.

    With --on, each node of a cluster is examined. The exit code is 6 if attempts cannot run on one of them.
    """
    if dry_run and not repair:
        raise click.UsageError("--dry-run needs --repair")
    if on is not None:
        if repair or target is not None:
            raise click.UsageError("--on examines the nodes of a cluster: leave out DIR and --repair")
        return _examine_nodes(on, output)
    if repair:
        _repair(target or directory, dry_run, output)
        return Exit.OK
    from forkwise.sandbox.doctor import examine

    report = examine(target or directory)
    if output.as_json:
        output.document(report_record(report))
    else:
        _print_report(report, output)
    return Exit.OK if report.chosen else Exit.UNAVAILABLE


def _examine_nodes(on: str, output: Output) -> int:
    from forkwise.cluster.ray_cluster import RayCluster

    with progress.report("Examining the nodes"):
        nodes = RayCluster.connect(None if on == "ray" else on).examine()
    if output.as_json:
        output.document({"nodes": nodes})
    for node in [] if output.as_json else nodes:
        about = ", ".join(f"{name} {amount:g}" for name, amount in sorted(node["resources"].items()))
        output.line(f"node {node['node']} on {node['host']}: {'works' if node['works'] else 'does not work'}")
        output.line(f"  {about}")
        if node["problem"]:
            output.line(f"  {node['problem']}", "yellow")
        rows = [
            (one["name"], "yes" if one["works"] else "no", one["detail"] if one["works"] else one["remedy"])
            for one in node.get("findings", ())
        ]
        if rows:
            output.table(("feature", "works", "detail, or how to enable it"), rows)
        output.line()
    return Exit.OK if nodes and all(node["works"] for node in nodes) else Exit.UNAVAILABLE


def _repair(directory: Path, dry_run: bool, output: Output) -> None:
    from dataclasses import asdict

    from forkwise.ledger.repair import repair_state

    with progress.report("Checking what is stored"):
        found = repair_state(directory, dry_run=dry_run)
    if output.as_json:
        output.document({"damaged": [asdict(damage) for damage in found], "dry_run": dry_run})
        return
    for damage in found:
        output.line(f"{damage.kind} {damage.path}: {damage.reason}", "yellow")
        output.line(f"  {'would: ' if dry_run else 'done: '}{damage.action}")
        if damage.kept is not None:
            output.line(f"  now in {damage.kept}")
    if not found:
        output.line("Nothing is damaged.")


def _print_report(report: Report, output: Output) -> None:
    facts = {
        "workspace": f"{report.workspace} ({report.filesystem})",
        "state": report.state,
        "user": report.user,
        "kernel": report.kernel,
        "branches use": _chosen_view(report),
    }
    for name, value in facts.items():
        output.line(f"{name + ':':14}{value}")
    _print_findings("view", report.views, output)
    _print_findings("confinement", report.confinement, output)
    _print_findings("network", report.networks, output)


def _chosen_view(report: Report) -> str:
    from forkwise.cli.private_mounts import WORSE

    if report.chosen is None:
        return "no view: none works here"
    if report.chosen in WORSE and report.has_private_overlay and os.geteuid() != 0:
        return f"the view '{report.chosen}'; this command uses 'overlay', visible in forkwise branch shell only"
    return f"the view '{report.chosen}'"


def _print_findings(kind: str, findings: Sequence[Finding], output: Output) -> None:
    output.line()
    rows = [
        (f.name, "yes" if f.works else "no", f.detail if f.works or not f.remedy else f"{f.detail} -> {f.remedy}")
        for f in findings
    ]
    output.table((kind, "works", "detail -> how to enable it"), rows)
