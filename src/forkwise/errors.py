"""Every exception forkwise raises, in one tree.

They are in one module so that a caller can see the whole tree at a glance, and carry their facts as fields so that no
caller has to parse a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkwise.files.store.changes import Conflict

__all__ = [
    "AbortError",
    "AgentError",
    "BaselineError",
    "BranchError",
    "BranchNotFoundError",
    "BranchStaleError",
    "BranchesFailed",
    "BranchingError",
    "BudgetExceededError",
    "CommitError",
    "CommitNotFoundError",
    "ConfigError",
    "ConflictError",
    "ConversationError",
    "ConversationNotFoundError",
    "ExecutableConfigError",
    "ForkBranchLimitError",
    "ForkDepthLimitError",
    "ForkError",
    "ForkNotFoundError",
    "ForkResolvedError",
    "ForkwiseError",
    "ForkwiseWarning",
    "GitError",
    "LedgerError",
    "LimitError",
    "LocalModelError",
    "MemoryBranchError",
    "ModuleError",
    "MountError",
    "NamespaceError",
    "NewerStateError",
    "ParseError",
    "ProcessBranchError",
    "RetestError",
    "ServerError",
    "ServiceError",
    "SnapshotNotFoundError",
    "StateError",
    "StoreError",
    "ToolConflictError",
]


class BranchingError(Exception):
    """The base class of all errors that forkwise raises; catch it to catch any of them."""


ForkwiseError = BranchingError


class ForkwiseWarning(UserWarning):
    """A warning to the caller that something was left out or only partly done; the message says what and why."""


class MountError(BranchingError):
    """A view of a branch is not available, or could not be mounted or unmounted.

    Raised to the caller who opens a workspace or uses a branch's path. ``view`` names the view, ``reason`` is why it
    failed, ``remedy`` what the user can do.
    """

    def __init__(self, message: str, *, view: str | None = None, reason: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.view = view
        self.reason = reason
        self.remedy = remedy


class StateError(BranchingError):
    """A part of the state directory is damaged and was not used; raised to the caller who needs exactly that part.

    ``path`` is its file or directory, ``reason`` what is wrong with it, ``remedy`` what the user can do.
    """

    def __init__(self, path: str, reason: str, *, remedy: str = "see forkwise doctor --repair") -> None:
        super().__init__(f"{path} is damaged: {reason}; {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class NewerStateError(StateError):
    """State has a format that only a newer forkwise knows; raised to the caller who opens or reads it.

    ``format`` is its number, ``newest`` the highest one that this version reads.
    """

    def __init__(self, path: str, number: int, newest: int) -> None:
        remedy = "install a newer forkwise"
        reason = f"it was written by a newer forkwise (format {number}; this version reads up to {newest})"
        super().__init__(path, reason, remedy=remedy)
        self.args = (f"{path} cannot be read: {reason}; {remedy}",)
        self.format = number
        self.newest = newest


class BranchError(BranchingError):
    """An operation on a branch failed; raised to the caller of that operation.

    ``branch`` is the name of the branch, ``paths`` are the files concerned.
    """

    def __init__(self, message: str, *, branch: str | None = None, paths: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.branch = branch
        self.paths = tuple(paths)


class BranchNotFoundError(BranchError):
    """The branch does not exist, or was committed or aborted meanwhile; raised to any user of that branch."""


class CommitError(BranchError):
    """A commit or an undo failed and left the workspace unchanged; raised to the caller of ``commit`` or ``undo``."""


class CommitNotFoundError(CommitError):
    """There is no commit with this number, or gc has collected its record; raised to the caller who names it."""


class ConflictError(CommitError):
    """Another writer changed paths in the parent, since the fork, that the branch changed too.

    Raised to the caller of ``commit``, ``rebase`` or ``undo``; ``conflicts`` lists the paths and what happened to them.
    """

    def __init__(
        self,
        message: str,
        *,
        branch: str | None = None,
        paths: Sequence[str] = (),
        conflicts: Sequence[Conflict] = (),
    ) -> None:
        super().__init__(message, branch=branch, paths=paths or [c.path for c in conflicts])
        self.conflicts = tuple(conflicts)


class BranchStaleError(ConflictError):
    """A commit came too late: a sibling was committed first, so the branch has to be rebased.

    Raised to the caller of ``commit``. It is a `ConflictError` without ``conflicts``, so that code which catches either
    of the two handles a lost race.
    """


class StoreError(BranchingError):
    """An object store cannot be used, or what it holds is damaged; raised to the caller who reads or writes it.

    ``store`` is its location, ``name`` the object, if the error concerns a single one. Damaged content is never used.
    """

    def __init__(self, message: str, *, store: str = "", name: str = "") -> None:
        super().__init__(message)
        self.store = store
        self.name = name


class NodeError(BranchingError):
    """A cluster, or one of its nodes, cannot run an attempt, or was lost; that says nothing about the attempt."""


class SnapshotNotFoundError(StoreError):
    """A store does not have, or no longer has, a snapshot or packed delta; raised to the caller who names it."""


class BaselineError(BranchingError):
    """The tests that attempts are to be judged by cannot run on the unchanged workspace. No attempt was started."""


class RetestError(CommitError):
    """A branch passed its tests alone, and fails them on top of what was committed to its parent since.

    Raised to the caller who commits a winner, with nothing committed. ``reason`` is the failure in one line, ``tests``
    the test report as JSON data; None if the tests are a function.
    """

    def __init__(
        self, message: str, *, branch: str | None = None, reason: str = "", tests: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message, branch=branch)
        self.reason = reason
        self.tests = tests


class ExecutableConfigError(CommitError):
    """A confined program changed configuration that makes programs run on the user's machine: nothing was committed.

    Raised to the caller of ``commit``, unless ``allow_executable_config`` is set. ``executors`` maps each such path to
    what would run or read it.
    """

    def __init__(self, message: str, *, branch: str | None = None, executors: Mapping[str, str]) -> None:
        super().__init__(message, branch=branch, paths=list(executors))
        self.executors = dict(executors)


class AbortError(BranchError):
    """A branch could not be removed; raised to the caller of ``abort``."""


class ProcessBranchError(BranchingError):
    """A sandboxed process failed; raised to the caller who runs a command or a function in a branch.

    ``errno`` says why, if a command could not be started or its sandbox could not be set up; else it is None.
    """

    def __init__(self, message: str = "", *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class ForkError(ProcessBranchError):
    """A process could not be forked; raised to the caller who runs a function in a branch."""


class NamespaceError(ProcessBranchError):
    """Namespaces, limits or the confinement of a process could not be set up; raised to the caller who runs it."""


class MemoryBranchError(BranchingError):
    """The memory of a process could not be branched; exported for compatibility, forkwise never raises it."""


class ConfigError(BranchingError):
    """A configuration file is invalid, or cannot be read, written or accepted; ``path`` is the file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class AgentError(BranchingError):
    """A coding agent is unknown, not installed, or cannot do what was requested; ``agent`` is its name.

    Raised to the caller who starts or looks for the agent.
    """

    def __init__(self, message: str, *, agent: str = "") -> None:
        super().__init__(message)
        self.agent = agent


