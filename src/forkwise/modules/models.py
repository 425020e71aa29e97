"""The models that modules name: their specs checked, opened as pydantic-ai models, with their own settings.

Prompt caching, which providers do per model, is set up here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, cast

from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import CacheSetting, ModelSettings

from forkwise.concurrency import run_in_thread
from forkwise.errors import ModuleError
from forkwise.local_model import is_local, local_model

__all__ = [
    "ConfiguredModel",
    "Models",
    "build_model",
    "build_settings",
    "check_cache",
    "check_model",
    "describe_model_error",
    "find_cache_points",
    "is_thinking_required",
    "merge_settings",
]

_KEYS = {"id", "vertex_location", "vertex_credentials", "reasoning", "api_key", "api_base", "litellm_params"}
_REASONING = (None, True, False, "low", "medium", "high")
#: Providers' names before a slash, and before a colon. OpenAI's is chat completions, which compatible servers have too.
_ALIASES = {
    "openai": "openai-chat",
    "vertex_ai": "google-cloud",
    "gemini": "google",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
}
#: The prefixes of settings that only one provider has.
_PREFIXES = ("anthropic_", "bedrock_", "cohere_", "google_", "groq_", "mistral_", "openai_", "openrouter_", "xai_")


class ConfiguredModel(NamedTuple):
    """A model and the settings that apply to it alone."""

    model: Model
    settings: ModelSettings


class Models:
    """The models of one tree of calls. Each is opened on first use; all are closed together."""

    def __init__(self) -> None:
        self._opened: dict[str | int, tuple[object, ConfiguredModel]] = {}
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Models:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def get(self, spec: object) -> ConfiguredModel:
        """Return the model for a module's ``model``; open it if necessary."""
        key = spec if isinstance(spec, str) else id(spec)
        async with self._lock:
            if key not in self._opened:
                check_model(spec)
                configured = await run_in_thread(_configure, spec)
                await self._stack.enter_async_context(configured.model)
                self._opened[key] = spec, configured  # the reference keeps the object's id from being reused
            return self._opened[key][1]


def check_model(spec: object) -> None:
    """Raise ValueError unless ``spec`` names a model."""
    match spec:
        case Model():
            return
        case str() if spec.strip():
            return
        case Mapping():
            if unknown := sorted(set(map(str, spec)) - _KEYS):
                raise ValueError(f"a model has the keys {', '.join(sorted(_KEYS))}; not {', '.join(unknown)}")
            if not isinstance(spec.get("id"), str) or not spec["id"].strip():
                raise ValueError("a model given as a dict needs its name as 'id'")
            if spec.get("reasoning") not in _REASONING:
                raise ValueError(f"reasoning must be True, 'low', 'medium' or 'high', not {spec['reasoning']!r}")
            return
    raise ValueError(f"a module needs a model: 'provider/name', a dict with 'id', or a model object; not {spec!r}")


def check_cache(cache: object) -> None:
    """Raise ValueError unless ``cache`` is a valid cache setting."""
    if cache is None or isinstance(cache, bool):
        return
    if not isinstance(cache, list) or not cache:
        raise ValueError("cache must be True, False, None, or a non-empty list of cache points")
    for point in cache:
        if not isinstance(point, Mapping) or point.get("location") != "message":
            raise ValueError(f"a cache point needs location='message': {point!r}")
        if set(point) - {"location", "role", "index"}:
            raise ValueError(f"a cache point has a location, a role and an index: {point!r}")
        if not isinstance(point.get("role", ""), str) or not isinstance(point.get("index", 0), int):
            raise ValueError(f"in a cache point the role must be a string and the index an integer: {point!r}")


def build_settings(module: Any, temperature: float | None, max_tokens: int | None) -> ModelSettings:
    """Return a module's settings for all its models, without those that are None."""
    limit = module.max_completion_tokens if module.max_completion_tokens is not None else max_tokens
    stop = [module.stop] if isinstance(module.stop, str) else module.stop
    settings = {
        "temperature": temperature,
        "max_tokens": limit,
        "top_p": module.top_p,
        "presence_penalty": module.presence_penalty,
        "stop_sequences": stop,
    }
    return cast(ModelSettings, {name: value for name, value in settings.items() if value is not None})


