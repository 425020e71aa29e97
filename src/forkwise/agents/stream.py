"""The output of a running agent, read line by line: what it does now, what it has said, and what it costs.

A stream that cannot be read is not an error: its output is shown as it is, and a note in the steps says so once. Memory
is bounded, whatever an agent prints.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from forkwise.agents.agent_event import AgentEvent, Tokens, format_step, to_line, to_text
from forkwise.agents.formats import acp, claude, codex, copilot, gemini, goose, opencode, pi, vibe
from forkwise.fork.candidate import Judgement, OutputReader

if TYPE_CHECKING:
    from forkwise.telemetry import ToolSpans

__all__ = ["FORMATS", "AgentStream", "StreamFormat"]

_MAX_LINE = 1 << 20  # bytes; a longer line is skipped
_MAX_STEPS = 2000  # recorded in the ledger, of one attempt
_MAX_STEP_TEXT = 1000
_MAX_REQUESTS = 20_000
_SHORT = 256 << 10  # bytes of a stream
_MAX_TAIL = 40  # lines
_MAX_POSTPONED = 100  # lines
_LONGEST_POSTPONED = 32 << 10  # bytes of a line or a message
_MAX_PLAIN = 2000  # bytes of a line of plain output
_UNKNOWN_LINES = 20  # JSON lines, none of a known type, after which the format counts as changed
_MAX_ANSWER = 100_000
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """A streaming format: ``read_event`` returns the events of a line, or None if it is of no known type.

    The other fields are beginnings of lines. Lines in ``skipped`` have nothing to show. Lines in ``steps`` have only
    steps and messages: once enough of these are recorded, only the last ones are parsed, when they are needed. The same
    holds for ``parts``, each with a part of a message and nothing else. Lines in ``requests`` have steps and messages,
    and also what ``read_usage`` returns, which always counts. Lines in ``results``, which are among the skipped ones,
    are read only if tool calls are traced.
    """

    read_event: Callable[[Mapping[str, Any]], Iterable[AgentEvent] | None]
    skipped: tuple[bytes, ...] = ()
    steps: tuple[bytes, ...] = ()
    parts: tuple[bytes, ...] = ()
    requests: tuple[bytes, ...] = ()
    read_usage: Callable[[Mapping[str, Any]], AgentEvent | None] | None = None
    results: tuple[bytes, ...] = ()


FORMATS: dict[str, StreamFormat] = {
    "acp": StreamFormat(acp.read_event, acp.SKIPPED, acp.STEPS, acp.PARTS, results=acp.RESULTS),
    "claude": StreamFormat(
        claude.read_event,
        claude.SKIPPED,
        requests=claude.REQUESTS,
        read_usage=claude.read_usage,
        results=claude.RESULTS,
    ),
    "codex": StreamFormat(codex.read_event, codex.SKIPPED, codex.STEPS),
    "copilot": StreamFormat(copilot.read_event, copilot.SKIPPED, copilot.STEPS, results=copilot.RESULTS),
    "gemini": StreamFormat(gemini.read_event, gemini.SKIPPED, gemini.STEPS, gemini.PARTS, results=gemini.RESULTS),
    "goose": StreamFormat(goose.read_event, goose.SKIPPED, goose.STEPS),
    "opencode": StreamFormat(opencode.read_event, steps=opencode.STEPS),
    "pi": StreamFormat(pi.read_event, pi.SKIPPED),
    "vibe": StreamFormat(vibe.read_event, steps=vibe.STEPS),
}
"""The formats by name, as the key ``stream`` of an agent's table names them."""


def _parse_short(line: bytes) -> Any:
    """Parse a line of a short stream, with the json module, which is loaded anyway."""
    if b"\\ud" in line or b"\\uD" in line:  # json lets half of a surrogate pair pass, which nothing can print
        return _load_parser()(line)
    return json.loads(line.decode())


def _load_parser() -> Callable[[bytes], Any]:
    """Return the parser for long streams: it is twice as fast, but loading it takes as long as starting a sandbox."""
    from pydantic_core import from_json  # noqa: PLC0415 - see above

    return from_json


