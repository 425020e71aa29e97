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
    from forkwise.agents.live.capability import LiveForkCapability
    from forkwise.agents.live.checkpoint import (
        Checkpoint,
        CheckpointStore,
        InMemoryCheckpointStore,
        fork_from_checkpoint,
    )
    from forkwise.agents.live.checkpoint_files import FileCheckpointStore
    from forkwise.agents.live.checkpointing import CheckpointCapability
    from forkwise.agents.live.confidence import compute_confidence, count_retry_parts, count_stuck_loop_hits
    from forkwise.agents.live.coordinator import ForkCoordinator
    from forkwise.agents.live.cost import BranchCost, ForkCostSummary
    from forkwise.agents.live.deep_agent import create_deep_agent
    from forkwise.agents.live.deps import DeepAgentDeps, Todo, clone_for_branch
    from forkwise.agents.live.diff_report import (
        BranchChange,
        BranchDiffAgreement,
        BranchDiffOperation,
        BranchDiffReport,
        DiffSummary,
        PathDiff,
    )
    from forkwise.agents.live.diffing import build_diff_report
    from forkwise.agents.live.editors import EditorDetector, EditorKind
    from forkwise.agents.live.estimate import CostProjection
    from forkwise.agents.live.fork_tools import create_fork_toolset
    from forkwise.agents.live.judge import JudgeAgent
    from forkwise.agents.live.judge_prompt import JUDGE_SYSTEM_PROMPT
    from forkwise.agents.live.local_backend import LocalBackend
    from forkwise.agents.live.materializer import ForkMaterializer
    from forkwise.agents.live.merging import FileChange, FlushError, FlushReport, MergeResult
    from forkwise.agents.live.message_queue import MessageQueue
    from forkwise.agents.live.overlay import BranchOverlay
    from forkwise.agents.live.rewinding import Rewound, rewind
    from forkwise.agents.live.runtime import BranchRuntime
    from forkwise.agents.live.specs import BranchIsolation, BranchSpec, Budget, MergeStrategy
    from forkwise.agents.live.state_backend import StateBackend
    from forkwise.agents.live.status import BranchState, BranchStatus, ForkHandle, PendingApprovalRequest
    from forkwise.agents.live.store import ForkStateStore, InMemoryForkStateStore, LedgerForkStore
    from forkwise.agents.live.verdict import BranchOutcome, ConfidenceSignals, JudgeVerdict, ResolveOutcome
    from forkwise.agents.module import Module
    from forkwise.agents.partial import Partial
    from forkwise.agents.service import Service
    from forkwise.agents.step import Step, ToolCall, ToolResult
    from forkwise.agents.stream import StreamChunk
    from forkwise.agents.template import Template
    from forkwise.agents.tool import Tool, tool
    from forkwise.agents.xml import pydantic_to_xml, xml_to_pydantic
    from forkwise.conversation.adoption import adopted
    from forkwise.conversation.branch_self import BranchSelf, branch_self
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.saving import export_conversation, import_conversation
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
    from forkwise.explore.outcome import SpeculationOutcome, SpeculationResult
    from forkwise.explore.pattern import Pattern
    from forkwise.explore.reflexion import Reflexion
    from forkwise.explore.resuming import resume
    from forkwise.explore.speculate import Speculate
    from forkwise.explore.tournament import Tournament
    from forkwise.explore.tree_of_thoughts import TreeOfThoughts
    from forkwise.explore.tree_search import TreeSearch
    from forkwise.files.branch import Branch
    from forkwise.files.collect import Collected
    from forkwise.files.commit import Commit
    from forkwise.files.conflict import Conflict
    from forkwise.files.delta import Change, Delta
    from forkwise.files.rebase import Rebase
    from forkwise.files.workspace import Workspace
    from forkwise.fork.agent_workspace import agent_workspace
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.clearing import abort_fork
    from forkwise.fork.combining import Combined, combine_attempts
    from forkwise.fork.evaluation import Evaluation, Evaluator, SmallerDiff
    from forkwise.fork.fork import Fork
    from forkwise.fork.heeding import abort_attempt
    from forkwise.fork.picking import pick
    from forkwise.fork.testing.report import TestReport
    from forkwise.fork.tests import Tests
    from forkwise.ledger.opening import open_ledger
    from forkwise.ledger.protocol import Ledger
    from forkwise.runners.in_process import InProcessRunner
    from forkwise.runners.protocol import Runner
    from forkwise.runners.sandboxed import SandboxRunner
    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.context import BranchContext
    from forkwise.sandbox.limits import Limits
    from forkwise.sandbox.process import Finished
    from forkwise.sandbox.running import arun as arun_in_branch
    from forkwise.sandbox.running import run as run_in_branch
    from forkwise.sandbox.running import shell as shell_in_branch

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
