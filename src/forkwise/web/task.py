"""Task: work that takes a while, done in a thread while the page shows its progress."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException

from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.errors import BranchingError
from forkwise.text.clean import truncate
from forkwise.text.redaction import redact

__all__ = ["Outcome", "OutcomeButton", "TaskBook", "render_outcome"]

_MOST_JOBS = 200
_MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class OutcomeButton:
    """A button under a question: what it does, with which form values."""

    label: str
    action: str
    values: Mapping[str, str] = field(default_factory=dict)
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a decision: done, refused with a reason, or a question with answers."""

    tone: str
    title: str
    lines: Sequence[str] = ()
    answers: Sequence[OutcomeButton] = ()
    detail: Child = None


@dataclass(eq=False)
class _Job:
    fork: str
    title: str
    outcome: Outcome | None = None
    done: threading.Event = field(default_factory=threading.Event)


class TaskBook:
    """The most recent jobs of a server."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def start(self, fork: str, title: str, work: Callable[[], Outcome]) -> str:
        """Start a job, and return its id. Raises HTTPException if another one is deciding the same fork."""
        with self._lock:
            busy = next((job for job in self._jobs.values() if job.fork == fork and job.outcome is None), None)
            if busy is not None:
                raise HTTPException(409, f"Wait: this page is already {busy.title}.")
            while len(self._jobs) >= _MOST_JOBS:
                del self._jobs[next(iter(self._jobs))]
            name = secrets.token_hex(8)
            job = self._jobs[name] = _Job(fork, title)
        threading.Thread(target=self._run, args=(job, work), name=f"job {title}", daemon=True).start()
        return name

    def _run(self, job: _Job, work: Callable[[], Outcome]) -> None:
        try:
            job.outcome = work()
        except HTTPException as error:
            job.outcome = Outcome("bad", "Not done", [str(error.detail)])
        except (BranchingError, OSError, ValueError) as error:
            notes = [str(note) for note in getattr(error, "__notes__", ())]
            job.outcome = Outcome("bad", "Not done", [str(error) or type(error).__name__, *notes])
        finally:
            if job.outcome is None:
                job.outcome = Outcome("bad", "Not done", ["An unexpected error ended this: see the terminal."])
            job.done.set()

    def wait(self, name: str, timeout_s: float) -> None:
        """Wait until a job has ended, but not longer than ``timeout_s``."""
        job = self._jobs.get(name)
        if job is not None:
            job.done.wait(timeout_s)

    def render(self, name: str, fork: str, address: str) -> Markup:
        """Render the progress of a job; while it runs, the page polls."""
        job = self._jobs.get(name)
        if job is None or job.fork != fork:
            return render_outcome(
                Outcome("warn", "The server was started again", ["See above for the state of the fork."]), address
            )
        if job.outcome is not None:
            return render_outcome(job.outcome, address)
        text = f"{job.title[:1].upper()}{job.title[1:]} …"
        return build_element(
            "section",
            build_element("p", build_element("span", class_="spin", aria_hidden="true"), text),
            id="decision",
            class_="card decision",
            aria_live="polite",
            hx_get=f"{address}jobs/{name}",
            hx_trigger="every 400ms",
            hx_swap="outerHTML",
        )


def render_outcome(outcome: Outcome | None, address: str) -> Markup:
    """Render the outcome of a decision, with its answers as buttons; nothing if there was none."""
    if outcome is None:
        return build_element("section", id="decision", aria_live="polite")
    buttons = [
        build_element(
            "button",
            answer.label,
            type="button",
            class_=answer.tone or None,
            hx_post=f"{address}do/{answer.action}",
            hx_vals=json.dumps(dict(answer.values)),
            hx_target="#decision",
            hx_swap="outerHTML",
        )
        for answer in outcome.answers
    ]
    return build_element(
        "section",
        build_element("h2", outcome.title),
        [build_element("p", truncate(redact(line), _MAX_TEXT)) for line in outcome.lines[:12]],
        build_element("div", buttons, class_="row") if buttons else None,
        outcome.detail,
        id="decision",
        class_=f"card decision {outcome.tone}",
        aria_live="polite",
        tabindex=-1,
        data_focus="true",
    )
