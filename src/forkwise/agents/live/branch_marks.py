"""Marks in a branch: checkpoints of its conversation and of what it changed, and the way back to one of them."""

from __future__ import annotations

from forkwise.agents.live.checkpoint import Checkpoint, CheckpointStore, InMemoryCheckpointStore
from forkwise.agents.live.checkpointing import save_checkpoint
from forkwise.agents.live.rewinding import Rewound, rewind
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.sandbox.threads import in_thread

__all__ = ["checkpoints_of", "mark_branch_now", "rewind_branch_to"]


def checkpoints_of(runtime: BranchRuntime) -> CheckpointStore:
    """Where the checkpoints of a branch are: those of its deps, or else of its own."""
    found = getattr(runtime.deps, "checkpoint_store", None)
    if isinstance(found, CheckpointStore):
        return found
    if runtime.checkpoints is None:
        runtime.checkpoints = InMemoryCheckpointStore()
    return runtime.checkpoints


async def mark_branch_now(runtime: BranchRuntime, label: str) -> Checkpoint:
    """Keep a branch as it is."""
    _check(runtime)
    return await save_checkpoint(checkpoints_of(runtime), label, runtime.thread.history(), runtime.overlay)


async def rewind_branch_to(runtime: BranchRuntime, checkpoint: str) -> Rewound:
    """Have a branch be as it was, with its files; it is then one that can be told to go on."""
    _check(runtime)
    back = await rewind(checkpoints_of(runtime), checkpoint, runtime.overlay, runtime.thread.history())
    runtime.thread.go_back(back.messages)
    runtime.partial_history = list(back.messages)
    runtime.end("done", None)
    await in_thread(runtime.overlay.mirror_all)
    return back


def _check(runtime: BranchRuntime) -> None:
    if runtime.is_running:
        raise RuntimeError(f"branch {runtime.id} is running: wait until it is done, or terminate it")
    if runtime.overlay is None:
        raise RuntimeError(f"branch {runtime.id} has no files: it never came to run, or its fork is resolved")
