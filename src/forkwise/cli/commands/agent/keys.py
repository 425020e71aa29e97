"""``forkwise keys``: keys of model providers, for agents that other agents start through forkwise."""

from __future__ import annotations

import sys

import click

from forkwise.cli.app import Commands, json_option
from forkwise.display.output import Output

__all__ = ["keys"]


@click.group("keys", cls=Commands)
def keys() -> None:
    """Store API keys for agents that other agents start.

    An agent hides its own keys from the programs that it starts, such as forkwise mcp. The keys stored here are for the
    agents that forkwise mcp starts in turn. Each is an environment variable, such as ANTHROPIC_API_KEY.
    """


@keys.command("set", example=("forkwise keys set ANTHROPIC_API_KEY", "pass openai | forkwise keys set OPENAI_API_KEY"))
@click.argument("name", metavar="VARIABLE")
@click.option("--keyring", is_flag=True, help="Store the key in the system's keyring instead of a file with mode 600.")
@json_option
def set_(name: str, keyring: bool, output: Output) -> None:
    """Store a key that is read from the terminal or from a pipe.

    The key is never an argument, because other users could see it there. A terminal does not echo it.
    """
    from forkwise.config.key_store import KeyStore

    if sys.stdin.isatty():
        value = click.prompt(f"Value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read(1 << 17).strip()
    store = KeyStore()
    store.set_key(name, value, in_keyring=keyring)
    place = "the system's keyring" if keyring else str(store.path)
    if output.as_json:
        output.document({"key": name, "keyring": keyring, "file": str(store.path)})
    else:
        output.line(f"{name} is kept in {place}.")


@keys.command("ls", example=("forkwise keys ls", "forkwise keys ls --json"))
@json_option
def ls(output: Output) -> None:
    """List the keys, without their values.

    A key is in a file that only you can read, or in the system's keyring.
    """
    from forkwise.config.key_store import KeyStore

    store = KeyStore()
    found = store.list_keys()
    if output.as_json:
        output.document({"keys": [{"name": key.name, "keyring": key.is_in_keyring} for key in found]})
    elif not found:
        output.line("No keys. Add one with: forkwise keys set VARIABLE")
    else:
        rows = [(key.name, "keyring" if key.is_in_keyring else str(store.path)) for key in found]
        output.table(("variable", "kept in"), rows)


@keys.command("rm", example=("forkwise keys rm ANTHROPIC_API_KEY", "forkwise keys rm OPENAI_API_KEY --json"))
@click.argument("name", metavar="VARIABLE")
@json_option
def rm(name: str, output: Output) -> None:
    """Remove a key from the file or the keyring.

    Agents that are already running keep it in their environment.
    """
    from forkwise.config.key_store import KeyStore

    KeyStore().remove_key(name)
    if output.as_json:
        output.document({"removed": name})
    else:
        output.line(f"Removed {name}.")
