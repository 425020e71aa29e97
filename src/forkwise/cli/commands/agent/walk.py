"""``forkwise walk``: move through a conversation, interactively or one command at a time."""

from __future__ import annotations

import inspect
import json
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forkwise.cli.app import (
    MissingExtraError,
    Verb,
    failure_line,
    failure_record,
    find_missing_extra,
    json_option,
    print_note,
    require_extra,
    workspace_option,
)
from forkwise.cli.stop_signal import find_stop_signal, forget_stop_signal, run_until_stopped
from forkwise.display.columns import Fit
from forkwise.display.output import Output
from forkwise.errors import BranchingError, ConversationError, ConversationNotFoundError, LedgerError
from forkwise.text.clean import truncate_line

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.node import Node
    from forkwise.conversation.talk import Recombination, Talk

__all__ = ["walk"]

T = TypeVar("T")

_WIDEST = 200  # characters of a message in a list
_LONGEST_ERROR = 500  # characters of a provider's error

COMMANDS = {
    "show": "print the messages up to here, with the results of tools",
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
    "prompt TEXT": "continue the conversation from here (needs --model or --agent)",
    "save FILE": "write the conversation to a file",
    "load FILE": "open another conversation",
    "help, ?, quit": "list the commands, or leave",
}


@click.command(
    "walk",
    cls=Verb,
    example=(
        "forkwise walk --list",
        "forkwise walk talk.json --model local prompt 'And the other way?'",
    ),
)
@click.argument("conversation", required=False)
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@click.option("--list", "is_list", is_flag=True, help="List the conversations in the workspace's ledger.")
@click.option("--model", metavar="MODEL", help="Model that answers prompts and judges: anthropic:…, openai:…, local.")
@click.option("--agent", metavar="MODULE:NAME", help="Agent that answers prompts, with its instructions and tools.")
@click.option("--tui", "panels", is_flag=True, help="Show the conversation as a tree; move with the arrow keys.")
@workspace_option
@json_option
def walk(
    conversation: str | None,
    words: tuple[str, ...],
    is_list: bool,
    model: str | None,
    agent: str | None,
    panels: bool,
    directory: Path,
    output: Output,
) -> None:
    """Move through the messages and branches of a conversation.

    CONVERSATION is an exported file, or the id of a conversation in the workspace's ledger. With COMMAND, run that one
    command and save the new position; without it, read commands from stdin (help or ? lists them). Prompts go to the
    agent of --agent, or of the chat, or else to one with the instructions that the conversation records.
    """
    require_extra("agents", "forkwise walk")
    if is_list:
        if conversation is not None:
            raise click.UsageError("--list takes no conversation and no command")
        _list_conversations(directory, output)
        return
    if conversation is None:
        raise click.UsageError("Missing argument 'CONVERSATION': name one, or list them with --list")
    session = _Session(conversation, model, agent, directory, output)
    try:
        if panels:
            session.show_panels(words)
        elif words:
            session.do(list(words))
        else:
            session.run()
    finally:
        session.close()


def _list_conversations(directory: Path, output: Output) -> None:
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import open_ledger

    records: list[dict[str, Any]] = []
    with open_ledger(Workspace(directory)) as ledger:
        for record in ledger.conversations.all():
            _, rows = ledger.conversations.load(record.id)
            found = {"id": record.id, "title": record.title, "updated": record.updated, "here": record.here}
            records.append({**found, "messages": len(rows), "prompt": _parse_prompt(rows[0].message) if rows else ""})
    if output.as_json:
        output.document({"conversations": records})
    elif records:
        columns = ("id", "updated", "messages", "first prompt")
        fit = Fit(wrapped=("first prompt",), optional=("messages", "updated"))
        output.table(columns, [_format_conversation(record) for record in records], fit)
    else:
        output.line("No conversations.")