class _Message:
    """A message, put together from its parts up to a length; ``read`` returns the part that a line has."""

    __slots__ = ("_lines", "_parts", "_pending", "_read", "_room")

    def __init__(self, read: Callable[[bytes], str], text: str = "") -> None:
        self._read = read
        self._parts = [text]
        self._room = _MAX_ANSWER - len(text)
        self._lines: list[bytes] = []
        self._pending = 0  # bytes of lines

    @property
    def is_large(self) -> bool:
        return self._pending + _MAX_ANSWER - self._room > _LONGEST_POSTPONED

    def add(self, text: str) -> None:
        if self._room > 0:
            self._parts.append(text[: self._room])
            self._room -= len(text)

    def add_line(self, line: bytes) -> None:
        """Add the part that a line has. It is parsed when the text is needed, if at all."""
        if self._room > 0:
            self._lines.append(line)
            self._pending += len(line)
            if self._pending > _LONGEST_POSTPONED:
                self._parse()

    @property
    def text(self) -> str:
        self._parse()
        return "".join(self._parts)

    def _parse(self) -> None:
        lines, self._lines, self._pending = self._lines, [], 0
        for line in lines:
            self.add(self._read(line))


class AgentStream(OutputReader):
    """Reads the output of one run of an agent; ``stream`` names its format, None is plain text.

    Paths below ``directory``, the workspace, are shown without it. ``model`` is the one that was requested, if any. One
    thread feeds it; other threads may call the other methods.
    """

    def __init__(self, stream: str | None, directory: str | os.PathLike[str], *, model: str = "") -> None:
        self._format = None if stream is None else FORMATS[stream]
        # Lines to parse when they are needed, and messages between them; those before the last end of a turn.
        self._postponed: deque[bytes | _Message] = deque(maxlen=_MAX_POSTPONED)
        self._ended: deque[bytes | _Message] = deque(maxlen=_MAX_POSTPONED)
        self._prefix = f"{os.fspath(directory).rstrip('/')}/"
        self._lock = threading.Lock()
        self._parse: Callable[[bytes], Any] = _parse_short
        self._size = 0  # bytes read until the parser of long streams is loaded
        self._pending = b""
        self._is_skipping = False  # the rest of a line that is too long
        self._unknown = 0
        self._has_known = False
        self._has_note = False
        self._steps: list[dict[str, Any]] = []
        self._step_count = 0
        self._plain: deque[bytes] = deque(maxlen=_MAX_TAIL)  # beginnings of lines
        self._errors: deque[bytes] = deque(maxlen=_MAX_TAIL)
        self._error_pending = b""
        self._last_steps: deque[dict[str, Any]] = deque(maxlen=_MAX_TAIL)
        self._activity: dict[str, Any] | None = None
        self._message = _Message(self._read_part)  # the last one
        self._is_message_open = False
        self._answer: str | None = None
        self._failure: str | None = None
        self._session: str | None = None
        self._model = model
        self._requests: dict[str, tuple[str, Tokens, float | None]] = {}
        self._total: tuple[Tokens | None, float | None] = (None, None)
        self._delay_s: float | None = None  # how long the provider refuses requests
        self._tools: ToolSpans | None = None
        self._earlier = Tokens()  # of earlier runs
        self._earlier_usd: float | None = None

    def trace_tools(self, spans: ToolSpans) -> None:
        with self._lock:
            self._tools = spans
            if self._format is not None:
                skipped = tuple(begin for begin in self._format.skipped if begin not in self._format.results)
                self._format = replace(self._format, skipped=skipped)

    def feed(self, stream: str, piece: bytes) -> None:
        with self._lock:
            if stream != "stdout":
                errors = (self._error_pending + piece).split(b"\n")
                self._error_pending = errors.pop()[-_MAX_LINE:]
                _keep(self._errors, errors)
                return
            if self._parse is _parse_short:
                self._size += len(piece)
                if self._size > _SHORT:
                    self._parse = _load_parser()
            lines = (self._pending + piece).split(b"\n")
            self._pending = lines.pop()
            self._read_lines(lines)
            if len(self._pending) > _MAX_LINE:
                self._pending, self._is_skipping = b"", True

    def finish(self) -> None:
        with self._lock:
            if self._pending:
                self._read_lines([self._pending])
                self._pending = b""
            _keep(self._errors, [self._error_pending])
            self._error_pending = b""
            if self._format is not None and self._unknown and not self._has_known:
                self._note_change()

    def _read_lines(self, lines: list[bytes]) -> None:
        """Read complete lines. This is most of the work of reading a stream, hence one loop without calls."""
        known = self._format
        if self._is_skipping and lines:
            self._is_skipping = False
            lines = lines[1:]
        if known is None:
            _keep(self._plain, lines)
            return
        skipped, steps, parts, requests = known.skipped, known.steps, known.parts, known.requests
        postponed = self._postponed
        for line in lines:
            if not line.startswith(b"{"):
                _keep(self._plain, (line,))
            elif line.startswith(skipped):
                self._has_known = True
            elif self._step_count <= _MAX_STEPS or len(line) > _LONGEST_POSTPONED:
                if len(line) <= _MAX_LINE:
                    self._parse_line(known, line)
            elif line.startswith(steps):
                postponed.append(line)
            elif line.startswith(parts):
                self._postpone_part(known, line)
            elif line.startswith(requests):
                self._count_request(known, line)
            else:
                self._parse_line(known, line)

    def _count_request(self, known: StreamFormat, line: bytes) -> None:
        """Count what a line says about its request, and postpone its steps."""
        try:
            data = self._parse(line)
        except (ValueError, RecursionError):
            data = None
        if known.read_usage is None or type(data) is not dict:
            self._parse_line(known, line)
            return
        usage = known.read_usage(data)
        if usage is not None:
            self._add_usage(usage)
        self._postponed.append(line)

    def _postpone_part(self, known: StreamFormat, line: bytes) -> None:
        """Add a line to the message that is open, or else begin one."""
        last = self._postponed[-1] if self._postponed else None
        if isinstance(last, _Message):
            last.add_line(line)
            if last.is_large:  # only the last message may be large
                self._read_postponed()
        elif last is None and self._is_message_open:
            self._message.add_line(line)
        elif last is not None and last.startswith(known.parts):
            message = _Message(self._read_part)
            message.add_line(last)
            message.add_line(line)
            self._postponed[-1] = message
        else:
            self._postponed.append(line)

    def _read_part(self, line: bytes) -> str:
        events = () if self._format is None else self._read_events(self._format, line)
        return "".join(event.text for event in events or ())

    def _read_postponed(self) -> None:
        if not self._postponed and not self._ended:
            return
        ended, postponed = list(self._ended), list(self._postponed)
        self._ended.clear()
        self._postponed.clear()
        self._read_all(ended)
        if ended:
            self._close_message()
            self._answer = self._message.text or self._answer
        self._read_all(postponed)

    def _read_all(self, postponed: list[bytes | _Message]) -> None:
        for entry in postponed:
            if isinstance(entry, bytes):
                assert self._format is not None
                self._parse_line(self._format, entry)
            elif self._is_message_open:
                self._message.add(entry.text)
            elif text := entry.text:
                self._message, self._is_message_open = entry, True
                self._activity = {"text": text}

    def _parse_line(self, known: StreamFormat, line: bytes) -> None:
        events = self._read_events(known, line)
        if events is None:
            self._read_postponed()
            self._note("a line of its stream is not JSON: what cannot be read is shown as it is")
            self._activity = None
            return
        for event in events:
            self._take(event)

    def _read_events(self, known: StreamFormat, line: bytes) -> Iterable[AgentEvent] | None:
        """Return the events of a line; None if it is not JSON."""
        try:
            data = self._parse(line)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            _keep(self._plain, (line,))
            return None
        events = known.read_event(data)
        if events is None:
            self._unknown += 1
            if self._unknown == _UNKNOWN_LINES and not self._has_known:
                self._note_change()
            return ()
        self._has_known = True
        return events

    def _note_change(self) -> None:
        self._note("its stream has no event that forkwise knows, perhaps of another version: it is shown as it is")

    def _note(self, text: str) -> None:
        """Say once that something cannot be read."""
        if not self._has_note:
            self._has_note = True
            self._add_step({"kind": "note", "text": text})

    def _take(self, event: AgentEvent) -> None:
        kind = event.kind
        if kind == "usage":
            self._add_usage(event)
        elif kind == "session":
            self._session = event.text or self._session
            self._model = event.model or self._model
        elif kind == "message" and event.is_part:
            self._add_part(event.text)
        elif kind == "end":
            self._end(event.text)
        elif kind == "limit":
            self._delay_s = event.delay_s
        elif kind == "result":
            if self._tools is not None:
                self._tools.end(event.call, is_failed=event.is_failed, at_ms=event.at_ms)
        else:
            self._read_postponed()
            self._close_message()
            self._take_step(event)

    def _take_step(self, event: AgentEvent) -> None:
        match event.kind:
            case "message":
                self._message = _Message(self._read_part, event.text)
                self._is_message_open = True
                self._close_message()
            case "tool" | "step":
                target = event.text.removeprefix(self._prefix).replace(f" {self._prefix}", " ")
                self._add_step({"kind": event.kind, "tool": event.tool, "text": target})
                if self._tools is not None and event.kind == "tool" and self._step_count <= _MAX_STEPS:
                    self._tools.start(event.tool, event.call, at_ms=event.at_ms)
            case "failure":
                self._failure = to_line(event.text, _MAX_REASON)
                self._add_step({"kind": "failure", "text": self._failure})

    def _add_part(self, text: str) -> None:
        """Add a part to the message that is open, or else begin one."""
        if self._postponed:
            last = self._postponed[-1]
            if isinstance(last, _Message):
                last.add(text)
            else:
                self._postponed.append(_Message(self._read_part, text))
        elif self._is_message_open:
            self._message.add(text)
        else:
            self._message, self._is_message_open = _Message(self._read_part, text), True
            self._activity = {"text": text}

    def _end(self, answer: str) -> None:
        """End a turn, with ``answer`` or else the last message as its closing one."""
        if self._ended and answer:
            self._read_postponed()
        if self._postponed and not answer:
            self._ended.extend(self._postponed)
            self._postponed.clear()
            return
        self._close_message()
        self._answer = answer or self._message.text or self._answer

    def _close_message(self) -> None:
        if self._is_message_open:
            self._is_message_open = False
            self._add_step({"kind": "message", "text": self._message.text[:_MAX_STEP_TEXT]})

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
        return self._earlier + self._count_run()

    def _count_run(self) -> Tokens:
        counted = sum((tokens for _, tokens, _ in self._requests.values()), Tokens())
        total = self._total[0]
        return total if total is not None and total.total >= counted.total else counted

    def find_cost(self, *, by_list: bool = True) -> dict[str, Any] | None:
        with self._lock:
            tokens = self._count_tokens()
            usd, source = self._find_price(by_list=by_list)
        if not tokens.total and usd is None:
            return None
        counts = {"input_tokens": tokens.input, "output_tokens": tokens.output, "cached_tokens": tokens.cached}
        priced = {} if usd is None else {"usd": usd, "source": source}
        return {**priced, **{name: count for name, count in counts.items() if count or name != "cached_tokens"}}

    def _find_price(self, *, by_list: bool) -> tuple[float | None, str]:
        usd, source = self._price_run(by_list=by_list)
        return (usd, source) if self._earlier_usd is None else (self._earlier_usd + (usd or 0.0), source or "agent")

    def _price_run(self, *, by_list: bool) -> tuple[float | None, str]:
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
            by_model = {self._model: self._count_run()}
        prices = [_price_tokens(model, used) for model, used in by_model.items()]
        known = [price for price in prices if price is not None]
        return (sum(known), "list") if known and len(known) == len(prices) else (None, "")

    @property
    def facts(self) -> dict[str, Any]:
        with self._lock:
            self._read_postponed()
            answer = self._answer or self._message.text or None
            lines = [
                *filter(None, map(to_line, map(format_step, self._last_steps))),
                *(() if self._format is None else _format_lines(self._errors)),
            ]
            return {
                "session": self._session,
                "answer": None if answer is None else to_text(answer, _MAX_ANSWER),
                "last_line": self._describe_activity(),
                "tail": "\n".join(lines) or None if self._has_known else None,
            }

    def explain(self, judgement: Judgement) -> Judgement:
        with self._lock:
            if judgement.success and self._failure is not None:  # some exit with 0 after an error
                judgement = Judgement(False, reason="it reported an error")
            if judgement.success or judgement.fault is not None:
                return judgement
            said = self._failure or _find_last_lines(_format_lines((*self._plain, *self._errors)))
        if not said:
            return judgement
        blame = _find_blame(said)
        reason = f"{said} ({judgement.reason})" if judgement.reason else said
        if blame == "agent":
            return replace(judgement, reason=reason)
        delay_s = self._delay_s if self._delay_s is not None else _find_delay(said)
        is_short = blame == "limit" and (delay_s is not None or not re.search(_QUOTA, said, re.IGNORECASE))
        retry_after = (delay_s or 0.0) if is_short else None
        return replace(
            judgement, reason=reason, fault="provider", blocks_others=blame == "login", retry_after=retry_after
        )

    def restart(self, note: str) -> None:
        with self._lock:
            self._read_postponed()
            self._close_message()
            usd, _ = self._find_price(by_list=True)
            self._earlier, self._earlier_usd = self._count_tokens(), usd
            self._requests, self._total = {}, (None, None)
            self._pending, self._error_pending, self._is_skipping = b"", b"", False
            self._plain.clear()
            self._errors.clear()
            self._message, self._answer, self._failure, self._delay_s = _Message(self._read_part), None, None, None
            self._add_step({"kind": "note", "text": to_line(note, _MAX_REASON)})


