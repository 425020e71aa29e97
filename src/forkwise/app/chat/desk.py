"""Desk: all that the parts of a chat work with: the workspace, the conversation, the agent and its models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from forkwise.agents.live.capability import LiveForkCapability
from forkwise.agents.live.checkpoint_files import FileCheckpointStore
from forkwise.agents.live.deep_agent import create_deep_agent
from forkwise.agents.live.deps import DeepAgentDeps
from forkwise.agents.live.local_backend import LocalBackend
from forkwise.app.chat.approvals import Approvals
from forkwise.app.chat.costs import Costs
from forkwise.app.chat.feed import Feed
from forkwise.app.chat.keeping import Kept
from forkwise.app.chat.models import ChatModelError, ChatModels
from forkwise.app.chat.settings import MOST_BRANCHES, Settings, load_settings
from forkwise.app.chat.showing import Showing
from forkwise.files.workspace import Workspace

__all__ = ["Desk", "open_desk"]

_MOST_CHECKPOINTS = 50
_TOOLLESS = "You are a helpful assistant. Answer briefly."


@dataclass(eq=False)
class Desk:
    """What a chat has. ``model_name`` is which model answers; ``settings`` what the next fork is made with. How many
    requests a turn makes is not limited: a person looks on, and can end it."""

    workspace: Workspace
    kept: Kept
    feed: Feed
    models: ChatModels
    settings: Settings
    model_name: str
    limits: UsageLimits = field(default_factory=lambda: UsageLimits(request_limit=None))
    approvals: Approvals = field(init=False)
    costs: Costs = field(init=False)
    showing: Showing = field(init=False)
    forking: LiveForkCapability = field(init=False)
    deps: DeepAgentDeps = field(init=False)
    agent: Agent[DeepAgentDeps, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.approvals = Approvals(self.feed)
        self.costs = Costs(self.kept.conversation)
        self.showing = Showing(self.feed, self.approvals, self.models.open, frozenset(self.settings.ask))
        store = FileCheckpointStore(self.workspace.state / "chats" / f"{self.kept.id}.checkpoints")
        self.forking = LiveForkCapability(
            max_branches=MOST_BRANCHES, workspace=self.workspace, test_command=self.settings.test
        )
        self.deps = DeepAgentDeps(LocalBackend(self.workspace), checkpoint_store=store)
        self.use_model(self.model_name)

    @property
    def model(self) -> Model:
        """The model that answers."""
        return self.models.open(self.model_name)

    def use_model(self, name: str) -> None:
        """Have another model answer from now on; raises where there is none of that name."""
        model = self.models.open(name)
        if model.profile.get("supports_tools", True):
            self.agent = create_deep_agent(
                model,
                forking=self.forking,
                include_checkpoints=True,
                checkpoint_frequency="every_turn",
                max_checkpoints=_MOST_CHECKPOINTS,
                capabilities=[self.showing],
            )
        else:
            self.agent = Agent(
                model, deps_type=DeepAgentDeps, instructions=_TOOLLESS, capabilities=[self.forking, self.showing]
            )
        self.model_name = name


def open_desk(
    directory: Path, model: str | None, conversation: str | None, is_new: bool, ask: tuple[str, ...], feed: Feed
) -> Desk:
    """All that a chat in a directory needs; raises ChatModelError, SettingsError, ConversationError."""
    workspace = Workspace(directory)
    settings = load_settings(workspace.path)
    if ask:
        settings = replace(settings, ask=ask)
    name = model or settings.model
    if name is None:
        raise ChatModelError(
            "which model is to answer?",
            remedy="say --model provider:name (such as anthropic:claude-sonnet-4-6), or --model local",
        )
    models = ChatModels(Path.cwd())
    models.open(name)
    kept = Kept.open(workspace, conversation, is_new=is_new)
    try:
        return Desk(workspace, kept, feed, models, settings, name)
    except BaseException:
        kept.close()
        raise