def _format_conversation(record: Mapping[str, Any]) -> list[str]:
    updated = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["updated"]))
    return [record["id"], updated, str(record["messages"]), truncate_line(record["prompt"], _WIDEST)]


def _parse_prompt(message: str) -> str:
    """Return the text of the prompt in a stored message; empty if there is none."""
    parts = json.loads(message).get("parts", [])
    return next((str(p["content"]) for p in parts if p.get("part_kind") == "user-prompt"), "")


class _Session:
    """A conversation, the current position in it, and the file or ledger that stores it."""

    def __init__(self, name: str, model: str | None, agent: str | None, directory: Path, output: Output) -> None:
        from forkwise.conversation.walker import Walker

        self.output = output
        self._model = model
        self._agent = agent
        self._directory = directory
        self._save: Callable[[], None] = lambda: None
        self._close: Callable[[], None] = lambda: None
        self._locked: str | None = None
        self._is_chat = False
        self._is_session = False
        self.walker = Walker(self._open(name))

    @property
    def talk(self) -> Conversation:
        return self.walker.conversation

    def close(self) -> None:
        """Release the conversation."""
        self._close()

    def run(self) -> None:
        """Run the commands of stdin until its end, or ``quit``. A command that fails does not end the session."""
        self._is_session = True
        self._try(["show"])
        reader = _open_reader(self.output)
        while (line := reader(f"[{self.walker.here.id}]> ")) is not None:
            command = _split(line)
            if command[:1] in (["quit"], ["exit"]):
                return
            if command:
                self._try(command)

    def _try(self, command: Sequence[str]) -> None:
        try:
            self.do(command)
        except KeyboardInterrupt:
            if not sys.stdin.isatty() or find_stop_signal() is not signal.SIGINT:
                raise
            forget_stop_signal()
            self._report(click.Abort())
        except (BranchingError, OSError, click.ClickException) as error:
            self._report(error)
        except ImportError as error:
            missing = find_missing_extra(error, ["walk"])
            if missing is None:
                raise
            self._report(missing)

    def _report(self, error: BaseException) -> None:
        if self.output.as_json:
            self.output.stream(failure_record(error))
        else:
            print_note("error", failure_line(error))
            if isinstance(error, MissingExtraError):
                print_note("hint", error.remedy)

    def do(self, words: Sequence[str]) -> None:
        """Run one command, and save the new position."""
        name, *rest = words
        method = getattr(self, f"_do_{'help' if name == '?' else name.replace('-', '_')}", None)
        if method is None:
            raise click.UsageError(f"there is no command {name!r}; help lists the commands")
        try:
            inspect.signature(method).bind(*rest)
        except TypeError as error:
            raise click.UsageError(f"wrong arguments for {name}; help shows the right ones") from error
        before = self._state()
        try:
            method(*rest)
        finally:
            if self._locked is None and self._state() != before:
                self._save()

    def _state(self) -> tuple[object, ...]:
        """Return the state that a command may change, to be compared before and after it."""
        talk = self.talk
        return id(talk), len(talk), talk.here, tuple(talk.labels.items()), sum(len(node.results) for node in talk)

    def show_panels(self, words: Sequence[str]) -> None:
        """Show the tree in panels."""
        if words or not self.output.is_live or not sys.stdin.isatty():
            raise click.UsageError("--tui needs a terminal, and takes neither a command nor --json")
        require_extra("tui", "forkwise walk --tui")
        from forkwise.tui.walk import WalkApp, WalkScreen

        model = None if self._model is None else self._agent_model()
        save = self._save if self._locked is None else lambda: None
        WalkApp(WalkScreen(self.walker, save=save, model=model, open_talk=self._open_talk)).run()

    def _open(self, name: str) -> Conversation:
        from forkwise.conversation.store import export_conversation, import_conversation

        if Path(name).exists():
            talk = import_conversation(name)
            self._set_storage(lambda: export_conversation(self.talk, name))
            return talk
        try:
            return self._open_in_ledger(name)
        except LedgerError as error:
            if error.subject is None:
                raise
            raise ConversationNotFoundError(
                f"there is no file {name!r} and no conversation {name!r} in the ledger: forkwise walk --list lists them"
            ) from error

    def _open_in_ledger(self, name: str) -> Conversation:
        """Open a conversation of the ledger. If a chat in another process has locked it, it cannot be changed here."""
        from forkwise.chat.storage import StoredChat
        from forkwise.conversation.store import StoredConversation
        from forkwise.files.workspace import Workspace
        from forkwise.ledger.sqlite import open_ledger

        if self._model is not None:
            from forkwise.cli.private_mounts import enter_to_create

            enter_to_create(self._directory, None)  # before threads start: only a single thread can enter a namespace
        workspace = Workspace(self._directory)
        ledger = open_ledger(workspace)
        stored = StoredConversation.load(ledger.conversations, name)
        if not name.startswith("chat-"):
            self._set_storage(stored.save, ledger.close)
            return stored.conversation
        try:
            chat = StoredChat.open(workspace, name)
        except ConversationError as error:
            self._set_storage(stored.save, ledger.close, locked=str(error), is_chat=True)
            return stored.conversation
        ledger.close()
        self._set_storage(chat.save, chat.close, is_chat=True)
        return chat.conversation

    def _set_storage(
        self,
        save: Callable[[], None],
        close: Callable[[], None] = lambda: None,
        *,
        locked: str | None = None,
        is_chat: bool = False,
    ) -> None:
        self._close()
        self._save, self._close, self._locked, self._is_chat = save, close, locked, is_chat

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
            if name not in self.talk.labels:
                self._require_unlocked()
            self._print_node(self.walker.label(name))
            return
        records = [{"label": label, **self._record(node)} for label, node in sorted(self.talk.labels.items())]
        self._print_list(records, "labels", ("label", "id", "text"))

    def _do_diff(self, first: str, second: str) -> None:
        from forkwise.conversation.walker import diff_branches

        text = diff_branches(self._node(first), self._node(second))
        if self.output.as_json:
            self._print_document({"diff": text})
        else:
            self.output.diff(text)

    def _do_combine(self, how: Recombination, *numbers: str) -> None:
        from forkwise.conversation.flows import leaves
        from forkwise.conversation.talk import RECOMBINATIONS, Answer, recombine, text_of
        from forkwise.conversation.walker import add_combination

        self._require_unlocked()
        if how not in RECOMBINATIONS or how == "none":
            raise click.UsageError(f"cannot combine by {how!r}; choose one of {', '.join(RECOMBINATIONS[1:])}")
        nodes = [self._node(number) for number in numbers] or leaves(self.walker.here)
        if len(nodes) < 2:
            raise click.UsageError("combine needs at least two leaves")
        model = None if how == "concatenate" else self._agent_model()
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        combination = run_until_stopped(_run_and_close(model, lambda: recombine(how, answers, model)))
        if combination.error is not None:
            raise ConversationError(f"{how} gave no verdict: {_shorten(combination.error)}")
        self._print_node(self.walker.go(add_combination(self.talk, nodes, combination.text)))

    def _do_prompt(self, *words: str) -> None:
        text = " ".join(words).strip()
        if not text:
            raise click.UsageError("prompt needs a text")
        self._require_unlocked()
        self._print_node(run_until_stopped(self._prompt(text)))

    async def _prompt(self, text: str) -> Node:
        """Send a prompt at the current node and move to the answer.

        If the same prompt was sent before and got no answer, such as after a provider's error, it is not added again.
        """
        talk = self._open_talk()
        asked = self._find_unanswered(text)
        try:
            async with talk.agent:
                node = await _run_and_close(
                    talk.options.get("model"), lambda: talk.prompt(text) if asked is None else talk.go_on(asked)
                )
        except (BranchingError, OSError, ImportError):
            raise
        except Exception as error:  # a provider, or a tool of the agent, may raise anything
            raise ConversationError(f"the agent failed: {_shorten(f'{type(error).__name__}: {error}')}") from error
        return self.walker.go(node)

    def _find_unanswered(self, text: str) -> Node | None:
        from pydantic_ai.messages import UserPromptPart

        for reply in self.walker.here.replies:
            prompts = [p.content for p in reply.message.parts if isinstance(p, UserPromptPart)] if reply.message else []
            if prompts == [text] and not reply.replies:
                return reply
        return None

    def _do_save(self, path: str) -> None:
        from forkwise.conversation.store import export_conversation

        export_conversation(self.talk, path)
        if self.output.as_json:
            self._print_document({"saved": path})
        else:
            self.output.line(f"saved to {path}")

    def _do_load(self, name: str) -> None:
        self.walker.conversation = self._open(name)
        self._do_show()

    def _do_help(self) -> None:
        records = [{"command": command, "does": does} for command, does in COMMANDS.items()]
        self._print_list(records, "commands", ("command", "does"))

    # Shared by the commands

    def _require_unlocked(self) -> None:
        if self._locked is not None:
            raise ConversationError(f"{self._locked}; here you can only read it")

    def _agent_model(self) -> Any:
        if self._model is None:
            raise click.UsageError("no model given: name one with --model")
        from pydantic_ai.exceptions import UserError

        from forkwise.modules.models import build_model, describe_model_error

        try:
            return build_model(self._model)
        except (UserError, ValueError) as error:
            reason = _shorten(describe_model_error(error))
            raise ConversationError(f"model {self._model!r} is not available: {reason}") from error

    def _open_talk(self) -> Talk:
        from forkwise.conversation.talk import Talk

        agent, options = self._build_agent()
        return Talk(agent, self.talk, **options)

    def _build_agent(self) -> tuple[Agent[Any, Any], dict[str, Any]]:
        """Return the agent that answers prompts, and the options of its runs.

        Without ``--agent``, a chat continues with its own agent, whose tools work in the workspace. Of other
        conversations only the instructions are known.
        """
        from pydantic_ai import Agent

        if self._agent is not None:
            return _load_agent(self._agent), {} if self._model is None else {"model": self._agent_model()}
        model = self._agent_model()
        if self._is_chat and model.profile.get("supports_tools", True):
            from forkwise.files.workspace import Workspace
            from forkwise.live.backends.local import LocalBackend
            from forkwise.live.deep_agent import create_deep_agent
            from forkwise.live.deps import DeepAgentDeps

            return create_deep_agent(model), {"deps": DeepAgentDeps(LocalBackend(Workspace(self._directory)))}
        return Agent(model, instructions=self.talk.instructions() or None), {}

    def _node(self, number: str) -> Node:
        label = self.talk.labels.get(number)
        return label or self.talk.node(_parse_number(number) or 0)

    def _record(self, node: Node) -> dict[str, Any]:
        from forkwise.conversation.walker import find_next_stops, find_result, format_transcript

        above = node.parent if node.parent is not None else node
        labels = [name for name, labelled in self.talk.labels.items() if labelled is node]
        below = find_next_stops(node)
        return {
            "id": node.id,
            "parent": None if node.parent is None else node.parent.id,
            "depth": node.depth,
            "labels": labels,
            "branches": len(below),
            "down": [
                {"number": number, "id": stop.id, "text": format_transcript(stop, node)}
                for number, stop in enumerate(below, 1)
            ],
            "calls": [
                {
                    "id": call.tool_call_id,
                    "tool": call.tool_name,
                    "arguments": call.args_as_json_str(),
                    "result": find_result(node, call.tool_call_id),
                }
                for call in node.calls
            ],
            "text": format_transcript(node, above).strip(),
        }

    def _print_node(self, node: Node, *, whole: bool = False) -> None:
        from forkwise.conversation.walker import format_transcript

        record = self._record(node)
        if self.output.as_json:
            transcript = {"transcript": format_transcript(node, with_results=True)} if whole else {}
            self._print_document({**record, **transcript})
            return
        names = f" ({', '.join(record['labels'])})" if record["labels"] else ""
        self.output.line(f"[{node.id}]{names} depth {node.depth}", "bold")
        text = format_transcript(node, None if whole or node.parent is None else node.parent, with_results=True)
        self.output.text(text.strip() or ("" if whole else "(the beginning)"))
        for below in record["down"]:
            text = truncate_line(below["text"], _WIDEST)
            self.output.line(f"  down {below['number']}: [{below['id']}] {text}", "dim")

    def _print_document(self, value: object) -> None:
        """Print one JSON document; in a session, on one line, since others follow."""
        (self.output.stream if self._is_session else self.output.document)(value)

    def _print_list(self, records: list[dict[str, Any]], noun: str, columns: Sequence[str]) -> None:
        if self.output.as_json:
            self._print_document({noun: records})
        elif records:
            self.output.table(
                columns, [[truncate_line(str(record[name]), _WIDEST) for name in columns] for record in records]
            )
        else:
            self.output.line(f"No {noun}.")


