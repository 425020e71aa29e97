"""Which ledger is a workspace's: the one that lies in its state directory, beside its branches and its history."""

from __future__ import annotations

from forkwise.files.workspace import Workspace
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.sqlite import SqliteLedger

__all__ = ["open_ledger"]


def open_ledger(workspace: Workspace) -> Ledger:
    """The ledger of a workspace."""
    return SqliteLedger(workspace.state / "ledger")
