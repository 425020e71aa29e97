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

from forkwise.homes import HOMES

if TYPE_CHECKING:
    from forkwise.conversation.adopt import adopted
    from forkwise.conversation.branch_self import BranchSelf, branch_self
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.store import export_conversation, import_conversation
    from forkwise.conversation.talk import Talk
    from forkwise.errors import (
        AbortError,
        BranchError,
        BranchesFailed,
        BranchingError,
        BranchNotFoundError,
        BranchStaleError,
        BudgetExceededError,
        CommitError,
        ConflictError,
        ConversationError,
        ForkBranchLimitError,
        ForkDepthLimitError,
        ForkError,
        ForkNotFoundError,
        ForkResolvedError,
        ForkwiseError,
        ForkwiseWarning,
        LedgerError,
        LimitError,
        LocalModelError,
        MemoryBranchError,
        ModuleError,
        MountError,
        NamespaceError,
        ParseError,
        ProcessBranchError,
        ServiceError,
        ToolConflictError,
    )
    from forkwise.explore.beam_search import BeamSearch
    from forkwise.explore.best_of_n import BestOfN
    from forkwise.explore.cascaded import Cascaded
    from forkwise.explore.pattern import Pattern, SpeculationOutcome, SpeculationResult
    from forkwise.explore.reflexion import Reflexion
    from forkwise.explore.resume import resume
    from forkwise.explore.speculate import Speculate
    from forkwise.explore.tournament import Tournament
    from forkwise.explore.tree_of_thoughts import TreeOfThoughts
    from forkwise.explore.tree_search import TreeSearch
    from forkwise.files.branch import Branch
    from forkwise.files.gc import Collected
    from forkwise.files.rebase import Rebase
    from forkwise.files.store.changes import Change, Commit, Conflict, Delta
    from forkwise.files.workspace import Workspace
    from forkwise.fork.agent_workspace import agent_workspace
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.combine import Combined, combine_attempts
    from forkwise.fork.control import abort_attempt, abort_fork
    from forkwise.fork.evaluation import Evaluation, Evaluator, SmallerDiff, Tests
    from forkwise.fork.fork import Fork
    from forkwise.fork.resolve import pick
    from forkwise.fork.runner import InProcessRunner, Runner, SandboxRunner
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.sqlite import open_ledger
    from forkwise.live.backends.branch_overlay import BranchOverlay
    from forkwise.live.backends.local import LocalBackend
    from forkwise.live.backends.memory import StateBackend
    from forkwise.live.branch_runtime import BranchRuntime
    from forkwise.live.budget import CostProjection
    from forkwise.live.capability import LiveForkCapability
    from forkwise.live.checkpoints import (
        Checkpoint,
        CheckpointCapability,
        CheckpointStore,
        FileCheckpointStore,
        InMemoryCheckpointStore,
        Rewound,
        fork_from_checkpoint,
        rewind,
    )
    from forkwise.live.coordinator import ForkCoordinator
    from forkwise.live.deep_agent import create_deep_agent
    from forkwise.live.deps import DeepAgentDeps, MessageQueue, Todo, clone_for_branch
    from forkwise.live.diff.build import build_diff_report
    from forkwise.live.diff.diff_report import (
        BranchChange,
        BranchDiffAgreement,
        BranchDiffOperation,
        BranchDiffReport,
        DiffSummary,
        PathDiff,
    )
    from forkwise.live.diff.mirror import EditorDetector, EditorKind, ForkMaterializer
    from forkwise.live.fork_tools import create_fork_toolset
    from forkwise.live.judging.confidence import compute_confidence, count_retry_parts, count_stuck_loop_hits
    from forkwise.live.judging.judge import JUDGE_SYSTEM_PROMPT, JudgeAgent
    from forkwise.live.judging.verdict import BranchOutcome, ConfidenceSignals, JudgeVerdict, ResolveOutcome
    from forkwise.live.resume import ForkStateStore, InMemoryForkStateStore, LedgerForkStore
    from forkwise.live.values import (
        BranchCost,
        BranchIsolation,
        BranchSpec,
        BranchState,
        BranchStatus,
        Budget,
        FileChange,
        FlushError,
        FlushReport,
        ForkCostSummary,
        ForkHandle,
        MergeResult,
        MergeStrategy,
        PendingApprovalRequest,
    )
    from forkwise.modules.call import Step, ToolCall, ToolResult
    from forkwise.modules.declaration import Template
    from forkwise.modules.module import Module
    from forkwise.modules.request import Partial, StreamChunk
    from forkwise.modules.service import Service
    from forkwise.modules.tools import Tool, tool
    from forkwise.modules.xml import pydantic_to_xml, xml_to_pydantic
    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.context import BranchContext
    from forkwise.sandbox.limits import Limits
    from forkwise.sandbox.process import Finished
    from forkwise.sandbox.run import arun as arun_in_branch
    from forkwise.sandbox.run import run as run_in_branch
    from forkwise.sandbox.run import shell as shell_in_branch
    from forkwise.testing.report import TestReport