def _open_reader(output: Output) -> Callable[[str], str | None]:
    """Return a function that reads a line of stdin, None at its end; on a terminal with line editing and history."""
    if not sys.stdin.isatty():
        return lambda _: sys.stdin.readline() or None
    try:
        import readline
    except ImportError:  # this Python was built without readline
        pass
    else:
        words = [word for names in COMMANDS for word in names.split(", ")]
        names = sorted({word.split()[0] for word in words})
        readline.set_completer(lambda text, n: ([f"{w} " for w in names if w.startswith(text)] + [None])[n])
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")

    def read(prompt: str) -> str | None:
        try:
            return input("" if output.as_json else prompt)
        except EOFError:
            click.echo(err=True)
            return None

    return read


def _split(line: str) -> list[str]:
    """Split a line into the words of a command. The text of a prompt needs no quotes: ``prompt What's next?``.

    >>> _split("prompt What's next?")
    ['prompt', "What's next?"]
    >>> _split("prompt 'And then?'")
    ['prompt', 'And then?']
    >>> _split("label 'two words'")
    ['label', 'two words']
    """
    try:
        words = shlex.split(line)
    except ValueError:  # an apostrophe, not a quotation
        words = line.split()
    name, _, rest = line.strip().partition(" ")
    if name == "prompt" and len(words) != 2:
        return [name, rest.strip()]
    return words


async def _run_and_close(model: Any, work: Callable[[], Awaitable[T]]) -> T:
    """Await ``work`` and close the model's connections, which cannot be used in the event loop of the next command."""
    if model is None:
        return await work()
    async with model:
        return await work()


def _load_agent(spec: str) -> Agent[Any, Any]:
    """Import an agent by its module and name."""
    from importlib import import_module

    from pydantic_ai.agent import AbstractAgent

    module, _, name = spec.partition(":")
    if not module or not name:
        raise click.UsageError(f"--agent takes MODULE:NAME, not {spec!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        agent = getattr(import_module(module), name)
    except Exception as error:  # the module may raise anything
        text = _shorten(f"{type(error).__name__}: {error}")
        raise ConversationError(f"agent {spec!r} is not available: {text}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(agent, AbstractAgent):
        raise ConversationError(f"{spec!r} is not an agent of pydantic-ai")
    return agent  # type: ignore[return-value]


def _shorten(text: str) -> str:
    """Return a provider's error as one line."""
    return truncate_line(" ".join(text.split()), _LONGEST_ERROR)


def _parse_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise ConversationNotFoundError(f"{text!r} is neither a label nor a number")
    return int(text)
