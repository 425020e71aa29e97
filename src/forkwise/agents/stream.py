"""The output of a running agent, read line by line: what it does now, what it has said, and what it costs.

A stream that cannot be read is no error: its output is shown as it is, and a note in the steps says so once. Memory is
bounded, whatever an agent prints.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

from forkwise.agents.agent_event import AgentEvent, Tokens, format_step, to_line, to_text
from forkwise.agents.formats import acp, claude, codex, gemini, goose, opencode
from forkwise.fork.candidate import Judgement, OutputReader

__all__ = ["FORMATS", "AgentStream", "StreamFormat"]

_MAX_LINE = 1 << 20  # bytes; a longer line is skipped
_MAX_STEPS = 2000  # recorded in the ledger, of one attempt
_MAX_STEP_TEXT = 1000
_MAX_REQUESTS = 20_000
_MAX_TAIL = 40  # lines
_UNKNOWN_LINES = 20  # JSON lines, none of a known type, after which the format counts as changed
_MAX_ANSWER = 100_000
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """A streaming format: ``read_event`` returns the events of a line, or None if it is of no known type.

    Lines that begin with one of ``skipped`` have nothing to show. Those of ``steps`` have only steps and messages: once
    enough of these were recorded, only the last ones are parsed, when they are needed.
    """

    read_event: Callable[[Mapping[str, Any]], Iterable[AgentEvent] | None]
    skipped: tuple[bytes, ...] = ()
    steps: tuple[bytes, ...] = ()


FORMATS: dict[str, StreamFormat] = {
    "acp": StreamFormat(acp.read_event),
    "claude": StreamFormat(claude.read_event, claude.SKIPPED),
    "codex": StreamFormat(codex.read_event, steps=codex.STEPS),
    "gemini": StreamFormat(gemini.read_event, gemini.SKIPPED),
    "goose": StreamFormat(goose.read_event),
    "opencode": StreamFormat(opencode.read_event, steps=opencode.STEPS),
}
"""The formats by name, as the key ``stream`` of an agent's table names them."""


def _load_parser() -> Callable[[bytes], Any]:
    from pydantic_core import from_json  # noqa: PLC0415 - most commands read no stream

    return from_json


