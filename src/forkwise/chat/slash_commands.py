"""The table of slash commands, and the parser for typed lines. `forkwise.chat.interpreter` runs them.

This module stays light: the first frame of a chat loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ALLOW_EXECUTABLE_CONFIG",
    "COMMANDS",
    "Command",
    "Line",
    "UsageError",
    "find_command",
    "format_help",
    "parse",
]


class UsageError(ValueError):
    """A line that is not understood; the message says what to type instead."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. ``during_fork``: allowed while a fork is open; ``during_turn``: allowed while the agent runs."""

    name: str
    arguments: str
    help: str
    during_fork: bool = False
    during_turn: bool = False

    @property
    def usage(self) -> str:
        """The command with its arguments, as typed."""
        return f"/{self.name} {self.arguments}".rstrip()


#: The last word of a merge that may change what the user's machine will run.
ALLOW_EXECUTABLE_CONFIG = "--allow-executable-config"

COMMANDS: tuple[Command, ...] = (
    Command("fork", "[TASK | LABEL: TASK | …]", "split into branches that run side by side"),
    Command("fork diff", "[PATH]", "show the branches' changes, in a diff tool if there is one", True, True),
    Command("fork-branches", "[N]", "set the number of branches of the next fork"),
    Command("fork-budget", "[per-branch USD | aggregate USD | USD | clear]", "set the budgets of the next fork"),
    Command("fork-model", "[N MODEL | N clear | MODEL | clear]", "set the models of the next fork's branches"),
    Command("branches", "", "list the branches and their states", True, True),
    Command(
        "merge",
        f"[LABEL | auto | judge | vote | combine:A,B] [{ALLOW_EXECUTABLE_CONFIG}]",
        "resolve the fork: keep one branch or several",
        True,
    ),
    Command("abort", "[LABEL]", "drop the fork, or terminate one of its branches", True, True),
    Command("override", f"LABEL [{ALLOW_EXECUTABLE_CONFIG}]", "after auto or vote: keep another branch instead"),
    Command("undo", "", "undo the last merge, its files and its messages"),
    Command("nway", "[PATH]", "show the parent's and every branch's version side by side", True, True),
    Command("load", "[CHECKPOINT]", "go back to a checkpoint, with its files"),
    Command("tree", "", "show the conversation as a tree", True, True),
    Command("go", "NODE|LABEL", "continue from another node"),
    Command("compare", "A B", "compare the conversation up to two nodes", True, True),
    Command("combine", "[HOW] [NODE …]", "combine answers into one: concatenate, llm_merge, llm_vote, llm_judge"),
    Command("approve", "[ID]", "approve a tool call", True, True),
    Command("deny", "[ID]", "deny a tool call", True, True),
    Command("cost", "", "show the cost", True, True),
    Command("tokens", "", "show the tokens used", True, True),
    Command("model", "[NAME]", "show or change the model"),
    Command("copy", "", "copy the last answer", True, True),
    Command("version", "", "show the version of forkwise", True, True),
    Command("help", "[COMMAND]", "show this list", True, True),
    Command("quit", "", "end the chat; an open fork is kept", True, True),
)

_BY_NAME = {command.name: command for command in COMMANDS}
_ALIASES = {"exit": "quit", "?": "help"}


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line.

    ``kind`` is ``prompt``, ``steer`` (``rest`` has the branch's label and the message), ``shell`` or ``command``.
    """

    kind: str
    rest: str
    command: Command | None = None

    @property
    def words(self) -> list[str]:
        """The arguments, split at spaces."""
        return self.rest.split()


def find_command(name: str) -> Command:
    """Find a command by its name or alias. Raises UsageError if there is none."""
    name = name.removeprefix("/")
    found = _BY_NAME.get(_ALIASES.get(name, name))
    if found is None:
        near = [f"/{one}" for one in _BY_NAME if name and one.startswith(name[:2])]
        hint = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise UsageError(f"there is no command /{name}{hint} /help lists all")
    return found


def parse(line: str) -> Line | None:
    """Parse a line; None for a blank one. Raises UsageError for one that is not understood.

    >>> parse("/merge a").command.name, parse(">>a shorter").rest, parse("hello").kind
    ('merge', 'a shorter', 'prompt')
    >>> parse("/fork diff src/app.py").command.name
    'fork diff'
    """
    text = line.strip()
    if not text:
        return None
    if text.startswith(">>"):
        if not text[2:].strip():
            raise UsageError("name a branch and a message: >>LABEL message")
        return Line("steer", text[2:].strip())
    if text.startswith("!"):
        if not text[1:].strip():
            raise UsageError("name a shell command: !COMMAND")
        return Line("shell", text[1:].strip())
    if not text.startswith("/") or text.startswith("//"):
        return Line("prompt", text.removeprefix("/") if text.startswith("//") else text)
    name, _, rest = text[1:].partition(" ")
    first, _, others = rest.strip().partition(" ")
    if name == "fork" and first == "diff":
        return Line("command", others.strip(), find_command("fork diff"))
    command = find_command(name)
    if rest.strip() and not command.arguments:
        raise UsageError(f"/{command.name} takes no arguments")
    return Line("command", rest.strip(), command)


def format_help(name: str = "", commands: Sequence[Command] = COMMANDS) -> str:
    """Format the help of all commands, or of one."""
    if name:
        commands = [find_command(name)]
    lines = [f"{command.usage}\n    {command.help}" for command in commands]
    if not name:
        lines += [
            ">>LABEL message\n    prompt a branch, while it runs or when it is done",
            "!COMMAND\n    run a shell command in the workspace",
            "//TEXT\n    send a prompt that begins with a slash",
        ]
    return "\n".join(lines)
