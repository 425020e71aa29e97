"""Desk: all that the parts of a chat work with: the workspace, the conversation, the agent and its models."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from forkwise.chat.events import CostChanged, Feed
from forkwise.chat.hooks import Approvals, ChatHooks
from forkwise.chat.script import load_script
from forkwise.chat.settings import MOST_BRANCHES, Settings, load_settings
from forkwise.chat.storage import StoredChat
from forkwise.conversation.conversation import Conversation
from forkwise.errors import BranchingError
from forkwise.files.workspace import Workspace
from forkwise.live.backends.local import LocalBackend
from forkwise.live.capability import LiveForkCapability
from forkwise.live.checkpoints import FileCheckpointStore
from forkwise.live.deep_agent import create_deep_agent
from forkwise.live.deps import DeepAgentDeps
from forkwise.modules.models import model_named

__all__ = [
    "ChatModelError",
    "ChatModels",
    "ChatServices",
    "Costs",
    "is_own",
    "open_services",
]


class Costs:
    """Adds up as a conversation grows: each message is looked at once."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._seen = 0
        self._sum = CostChanged(0, 0, 0)

    def now(self) -> CostChanged:
        """What it has taken so far. Dollars are those that are known; None where none are."""
        for node in islice(self._conversation, self._seen, None):
            self._seen += 1
            if isinstance(node.message, ModelResponse):
                self._add(node.message)
        return self._sum

    def _add(self, message: ModelResponse) -> None:
        before, usage, price = self._sum, message.usage, _price(message)
        self._sum = CostChanged(
            before.requests + 1,
            before.input_tokens + usage.input_tokens,
            before.output_tokens + usage.output_tokens,
            before.usd if price is None else (before.usd or 0.0) + float(price),
        )


def _price(message: ModelResponse) -> Decimal | None:
    if message.model_name is None:
        return None
    with suppress(LookupError, AssertionError, ValueError):
        return message.cost().total_price
    return None


_SCRIPT = "script:"


class ChatModelError(BranchingError):
    """A model cannot be had; ``model`` is what it was asked for by, ``remedy`` what would help."""

    def __init__(self, message: str, *, model: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.model = model
        self.remedy = remedy


class ChatModels:
    """The models of one chat, each opened when it is first asked for. Files of scripts are sought in ``place``."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[str, Model] = {}

    def open(self, name: str) -> Model:
        """A model; ChatModelError where there is none of that name, or its key is missing."""
        if name not in self._known:
            self._known[name] = self._made(name)
        return self._known[name]

    async def aclose(self) -> None:
        """Let go of what models hold: connections, and the server of the local one."""
        for model in self._known.values():
            async with model:  # which is closed at the end of the last such block
                pass
        self._known.clear()

    def _made(self, name: str) -> Model:
        if name.startswith(_SCRIPT):
            return load_script(self._place / name.removeprefix(_SCRIPT))
        try:
            return model_named(name)
        except UserError as error:
            message = str(error).splitlines()[0].partition(". ")[0]  # what follows is for who writes programs
            remedy = "set its key in the environment, or name another with --model: provider:name, or local"
            raise ChatModelError(f"{name}: {message}", model=name, remedy=remedy) from error
        except ImportError as error:
            raise ChatModelError(f"{name}: {error}", model=name, remedy="install what its provider needs") from error
        except ValueError as error:
            remedy = "say provider:name (such as anthropic:claude-sonnet-4-6), local, or script:FILE"
            raise ChatModelError(f"{name}: {error}", model=name, remedy=remedy) from error


def is_own(name: str) -> bool:
    """Whether it is one that only a chat knows by that name, and no provider."""
    return name == "local" or name.startswith(_SCRIPT)


_MOST_CHECKPOINTS = 50
_TOOLLESS = "You are a helpful assistant. Answer briefly."


@dataclass(eq=False)
class ChatServices:
    """What a chat has. ``model_name`` is which model answers; ``settings`` what the next fork is made with. How many
    requests a turn makes is not limited: a person looks on, and can end it."""

    workspace: Workspace
    kept: StoredChat
    feed: Feed
    models: ChatModels
    settings: Settings
    model_name: str
    limits: UsageLimits = field(default_factory=lambda: UsageLimits(request_limit=None))
    approvals: Approvals = field(init=False)
    costs: Costs = field(init=False)
    showing: ChatHooks = field(init=False)
    forking: LiveForkCapability = field(init=False)
    deps: DeepAgentDeps = field(init=False)
    agent: Agent[DeepAgentDeps, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.approvals = Approvals(self.feed)
        self.costs = Costs(self.kept.conversation)
        self.showing = ChatHooks(self.feed, self.approvals, self.models.open, frozenset(self.settings.ask))
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


def open_services(
    directory: Path, model: str | None, conversation: str | None, is_new: bool, ask: tuple[str, ...], feed: Feed
) -> ChatServices:
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
    kept = StoredChat.open(workspace, conversation, is_new=is_new)
    try:
        return ChatServices(workspace, kept, feed, models, settings, name)
    except BaseException:
        kept.close()
        raise
