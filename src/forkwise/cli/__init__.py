"""The ``forkwise`` command. Each module of ``cli.commands`` holds related commands; the work is done by lower floors.

Importing this package must stay cheap: a command imports the floors it needs only when it runs. Completion and
``--version`` do not even load click, because the shell waits for them.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from forkwise import __version__

if TYPE_CHECKING:
    import click

    forkwise_command: click.Group

__all__ = ["forkwise_command", "main"]

_ALONE = {  # verbs loaded alone, by their module: users notice the time that loading the others would add
    "ls": "forks",
    "show": "forks",
    "diff": "forks",
    "run": "explore",
    "best-of": "explore",
    "mcp": "agent.mcp_server",
}
_GARBAGE_THRESHOLD = 10_000  # allocations between two collections; with Python's 700, imports trigger hundreds


def __getattr__(name: str) -> object:
    if name != "forkwise_command":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forkwise.cli.verbs import forkwise_command

    return forkwise_command


def main() -> None:
    """Run the command line."""
    _prepare_streams()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    words = sys.argv[1:]
    if words == ["--version"]:
        with suppress(OSError):  # click prints it again, and reports why that is impossible
            print(f"forkwise, version {__version__}", flush=True)
            return
    if words[:1] == ["_complete"]:
        from forkwise.cli.completion import print_candidates

        print_candidates(words[1:])
        return
    from forkwise.cli import stop_signal

    try:
        stop_signal.raise_on_stop_signals()
        _run(words)
    except KeyboardInterrupt:  # during the imports; once a command runs, it reports the interrupt itself
        number = stop_signal.find_stop_signal()
        print(f"forkwise: error: {stop_signal.describe_stop_signal(number)}; nothing was changed", file=sys.stderr)
        sys.exit(128 + number)
    finally:
        stop_signal.ignore_stop_signals()  # nothing may interrupt the clean-up at the interpreter's exit
        gc.freeze()  # the collection at exit would walk all loaded modules, which takes longer than the rest


def _prepare_streams() -> None:
    """Open standard streams that the caller closed, such as with ``>&-``, on /dev/null, and accept any text on stdout.

    Otherwise the next file to be opened, such as the ledger, would get that descriptor, and children would write to it.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
            os.set_inheritable(fd, True)
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def _run(words: list[str]) -> None:
    from forkwise.telemetry import allow_export

    allow_export()
    verb = words[2] if words[:1] == ["-C"] and words[2:] else next(iter(words), "")
    if verb in _ALONE:
        from importlib import import_module

        from forkwise.cli.root_command import forkwise_command

        commands = import_module(f"forkwise.cli.commands.{_ALONE[verb]}")
        forkwise_command.add_command(getattr(commands, verb.replace("-", "_")))
    else:
        from forkwise.cli.verbs import forkwise_command
    forkwise_command.main(prog_name="forkwise")
