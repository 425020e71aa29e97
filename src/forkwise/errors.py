"""Every exception forkwise raises, in one tree.

They live together so that a caller can see the whole tree at a glance, and carry their facts as fields so that
nobody has to parse a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkwise.files.store.changes import Conflict

__all__ = [
    "AbortError",
    "BranchError",
    "BranchNotFoundError",
    "BranchStaleError",
    "BranchesFailed",
    "BranchingError",
    "BudgetExceededError",
    "CommitError",
    "ConflictError",
    "ConversationError",
    "ForkBranchLimitError",
    "ForkDepthLimitError",
    "ForkError",
    "ForkNotFoundError",
    "ForkResolvedError",
    "ForkwiseError",
    "ForkwiseWarning",
    "LedgerError",
    "LimitError",
    "LocalModelError",
    "MemoryBranchError",
    "ModuleError",
    "MountError",
    "NamespaceError",
    "ParseError",
    "ProcessBranchError",
    "ServiceError",
    "ToolConflictError",
]


class BranchingError(Exception):
    """The root of all errors forkwise raises."""


ForkwiseError = BranchingError


class ForkwiseWarning(UserWarning):
    """Something was left out that the caller may have expected; the message says what and why."""


class MountError(BranchingError):
    """A view of a branch could not be had, brought up or taken down."""

    def __init__(self, message: str, *, view: str | None = None, reason: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.view = view
        self.reason = reason
        self.remedy = remedy


class BranchError(BranchingError):
    """An operation on a branch failed."""

    def __init__(self, message: str, *, branch: str | None = None, paths: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.branch = branch
        self.paths = tuple(paths)


class BranchStaleError(BranchError):
    """A sibling was committed first: what this branch was forked from is no longer what is there."""


class BranchNotFoundError(BranchError):
    """There is no such branch, or it was committed or aborted meanwhile."""


class CommitError(BranchError):
    """A commit or an undo could not be carried out; the workspace is as it was before."""


class ConflictError(CommitError):
    """The parent was changed by somebody else where the branch changed it too."""

    def __init__(self, message: str, *, branch: str | None = None, conflicts: Sequence[Conflict] = ()) -> None:
        super().__init__(message, branch=branch, paths=[c.path for c in conflicts])
        self.conflicts = tuple(conflicts)


class AbortError(BranchError):
    """A branch could not be taken away."""


class ProcessBranchError(BranchingError):
    """A sandboxed process failed. ``errno`` says why a command could not be started."""

    def __init__(self, message: str = "", *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class ForkError(ProcessBranchError):
    """A process could not be forked."""


class NamespaceError(ProcessBranchError):
    """The namespaces or the confinement of a process could not be set up."""


class MemoryBranchError(BranchingError):
    """Memory could not be branched."""


class LedgerError(BranchingError):
    """What was asked of the ledger makes no sense, or the ledger cannot be used.

    ``subject`` is the id that was asked for; ``near`` are ids that may have been meant.
    """

    def __init__(self, message: str, *, subject: str | None = None, near: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.subject = subject
        self.near = tuple(near)


class ForkNotFoundError(LedgerError):
    """There is no such fork, or no such attempt, in the ledger."""


class ForkResolvedError(BranchingError):
    """A fork was decided already, and is decided only once."""

    def __init__(self, message: str, *, fork: str | None = None) -> None:
        super().__init__(message)
        self.fork = fork


class ConversationError(BranchingError):
    """A message cannot be where it was put, because no provider would take the conversation then.

    ``rule`` names what it breaks, ``node`` the message it was put behind, ``calls`` the tool calls it is about.
    """

    def __init__(self, message: str, *, rule: str = "", node: int | None = None, calls: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.rule = rule
        self.node = node
        self.calls = tuple(calls)


class LocalModelError(BranchingError):
    """The local model cannot be fetched, started or used as it was asked to."""

    def __init__(self, message: str, *, reason: str = "", remedy: str = "") -> None:
        super().__init__(f"{message}{': ' if reason else ''}{reason}{'; ' if remedy else ''}{remedy}")
        self.reason = reason
        self.remedy = remedy


class BranchesFailed(BranchingError):  # noqa: N818 - it says which, and holds what the others gave
    """Some of several branches of a conversation failed.

    ``failures`` has the errors by the numbers of the branches, ``done`` what the others gave, in their order.
    """

    def __init__(self, done: Sequence[object], failures: Mapping[int, Exception]) -> None:
        told = "; ".join(f"branch {number + 1}: {type(e).__name__}: {e}" for number, e in sorted(failures.items()))
        super().__init__(f"{len(failures)} of {len(failures) + len(done)} branches failed: {told}")
        self.done = tuple(done)
        self.failures = dict(failures)


class ModuleError(BranchingError):
    """A module could not do what it was called for."""


class ParseError(ModuleError):
    """What a model gave is not what was asked of it; ``raw_output`` is what it gave."""

    def __init__(self, message: str, raw_output: str | None = None) -> None:
        super().__init__(message)
        self.raw_output = raw_output


class ServiceError(ModuleError):
    """A service that a module needs could not be set up."""

    def __init__(self, message: str, *, service: str | None = None) -> None:
        super().__init__(message)
        self.service = service


class ToolConflictError(ModuleError):
    """Two tools of one module have the same name."""

    def __init__(self, message: str, *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool


class LimitError(ModuleError):
    """A tree of branches reached one of its limits; ``limit`` names it."""

    def __init__(self, message: str, *, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class ForkBranchLimitError(BranchingError):
    """A fork was asked for more branches than are allowed."""

    def __init__(self, message: str, *, asked: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.asked = asked
        self.limit = limit


class ForkDepthLimitError(BranchingError):
    """A fork was asked for inside a branch that is nested as deep as is allowed."""

    def __init__(self, message: str, *, depth: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.depth = depth
        self.limit = limit


class BudgetExceededError(BranchingError):
    """A branch was stopped because nothing was left for it to spend; ``state`` says of which budget."""

    def __init__(self, message: str, *, state: str = "budget_exhausted") -> None:
        super().__init__(f"{state}: {message}")
        self.state = state
