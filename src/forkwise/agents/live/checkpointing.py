"""CheckpointCapability: saves checkpoints as an agent goes on, and lets the oldest go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestContext

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.checkpoint import Checkpoint, CheckpointStore
from forkwise.agents.live.rewinding import forget_mark, mark_files
from forkwise.sandbox.threads import in_thread

__all__ = ["CheckpointCapability", "CheckpointFrequency", "prune", "save_checkpoint"]

CheckpointFrequency = Literal["every_tool", "every_turn", "manual_only"]


@dataclass
class CheckpointCapability(AbstractCapability[Any]):
    """Saves a checkpoint of conversation and files after the tools of a step have run (``every_tool``), or once for
    each prompt (``every_turn``). Each is one that an agent can go on from: no tool call in it is unanswered.

    They go into the ``checkpoint_store`` of the run's deps, or into ``store``. Beyond ``max_checkpoints`` the oldest
    are let go, but not the anchors of a fork that is open.
    """

    store: CheckpointStore | None = None
    frequency: CheckpointFrequency = "every_tool"
    max_checkpoints: int = 20

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Save one, where it is time to."""
        store = getattr(ctx.deps, "checkpoint_store", None) or self.store
        label = self._label(request_context.messages)
        if store is not None and label is not None:
            backend = getattr(ctx.deps, "backend", None)
            await save_checkpoint(store, label, request_context.messages, backend, turn=ctx.run_step)
            for gone in await prune(store, self.max_checkpoints, getattr(ctx.deps, "fork_coordinator", None)):
                if backend is not None:
                    await in_thread(forget_mark, backend, gone.files)
        return request_context

    def _label(self, messages: list[ModelMessage]) -> str | None:
        """What a checkpoint of these messages is called; None where none is due."""
        last = messages[-1] if messages else None
        if not isinstance(last, ModelRequest) or self.frequency == "manual_only":
            return None
        tools = [part.tool_name for part in last.parts if isinstance(part, ToolReturnPart)]
        if tools and self.frequency == "every_tool":
            return f"tool:{','.join(tools)}"
        return "turn" if any(isinstance(part, UserPromptPart) for part in last.parts) else None


async def save_checkpoint(
    store: CheckpointStore,
    label: str,
    messages: list[ModelMessage],
    backend: Backend | None = None,
    *,
    turn: int = 0,
) -> Checkpoint:
    """Keep a conversation and its files as they are now."""
    files = None if backend is None else await in_thread(mark_files, backend)
    checkpoint = Checkpoint(label, list(messages), turn, files)
    await store.save(checkpoint)
    return checkpoint


async def prune(store: CheckpointStore, most: int, coordinator: Any = None) -> list[Checkpoint]:
    """Let go of the oldest until there are no more than so many; not of the anchors of a coordinator's open fork. Gives
    those that went."""
    is_open = coordinator is not None and not coordinator.is_resolved
    anchors = {f"{kind}:{coordinator.fork_id}" for kind in ("fork", "post-fork")} if is_open else set()
    if await store.count() <= most:
        return []
    kept = await store.list_all()
    loose = [checkpoint for checkpoint in kept if checkpoint.label not in anchors]
    gone = loose[: max(0, len(kept) - most)]
    for checkpoint in gone:
        await store.remove(checkpoint.id)
    return gone
