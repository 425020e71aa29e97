"""``forkwise walk``: a person walks in a conversation, as a session or by one command at a time."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output
from forkwise.errors import ConversationError

if TYPE_CHECKING:
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.node import Node
    from forkwise.conversation.talk import Recombination

__all__ = ["walk"]

_SHOWN = 200

COMMANDS = {
    "show": "what was said on the way here",
    "up": "to the answer above",
    "down [N]": "to the next answer, of branch N where there are several",
    "left, right": "to the branch beside this one",
    "root": "to the beginning",
    "leaf [N]": "list the ends of the branches below, or go to one",
    "next-fork, last-fork": "to the next place below, or above, where branches begin",
    "label [NAME]": "list the labels, name this place, or go to where the name is",
    "go ID": "to a message by its number",
    "diff ID ID": "how what was said on the way to two messages differs",
    "combine HOW ID ID...": "make one of several leaves: concatenate, llm_merge, llm_vote or llm_judge",
    "prompt TEXT": "go on from here (needs --model)",
    "save FILE": "write the conversation to a file",
    "load FILE": "walk in another one",
    "help, quit": "",
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
@click.option("--model", metavar="MODEL", help="Which model answers prompts, and judges: anthropic:…, openai:…, local.")
@click.option("--tui", "panels", is_flag=True, help="Show the tree of it, and walk with the arrow keys.")
@workspace_option
@json_option
def walk(
    conversation: str, words: tuple[str, ...], model: str | None, panels: bool, directory: Path, output: Output
) -> None:
    """Walk in a conversation that was exported to a file, or that the workspace's ledger has by that id.

    With a command it does that one thing, and where it ends is where the next one begins. Without, it reads commands
    line by line; help lists them. With --tui the tree is on the screen.
    """
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
            asked = shlex.split(line)
        except ValueError as error:
            click.echo(f"forkwise: {error}", err=True)
            continue
        if asked[:1] in (["quit"], ["exit"]):
            return
        try:
            if asked:
                session.do(asked)
        except (ConversationError, OSError) as error:
            click.echo(f"forkwise: {error}", err=True)


class _Session:
    """A conversation that somebody walks in, and where it is kept."""

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
        """The next line; None where there is no more."""
        if sys.stdin.isatty():
            click.echo(f"[{self.walker.here.id}]> ", nl=False)
        line = sys.stdin.readline()
        return line if line else None

    def do(self, words: Sequence[str]) -> None:
        """Carry out one command, and keep where it led to."""
        name, *rest = words
        doing = getattr(self, f"_do_{name.replace('-', '_')}", None)
        if doing is None:
            raise ConversationError(f"there is no command {name!r}; help lists them")
        try:
            inspect.signature(doing).bind(*rest)
        except TypeError as error:
            raise ConversationError(f"{name} cannot be had like that; help shows how") from error
        doing(*rest)
        self._save()

    def show_panels(self, words: Sequence[str]) -> None:
        """Walk in the tree on the screen."""
        from importlib.util import find_spec

        if words or not self.output.is_live or not sys.stdin.isatty():
            raise click.UsageError("--tui is for a person at a terminal: it takes no command, and no --json")
        if find_spec("textual") is None:
            raise click.UsageError("--tui needs Textual: pip install 'forkwise[tui]'")
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

    # What can be asked for

    def _do_show(self) -> None:
        self._tell(self.walker.here, whole=True)

    def _do_up(self) -> None:
        self._tell(self.walker.up())

    def _do_down(self, number: str | None = None) -> None:
        self._tell(self.walker.down(_number(number)))

    def _do_left(self) -> None:
        self._tell(self.walker.left())

    def _do_right(self) -> None:
        self._tell(self.walker.right())

    def _do_root(self) -> None:
        self._tell(self.walker.root())

    def _do_next_fork(self) -> None:
        self._tell(self.walker.next_fork())

    def _do_last_fork(self) -> None:
        self._tell(self.walker.last_fork())

    def _do_go(self, number: str) -> None:
        self._tell(self.walker.go(self._node(number)))

    def _do_leaf(self, number: str | None = None) -> None:
        from forkwise.conversation.flows import leaves

        found = leaves(self.walker.here)
        if number is not None or len(found) == 1:
            self._tell(self.walker.leaf(_number(number)))
            return
        records = [{"number": n, **self._record(node)} for n, node in enumerate(found, 1)]
        self._list(records, "leaves", ("number", "id", "text"))

    def _do_label(self, name: str | None = None) -> None:
        if name is not None:
            self._tell(self.walker.label(name))
            return
        records = [{"label": label, **self._record(node)} for label, node in sorted(self.talk.labels.items())]
        self._list(records, "labels", ("label", "id", "text"))

    def _do_diff(self, first: str, second: str) -> None:
        from forkwise.conversation.walker import difference

        text = difference(self._node(first), self._node(second))
        if self.output.as_json:
            self.output.document({"diff": text})
        else:
            self.output.diff(text)

    def _do_combine(self, how: Recombination, *numbers: str) -> None:
        import asyncio

        from forkwise.conversation.flows import leaves
        from forkwise.conversation.talk import WAYS, Answer, recombine, text_of
        from forkwise.conversation.walker import combined

        if how not in WAYS or how == "none":
            raise ConversationError(f"leaves are combined by {', '.join(WAYS[1:])}, not by {how!r}")
        nodes = [self._node(number) for number in numbers] or leaves(self.walker.here)
        if len(nodes) < 2:
            raise ConversationError("at least two leaves are combined")
        model = None if how == "concatenate" else self._agent_model()
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        made = asyncio.run(recombine(how, answers, model))
        self._tell(self.walker.go(combined(self.talk, nodes, made.text)))

    def _do_prompt(self, *words: str) -> None:
        import asyncio

        from pydantic_ai import Agent

        from forkwise.conversation.talk import Talk

        if not words:
            raise ConversationError("prompt takes what is to be said")
        self._tell(asyncio.run(Talk(Agent(self._agent_model()), self.talk).prompt(" ".join(words))))

    def _do_save(self, path: str) -> None:
        from forkwise.conversation.store import export_conversation

        export_conversation(self.talk, path)
        self._list([], f"saved to {path}", ())

    def _do_load(self, name: str) -> None:
        self.walker.conversation = self._open(name)
        self._do_show()

    def _do_help(self) -> None:
        records = [{"command": command, "does": does} for command, does in COMMANDS.items()]
        self._list(records, "commands", ("command", "does"))

    # How it is told

    def _agent_model(self) -> Any:
        if self._model is None:
            raise ConversationError("which model is to be asked? Say so with --model")
        from forkwise.modules.models import model_named

        return model_named(self._model)

    def _node(self, number: str) -> Node:
        label = self.talk.labels.get(number)
        return label or self.talk.node(_number(number) or 0)

    def _record(self, node: Node) -> dict[str, Any]:
        from forkwise.conversation.walker import transcript, ways

        above = node.parent if node.parent is not None else node
        said = transcript(node, above).strip()
        labels = [name for name, at in self.talk.labels.items() if at is node]
        return {"id": node.id, "depth": node.depth, "labels": labels, "branches": len(ways(node)), "text": said}

    def _tell(self, node: Node, *, whole: bool = False) -> None:
        from forkwise.conversation.walker import transcript, ways

        record = self._record(node)
        if self.output.as_json:
            self.output.document({**record, **({"transcript": transcript(node)} if whole else {})})
            return
        names = f" ({', '.join(record['labels'])})" if record["labels"] else ""
        self.output.line(f"[{node.id}]{names} depth {node.depth}", "bold")
        self.output.text(transcript(node) if whole else record["text"] or "(the beginning)")
        for number, way in enumerate(ways(node), 1):
            self.output.line(f"  down {number}: [{way.id}] {_clipped(transcript(way, node))}", "dim")

    def _list(self, records: list[dict[str, Any]], noun: str, columns: Sequence[str]) -> None:
        if self.output.as_json:
            self.output.document({noun: records})
        elif records:
            self.output.table(columns, [[_clipped(str(record[name])) for name in columns] for record in records])
        else:
            self.output.line(noun if not columns else f"No {noun}.")


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit():
        raise ConversationError(f"{text!r} is neither a label nor a number")
    return int(text)


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
