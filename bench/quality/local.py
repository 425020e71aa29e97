"""The small local model as agent and as judge, on the same bugs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.table import Table as RichTable

from bench.quality.agent import Agent, Judge
from bench.quality.bug import Bug, Patch
from bench.quality.interval import estimate
from bench.quality.measure import Case
from bench.quality.policy import POLICIES, Play, play
from bench.quality.verdict import GRADINGS, find_verdicts
from forkwise.errors import LocalModelError
from forkwise.local_model import local_model

__all__ = ["find_obstacle", "measure"]

_ATTEMPTS = 4
_PARALLEL = 4  # requests that the server answers at once
_MAX_TOKENS = 256
_PROMPT = """This Python module has one bug:

```python
{module}
```

These tests fail:

{tests}

Write the whole corrected module as one Python code block."""
_QUESTION = """{about}

First program:
{first}

Second program:
{second}

Which of them is right?"""


def find_obstacle() -> str | None:
    """Return why the local model cannot be used; None if it can."""
    try:
        local_model()
    except LocalModelError as error:
        return str(error)
    return None


def measure(cases: Sequence[Case], directory: str, report: Callable[[str], None]) -> RichTable:
    """Let the model try every bug, test what it wrote, and let it judge; return the table."""
    plays = asyncio.run(_measure(cases, directory, report))
    shown = RichTable(title=f"The local model: {len(cases)} bugs, {_ATTEMPTS} attempts each, with itself as the judge")
    for name in ("policy", "forks that end with a fix, in %", "test runs", "judge calls"):
        shown.add_column(name, no_wrap=True)
    for label, found in plays.items():
        rate = estimate(sum(one.is_fix for one in found), len(found))
        tests, calls = (sum(getattr(one, name) for one in found) / len(found) for name in ("tests", "calls"))
        label = label.replace("best of 8", f"best of {_ATTEMPTS}")
        shown.add_row(label, str(rate), *(f"{cost:.1f}" if cost else "—" for cost in (tests, calls)))
    return shown


async def _measure(cases: Sequence[Case], directory: str, report: Callable[[str], None]) -> dict[str, list[Play]]:
    from pydantic_ai import Agent as ModelAgent

    plays: dict[str, list[Play]] = {}
    async with local_model() as model:
        writer = ModelAgent(model, model_settings={"max_tokens": _MAX_TOKENS, "temperature": 0.7})
        reader = ModelAgent(model, output_type=Literal["first", "second"])
        slots = asyncio.Semaphore(_PARALLEL)

        async def write(bug: Bug, number: int) -> str:
            tests = bug.write_tests(bug.visible)
            async with slots:
                answer = await writer.run(
                    _PROMPT.format(module=bug.module.strip(), tests=tests), model_settings={"seed": number}
                )
            return _find_code(answer.output)

        async def ask(question: str) -> str:
            return (await reader.run(question)).output

        for number, case in enumerate(cases, 1):
            report(f"the local model tries: {number} of {len(cases)} bugs")
            modules = await asyncio.gather(*(write(case.bug, i) for i in range(_ATTEMPTS)))
            patches = await asyncio.to_thread(_grade, case.bug, modules, directory)
            verdicts = {
                grading: await asyncio.to_thread(find_verdicts, case.bug, patches, directory, grading)
                for grading in GRADINGS
            }
            for policy in POLICIES:
                agent = Agent(patches, 0.0, case.bug.name, drawn=list(range(_ATTEMPTS)))
                judge = _ModelJudge({}, case.bug.name, ask=ask, bug=case.bug, agent=agent)
                found = await play(policy, agent, verdicts, judge=judge, count=_ATTEMPTS)
                plays.setdefault(policy.label, []).append(found)
    return plays


def _grade(bug: Bug, modules: Sequence[str], directory: str) -> list[Patch]:
    """Run the held-out tests on modules, and return them as patches that are fixes or wrong."""
    written = [Patch(f"local-{i}", "wrong", {bug.module_file: text}) for i, text in enumerate(modules)]
    strict = replace(bug, visible=(*bug.visible, *bug.held_out))
    verdicts = find_verdicts(strict, written, directory, "exit code")
    return [replace(patch, kind="fix" if v.success else "wrong") for patch, v in zip(written, verdicts, strict=True)]


def _find_code(answer: str) -> str:
    """Return the first code block of an answer, or the whole answer."""
    block = re.search(r"```(?:python)?\n(.*?)(?:```|$)", answer, re.DOTALL)
    return block[1] if block else answer


@dataclass(slots=True)
class _ModelJudge(Judge):
    """Asks the model which of two programs is right, in both orders for each pair."""

    ask: Callable[[str], object] | None = None
    bug: Bug | None = None
    agent: Agent | None = None

    async def compare(self, first: Path, second: Path) -> int:
        assert self.ask is not None
        assert self.bug is not None
        assert self.agent is not None
        self.calls += 1
        order = list(self.is_fix)
        programs = [self.agent.patches[order.index(path)].files[self.bug.module_file] for path in (first, second)]
        about = self.bug.module.strip().splitlines()[0]
        answer = self.ask(_QUESTION.format(about=about, first=programs[0], second=programs[1]))
        assert asyncio.iscoroutine(answer)
        return int(await answer == "second")