class AgentStream(OutputReader):
    """Reads the output of one run of an agent; ``stream`` names its format, None is plain text.

    Paths below ``directory``, the workspace, are shown without it. ``model`` is the one that was requested, if any. One
    thread feeds it, others may ask.
    """

    def __init__(self, stream: str | None, directory: str | os.PathLike[str], *, model: str = "") -> None:
        self._format = None if stream is None else FORMATS[stream]
        self._skipped = () if self._format is None else self._format.skipped
        self._postponed: deque[bytes] = deque(maxlen=_MAX_TAIL)
        self._prefix = f"{os.fspath(directory).rstrip('/')}/"
        self._lock = threading.Lock()
        self._parse = _load_parser()
        self._pending = b""
        self._is_skipping = False  # the rest of a line that is too long
        self._unknown = 0
        self._has_known = False
        self._has_note = False
        self._steps: list[dict[str, Any]] = []
        self._step_count = 0
        self._plain: deque[str] = deque(maxlen=_MAX_TAIL)
        self._errors: deque[str] = deque(maxlen=_MAX_TAIL)
        self._error_pending = b""
        self._last_steps: deque[dict[str, Any]] = deque(maxlen=_MAX_TAIL)
        self._activity: dict[str, Any] | None = None
        self._messages: list[str] = []  # the parts of the last message
        self._is_message_open = False
        self._answer: str | None = None
        self._failure: str | None = None
        self._session: str | None = None
        self._model = model
        self._requests: dict[str, tuple[str, Tokens, float | None]] = {}
        self._total: tuple[Tokens | None, float | None] = (None, None)

    def feed(self, stream: str, piece: bytes) -> None:
        with self._lock:
            if stream != "stdout":
                self._error_pending = self._add_plain(self._errors, self._error_pending + piece)
                return
            *lines, rest = (self._pending + piece).split(b"\n")
            for line in lines:
                self._read_line(line)
            self._pending = rest
            if len(rest) > _MAX_LINE:
                self._pending, self._is_skipping = b"", True

    def finish(self) -> None:
        with self._lock:
            if self._pending:
                self._read_line(self._pending)
                self._pending = b""
            self._add_plain(self._errors, self._error_pending + b"\n")
            if self._format is not None and self._unknown and not self._has_known:
                self._note_change()

    def _read_line(self, line: bytes) -> None:
        if self._is_skipping or len(line) > _MAX_LINE:
            self._is_skipping = False
            return
        if self._format is None or line[:1] != b"{":
            self._add_plain(self._plain, line + b"\n")
            return
        if line.startswith(self._skipped):
            self._has_known = True
            return
        if self._step_count > _MAX_STEPS and line.startswith(self._format.steps):
            self._postponed.append(line)
            return
        self._parse_line(self._format, line)

    def _read_postponed(self) -> None:
        lines = list(self._postponed)
        self._postponed.clear()
        for line in lines:
            if self._format is not None:
                self._parse_line(self._format, line)

    def _parse_line(self, known: StreamFormat, line: bytes) -> None:
        try:
            data = self._parse(line)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            self._note("a line of its stream is not JSON: what cannot be read is shown as it is")
            self._add_plain(self._plain, line + b"\n")
            self._activity = None
            return
        events = known.read_event(data)
        if events is None:
            self._unknown += 1
            if self._unknown == _UNKNOWN_LINES and not self._has_known:
                self._note_change()
            return
        self._has_known = True
        for event in events:
            self._take(event)

    def _note_change(self) -> None:
        self._note("its stream has no event that forkwise knows, perhaps of another version: it is shown as it is")

    def _note(self, text: str) -> None:
        """Say once that something cannot be read."""
        if not self._has_note:
            self._has_note = True
            self._add_step({"kind": "note", "text": text})

    def _add_plain(self, kept: deque[str], data: bytes) -> bytes:
        """Keep the complete lines of plain output, and return the rest."""
        *lines, rest = data.split(b"\n")
        kept.extend(filter(None, (to_line(line[:2000].decode(errors="replace")) for line in lines[-_MAX_TAIL:])))
        return rest[-_MAX_LINE:]

    def _take(self, event: AgentEvent) -> None:
        is_part = event.kind == "message" and event.is_part and self._is_message_open
        if not is_part:
            self._close_message()
        match event.kind:
            case "session":
                self._session = event.text or self._session
                self._model = event.model or self._model
            case "message":
                self._add_message(event.text, is_part=is_part)
            case "tool" | "step":
                target = event.text.removeprefix(self._prefix).replace(f" {self._prefix}", " ")
                self._add_step({"kind": event.kind, "tool": event.tool, "text": target})
            case "usage":
                self._add_usage(event)
            case "failure":
                self._failure = to_line(event.text, _MAX_REASON)
                self._add_step({"kind": "failure", "text": self._failure})
            case "end":
                self._read_postponed()
                self._close_message()
                self._answer = event.text or self._last_message or self._answer

    @property
    def _last_message(self) -> str:
        return "".join(self._messages)

    def _add_message(self, text: str, *, is_part: bool) -> None:
        if is_part:
            room = _MAX_ANSWER - sum(map(len, self._messages))
            self._messages.append(text[: max(room, 0)])
        else:
            self._messages = [text]
        self._is_message_open = True
        self._activity = {"text": text} if not is_part else self._activity

    def _close_message(self) -> None:
        if self._is_message_open:
            self._is_message_open = False
            self._add_step({"kind": "message", "text": self._last_message[:_MAX_STEP_TEXT]})

    def _add_step(self, step: dict[str, Any]) -> None:
        self._activity = step
        self._last_steps.append(step)
        self._step_count += 1
        if self._step_count < _MAX_STEPS:
            self._steps.append(step)
        elif self._step_count == _MAX_STEPS:
            self._steps.append({"kind": "note", "text": f"only the first {_MAX_STEPS} steps are recorded"})

    def _add_usage(self, event: AgentEvent) -> None:
        if not event.request:
            tokens, usd = self._total
            self._total = (event.tokens or tokens, usd if event.usd is None else event.usd)
        elif event.request in self._requests or len(self._requests) < _MAX_REQUESTS:
            tokens = event.tokens or Tokens()
            before = self._requests.get(event.request)
            if before is not None and before[1].total > tokens.total:
                tokens = before[1]
            self._requests[event.request] = (event.model or self._model, tokens, event.usd)

    # What is known so far

    @property
    def activity(self) -> str | None:
        with self._lock:
            return self._describe_activity()

    def _describe_activity(self) -> str | None:
        self._read_postponed()
        return None if self._activity is None else to_line(format_step(self._activity)) or None

    @property
    def has_answer(self) -> bool:
        with self._lock:
            return bool(self._step_count or self._requests or self._is_message_open or self._plain)

    def take_steps(self) -> list[dict[str, Any]]:
        with self._lock:
            steps, self._steps = self._steps, []
        return steps

    @property
    def tokens(self) -> Tokens:
        """The tokens used so far."""
        with self._lock:
            return self._count_tokens()

    def _count_tokens(self) -> Tokens:
        counted = sum((tokens for _, tokens, _ in self._requests.values()), Tokens())
        total = self._total[0]
        return total if total is not None and total.total >= counted.total else counted

    def find_cost(self, *, by_list: bool = True) -> dict[str, Any] | None:
        with self._lock:
            tokens = self._count_tokens()
            usd, source = self._find_price(tokens, by_list=by_list)
        if not tokens.total and usd is None:
            return None
        counts = {"input_tokens": tokens.input, "output_tokens": tokens.output, "cached_tokens": tokens.cached}
        priced = {} if usd is None else {"usd": usd, "source": source}
        return {**priced, **{name: count for name, count in counts.items() if count or name != "cached_tokens"}}

    def _find_price(self, tokens: Tokens, *, by_list: bool) -> tuple[float | None, str]:
        """Return the agent's own figure, or else the price of its tokens by the list."""
        if self._total[1] is not None:
            return self._total[1], "agent"
        own = [usd for _, _, usd in self._requests.values() if usd is not None]
        if own:
            return sum(own), "agent"
        if not by_list:
            return None, ""
        by_model: dict[str, Tokens] = {}
        for model, used, _ in self._requests.values():
            by_model[model] = by_model.get(model, Tokens()) + used
        if not by_model and self._model:
            by_model = {self._model: tokens}
        prices = [_price_tokens(model, used) for model, used in by_model.items()]
        known = [price for price in prices if price is not None]
        return (sum(known), "list") if known and len(known) == len(prices) else (None, "")

    @property
    def facts(self) -> dict[str, Any]:
        with self._lock:
            self._read_postponed()
            answer = self._answer or self._last_message or None
            lines = [
                *filter(None, map(to_line, map(format_step, self._last_steps))),
                *(() if self._format is None else self._errors),
            ]
            return {
                "session": self._session,
                "answer": None if answer is None else to_text(answer, _MAX_ANSWER),
                "last_line": self._describe_activity(),
                "tail": "\n".join(lines) or None if self._has_known else None,
            }

    def explain(self, judgement: Judgement) -> Judgement:
        with self._lock:
            said = self._failure or _find_last_lines([*self._plain, *self._errors])
            if judgement.success and self._failure is not None:  # some exit with 0 after an error
                judgement = Judgement(False, reason="it reported an error")
        if judgement.success or judgement.fault is not None or not said:
            return judgement
        blame = _find_blame(said)
        reason = f"{said} ({judgement.reason})" if judgement.reason else said
        if blame == "agent":
            return replace(judgement, reason=reason)
        return replace(judgement, reason=reason, fault="provider", blocks_others=blame == "login")


