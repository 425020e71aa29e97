"""``forkwise judges``: what became of what judges picked in a workspace, judge by judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.app.cli.output import Output
from forkwise.app.cli.verb import Verb, json_option, workspace_option

if TYPE_CHECKING:
    from forkwise.agents.live.calibration import Calibration

__all__ = ["judges"]


@click.command("judges", cls=Verb, example=("forkwise judges", "forkwise judges --json"))
@workspace_option
@json_option
def judges(directory: Path, output: Output) -> None:
    """Tell how often the picks of each judge were undone or overridden later.

    A pick counts once its fork was decided: it was overridden where somebody took another branch, undone where what it
    put into the workspace was taken back. The rate is the share that held. Off is how far a judge's confidence lies
    from that: 0 is a judge that knows how sure it can be, 0.25 one that might as well toss a coin.
    """
    from forkwise.agents.live.calibration import Calibration
    from forkwise.files.workspace import Workspace
    from forkwise.fork.history import reconcile
    from forkwise.ledger.opening import open_ledger

    workspace = Workspace(directory)
    with open_ledger(workspace) as ledger:
        reconcile(ledger, workspace)  # what was undone without this command is known to the workspace alone
        found = sorted(Calibration.from_ledger(ledger).values(), key=lambda one: (-one.picks, one.judge))
    if output.as_json:
        output.document({"workspace": str(workspace.path), "judges": [_record(one) for one in found]})
    elif not found:
        output.line("No judge has decided anything here yet.")
    else:
        output.table(("judge", "picks", "undone", "overridden", "rate", "off"), map(_row, found))


def _record(judge: Calibration) -> dict[str, object]:
    return {
        "judge": judge.judge,
        "picks": judge.picks,
        "undone": judge.undone,
        "overridden": judge.overridden,
        "rate": judge.hold_rate,
        "brier": judge.brier,
    }


def _row(judge: Calibration) -> tuple[str, ...]:
    counts = (judge.picks, judge.undone, judge.overridden)
    return judge.judge, *map(str, counts), f"{judge.hold_rate:.0%}", f"{judge.brier:.2f}"
