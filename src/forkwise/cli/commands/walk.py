"""``forkwise walk``: move through a conversation, interactively or one command at a time."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Verb, json_option, require_extra, workspace_option
from forkwise.display.output import Output
from forkwise.errors import ConversationError
from forkwise.text.clean import truncate_line

if TYPE_CHECKING:
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.node import Node
    from forkwise.conversation.talk import Recombination

__all__ = ["walk"]

_WIDEST = 200  # characters of a message in a list

COMMANDS = {
    "show": "print the messages up to here",
    "up": "go to the answer above",
    "down [N]": "go to the next answer, in branch N if there are several",
    "left, right": "go to the neighbouring branch",
    "root": "go to the beginning",
    "leaf [N]": "list the ends of the branches below, or go to end N",
    "next-fork, last-fork": "go to the next fork below, or above",
    "label [NAME]": "list the labels, label this message, or go to the message with that label",
    "go ID": "go to the message with that number",
    "diff ID ID": "compare the conversations up to two messages",
    "combine HOW ID ID...": "combine several leaves: concatenate, llm_merge, llm_vote or llm_judge",
    "prompt TEXT": "continue the conversation from here (needs --model)",
    "save FILE": "write the conversation to a file",
    "load FILE": "open another conversation",
    "help, quit": "list the commands, or leave",
}


@click.command(
    "walk",
    cls=Verb,
    example=(
        "forkwise walk talk.json leaf 2",
        "forkwise walk talk.json --model local prompt 'And the other way?'",
    ),
)
@click.argument("conversation")
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@click.option("--model", metavar="MODEL", help="Model that answers prompts and judges: anthropic:…, openai:…, local.")
@click.option("--tui", "panels", is_flag=True, help="Show the conversation as a tree; move with the arrow keys.")
@workspace_option
@json_option
def walk(
    conversation: str, words: tuple[str, ...], model: str | None, panels: bool, directory: Path, output: Output
) -> None:
    """Move through the messages and branches of a conversation.

    CONVERSATION is an exported file, or the id of a conversation in the workspace's ledger. With COMMAND, run that one
    command and save the new position; without, read commands from stdin (help lists them).
    """
    require_extra("agents", "forkwise walk")
    session = _Session(conversation, model, directory, output)
    if panels:
        session.show_panels(words)
        return
    if words:
        session.do(list(words))
        return
    session.do(["show"])
    while (line := session.read()) is not None:
        try:
            command = shlex.split(line)
        except ValueError as error:
            click.echo(f"forkwise: {error}", err=True)
            continue
        if command[:1] in (["quit"], ["exit"]):
            return
        try:
            if command:
                session.do(command)
        except (ConversationError, OSError) as error:
            click.echo(f"forkwise: {error}", err=True)


class _Session:
    """A conversation, the current position in it, and the file or ledger that stores it."""

    def __init__(self, name: str, model: str | None, directory: Path, output: Output) -> None:
        from forkwise.conversation.walker import Walker

        self.output = output
        self._model = model
        self._directory = directory
        self._save: Callable[[], None] = lambda: None
        self.walker = Walker(self._open(name))

    @property
    def talk(self) -> Conversation:
        return self.walker.conversation

    def read(self) -> str | None:
        """Return the next line of stdin, or None at its end."""
        if sys.stdin.isatty():
            click.echo(f"[{self.walker.here.id}]> ", nl=False)
        line = sys.stdin.readline()
        return line if line else None

    def do(self, words: Sequence[str]) -> None:
        """Run one command, and save the new position."""
        name, *rest = words
        method = getattr(self, f"_do_{name.replace('-', '_')}", None)
        if method is None:
            raise ConversationError(f"there is no command {name!r}; help lists the commands")
        try:
            inspect.signature(method).bind(*rest)
        except TypeError as error:
            raise ConversationError(f"wrong arguments for {name}; help shows the right ones") from error
        method(*rest)
        self._save()

    def show_panels(self, words: Sequence[str]) -> None:
        """Show the tree in panels."""
        if words or not self.output.is_live or not sys.stdin.isatty():
            raise click.UsageError("--tui needs a terminal, and takes neither a command nor --json")
        require_extra("tui", "forkwise walk --tui")
        from forkwise.tui.walk import WalkApp, WalkScreen

        model = None if self._model is None else self._agent_model()
        WalkApp(WalkScreen(self.walker, save=self._save, model=model)).run()

    def _open(self, name: str) -> Conversation:
        from forkwise.conversation.store import StoredConversation, export_conversation, import_conversation

        if Path(name).exists():
            talk = import_conversation(name)
            self._save = lambda: export_conversation(self.talk, name)
            return talk
        from forkwise.files.workspace import Workspace
        from forkwise.ledger.sqlite import open_ledger

        saved = StoredConversation.load(open_ledger(Workspace(self._directory)).conversations, name)
        self._save = saved.save
        return saved.conversation

    # The commands

    def _do_show(self) -> None:
        self._print_node(self.walker.here, whole=True)

    def _do_up(self) -> None:
        self._print_node(self.walker.up())

    def _do_down(self, number: str | None = None) -> None:
        self._print_node(self.walker.down(_parse_number(number)))

    def _do_left(self) -> None:
        self._print_node(self.walker.left())

    def _do_right(self) -> None:
        self._print_node(self.walker.right())

    def _do_root(self) -> None:
        self._print_node(self.walker.root())

    def _do_next_fork(self) -> None:
        self._print_node(self.walker.next_fork())

    def _do_last_fork(self) -> None:
        self._print_node(self.walker.last_fork())

    def _do_go(self, number: str) -> None:
        self._print_node(self.walker.go(self._node(number)))

    def _do_leaf(self, number: str | None = None) -> None:
        from forkwise.conversation.flows import leaves

        found = leaves(self.walker.here)
        if number is not None or len(found) == 1:
            self._print_node(self.walker.leaf(_parse_number(number)))
            return
        records = [{"number": n, **self._record(node)} for n, node in enumerate(found, 1)]
        self._print_list(records, "leaves", ("number", "id", "text"))

    def _do_label(self, name: str | None = None) -> None:
        if name is not None:
            self._print_node(self.walker.label(name))
            return
        records = [{"label": label, **self._record(node)} for label, node in sorted(self.talk.labels.items())]
        self._print_list(records, "labels", ("label", "id", "text"))

    def _do_diff(self, first: str, second: str) -> None:
        from forkwise.conversation.walker import diff_branches

        text = diff_branches(self._node(first), self._node(second))
        if self.output.as_json:
            self.output.document({"diff": text})
        else:
            self.output.diff(text)

    def _do_combine(self, how: Recombination, *numbers: str) -> None:
        import asyncio

        from forkwise.conversation.flows import leaves
        from forkwise.conversation.talk import RECOMBINATIONS, Answer, recombine, text_of
        from forkwise.conversation.walker import add_combination

        if how not in RECOMBINATIONS or how == "none":
            raise ConversationError(f"cannot combine by {how!r}; choose one of {', '.join(RECOMBINATIONS[1:])}")
        nodes = [self._node(number) for number in numbers] or leaves(self.walker.here)
        if len(nodes) < 2:
            raise ConversationError("combine needs at least two leaves")
        model = None if how == "concatenate" else self._agent_model()
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        combination = asyncio.run(recombine(how, answers, model))
        self._print_node(self.walker.go(add_combination(self.talk, nodes, combination.text)))

    def _do_prompt(self, *words: str) -> None:
        import asyncio

        from pydantic_ai import Agent

        from forkwise.conversation.talk import Talk

        if not words:
            raise ConversationError("prompt needs a text")
        self._print_node(asyncio.run(Talk(Agent(self._agent_model()), self.talk).prompt(" ".join(words))))

    def _do_save(self, path: str) -> None:
        from forkwise.conversation.store import export_conversation

        export_conversation(self.talk, path)
        self._print_list([], f"saved to {path}", ())

    def _do_load(self, name: str) -> None:
        self.walker.conversation = self._open(name)
        self._do_show()

    def _do_help(self) -> None:
        records = [{"command": command, "does": does} for command, does in COMMANDS.items()]
        self._print_list(records, "commands", ("command", "does"))

    # Shared by the commands

    def _agent_model(self) -> Any:
        if self._model is None:
            raise ConversationError("no model given: name one with --model")
        from pydantic_ai.exceptions import UserError

        from forkwise.modules.models import build_model

        try:
            return build_model(self._model)
        except (UserError, ValueError) as error:
            raise ConversationError(f"model {self._model!r} is not available: {error}") from error

    def _node(self, number: str) -> Node:
        label = self.talk.labels.get(number)
        return label or self.talk.node(_parse_number(number) or 0)

    def _record(self, node: Node) -> dict[str, Any]:
        from forkwise.conversation.walker import find_next_stops, format_transcript

        above = node.parent if node.parent is not None else node
        text = format_transcript(node, above).strip()
        labels = [name for name, labelled in self.talk.labels.items() if labelled is node]
        branches = len(find_next_stops(node))
        return {"id": node.id, "depth": node.depth, "labels": labels, "branches": branches, "text": text}

    def _print_node(self, node: Node, *, whole: bool = False) -> None:
        from forkwise.conversation.walker import find_next_stops, format_transcript

        record = self._record(node)
        if self.output.as_json:
            self.output.document({**record, **({"transcript": format_transcript(node)} if whole else {})})
            return
        names = f" ({', '.join(record['labels'])})" if record["labels"] else ""
        self.output.line(f"[{node.id}]{names} depth {node.depth}", "bold")
        self.output.text(format_transcript(node) if whole else record["text"] or "(the beginning)")
        for number, branch in enumerate(find_next_stops(node), 1):
            text = truncate_line(format_transcript(branch, node), _WIDEST)
            self.output.line(f"  down {number}: [{branch.id}] {text}", "dim")

    def _print_list(self, records: list[dict[str, Any]], noun: str, columns: Sequence[str]) -> None:
        if self.output.as_json:
            self.output.document({noun: records})
        elif records:
            self.output.table(
                columns, [[truncate_line(str(record[name]), _WIDEST) for name in columns] for record in records]
            )
        else:
            self.output.line(noun if not columns else f"No {noun}.")


def _parse_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit():
        raise ConversationError(f"{text!r} is neither a label nor a number")
    return int(text)