def _keep(kept: deque[bytes], lines: Sequence[bytes]) -> None:
    """Keep the beginnings of lines of plain output, which are rarely needed."""
    kept.extend([line[:_MAX_PLAIN] for line in lines if line and not line.isspace()])


def _format_lines(lines: Iterable[bytes]) -> list[str]:
    return list(filter(None, (to_line(line.decode(errors="replace")) for line in lines)))


# Why an agent failed: it says so as text, in its stream or on its standard error.

#: ``login``: it cannot start until the user does something. ``limit``: too many requests, or too much used.
_Blame = Literal["agent", "login", "limit", "outage"]

# Patterns are compiled on first use, because that takes longer than reading the output of a short run.
_MEANINGLESS = r"[\W_]*|\s*at .*[:)]\d*|node:.*|Node\.js v[\d.]+|Traceback .*|\s*\^+\s*|WARN\b.*|DEBUG\b.*"
_MAX_SHOWN = 3
_MAX_SEARCHED = 4000  # characters
_WIDEST_REASON = 300

_SIGNS: tuple[tuple[_Blame, str], ...] = (
    (
        "login",
        (
            r"not (?:been )?(?:logged in|authenticated)|(?:run|use) [`'\"]?/login|please (?:log|sign) ?in|"
            r"login required|"
            r"(?:invalid|incorrect|expired|missing|no) (?:\S+ ){0,2}?(?:api[- _]?key|auth token|credentials)|"
            r"api[- _]?key\S* (?:is |was )?(?:\S+ ){0,2}?(?:missing|required|not set|not found|invalid|expired)|"
            r"authentication[ _](?:error|failed|required)|set an auth method|\b401\b|unauthori[sz]ed|"
            r"credit balance is too low|oauth token (?:has expired|revoked)|no provider configured"
        ),
    ),
    (
        "limit",
        (
            r"\b(?:429|529)\b|rate[- _]?limit|too many requests|overloaded|usage limit|quota|resource[ _]exhausted|"
            r"at capacity"
        ),
    ),
    (
        "outage",
        (
            r"\b(?:status|error|http|code)\W{0,3}50[0234]\b|\b50[0234] (?:internal|bad|service|gateway)|"
            r"internal server error|bad gateway|service unavailable|gateway time-?out|ECONN(?:REFUSED|RESET)|"
            r"ENOTFOUND|ETIMEDOUT|EAI_AGAIN|connection (?:error|refused|reset|closed)|stream disconnected|"
            r"unable to connect|fetch failed|error sending request|getaddrinfo|could not resolve|network error"
        ),
    ),
)


