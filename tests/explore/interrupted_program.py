"""A program that runs a pattern and reports when it reaches a phase; its test then interrupts or kills it.

Run as ``python -m tests.explore.interrupted_program <workspace> <phase> <fifo>``. All processes that it starts in a
sandbox hold the FIFO open, so that a reader gets an end of file when the last of them is dead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from forkwise import (
    BestOfN,
    Confinement,
    Pattern,
    Reflexion,
    SandboxRunner,
    Speculate,
    Tests,
    Tournament,
    TreeOfThoughts,
    Workspace,
)
from forkwise.fork import land

__all__ = ["PHASES"]


def report_ready() -> None:
    """Write one line in one call: several threads may do so at the same time."""
    os.write(1, b"ready\n")


def stay(*_: Any) -> Any:
    """Report that the phase has started, and block forever."""
    report_ready()
    threading.Event().wait()


def good(path: Path, *_: Any) -> bool:
    (path / "good").write_text("good")
    return True


async def stay_on_the_loop(_: Path) -> bool:
    report_ready()
    await asyncio.Future()
    return True


def nesting(pattern: Pattern) -> Any:
    return lambda path: pattern(path).committed


def in_a_loop(path: Path) -> bool:
    async def main() -> bool:
        return Speculate([stay])(path).committed

    return asyncio.run(main())


def sandboxed(fifo: str) -> dict[str, Any]:
    return {"runner": SandboxRunner(Confinement.standard(writable=(os.path.dirname(fifo),)))}


def holding(fifo: str) -> list[str]:
    """Build a command that holds the FIFO open, with children that do so, too, and ignore signals."""
    script = f'exec 3>{fifo}; trap "" INT TERM; (setsid sleep 1000 &); setsid sleep 1000 & echo begun >&3; sleep 1000'
    return ["sh", "-c", script]


def holding_function(fifo: str) -> Any:
    def work(_: Path) -> bool:
        os.execvp("sh", holding(fifo))

    return work


def while_committing(fifo: str) -> Pattern:
    commit_winner = land.commit_winner

    def commit(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return commit_winner(*arguments, **options)

    land.commit_winner = commit
    return Speculate([good])


#: The phases in which the interrupt can come.
PHASES: dict[str, Any] = {
    "thread": lambda fifo: Speculate([stay, good], first_wins=False),
    "loop": lambda fifo: Speculate([stay_on_the_loop, good], first_wins=False),
    "command": lambda fifo: Speculate([holding(fifo)] * 2, **sandboxed(fifo)),
    "function": lambda fifo: Speculate([holding_function(fifo)] * 2, **sandboxed(fifo)),
    "evaluation": lambda fifo: BestOfN([good, good], evaluate=stay),
    "tests": lambda fifo: BestOfN(
        [good], evaluate=Tests(holding(fifo), confinement=Confinement.standard(writable=(os.path.dirname(fifo),)))
    ),
    "expansion": lambda fifo: TreeOfThoughts([good], expand=stay, max_depth=2),
    "deeper": lambda fifo: TreeOfThoughts([good], expand=lambda *_: [stay, good], max_depth=2),
    "critique": lambda fifo: Reflexion(lambda *_: False, critique=stay),
    "judge": lambda fifo: Tournament([good, good], judge=stay),
    "nested": lambda fifo: Speculate([nesting(Speculate([stay]))]),
    "nested-in-a-loop": lambda fifo: Speculate([in_a_loop]),
    "nested-command": lambda fifo: Speculate([nesting(Speculate([holding(fifo)], **sandboxed(fifo)))]),
    "commit": while_committing,
}

if __name__ == "__main__":
    PHASES[sys.argv[2]](sys.argv[3])(Workspace(sys.argv[1], durable=False))