class GitError(BranchingError):
    """A git repository cannot be used, or git failed; raised to the caller who commits to git."""


class LedgerError(BranchingError):
    """A request to the ledger is invalid, or the ledger cannot be used; raised to the caller of the ledger.

    ``subject`` is the requested id; ``near`` are similar ids that the user may have meant.
    """

    def __init__(self, message: str, *, subject: str | None = None, near: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.subject = subject
        self.near = tuple(near)


class ForkNotFoundError(LedgerError):
    """The ledger has no such fork or attempt; raised to the caller who names one."""


class ForkResolvedError(BranchingError):
    """The fork is already resolved; raised to the caller who tries to resolve it again."""

    def __init__(self, message: str, *, fork: str | None = None) -> None:
        super().__init__(message)
        self.fork = fork


class ConversationError(BranchingError):
    """A message was appended where no provider would accept it; raised to the caller who builds the conversation.

    ``rule`` names the violated rule, ``node`` the message before it, ``calls`` the tool calls concerned.
    """

    def __init__(self, message: str, *, rule: str = "", node: int | None = None, calls: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.rule = rule
        self.node = node
        self.calls = tuple(calls)


class ConversationNotFoundError(ConversationError):
    """There is no such conversation, or no such message or branch in it; raised to the caller who names one."""


class LocalModelError(BranchingError):
    """The local model could not be downloaded, started or used as requested; raised to the caller who uses it.

    ``reason`` is why, ``remedy`` what the user can do.
    """

    def __init__(self, message: str, *, reason: str = "", remedy: str = "") -> None:
        super().__init__(f"{message}{': ' if reason else ''}{reason}{'; ' if remedy else ''}{remedy}")
        self.reason = reason
        self.remedy = remedy


class BranchesFailed(BranchingError):  # noqa: N818 - named after the branches, whose results it carries
    """Some of several branches of a conversation failed; raised to the caller who awaits all of them.

    ``failures`` has the errors by branch number, ``done`` the results of the other branches, in order.
    """

    def __init__(self, done: Sequence[object], failures: Mapping[int, Exception]) -> None:
        details = "; ".join(f"branch {number + 1}: {type(e).__name__}: {e}" for number, e in sorted(failures.items()))
        super().__init__(f"{len(failures)} of {len(failures) + len(done)} branches failed: {details}")
        self.done = tuple(done)
        self.failures = dict(failures)


class ServerError(BranchingError):
    """A server of a branch did not get ready, ended early, or was not prepared; raised to the caller who needs it.

    It says nothing about the attempt in that branch. ``server`` is its name, ``output`` the end of what it printed.
    """

    def __init__(self, message: str, *, server: str = "", output: str = "") -> None:
        super().__init__(f"{message}. Its output ends with:\n{output}" if output else message)
        self.server = server
        self.output = output


class ModuleError(BranchingError):
    """The call of a module failed; raised to the caller of the module."""


class ParseError(ModuleError):
    """A model's output does not match the requested format; raised to the caller of the module.

    ``raw_output`` is the output.
    """

    def __init__(self, message: str, raw_output: str | None = None) -> None:
        super().__init__(message)
        self.raw_output = raw_output


class ServiceError(ModuleError):
    """A service that a module needs could not be started; raised to the caller of the module."""

    def __init__(self, message: str, *, service: str | None = None) -> None:
        super().__init__(message)
        self.service = service


class ToolConflictError(ModuleError):
    """Two tools of one module have the same name; raised to the caller who creates the module."""

    def __init__(self, message: str, *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool


class LimitError(ModuleError):
    """A tree of module branches reached one of its limits, named by ``limit``; raised to the module's caller."""

    def __init__(self, message: str, *, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class ForkBranchLimitError(BranchingError):
    """A fork requests more branches than ``limit``; raised to the forking agent or caller."""

    def __init__(self, message: str, *, asked: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.asked = asked
        self.limit = limit


class ForkDepthLimitError(BranchingError):
    """A fork inside a branch exceeds the maximum depth; raised to the forking agent or caller."""

    def __init__(self, message: str, *, depth: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.depth = depth
        self.limit = limit


class BudgetExceededError(BranchingError):
    """A branch was stopped because its budget is exhausted; raised inside the branch's run and recorded as its end.

    ``state`` names the budget.
    """

    def __init__(self, message: str, *, state: str = "budget_exhausted") -> None:
        super().__init__(f"{state}: {message}")
        self.state = state
