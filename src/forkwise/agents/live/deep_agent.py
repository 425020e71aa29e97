"""create_deep_agent: a lean ready-made agent with files, commands, checkpoints and live forking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import Model

from forkwise.agents.live.checkpoint import CheckpointStore
from forkwise.agents.live.checkpointing import CheckpointCapability, CheckpointFrequency
from forkwise.agents.live.deps import DeepAgentDeps
from forkwise.agents.live.file_tools import DeepAgentTools, create_file_toolset

if TYPE_CHECKING:
    from forkwise.agents.live.capability import LiveForkCapability

__all__ = ["BASE_PROMPT", "FORKING_PROMPT", "create_deep_agent"]

BASE_PROMPT = """\
You work on files with tools. Look at what is there before you change it, and after a change check that it does what \
it should: run the tests if there are any. Say in the end what you did, in a few sentences."""

FORKING_PROMPT = """\
## Forking
Where several approaches are worth trying, `fork_run` starts a branch for each. A branch goes on from this \
conversation with its own copy of the files; what it changes is seen by nobody else. Look at them with \
`inspect_branches` until they are done, compare them with `diff_branches`, and decide before you end your turn: \
`merge_or_select` with `pick:<id>` keeps one branch with its files, `auto` has a judge decide, `abort` drops all."""


def create_deep_agent(
    model: Model | str | None = None,
    *,
    instructions: str | None = None,
    forking: bool | LiveForkCapability = False,
    include_checkpoints: bool = False,
    checkpoint_store: CheckpointStore | None = None,
    checkpoint_frequency: CheckpointFrequency = "every_tool",
    max_checkpoints: int = 20,
    include_execute: bool = True,
    capabilities: Sequence[AbstractCapability[DeepAgentDeps]] = (),
    **options: Any,
) -> Agent[DeepAgentDeps, Any]:
    """An agent with file tools (``ls``, ``read``, ``write``, ``edit``, ``glob``, ``grep``, ``delete``) and ``execute``,
    which work on the backend of a run's `DeepAgentDeps`.

    ``forking`` lets it fork itself: True, or a `LiveForkCapability` with limits of one's own. ``include_checkpoints``
    saves checkpoints into the ``checkpoint_store`` of the deps, or into the one given here. All other options are those
    of ``pydantic_ai.Agent``.
    """
    added: list[AbstractCapability[DeepAgentDeps]] = [
        DeepAgentTools(create_file_toolset(include_execute=include_execute))
    ]
    prompts = [BASE_PROMPT]
    if include_checkpoints:
        added.append(CheckpointCapability(checkpoint_store, checkpoint_frequency, max_checkpoints))
    if forking:
        from forkwise.agents.live.capability import LiveForkCapability  # noqa: PLC0415 - loaded when somebody forks

        added.append(LiveForkCapability() if forking is True else forking)
        prompts.append(FORKING_PROMPT)
    if instructions:
        prompts.append(instructions)
    return Agent(
        model,
        deps_type=DeepAgentDeps,
        instructions="\n\n".join(prompts),
        capabilities=[*added, *capabilities],
        **options,
    )
