"""The services that the parts of a chat share: workspace, conversation, agent, models, costs and settings.

`open_services` opens all of them for a directory. `forkwise.chat.session` runs a chat on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from forkwise.chat.events import CostChanged, Feed, Notice, SettingsChanged
from forkwise.chat.hooks import Approvals, ChatHooks
from forkwise.chat.script import load_script
from forkwise.chat.settings import MOST_BRANCHES, Settings, load_settings, save_settings
from forkwise.chat.storage import StoredChat
from forkwise.conversation.conversation import Conversation
from forkwise.errors import BranchingError
from forkwise.files.workspace import Workspace
from forkwise.live.backends.local import LocalBackend
from forkwise.live.capability import LiveForkCapability
from forkwise.live.checkpoints import FileCheckpointStore
from forkwise.live.deep_agent import create_deep_agent
from forkwise.live.deps import DeepAgentDeps
from forkwise.modules.models import build_model, describe_model_error

__all__ = [
    "ChatModelError",
    "ChatModels",
    "ChatServices",
    "Costs",
    "is_chat_model",
    "open_services",
]


class Costs:
    """The cost of a conversation, summed up incrementally: each message is read once."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._node_count = 0
        self._total = CostChanged(0, 0, 0)

    def update(self) -> CostChanged:
        """Add the new messages and return the total. Messages without a known price add no dollars."""
        for node in islice(self._conversation, self._node_count, None):
            self._node_count += 1
            if isinstance(node.message, ModelResponse):
                self._add(node.message)
        return self._total

    def _add(self, message: ModelResponse) -> None:
        before, usage, price = self._total, message.usage, _find_price(message)
        self._total = CostChanged(
            before.requests + 1,
            before.input_tokens + usage.input_tokens,
            before.output_tokens + usage.output_tokens,
            before.usd if price is None else (before.usd or 0.0) + float(price),
            before.unpriced + (price is None),
        )


_SCRIPT = "script:"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _find_price(message: ModelResponse) -> Decimal | None:
    """Return what a response cost: nothing if the model runs on this machine, None if its price is not known."""
    host = urlsplit(message.provider_url or "").hostname
    if host in _LOOPBACK or (message.model_name or "").startswith(_SCRIPT):
        return Decimal(0)
    if message.model_name is None:
        return None
    with suppress(LookupError, AssertionError, ValueError):
        return message.cost().total_price
    return None


