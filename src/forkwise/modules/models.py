"""Models: what a module names as its model, as one that can be asked, with what is set for it alone."""

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
    "Contact",
    "Models",
    "check_cache",
    "check_model",
    "merged",
    "model_named",
    "remembered",
    "settings_of",
    "thinks_first",
]

_KEYS = {"id", "vertex_location", "vertex_credentials", "reasoning", "api_key", "api_base", "litellm_params"}
_REASONING = (None, True, False, "low", "medium", "high")
#: What a provider is called before a slash, and before a colon. OpenAI's is the interface that all its likes have too.
_ALIASES = {
    "openai": "openai-chat",
    "vertex_ai": "google-cloud",
    "gemini": "google",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
}
#: How the names of settings begin that only one provider has.
_PREFIXES = ("anthropic_", "bedrock_", "cohere_", "google_", "groq_", "mistral_", "openai_", "openrouter_", "xai_")


class Contact(NamedTuple):
    """A model that can be asked, and the settings that are its own."""

    model: Model
    settings: ModelSettings


class Models:
    """The models of one tree of calls. Each is opened when it is first needed; all are closed together."""

    def __init__(self) -> None:
        self._known: dict[str | int, tuple[object, Contact]] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Models:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def get(self, spec: object) -> Contact:
        """What to ask where a module names this as its model."""
        key = spec if isinstance(spec, str) else id(spec)
        async with self._opening:
            if key not in self._known:
                check_model(spec)
                contact = await run_in_thread(_contact, spec)
                await self._stack.enter_async_context(contact.model)
                self._known[key] = spec, contact  # with the object itself, whose id is no other's meanwhile
            return self._known[key][1]


def check_model(spec: object) -> None:
    """Raise ValueError unless it names a model."""
    match spec:
        case Model():
            return
        case str() if spec.strip():
            return
        case Mapping():
            if unknown := sorted(set(map(str, spec)) - _KEYS):
                raise ValueError(f"a model knows {', '.join(sorted(_KEYS))}; not {', '.join(unknown)}")
            if not isinstance(spec.get("id"), str) or not spec["id"].strip():
                raise ValueError("a model that is given as a dict needs its name as 'id'")
            if spec.get("reasoning") not in _REASONING:
                raise ValueError(f"reasoning is True, 'low', 'medium' or 'high', not {spec['reasoning']!r}")
            return
    raise ValueError(f"a module needs a model: 'provider/name', a dict with 'id', or a model object; not {spec!r}")


def check_cache(cache: object) -> None:
    """Raise ValueError unless it says what a provider is to remember."""
    if cache is None or isinstance(cache, bool):
        return
    if not isinstance(cache, list) or not cache:
        raise ValueError("cache is True, False, None, or a list of points that is not empty")
    for point in cache:
        if not isinstance(point, Mapping) or point.get("location") != "message":
            raise ValueError(f"a point to cache at has location='message': {point!r}")
        if set(point) - {"location", "role", "index"}:
            raise ValueError(f"a point to cache at has a location, a role and an index: {point!r}")
        if not isinstance(point.get("role", ""), str) or not isinstance(point.get("index", 0), int):
            raise ValueError(f"of a point to cache at, the role is text and the index a number: {point!r}")


def settings_of(module: Any, temperature: float | None, max_tokens: int | None) -> ModelSettings:
    """What a module sets for all its models; what it leaves open is not sent."""
    limit = module.max_completion_tokens if module.max_completion_tokens is not None else max_tokens
    stop = [module.stop] if isinstance(module.stop, str) else module.stop
    found = {
        "temperature": temperature,
        "max_tokens": limit,
        "top_p": module.top_p,
        "presence_penalty": module.presence_penalty,
        "stop_sequences": stop,
    }
    return cast(ModelSettings, {name: value for name, value in found.items() if value is not None})


def thinks_first(contact: Contact) -> bool:
    """Whether its provider takes no call back unless a thought of the same model is before it: Anthropic's, where it
    is told to think, and not left to decide when."""
    told = contact.settings.get("anthropic_thinking")
    if isinstance(told, Mapping):
        return told.get("type") == "enabled"
    is_adaptive = contact.model.profile.get("anthropic_supports_adaptive_thinking", False)
    return bool(contact.settings.get("thinking")) and not is_adaptive and "claude" in contact.model.model_name


def merged(common: ModelSettings, contact: Contact) -> ModelSettings:
    """Common settings and a model's own. A model that is told to think takes no temperature."""
    settings = dict(common)
    if contact.settings.get("thinking") or contact.settings.get("anthropic_thinking"):
        for name in ("temperature", "top_p", "presence_penalty"):
            settings.pop(name, None)
    return cast(ModelSettings, {**settings, **contact.settings})


def model_named(name: str, **credentials: Any) -> Model:
    """A model by its name: ``provider:name``, ``provider/name``, or ``local``. The provider takes the credentials; it
    finds them in the environment where there are none."""
    if is_local(name):
        return local_model()
    if not credentials:
        return infer_model(_canonical(name))
    return infer_model(_canonical(name), lambda kind: infer_provider_class(kind)(**credentials))


def _contact(spec: object) -> Contact:
    if isinstance(spec, Model):
        return Contact(spec, cast(ModelSettings, dict(spec.settings or {})))
    options: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {"id": spec}
    name = str(options["id"])
    model = model_named(name, **_credentials(options))
    settings = _own_settings(options.get("litellm_params") or {})
    if options.get("reasoning"):
        if not model.profile.get("supports_thinking"):
            raise ModuleError(f"reasoning was asked for, and {name} does not reason")
        settings["thinking"] = options["reasoning"]
    return Contact(model, settings)


def _canonical(name: str) -> str:
    """A model's name as pydantic-ai has it: ``provider:name``."""
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
    """What is set for one model: settings that pydantic-ai has, its providers' own among them, and else what is sent
    to the provider as it is."""
    settings: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in parameters.items():
        is_known = name in ModelSettings.__annotations__ or name.startswith(_PREFIXES)
        (settings if is_known else others)[name] = value
    if others:
        settings["extra_body"] = {**settings.get("extra_body", {}), **others}
    return cast(ModelSettings, settings)


def remembered(cache: object, history: Sequence[Mapping[str, Any]]) -> tuple[CacheSetting | None, list[int]]:
    """What a provider is asked to remember by itself, and the entries of a history up to which it is to remember."""
    if not isinstance(cache, list):
        return (True if cache else None), []
    entries: list[int] = []
    of_system: CacheSetting | None = None
    for point in cache:
        role, index = point.get("role"), point.get("index")
        if role == "system":
            of_system = {"messages": False}
        elif index is not None:
            entries.append(index)
        elif role is not None:
            entries += [n for n, entry in enumerate(history) if entry.get("role") == role][-1:]
    return of_system, entries
