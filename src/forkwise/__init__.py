"""Copy-on-write branches of any directory: fork it, try several things, commit exactly one outcome, undo it.

A public name is loaded on first use, so that ``from forkwise import Workspace`` imports only what a workspace needs.

>>> from forkwise import Workspace
>>> ws = Workspace("/path/to/project")                # doctest: +SKIP
>>> with ws.branch("attempt") as branch:              # doctest: +SKIP
...     (branch.path / "notes.txt").write_text("tried")
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkwise.cluster.ray_runner import RayRunner as RayRunner
    from forkwise.conversation.adopt import adopted as adopted
    from forkwise.conversation.branch_self import BranchSelf as BranchSelf
    from forkwise.conversation.branch_self import branch_self as branch_self
    from forkwise.conversation.conversation import Conversation as Conversation
    from forkwise.conversation.store import export_conversation as export_conversation
    from forkwise.conversation.store import import_conversation as import_conversation
    from forkwise.conversation.talk import Talk as Talk
    from forkwise.errors import AbortError as AbortError
    from forkwise.errors import AgentError as AgentError
    from forkwise.errors import BaselineError as BaselineError
    from forkwise.errors import BranchError as BranchError
    from forkwise.errors import BranchesFailed as BranchesFailed
    from forkwise.errors import BranchingError as BranchingError
    from forkwise.errors import BranchNotFoundError as BranchNotFoundError
    from forkwise.errors import BranchStaleError as BranchStaleError
    from forkwise.errors import BudgetExceededError as BudgetExceededError
    from forkwise.errors import CommitError as CommitError
    from forkwise.errors import CommitNotFoundError as CommitNotFoundError
    from forkwise.errors import ConfigError as ConfigError
    from forkwise.errors import ConflictError as ConflictError
    from forkwise.errors import ConversationError as ConversationError
    from forkwise.errors import ConversationNotFoundError as ConversationNotFoundError
    from forkwise.errors import ExecutableConfigError as ExecutableConfigError
    from forkwise.errors import ForkBranchLimitError as ForkBranchLimitError
    from forkwise.errors import ForkDepthLimitError as ForkDepthLimitError
    from forkwise.errors import ForkError as ForkError
    from forkwise.errors import ForkNotFoundError as ForkNotFoundError
    from forkwise.errors import ForkResolvedError as ForkResolvedError
    from forkwise.errors import ForkwiseError as ForkwiseError
    from forkwise.errors import ForkwiseWarning as ForkwiseWarning
    from forkwise.errors import GitError as GitError
    from forkwise.errors import LedgerError as LedgerError
    from forkwise.errors import LimitError as LimitError
    from forkwise.errors import LocalModelError as LocalModelError
    from forkwise.errors import MemoryBranchError as MemoryBranchError
    from forkwise.errors import ModuleError as ModuleError
    from forkwise.errors import MountError as MountError
    from forkwise.errors import NamespaceError as NamespaceError
    from forkwise.errors import NewerStateError as NewerStateError
    from forkwise.errors import NodeError as NodeError
    from forkwise.errors import ParseError as ParseError
    from forkwise.errors import ProcessBranchError as ProcessBranchError
    from forkwise.errors import RetestError as RetestError
    from forkwise.errors import ServerError as ServerError
    from forkwise.errors import ServiceError as ServiceError
    from forkwise.errors import SnapshotNotFoundError as SnapshotNotFoundError
    from forkwise.errors import StateError as StateError
    from forkwise.errors import StoreError as StoreError
    from forkwise.errors import ToolConflictError as ToolConflictError
    from forkwise.explore.beam_search import BeamSearch as BeamSearch
    from forkwise.explore.best_of_n import BestOfN as BestOfN
    from forkwise.explore.cascaded import Cascaded as Cascaded
    from forkwise.explore.evidence.summary import AttemptSummary as AttemptSummary
    from forkwise.explore.evidence.summary import FileSummary as FileSummary
    from forkwise.explore.evidence.summary import Summaries as Summaries
    from forkwise.explore.judges.model_judge import ModelJudge as ModelJudge
    from forkwise.explore.pattern import Pattern as Pattern
    from forkwise.explore.pattern import SpeculationOutcome as SpeculationOutcome
    from forkwise.explore.pattern import SpeculationResult as SpeculationResult
    from forkwise.explore.recursive_tournament import RecursiveTournament as RecursiveTournament
    from forkwise.explore.refine import Refine as Refine
    from forkwise.explore.reflexion import Reflexion as Reflexion
    from forkwise.explore.resume import resume as resume
    from forkwise.explore.speculate import Speculate as Speculate
    from forkwise.explore.stop_rule import AllGreen as AllGreen
    from forkwise.explore.stop_rule import CostLimit as CostLimit
    from forkwise.explore.stop_rule import NoGain as NoGain
    from forkwise.explore.stop_rule import StopRule as StopRule
    from forkwise.explore.tournament import Tournament as Tournament
    from forkwise.explore.tree_of_thoughts import TreeOfThoughts as TreeOfThoughts
    from forkwise.explore.tree_search import TreeSearch as TreeSearch
    from forkwise.files.branch import Branch as Branch
    from forkwise.files.gc import Collected as Collected
    from forkwise.files.rebase import Rebase as Rebase
    from forkwise.files.store.changes import Change as Change
    from forkwise.files.store.changes import Commit as Commit
    from forkwise.files.store.changes import Conflict as Conflict
    from forkwise.files.store.changes import Delta as Delta
    from forkwise.files.workspace import Workspace as Workspace
    from forkwise.fork.agent_workspace import agent_workspace as agent_workspace
    from forkwise.fork.attempt import Attempt as Attempt
    from forkwise.fork.combine import Combined as Combined
    from forkwise.fork.combine import combine_attempts as combine_attempts
    from forkwise.fork.control import abort_attempt as abort_attempt
    from forkwise.fork.control import abort_fork as abort_fork
    from forkwise.fork.evaluation import Evaluation as Evaluation
    from forkwise.fork.evaluation import Evaluator as Evaluator
    from forkwise.fork.evaluation import SmallerDiff as SmallerDiff
    from forkwise.fork.evaluators.cross_tests import CrossTests as CrossTests
    from forkwise.fork.evaluators.tests import Tests as Tests
    from forkwise.fork.fork import Fork as Fork
    from forkwise.fork.resolve import pick as pick
    from forkwise.fork.runner import InProcessRunner as InProcessRunner
    from forkwise.fork.runner import Runner as Runner
    from forkwise.fork.runner import SandboxRunner as SandboxRunner
    from forkwise.ledger.ledger import Ledger as Ledger
    from forkwise.ledger.sqlite import open_ledger as open_ledger
    from forkwise.linux.namespace import enter_namespace as enter_namespace
    from forkwise.live.backends.branch_overlay import BranchOverlay as BranchOverlay
    from forkwise.live.backends.local import LocalBackend as LocalBackend
    from forkwise.live.backends.memory import StateBackend as StateBackend
    from forkwise.live.branch_runtime import BranchRuntime as BranchRuntime
    from forkwise.live.budget import CostProjection as CostProjection
    from forkwise.live.capability import LiveForkCapability as LiveForkCapability
    from forkwise.live.checkpoints import Checkpoint as Checkpoint
    from forkwise.live.checkpoints import CheckpointCapability as CheckpointCapability
    from forkwise.live.checkpoints import CheckpointStore as CheckpointStore
    from forkwise.live.checkpoints import FileCheckpointStore as FileCheckpointStore
    from forkwise.live.checkpoints import InMemoryCheckpointStore as InMemoryCheckpointStore
    from forkwise.live.checkpoints import Rewound as Rewound
    from forkwise.live.checkpoints import fork_from_checkpoint as fork_from_checkpoint
    from forkwise.live.checkpoints import rewind as rewind
    from forkwise.live.coordinator import ForkCoordinator as ForkCoordinator
    from forkwise.live.deep_agent import BASE_PROMPT as BASE_PROMPT
    from forkwise.live.deep_agent import create_deep_agent as create_deep_agent
    from forkwise.live.deps import DeepAgentDeps as DeepAgentDeps
    from forkwise.live.deps import MessageQueue as MessageQueue
    from forkwise.live.deps import Todo as Todo
    from forkwise.live.deps import clone_for_branch as clone_for_branch
    from forkwise.live.diff.build import build_diff_report as build_diff_report
    from forkwise.live.diff.diff_report import BranchChange as BranchChange
    from forkwise.live.diff.diff_report import BranchDiffAgreement as BranchDiffAgreement
    from forkwise.live.diff.diff_report import BranchDiffOperation as BranchDiffOperation
    from forkwise.live.diff.diff_report import BranchDiffReport as BranchDiffReport
    from forkwise.live.diff.diff_report import DiffSummary as DiffSummary
    from forkwise.live.diff.diff_report import PathDiff as PathDiff
    from forkwise.live.diff.mirror import EditorDetector as EditorDetector
    from forkwise.live.diff.mirror import EditorKind as EditorKind
    from forkwise.live.diff.mirror import ForkMaterializer as ForkMaterializer
    from forkwise.live.fork_tools import create_fork_toolset as create_fork_toolset
    from forkwise.live.judging.confidence import compute_confidence as compute_confidence
    from forkwise.live.judging.confidence import count_retry_parts as count_retry_parts
    from forkwise.live.judging.confidence import count_stuck_loop_hits as count_stuck_loop_hits
    from forkwise.live.judging.judge import JUDGE_SYSTEM_PROMPT as JUDGE_SYSTEM_PROMPT
    from forkwise.live.judging.judge import JudgeAgent as JudgeAgent
    from forkwise.live.judging.verdict import BranchOutcome as BranchOutcome
    from forkwise.live.judging.verdict import ConfidenceSignals as ConfidenceSignals
    from forkwise.live.judging.verdict import JudgeVerdict as JudgeVerdict
    from forkwise.live.judging.verdict import ResolveOutcome as ResolveOutcome
    from forkwise.live.resume import ForkStateStore as ForkStateStore
    from forkwise.live.resume import InMemoryForkStateStore as InMemoryForkStateStore
    from forkwise.live.resume import LedgerForkStore as LedgerForkStore
    from forkwise.live.values import BranchCost as BranchCost
    from forkwise.live.values import BranchIsolation as BranchIsolation
    from forkwise.live.values import BranchSpec as BranchSpec
    from forkwise.live.values import BranchState as BranchState
    from forkwise.live.values import BranchStatus as BranchStatus
    from forkwise.live.values import Budget as Budget
    from forkwise.live.values import FileChange as FileChange
    from forkwise.live.values import FlushError as FlushError
    from forkwise.live.values import FlushReport as FlushReport
    from forkwise.live.values import ForkCostSummary as ForkCostSummary
    from forkwise.live.values import ForkHandle as ForkHandle
    from forkwise.live.values import MergeResult as MergeResult
    from forkwise.live.values import MergeStrategy as MergeStrategy
    from forkwise.live.values import PendingApprovalRequest as PendingApprovalRequest
    from forkwise.modules.call import Step as Step
    from forkwise.modules.call import ToolCall as ToolCall
    from forkwise.modules.call import ToolResult as ToolResult
    from forkwise.modules.declaration import Template as Template
    from forkwise.modules.module import Module as Module
    from forkwise.modules.request import Partial as Partial
    from forkwise.modules.request import StreamChunk as StreamChunk
    from forkwise.modules.service import Service as Service
    from forkwise.modules.tools import Tool as Tool
    from forkwise.modules.tools import tool as tool
    from forkwise.modules.xml import pydantic_to_xml as pydantic_to_xml
    from forkwise.modules.xml import xml_to_pydantic as xml_to_pydantic
    from forkwise.sandbox.confinement import Confinement as Confinement
    from forkwise.sandbox.context import BranchContext as BranchContext
    from forkwise.sandbox.limits import Limits as Limits
    from forkwise.sandbox.process import Finished as Finished
    from forkwise.sandbox.run import arun_in_branch as arun_in_branch
    from forkwise.sandbox.run import run_in_branch as run_in_branch
    from forkwise.sandbox.run import shell_in_branch as shell_in_branch
    from forkwise.snapshot.collection import Collection as Collection
    from forkwise.snapshot.collection import collect_garbage as collect_garbage
    from forkwise.snapshot.object_store import ObjectStore as ObjectStore
    from forkwise.snapshot.packed_delta import PackedDelta as PackedDelta
    from forkwise.snapshot.snapshot import Snapshot as Snapshot
    from forkwise.snapshot.snapshot import list_snapshots as list_snapshots
    from forkwise.snapshot.snapshot_cache import SnapshotCache as SnapshotCache
    from forkwise.snapshot.snapshot_cache import UnpackedSnapshot as UnpackedSnapshot
    from forkwise.snapshot.unpack import unpack_snapshot as unpack_snapshot
    from forkwise.testing.report import TestReport as TestReport

__version__ = "0.2.0"

#: The public names, by the module that defines them.
_EXPORTS: dict[str, tuple[str, ...]] = {
    "errors": (
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
        "ParseError",
        "NewerStateError",
        "NodeError",
        "ProcessBranchError",
        "RetestError",
        "ServerError",
        "ServiceError",
        "SnapshotNotFoundError",
        "StateError",
        "StoreError",
        "ToolConflictError",
    ),
    "explore.beam_search": ("BeamSearch",),
    "explore.best_of_n": ("BestOfN",),
    "explore.cascaded": ("Cascaded",),
    "explore.evidence.summary": (
        "AttemptSummary",
        "FileSummary",
        "Summaries",
    ),
    "explore.pattern": (
        "Pattern",
        "SpeculationOutcome",
        "SpeculationResult",
    ),
    "explore.recursive_tournament": ("RecursiveTournament",),
    "explore.refine": ("Refine",),
    "explore.reflexion": ("Reflexion",),
    "explore.resume": ("resume",),
    "explore.speculate": ("Speculate",),
    "explore.stop_rule": (
        "AllGreen",
        "CostLimit",
        "NoGain",
        "StopRule",
    ),
    "explore.tournament": ("Tournament",),
    "explore.tree_of_thoughts": ("TreeOfThoughts",),
    "explore.tree_search": ("TreeSearch",),
    "files.branch": ("Branch",),
    "files.gc": ("Collected",),
    "files.rebase": ("Rebase",),
    "files.store.changes": (
        "Change",
        "Commit",
        "Conflict",
        "Delta",
    ),
    "files.workspace": ("Workspace",),
    "fork.attempt": ("Attempt",),
    "fork.combine": (
        "Combined",
        "combine_attempts",
    ),
    "fork.control": (
        "abort_attempt",
        "abort_fork",
    ),
    "fork.evaluation": (
        "Evaluation",
        "Evaluator",
        "SmallerDiff",
    ),
    "fork.evaluators.cross_tests": ("CrossTests",),
    "fork.evaluators.tests": ("Tests",),
    "fork.fork": ("Fork",),
    "fork.resolve": ("pick",),
    "fork.runner": (
        "InProcessRunner",
        "Runner",
        "SandboxRunner",
    ),
    "ledger.ledger": ("Ledger",),
    "linux.namespace": ("enter_namespace",),
    "ledger.sqlite": ("open_ledger",),
    "live.backends.memory": ("StateBackend",),
    "live.diff.build": ("build_diff_report",),
    "live.diff.diff_report": (
        "BranchChange",
        "BranchDiffAgreement",
        "BranchDiffOperation",
        "BranchDiffReport",
        "DiffSummary",
        "PathDiff",
    ),
    "live.diff.mirror": (
        "EditorDetector",
        "EditorKind",
        "ForkMaterializer",
    ),
    "live.values": (
        "BranchCost",
        "BranchIsolation",
        "BranchSpec",
        "BranchState",
        "BranchStatus",
        "Budget",
        "FileChange",
        "FlushError",
        "FlushReport",
        "ForkCostSummary",
        "ForkHandle",
        "MergeResult",
        "MergeStrategy",
        "PendingApprovalRequest",
    ),
    "modules.xml": (
        "pydantic_to_xml",
        "xml_to_pydantic",
    ),
    "sandbox.confinement": ("Confinement",),
    "sandbox.context": ("BranchContext",),
    "sandbox.limits": ("Limits",),
    "sandbox.process": ("Finished",),
    "sandbox.run": (
        "arun_in_branch",
        "run_in_branch",
        "shell_in_branch",
    ),
    "testing.report": ("TestReport",),
}

#: Public names that need pydantic-ai, which the extra ``agents`` installs.
_AGENT_EXPORTS: dict[str, tuple[str, ...]] = {
    "conversation.adopt": ("adopted",),
    "conversation.branch_self": (
        "BranchSelf",
        "branch_self",
    ),
    "conversation.conversation": ("Conversation",),
    "conversation.store": (
        "export_conversation",
        "import_conversation",
    ),
    "conversation.talk": ("Talk",),
    "explore.judges.model_judge": ("ModelJudge",),
    "fork.agent_workspace": ("agent_workspace",),
    "live.backends.branch_overlay": ("BranchOverlay",),
    "live.backends.local": ("LocalBackend",),
    "live.branch_runtime": ("BranchRuntime",),
    "live.budget": ("CostProjection",),
    "live.capability": ("LiveForkCapability",),
    "live.checkpoints": (
        "Checkpoint",
        "CheckpointCapability",
        "CheckpointStore",
        "FileCheckpointStore",
        "InMemoryCheckpointStore",
        "Rewound",
        "fork_from_checkpoint",
        "rewind",
    ),
    "live.coordinator": ("ForkCoordinator",),
    "live.deep_agent": (
        "BASE_PROMPT",
        "create_deep_agent",
    ),
    "live.deps": (
        "DeepAgentDeps",
        "MessageQueue",
        "Todo",
        "clone_for_branch",
    ),
    "live.fork_tools": ("create_fork_toolset",),
    "live.judging.confidence": (
        "compute_confidence",
        "count_retry_parts",
        "count_stuck_loop_hits",
    ),
    "live.judging.judge": (
        "JUDGE_SYSTEM_PROMPT",
        "JudgeAgent",
    ),
    "live.judging.verdict": (
        "BranchOutcome",
        "ConfidenceSignals",
        "JudgeVerdict",
        "ResolveOutcome",
    ),
    "live.resume": (
        "ForkStateStore",
        "InMemoryForkStateStore",
        "LedgerForkStore",
    ),
    "modules.call": (
        "Step",
        "ToolCall",
        "ToolResult",
    ),
    "modules.declaration": ("Template",),
    "modules.module": ("Module",),
    "modules.request": (
        "Partial",
        "StreamChunk",
    ),
    "modules.service": ("Service",),
    "modules.tools": (
        "Tool",
        "tool",
    ),
}

_CLUSTER_EXPORTS: dict[str, tuple[str, ...]] = {"cluster.ray_runner": ("RayRunner",)}

_SNAPSHOT_EXPORTS: dict[str, tuple[str, ...]] = {
    "snapshot.collection": (
        "Collection",
        "collect_garbage",
    ),
    "snapshot.object_store": ("ObjectStore",),
    "snapshot.packed_delta": ("PackedDelta",),
    "snapshot.snapshot": (
        "Snapshot",
        "list_snapshots",
    ),
    "snapshot.snapshot_cache": (
        "SnapshotCache",
        "UnpackedSnapshot",
    ),
    "snapshot.unpack": ("unpack_snapshot",),
}

# What an extra adds: the package to look for, the extra, and the names.
_EXTRAS = (
    ("pydantic_ai", "pydantic-ai", "agents", _AGENT_EXPORTS),
    ("obstore", "obstore", "snapshots", _SNAPSHOT_EXPORTS),
    ("blake3", "blake3", "snapshots", _SNAPSHOT_EXPORTS),
    ("obstore", "obstore", "ray", _CLUSTER_EXPORTS),  # Ray itself is loaded when a runner connects
    ("blake3", "blake3", "ray", _CLUSTER_EXPORTS),
)
_ALL = _EXPORTS | _AGENT_EXPORTS | _CLUSTER_EXPORTS | _SNAPSHOT_EXPORTS
_MODULE_OF = {name: module for module, names in _ALL.items() for name in names}


def _sort_key(name: str) -> tuple[int, str]:
    """Sort constants first, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


# A star import must not fail where an extra is missing. A single import of such a name says what to install.
_missing = {module for package, _, _, exports in _EXTRAS if find_spec(package) is None for module in exports}
_available = {module: names for module, names in _ALL.items() if module not in _missing}
__all__ = sorted(("__version__", *(name for names in _available.values() for name in names)), key=_sort_key)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"forkwise.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        for package, project, extra, exports in _EXTRAS:
            if (error.name or "").partition(".")[0] == package and _MODULE_OF[name] in exports:
                message = f"{name} needs {project}: pip install 'forkwise[{extra}]'"
                raise ImportError(message, name=error.name) from error
        raise
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