# Why an agent failed: it says so as text, in its stream or on its standard error.

#: ``login``: it cannot start until the user does something. ``limit``: too many requests, or too much used.
_Blame = Literal["agent", "login", "limit", "outage"]

_MEANINGLESS = re.compile(r"[\W_]*|\s*at .*[:)]\d*|node:.*|Node\.js v[\d.]+|Traceback .*|\s*\^+\s*|WARN\b.*|DEBUG\b.*")
_MAX_SHOWN = 3
_MAX_SEARCHED = 4000  # characters
_WIDEST_REASON = 300

_SIGNS: tuple[tuple[_Blame, re.Pattern[str]], ...] = (
    (
        "login",
        re.compile(
            r"not (?:been )?(?:logged in|authenticated)|(?:run|use) [`'\"]?/login|please (?:log|sign) ?in|"
            r"login required|"
            r"(?:invalid|incorrect|expired|missing|no) (?:\S+ ){0,2}?(?:api[- _]?key|auth token|credentials)|"
            r"api[- _]?key\S* (?:is |was )?(?:\S+ ){0,2}?(?:missing|required|not set|not found|invalid|expired)|"
            r"authentication[ _](?:error|failed|required)|set an auth method|\b401\b|unauthori[sz]ed|"
            r"credit balance is too low|oauth token (?:has expired|revoked)|no provider configured",
            re.IGNORECASE,
        ),
    ),
    (
        "limit",
        re.compile(
            r"\b(?:429|529)\b|rate[- _]?limit|too many requests|overloaded|usage limit|quota|resource[ _]exhausted|"
            r"at capacity",
            re.IGNORECASE,
        ),
    ),
    (
        "outage",
        re.compile(
            r"\b(?:status|error|http|code)\W{0,3}50[0234]\b|\b50[0234] (?:internal|bad|service|gateway)|"
            r"internal server error|bad gateway|service unavailable|gateway time-?out|ECONN(?:REFUSED|RESET)|"
            r"ENOTFOUND|ETIMEDOUT|EAI_AGAIN|connection (?:error|refused|reset|closed)|stream disconnected|"
            r"unable to connect|fetch failed|error sending request|getaddrinfo|could not resolve|network error",
            re.IGNORECASE,
        ),
    ),
)