__version__ = "0.1.0"

__all__ = [
    "JUDGE_SYSTEM_PROMPT",
    "AbortError",
    "Attempt",
    "BeamSearch",
    "BestOfN",
    "Branch",
    "BranchChange",
    "BranchContext",
    "BranchCost",
    "BranchDiffAgreement",
    "BranchDiffOperation",
    "BranchDiffReport",
    "BranchError",
    "BranchIsolation",
    "BranchNotFoundError",
    "BranchOutcome",
    "BranchOverlay",
    "BranchRuntime",
    "BranchSelf",
    "BranchSpec",
    "BranchStaleError",
    "BranchState",
    "BranchStatus",
    "BranchesFailed",
    "BranchingError",
    "Budget",
    "BudgetExceededError",
    "Cascaded",
    "Change",
    "Checkpoint",
    "CheckpointCapability",
    "CheckpointStore",
    "Collected",
    "Combined",
    "Commit",
    "CommitError",
    "ConfidenceSignals",
    "Confinement",
    "Conflict",
    "ConflictError",
    "Conversation",
    "ConversationError",
    "CostProjection",
    "DeepAgentDeps",
    "Delta",
    "DiffSummary",
    "EditorDetector",
    "EditorKind",
    "Evaluation",
    "Evaluator",
    "FileChange",
    "FileCheckpointStore",
    "Finished",
    "FlushError",
    "FlushReport",
    "Fork",
    "ForkBranchLimitError",
    "ForkCoordinator",
    "ForkCostSummary",
    "ForkDepthLimitError",
    "ForkError",
    "ForkHandle",
    "ForkMaterializer",
    "ForkNotFoundError",
    "ForkResolvedError",
    "ForkStateStore",
    "ForkwiseError",
    "ForkwiseWarning",
    "InMemoryCheckpointStore",
    "InMemoryForkStateStore",
    "InProcessRunner",
    "JudgeAgent",
    "JudgeVerdict",
    "Ledger",
    "LedgerError",
    "LedgerForkStore",
    "LimitError",
    "Limits",
    "LiveForkCapability",
    "LocalBackend",
    "LocalModelError",
    "MemoryBranchError",
    "MergeResult",
    "MergeStrategy",
    "MessageQueue",
    "Module",
    "ModuleError",
    "MountError",
    "NamespaceError",
    "ParseError",
    "Partial",
    "PathDiff",
    "Pattern",
    "PendingApprovalRequest",
    "ProcessBranchError",
    "Rebase",
    "Reflexion",
    "ResolveOutcome",
    "Rewound",
    "Runner",
    "SandboxRunner",
    "Service",
    "ServiceError",
    "SmallerDiff",
    "Speculate",
    "SpeculationOutcome",
    "SpeculationResult",
    "StateBackend",
    "Step",
    "StreamChunk",
    "Talk",
    "Template",
    "TestReport",
    "Tests",
    "Todo",
    "Tool",
    "ToolCall",
    "ToolConflictError",
    "ToolResult",
    "Tournament",
    "TreeOfThoughts",
    "TreeSearch",
    "Workspace",
    "__version__",
    "abort_attempt",
    "abort_fork",
    "adopted",
    "agent_workspace",
    "arun_in_branch",
    "branch_self",
    "build_diff_report",
    "clone_for_branch",
    "combine_attempts",
    "compute_confidence",
    "count_retry_parts",
    "count_stuck_loop_hits",
    "create_deep_agent",
    "create_fork_toolset",
    "export_conversation",
    "fork_from_checkpoint",
    "import_conversation",
    "open_ledger",
    "pick",
    "pydantic_to_xml",
    "resume",
    "rewind",
    "run_in_branch",
    "shell_in_branch",
    "tool",
    "xml_to_pydantic",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = HOMES.get(name, "forkwise.errors")
    try:
        value: object = getattr(import_module(home), name.removesuffix("_in_branch"))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pydantic_ai":
            raise
        raise ImportError(f"{name} needs pydantic-ai: pip install 'forkwise[agents]'", name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
