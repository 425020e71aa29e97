"""Commands: all that can be typed in a chat, in one table, and how a line is read. Nothing is carried out here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["COMMANDS", "Command", "Line", "UsageError", "command_named", "help_text", "parse"]


class UsageError(ValueError):
    """A line that means nothing; the message says what could be typed instead."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something that can be asked for. ``during_fork`` says whether also while a fork is open, ``during_turn`` whether
    also while the agent is at it."""

    name: str
    arguments: str
    help: str
    during_fork: bool = False
    during_turn: bool = False

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.arguments}".rstrip()


COMMANDS: tuple[Command, ...] = (
    Command("fork", "[TASK | LABEL: TASK | …]", "split into branches that run side by side"),
    Command("fork diff", "[PATH]", "what the branches changed, in a diff tool where there is one", True, True),
    Command("fork-branches", "[N]", "how many branches the next fork has"),
    Command("fork-budget", "[per-branch USD | aggregate USD | USD | clear]", "what the next fork may cost"),
    Command("fork-model", "[N MODEL | N clear | MODEL | clear]", "which models run the branches of the next fork"),
    Command("branches", "", "where the branches stand", True, True),
    Command("merge", "[LABEL | auto | judge | vote | combine:A,B]", "decide the fork: go on as one, or several", True),
    Command("abort", "[LABEL]", "drop the fork, or end one of its branches", True, True),
    Command("override", "LABEL", "after auto or vote: take another branch instead"),
    Command("undo", "", "take the last merge back, its files and what was said"),
    Command("nway", "[PATH]", "the parent's version and each branch's, lined up", True, True),
    Command("load", "[CHECKPOINT]", "go back to a checkpoint, with its files"),
    Command("tree", "", "all that was said, with its branches", True, True),
    Command("go", "NODE|LABEL", "go on from another place"),
    Command("compare", "A B", "how what was said up to two places differs", True, True),
    Command("combine", "[HOW] [NODE …]", "make one answer of several: concatenate, llm_merge, llm_vote, llm_judge"),
    Command("approve", "[ID]", "let a tool be called", True, True),
    Command("deny", "[ID]", "do not let a tool be called", True, True),
    Command("cost", "", "what it has cost", True, True),
    Command("tokens", "", "how many tokens it has taken", True, True),
    Command("model", "[NAME]", "which model answers"),
    Command("copy", "", "copy the last answer", True, True),
    Command("version", "", "which forkwise this is", True, True),
    Command("help", "[COMMAND]", "this list", True, True),
    Command("quit", "", "end the chat; an open fork is kept", True, True),
)

_BY_NAME = {command.name: command for command in COMMANDS}
_ALIASES = {"exit": "quit", "?": "help"}


@dataclass(frozen=True, slots=True)
class Line:
    """What a line asks for. ``kind`` is ``prompt``, ``steer`` (``rest`` has the label and what to tell it), ``shell``,
    or ``command``."""

    kind: str
    rest: str
    command: Command | None = None

    @property
    def words(self) -> list[str]:
        """The arguments, one by one."""
        return self.rest.split()


def command_named(name: str) -> Command:
    """A command by its name; UsageError where there is none."""
    name = name.removeprefix("/")
    found = _BY_NAME.get(_ALIASES.get(name, name))
    if found is None:
        near = [f"/{one}" for one in _BY_NAME if name and one.startswith(name[:2])]
        told = f"; there are {', '.join(near)}" if near else ""
        raise UsageError(f"there is no command /{name}{told}; /help lists all")
    return found


def parse(line: str) -> Line | None:
    """What a line asks for; None for a blank one, UsageError for one that means nothing.

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
            raise UsageError("whom is it for? >>LABEL message")
        return Line("steer", text[2:].strip())
    if text.startswith("!"):
        if not text[1:].strip():
            raise UsageError("which command is to be run? !COMMAND")
        return Line("shell", text[1:].strip())
    if not text.startswith("/") or text.startswith("//"):
        return Line("prompt", text.removeprefix("/") if text.startswith("//") else text)
    name, _, rest = text[1:].partition(" ")
    first, _, others = rest.strip().partition(" ")
    if name == "fork" and first == "diff":
        return Line("command", others.strip(), command_named("fork diff"))
    command = command_named(name)
    if rest.strip() and not command.arguments:
        raise UsageError(f"/{command.name} takes nothing more")
    return Line("command", rest.strip(), command)


def help_text(name: str = "", commands: Sequence[Command] = COMMANDS) -> str:
    """All commands, or one."""
    if name:
        commands = [command_named(name)]
    lines = [f"{command.usage}\n    {command.help}" for command in commands]
    if not name:
        lines += [
            ">>LABEL message\n    tell a branch something, while it runs or when it is done",
            "!COMMAND\n    run a shell command in the workspace",
            "//TEXT\n    say something that begins with a slash",
        ]
    return "\n".join(lines)