#: Limits that last for hours or need the user, unless the provider says how long to wait.
_QUOTA = r"usage limit|quota|billing|(?:hour|daily|weekly|monthly) limit"
_DELAY = (
    r"(?:retry|try again)[\w\s:\"'=-]{0,20}?(\d{1,9}(?:\.\d{1,9})?) ?"
    r"(ms|milliseconds|s|sec\w*|m|min\w*|h|hours?)?(?![\w:])"
)
_UNITS = {"m": 60.0, "h": 3600.0}


def _find_delay(text: str) -> float | None:
    """Return how many seconds a provider asks to wait before the next try; None if it does not say.

    >>> _find_delay("Please try again in 11.05s."), _find_delay("429, retry-after: 30"), _find_delay("retry in 2 min")
    (11.05, 30.0, 120.0)
    """
    found = re.search(_DELAY, text[-_MAX_SEARCHED:], re.IGNORECASE)
    if found is None:
        return None
    unit = (found[2] or "s").lower()
    is_thousandth = unit.startswith(("ms", "milli"))
    return float(found[1]) * (0.001 if is_thousandth else _UNITS.get(unit[:1], 1.0))


def _find_blame(text: str) -> _Blame:
    """Return what caused a failure, judging by what the agent says about it.

    >>> _find_blame("Not logged in · Please run /login"), _find_blame("API Error: 529 overloaded"), _find_blame("exit")
    ('login', 'limit', 'agent')
    """
    return next((blame for blame, sign in _SIGNS if re.search(sign, text[-_MAX_SEARCHED:], re.IGNORECASE)), "agent")


def _find_last_lines(lines: Sequence[str]) -> str:
    """Return the last lines that mean something to a person, as one; without stack traces and rules.

    >>> _find_last_lines(["Error: no such model", "    at run (file.js:3:1)", "", "Node.js v22.1.0"])
    'Error: no such model'
    """
    found = [line for line in map(to_line, lines) if line and not re.fullmatch(_MEANINGLESS, line)]
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