def is_thinking_required(configured: ConfiguredModel) -> bool:
    """Return whether the provider accepts a tool call only after a thinking part of the same model.

    Anthropic does so if thinking is enabled, and not adaptive.
    """
    thinking = configured.settings.get("anthropic_thinking")
    if isinstance(thinking, Mapping):
        return thinking.get("type") == "enabled"
    is_adaptive = configured.model.profile.get("anthropic_supports_adaptive_thinking", False)
    return bool(configured.settings.get("thinking")) and not is_adaptive and "claude" in configured.model.model_name


def merge_settings(common: ModelSettings, configured: ConfiguredModel) -> ModelSettings:
    """Return common settings and a model's own. With thinking enabled, models accept no temperature."""
    settings = dict(common)
    if configured.settings.get("thinking") or configured.settings.get("anthropic_thinking"):
        for name in ("temperature", "top_p", "presence_penalty"):
            settings.pop(name, None)
    return cast(ModelSettings, {**settings, **configured.settings})


def find_cache_points(cache: object, history: Sequence[Mapping[str, Any]]) -> tuple[CacheSetting | None, list[int]]:
    """Return the provider's own cache setting, and the entries of a history up to which the provider should cache."""
    if not isinstance(cache, list):
        return (True if cache else None), []
    entries: list[int] = []
    system: CacheSetting | None = None
    for point in cache:
        role, index = point.get("role"), point.get("index")
        if role == "system":
            system = {"messages": False}
        elif index is not None:
            entries.append(index)
        elif role is not None:
            entries += [n for n, entry in enumerate(history) if entry.get("role") == role][-1:]
    return system, entries


def build_model(name: str, **credentials: Any) -> Model:
    """Return a model by its name: ``provider:name``, ``provider/name``, or ``local``.

    Without ``credentials`` the provider reads them from the environment.
    """
    if is_local(name):
        return local_model()
    if not credentials:
        return infer_model(_canonical(name))
    return infer_model(_canonical(name), lambda kind: infer_provider_class(kind)(**credentials))


def describe_model_error(error: Exception) -> str:
    """Return why a model is not available, in one line, without the advice for programmers that pydantic-ai adds.

    >>> describe_model_error(ValueError("Set the `X_KEY` environment variable or pass it via `X(api_key=...)`. See"))
    'set the X_KEY environment variable'
    """
    text = " ".join(str(error).split()).partition(". ")[0].partition(" or pass it via")[0].replace("`", "")
    return f"{text[:1].lower()}{text[1:]}"


def _configure(spec: object) -> ConfiguredModel:
    if isinstance(spec, Model):
        return ConfiguredModel(spec, cast(ModelSettings, dict(spec.settings or {})))
    options: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {"id": spec}
    name = str(options["id"])
    model = build_model(name, **_credentials(options))
    settings = _own_settings(options.get("litellm_params") or {})
    if options.get("reasoning"):
        if not model.profile.get("supports_thinking"):
            raise ModuleError(f"reasoning is set, but {name} does not reason")
        settings["thinking"] = options["reasoning"]
    return ConfiguredModel(model, settings)


def _canonical(name: str) -> str:
    """Return a model's name in pydantic-ai's form, ``provider:name``."""
    if name.startswith("gateway/"):
        return name
    slash, colon = name.find("/"), name.find(":")
    if slash == -1 or -1 < colon < slash:
        return name
    provider, model = name[:slash], name[slash + 1 :]
    return f"{_ALIASES.get(provider, provider)}:{model}"


def _credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "api_key": "api_key",
        "api_base": "base_url",
        "vertex_location": "location",
        "vertex_credentials": "credentials",
    }
    return {ours: options[theirs] for theirs, ours in names.items() if options.get(theirs) is not None}


def _own_settings(parameters: Mapping[str, Any]) -> ModelSettings:
    """Return the settings of one model. Parameters that pydantic-ai does not know are sent in the request's body."""
    settings: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in parameters.items():
        is_known = name in ModelSettings.__annotations__ or name.startswith(_PREFIXES)
        (settings if is_known else others)[name] = value
    if others:
        settings["extra_body"] = {**settings.get("extra_body", {}), **others}
    return cast(ModelSettings, settings)