def _find_blame(text: str) -> _Blame:
    """Return whose fault a failure is, by what the agent says about it.

    >>> _find_blame("Not logged in · Please run /login"), _find_blame("API Error: 529 overloaded"), _find_blame("exit")
    ('login', 'limit', 'agent')
    """
    return next((blame for blame, sign in _SIGNS if sign.search(text[-_MAX_SEARCHED:])), "agent")


def _find_last_lines(lines: Sequence[str]) -> str:
    """Return the last lines that mean something to a person, as one; without stack traces and rules.

    >>> _find_last_lines(["Error: no such model", "    at run (file.js:3:1)", "", "Node.js v22.1.0"])
    'Error: no such model'
    """
    found = [line for line in map(to_line, lines) if line and not _MEANINGLESS.fullmatch(line)]
    return to_line(" / ".join(dict.fromkeys(found[-_MAX_SHOWN:])), _WIDEST_REASON)


def _price_tokens(model: str, tokens: Tokens) -> float | None:
    """Return the price in dollars; None if no list has the model, or if genai-prices is not installed."""
    prices = _load_prices() if model and tokens.total else None
    if prices is None:
        return None
    usage = prices.Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=min(tokens.cached, tokens.input) or None,
        cache_write_tokens=min(tokens.written, max(tokens.input - tokens.cached, 0)) or None,
    )
    provider, _, name = model.rpartition("/")
    try:
        found = prices.calc_price(usage, name, provider_id=provider or None)
    except (LookupError, ValueError):
        return None
    return float(found.total_price)


@lru_cache(maxsize=1)
def _load_prices() -> ModuleType | None:
    """Load genai-prices, which comes with the extra ``agents``; it takes longer than most commands."""
    try:
        import genai_prices  # noqa: PLC0415 - see above
    except ImportError:
        return None
    return genai_prices
