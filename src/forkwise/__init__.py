"""Copy-on-write branches of any directory: fork it, try things, commit exactly one outcome, take it back if need be.

Names are loaded when they are first asked for, so that ``from forkwise import Workspace`` costs no more than it uses.

>>> from forkwise import Workspace
>>> ws = Workspace("/path/to/project")                # doctest: +SKIP
>>> with ws.branch("attempt") as branch:              # doctest: +SKIP
...     (branch.path / "notes.txt").write_text("tried")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkwise.errors import (
        AbortError,
        BranchError,
        BranchingError,
        BranchNotFoundError,
        BranchStaleError,
        CommitError,
        ConflictError,
        ForkError,
        ForkwiseError,
        ForkwiseWarning,
        LedgerError,
        MemoryBranchError,
        MountError,
        NamespaceError,
        ProcessBranchError,
    )
    from forkwise.files.branch import Branch
    from forkwise.files.collect import Collected
    from forkwise.files.commit import Commit
    from forkwise.files.conflict import Conflict
    from forkwise.files.delta import Change, Delta
    from forkwise.files.rebase import Rebase
    from forkwise.files.workspace import Workspace
    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.context import BranchContext
    from forkwise.sandbox.limits import Limits
    from forkwise.sandbox.process import Finished
    from forkwise.sandbox.running import arun as arun_in_branch
    from forkwise.sandbox.running import run as run_in_branch
    from forkwise.sandbox.running import shell as shell_in_branch

__version__ = "0.1.0"

__all__ = [
    "AbortError",
    "Branch",
    "BranchContext",
    "BranchError",
    "BranchNotFoundError",
    "BranchStaleError",
    "BranchingError",
    "Change",
    "Collected",
    "Commit",
    "CommitError",
    "Confinement",
    "Conflict",
    "ConflictError",
    "Delta",
    "Finished",
    "ForkError",
    "ForkwiseError",
    "ForkwiseWarning",
    "LedgerError",
    "Limits",
    "MemoryBranchError",
    "MountError",
    "NamespaceError",
    "ProcessBranchError",
    "Rebase",
    "Workspace",
    "__version__",
    "arun_in_branch",
    "run_in_branch",
    "shell_in_branch",
]

_HOMES = {
    "Branch": "forkwise.files.branch",
    "BranchContext": "forkwise.sandbox.context",
    "Change": "forkwise.files.delta",
    "Collected": "forkwise.files.collect",
    "Commit": "forkwise.files.commit",
    "Confinement": "forkwise.sandbox.confinement",
    "Conflict": "forkwise.files.conflict",
    "Delta": "forkwise.files.delta",
    "Finished": "forkwise.sandbox.process",
    "Limits": "forkwise.sandbox.limits",
    "Rebase": "forkwise.files.rebase",
    "Workspace": "forkwise.files.workspace",
    "arun_in_branch": "forkwise.sandbox.running",
    "run_in_branch": "forkwise.sandbox.running",
    "shell_in_branch": "forkwise.sandbox.running",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "forkwise.errors")), name.removesuffix("_in_branch"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