class ChatModelError(BranchingError):
    """A model is not available; ``model`` is the requested name, ``remedy`` what to do."""

    def __init__(self, message: str, *, model: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.model = model
        self.remedy = remedy


class ChatModels:
    """The models of one chat, each opened on first use. Paths of scripts are relative to ``script_directory``."""

    def __init__(self, script_directory: Path) -> None:
        self._script_directory = script_directory
        self._models: dict[str, Model] = {}

    def open(self, name: str) -> Model:
        """Open a model. Raises ChatModelError if there is none of that name, or its key is missing."""
        if name not in self._models:
            self._models[name] = self._build(name)
        return self._models[name]

    async def aclose(self) -> None:
        """Close the models' connections, and the server of the local model."""
        for model in self._models.values():
            async with model:  # pydantic-ai closes a model when the last such block ends
                pass
        self._models.clear()

    def _build(self, name: str) -> Model:
        if name.startswith(_SCRIPT):
            return load_script(self._script_directory / name.removeprefix(_SCRIPT))
        try:
            return build_model(name)
        except (UserError, ValueError) as error:
            reason = describe_model_error(error)
            form = "provider:name (such as anthropic:claude-sonnet-4-6), local, or script:FILE"
            remedy = f"name it as {form}" if reason.startswith("unknown") else "or name another model with --model"
            message = f"the model {name} is not available: {reason}"
            raise ChatModelError(message, model=name, remedy=remedy) from error
        except ImportError as error:
            remedy = "install the package of its provider"
            raise ChatModelError(f"the model {name} is not available: {error}", model=name, remedy=remedy) from error


def is_chat_model(name: str) -> bool:
    """Whether only a chat can open the model of that name: the local model, or a script."""
    return name == "local" or name.startswith(_SCRIPT)


_MAX_CHECKPOINTS = 50
_TOOLLESS = "You are a helpful assistant. Answer briefly."


@dataclass(eq=False)
class ChatServices:
    """The services of one chat.

    ``model_name`` is the model that answers. The number of requests per turn is not limited: a user is watching, and
    can interrupt the turn.
    """

    workspace: Workspace
    chat: StoredChat
    feed: Feed
    models: ChatModels
    settings: Settings
    model_name: str
    usage_limits: UsageLimits = field(default_factory=lambda: UsageLimits(request_limit=None))
    approvals: Approvals = field(init=False)
    costs: Costs = field(init=False)
    hooks: ChatHooks = field(init=False)
    fork_capability: LiveForkCapability = field(init=False)
    deps: DeepAgentDeps = field(init=False)
    agent: Agent[DeepAgentDeps, Any] = field(init=False)
    _warned_of: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.approvals = Approvals(self.feed)
        self.costs = Costs(self.chat.conversation)
        self.hooks = ChatHooks(self.feed, self.approvals, self.models.open, frozenset(self.settings.ask))
        store = FileCheckpointStore(self.workspace.state / "chats" / f"{self.chat.id}.checkpoints")
        self.fork_capability = LiveForkCapability(
            max_branches=MOST_BRANCHES, workspace=self.workspace, test_command=self.settings.test
        )
        self.deps = DeepAgentDeps(LocalBackend(self.workspace), checkpoint_store=store)
        self.agent = self._build_agent(self.model)

    @property
    def model(self) -> Model:
        """The model that answers."""
        return self.models.open(self.model_name)

    @property
    def has_tools(self) -> bool:
        """Whether the model that answers can call tools, and so read and change files."""
        return bool(self.model.profile.get("supports_tools", True))

    @property
    def is_free(self) -> bool:
        """Whether the model that answers costs nothing, because it runs on this machine."""
        return is_chat_model(self.model_name)

    def use_model(self, name: str) -> None:
        """Answer with another model from now on. Raises ChatModelError if it is not available."""
        self.agent = self._build_agent(self.models.open(name))
        self.model_name = name
        self.feed.publish(SettingsChanged(f"model = {name}"))
        self.warn_without_tools()

    def warn_without_tools(self) -> None:
        """Publish once for each model that it has no tools, if so."""
        if not self.has_tools and self.model_name not in self._warned_of:
            self._warned_of.add(self.model_name)
            self.feed.publish(
                Notice(
                    f"{self.model_name} has no tools: it answers, but cannot read or change files or run commands. "
                    "/model NAME selects another model"
                )
            )

    def change_settings(self, text: str, changes: Mapping[str, object]) -> None:
        """Change and save settings, and publish ``text``. Raises ValueError if a value is invalid."""
        if changes:
            changed = replace(self.settings, **changes)  # type: ignore[arg-type]
            save_settings(self.workspace.path, changed, changes)
            self.settings = changed
        self.feed.publish(SettingsChanged(text))

    async def run_shell(self, command: str) -> str:
        """Run a shell command in the workspace, confined like the agent's. Return its output and exit code."""
        result = await self.deps.backend.async_execute(command, None)
        return f"{result.output.rstrip()}\nexit code: {result.exit_code}".lstrip()

    def _build_agent(self, model: Model) -> Agent[DeepAgentDeps, Any]:
        if not model.profile.get("supports_tools", True):
            return Agent(
                model,
                deps_type=DeepAgentDeps,
                instructions=_TOOLLESS,
                capabilities=[self.fork_capability, self.hooks],
            )
        return create_deep_agent(
            model,
            forking=self.fork_capability,
            include_checkpoints=True,
            checkpoint_frequency="every_turn",
            max_checkpoints=_MAX_CHECKPOINTS,
            capabilities=[self.hooks],
        )


def open_services(
    directory: Path,
    model: str | None,
    conversation: str | None,
    is_new: bool,
    ask: tuple[str, ...],
    feed: Feed,
    *,
    allow_executable_config: bool = False,
) -> ChatServices:
    """Open the services of a chat in a directory. Raises ChatModelError, SettingsError, ConversationError."""
    workspace = Workspace(directory, allow_executable_config=allow_executable_config)
    settings = load_settings(workspace.path)
    if ask:
        settings = replace(settings, ask=tuple(dict.fromkeys((*settings.ask, *ask))))
    name = model or settings.model
    if name is None:
        raise ChatModelError(
            "no model is set",
            remedy="pass --model provider:name (such as anthropic:claude-sonnet-4-6), or --model local",
        )
    models = ChatModels(Path.cwd())
    models.open(name)
    chat = StoredChat.open(workspace, conversation, is_new=is_new)
    try:
        return ChatServices(workspace, chat, feed, models, settings, name)
    except BaseException:
        chat.close()
        raise
