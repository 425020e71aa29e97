"""The subject of a fork: the agents, prompts and variables of its spec, without known secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forkwise.text.redaction import Redactor, process_redactor

if TYPE_CHECKING:
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["build_redactor", "find_agents", "find_prompts", "format_subject", "has_stream", "spec_record"]

_LONGEST_SUBJECT = 500


def spec_record(fork: ForkRecord) -> dict[str, Any]:
    """Return the spec of a fork as a JSON value, without known secrets and without those in its variables."""
    record: dict[str, Any] = build_redactor(fork.spec).redact_data(fork.spec)
    return record


def find_agents(fork: ForkRecord) -> list[str]:
    """Return the coding agents that the attempts of a fork run, each once."""
    names = (variant.get("agent") for variant in _variants_of(fork))
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def find_prompts(fork: ForkRecord, attempt: AttemptRecord | None = None) -> list[str]:
    """Return the prompts of a fork, or the one of an attempt, without known secrets."""
    prompts = fork.spec.get("prompts")
    texts = [text for text in prompts if isinstance(text, str)] if isinstance(prompts, list | tuple) else []
    if attempt is not None:
        variants = _variants_of(fork)
        is_known = attempt.variant is not None and 0 <= attempt.variant < len(variants)
        number = variants[attempt.variant or 0].get("prompt") if is_known else None
        texts = texts[number : number + 1] if isinstance(number, int) and number >= 0 else []
    redactor = build_redactor(fork.spec)
    return [redactor.redact(text) for text in texts]


def format_subject(fork: ForkRecord, label: str | None) -> str:
    """Describe a fork in a list: by its agents and the first prompt, or else by the label of an attempt."""
    prompts = fork.spec.get("prompts")
    agents = ", ".join(find_agents(fork))
    if not agents or not isinstance(prompts, list | tuple) or not prompts or not isinstance(prompts[0], str):
        return label or ""
    more = f" (and {len(prompts) - 1} more prompts)" if len(prompts) > 1 else ""
    return f"{agents}: {prompts[0][:_LONGEST_SUBJECT]}{more}"


def has_stream(fork: ForkRecord, attempt: AttemptRecord) -> bool:
    """Return whether an attempt prints a stream of events, whose steps are shown instead of its output."""
    variants = _variants_of(fork)
    is_known = attempt.variant is not None and 0 <= attempt.variant < len(variants)
    return is_known and bool(variants[attempt.variant or 0].get("stream"))


def _variants_of(fork: ForkRecord) -> list[dict[str, Any]]:
    variants = fork.spec.get("variants")
    return [v for v in variants if isinstance(v, dict)] if isinstance(variants, list | tuple) else []


def build_redactor(spec: object) -> Redactor:
    """Return a redaction that removes known secrets and the values of the variables in a fork's spec."""
    given: list[Any] = []
    if isinstance(spec, dict):
        variants = spec.get("variants")
        for table in (spec, *(variants if isinstance(variants, list | tuple) else ())):
            found = table.get("environment") if isinstance(table, dict) else None
            given += found if isinstance(found, list | tuple) else ()
    pairs = [pair for pair in given if isinstance(pair, list | tuple) and len(pair) == 2]
    return process_redactor(*({str(name): str(value)} for name, value in pairs))
