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
    from forkwise.agents.live.confidence import compute_confidence, count_retry_parts, count_stuck_loop_hits
    from forkwise.agents.live.cost import BranchCost, ForkCostSummary
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
    from forkwise.agents.live.judge import JudgeAgent
    from forkwise.agents.live.judge_prompt import JUDGE_SYSTEM_PROMPT
    from forkwise.agents.live.materializer import ForkMaterializer
    from forkwise.agents.live.merging import FileChange, FlushError, FlushReport, MergeResult
    from forkwise.agents.live.specs import BranchIsolation, BranchSpec, Budget, MergeStrategy
    from forkwise.agents.live.status import BranchState, BranchStatus, ForkHandle, PendingApprovalRequest
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
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.clearing import abort_fork
    from forkwise.fork.combining import Combined, combine_attempts
    from forkwise.fork.evaluation import Evaluation, Evaluator, SmallerDiff
    from forkwise.fork.fork import Fork
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
    "Delta",
    "DiffSummary",
    "EditorDetector",
    "EditorKind",
    "Evaluation",
    "Evaluator",
    "FileChange",
    "Finished",
    "FlushError",
    "FlushReport",
    "Fork",
    "ForkBranchLimitError",
    "ForkCostSummary",
    "ForkDepthLimitError",
    "ForkError",
    "ForkHandle",
    "ForkMaterializer",
    "ForkNotFoundError",
    "ForkResolvedError",
    "ForkwiseError",
    "ForkwiseWarning",
    "InProcessRunner",
    "JudgeAgent",
    "JudgeVerdict",
    "Ledger",
    "LedgerError",
    "LimitError",
    "Limits",
    "LocalModelError",
    "MemoryBranchError",
    "MergeResult",
    "MergeStrategy",
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
    "Runner",
    "SandboxRunner",
    "Service",
    "ServiceError",
    "SmallerDiff",
    "Speculate",
    "SpeculationOutcome",
    "SpeculationResult",
    "Step",
    "StreamChunk",
    "Talk",
    "Template",
    "TestReport",
    "Tests",
    "Tool",
    "ToolCall",
    "ToolConflictError",
    "ToolResult",
    "Tournament",
    "TreeOfThoughts",
    "TreeSearch",
    "Workspace",
    "__version__",
    "abort_fork",
    "adopted",
    "arun_in_branch",
    "branch_self",
    "build_diff_report",
    "combine_attempts",
    "compute_confidence",
    "count_retry_parts",
    "count_stuck_loop_hits",
    "export_conversation",
    "import_conversation",
    "open_ledger",
    "pick",
    "pydantic_to_xml",
    "resume",
    "run_in_branch",
    "shell_in_branch",
    "tool",
    "xml_to_pydantic",
]

_HOMES = {
    "JUDGE_SYSTEM_PROMPT": "forkwise.agents.live.judge_prompt",
    "Attempt": "forkwise.fork.attempt",
    "BeamSearch": "forkwise.explore.beam_search",
    "BestOfN": "forkwise.explore.best_of_n",
    "Branch": "forkwise.files.branch",
    "BranchChange": "forkwise.agents.live.diff_report",
    "BranchContext": "forkwise.sandbox.context",
    "BranchCost": "forkwise.agents.live.cost",
    "BranchDiffAgreement": "forkwise.agents.live.diff_report",
    "BranchDiffOperation": "forkwise.agents.live.diff_report",
    "BranchDiffReport": "forkwise.agents.live.diff_report",
    "BranchIsolation": "forkwise.agents.live.specs",
    "BranchOutcome": "forkwise.agents.live.verdict",
    "BranchSelf": "forkwise.conversation.branch_self",
    "BranchSpec": "forkwise.agents.live.specs",
    "BranchState": "forkwise.agents.live.status",
    "BranchStatus": "forkwise.agents.live.status",
    "Budget": "forkwise.agents.live.specs",
    "Cascaded": "forkwise.explore.cascaded",
    "Change": "forkwise.files.delta",
    "Collected": "forkwise.files.collect",
    "Combined": "forkwise.fork.combining",
    "Commit": "forkwise.files.commit",
    "ConfidenceSignals": "forkwise.agents.live.verdict",
    "Confinement": "forkwise.sandbox.confinement",
    "Conflict": "forkwise.files.conflict",
    "Conversation": "forkwise.conversation.conversation",
    "Delta": "forkwise.files.delta",
    "DiffSummary": "forkwise.agents.live.diff_report",
    "EditorDetector": "forkwise.agents.live.editors",
    "EditorKind": "forkwise.agents.live.editors",
    "Evaluation": "forkwise.fork.evaluation",
    "Evaluator": "forkwise.fork.evaluation",
    "FileChange": "forkwise.agents.live.merging",
    "Finished": "forkwise.sandbox.process",
    "FlushError": "forkwise.agents.live.merging",
    "FlushReport": "forkwise.agents.live.merging",
    "Fork": "forkwise.fork.fork",
    "ForkCostSummary": "forkwise.agents.live.cost",
    "ForkHandle": "forkwise.agents.live.status",
    "ForkMaterializer": "forkwise.agents.live.materializer",
    "InProcessRunner": "forkwise.runners.in_process",
    "JudgeAgent": "forkwise.agents.live.judge",
    "JudgeVerdict": "forkwise.agents.live.verdict",
    "Ledger": "forkwise.ledger.protocol",
    "Limits": "forkwise.sandbox.limits",
    "MergeResult": "forkwise.agents.live.merging",
    "MergeStrategy": "forkwise.agents.live.specs",
    "Module": "forkwise.agents.module",
    "Partial": "forkwise.agents.partial",
    "PathDiff": "forkwise.agents.live.diff_report",
    "Pattern": "forkwise.explore.pattern",
    "PendingApprovalRequest": "forkwise.agents.live.status",
    "Rebase": "forkwise.files.rebase",
    "Reflexion": "forkwise.explore.reflexion",
    "ResolveOutcome": "forkwise.agents.live.verdict",
    "Runner": "forkwise.runners.protocol",
    "SandboxRunner": "forkwise.runners.sandboxed",
    "Service": "forkwise.agents.service",
    "SmallerDiff": "forkwise.fork.evaluation",
    "Speculate": "forkwise.explore.speculate",
    "SpeculationOutcome": "forkwise.explore.outcome",
    "SpeculationResult": "forkwise.explore.outcome",
    "Step": "forkwise.agents.step",
    "StreamChunk": "forkwise.agents.stream",
    "Talk": "forkwise.conversation.talk",
    "Template": "forkwise.agents.template",
    "TestReport": "forkwise.fork.testing.report",
    "Tests": "forkwise.fork.tests",
    "Tool": "forkwise.agents.tool",
    "ToolCall": "forkwise.agents.step",
    "ToolResult": "forkwise.agents.step",
    "Tournament": "forkwise.explore.tournament",
    "TreeOfThoughts": "forkwise.explore.tree_of_thoughts",
    "TreeSearch": "forkwise.explore.tree_search",
    "Workspace": "forkwise.files.workspace",
    "abort_fork": "forkwise.fork.clearing",
    "adopted": "forkwise.conversation.adoption",
    "arun_in_branch": "forkwise.sandbox.running",
    "branch_self": "forkwise.conversation.branch_self",
    "build_diff_report": "forkwise.agents.live.diffing",
    "combine_attempts": "forkwise.fork.combining",
    "compute_confidence": "forkwise.agents.live.confidence",
    "count_retry_parts": "forkwise.agents.live.confidence",
    "count_stuck_loop_hits": "forkwise.agents.live.confidence",
    "export_conversation": "forkwise.conversation.saving",
    "import_conversation": "forkwise.conversation.saving",
    "open_ledger": "forkwise.ledger.opening",
    "pick": "forkwise.fork.picking",
    "pydantic_to_xml": "forkwise.agents.xml",
    "resume": "forkwise.explore.resuming",
    "run_in_branch": "forkwise.sandbox.running",
    "shell_in_branch": "forkwise.sandbox.running",
    "tool": "forkwise.agents.tool",
    "xml_to_pydantic": "forkwise.agents.xml",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "forkwise.errors")
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
