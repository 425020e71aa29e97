"""Variations: prompts, models, agents, arguments and variables that differ from attempt to attempt.

``--vary KEY=VALUE,...`` lists the values of one key, and ``--variations FILE`` lists complete variations. Several keys
are combined: every value of one with every value of the others. Prompts come from words, files or standard input.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from forkwise.cli.app import require_extra
from forkwise.text.clean import truncate_line
from forkwise.text.redaction import Redactor, find_secrets

__all__ = ["STDIN", "Variation", "check_prompt", "find_variations", "read_prompt"]

STDIN = "-"
"""The word, and the name of a file, that stand for standard input."""

_MAX_FILE = 16 << 20  # bytes
_MAX_VARIATIONS = 1000
_SHOWN = 60  # characters of a value
_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_PLAIN_KEYS = ("prompt", "model", "agent", "args")
_WHOLE_KEYS = ("prompt", "args")  # a comma is part of such a value
_FILE_KEYS = ("prompt", "prompt_file", "model", "agent", "args", "env")


@dataclass(frozen=True, slots=True)
class Variation:
    """What one attempt does differently; None stands for what all attempts have in common."""

    prompt: str | None = None
    model: str | None = None
    agent: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    names: tuple[tuple[str, str], ...] = ()

    def with_value(self, key: str, text: str) -> Variation:
        """Return a copy with one key set to a value from the command line. Raises UsageError if it is invalid."""
        found = _VARIABLE.fullmatch(key)
        shown = text if found is None else Redactor(find_secrets({found[1]: text})).redact(text)
        named = replace(self, names=(*self.names, (key, truncate_line(shown, _SHOWN))))
        if found is not None:
            return replace(named, environment={**self.environment, found[1]: text})
        if key == "args":
            try:
                return replace(named, arguments=tuple(shlex.split(text)))
            except ValueError as error:
                raise click.UsageError(f"args {text!r} cannot be split into words: {error}") from None
        if not text.strip():
            raise click.UsageError(f"{key} has an empty value: give one, or leave it out")
        match key:
            case "prompt":
                return replace(named, prompt=text)
            case "model":
                return replace(named, model=text)
        return replace(named, agent=text)


def find_variations(texts: Sequence[str], file: Path | None) -> list[Variation]:
    """Return all combinations of ``--vary`` and ``--variations``; empty if neither was given.

    The values of the first key change fastest. Raises UsageError for an invalid key or value.
    """
    if not texts and file is None:
        return []
    values: dict[str, list[str]] = {}
    for text in texts:
        key, found = _parse(text)
        values.setdefault(key, []).extend(found)
    bases = [Variation()] if file is None else _read_file(file)
    if file is not None:
        _refuse_doubles(file, bases, values)
    total = len(bases)
    for found in values.values():
        total *= len(found)
    if total > _MAX_VARIATIONS:
        raise click.UsageError(f"there are {total} variations; at most {_MAX_VARIATIONS} are allowed")
    reversed_keys = list(reversed(values))
    combined = []
    for chosen in itertools.product(*(values[key] for key in reversed_keys)):
        for variation in bases:
            varied = variation
            for key, text in reversed(list(zip(reversed_keys, chosen, strict=True))):
                varied = varied.with_value(key, text)
            combined.append(varied)
    return combined


def _refuse_doubles(file: Path, bases: Sequence[Variation], values: Mapping[str, object]) -> None:
    for key in values:
        if any(name == key for base in bases for name, _ in base.names):
            raise click.UsageError(f"{key} is set by --vary and by {file}: set it only once")


def _parse(text: str) -> tuple[str, list[str]]:
    """Parse one ``--vary`` into its key and its values."""
    key, separator, rest = text.partition("=")
    if not separator:
        raise click.UsageError(f"--vary {text!r} is not KEY=VALUE,...; for example --vary model=opus,sonnet")
    _check_key(key)
    if rest.startswith("@@"):
        rest = rest[1:]
    elif rest.startswith("@"):
        return key, _read_values(key, Path(rest[1:]))
    _check_text(f"--vary {key}", rest)
    if key in _WHOLE_KEYS:
        return key, [rest]
    return key, [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", rest)]


def _check_key(key: str) -> None:
    if key in _PLAIN_KEYS or _VARIABLE.fullmatch(key):
        return
    known = f"{', '.join(_PLAIN_KEYS)} and env.NAME"
    raise click.UsageError(f"--vary has no key {key!r}; there are {known} (a variable: env.{key or 'NAME'}=...)")


def _read_values(key: str, file: Path) -> list[str]:
    """Read values from a file: one per line, or separated by lines of three dashes, if there is such a line."""
    lines = _read_text(f"--vary {key}=@{file}", file).splitlines()
    if any(line.rstrip() == "---" for line in lines):
        groups = itertools.groupby(lines, key=lambda line: line.rstrip() == "---")
        found = ["\n".join(group).strip("\n") for is_separator, group in groups if not is_separator]
    else:
        found = lines
    found = [text for text in found if text.strip()]
    if not found:
        raise click.UsageError(f"--vary {key}=@{file}: the file has no values")
    return found


def _read_file(file: Path) -> list[Variation]:
    """Read complete variations from a TOML or YAML file."""
    source = f"--variations {file}"
    text = _read_text(source, file)
    if file.suffix in (".yaml", ".yml"):
        document = _load_yaml(source, text)
    elif file.suffix == ".toml":
        import tomllib

        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise click.UsageError(f"{source} is not TOML: {error}") from None
    else:
        raise click.UsageError(f"{source}: its name must end in .toml, .yaml or .yml")
    tables = document.get("attempt") if isinstance(document, dict) else None
    if not isinstance(document, dict) or set(document) != {"attempt"} or not isinstance(tables, list) or not tables:
        raise click.UsageError(f"{source}: it must have a list 'attempt' and nothing else; in TOML, [[attempt]] tables")
    return [_read_table(f"{source}, attempt {number}", table, file) for number, table in enumerate(tables, 1)]


def _load_yaml(source: str, text: str) -> Any:
    require_extra("yaml", "a YAML file of variations")
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise click.UsageError(f"{source} is not YAML: {' '.join(str(error).split())}") from None


def _read_table(source: str, table: Any, file: Path) -> Variation:
    if not isinstance(table, dict):
        raise click.UsageError(f"{source}: it is not a table of keys and values")
    for key in table:
        if key not in _FILE_KEYS:
            raise click.UsageError(f"{source}: unknown key {key!r}; known keys: {', '.join(_FILE_KEYS)}")
    if "prompt" in table and "prompt_file" in table:
        raise click.UsageError(f"{source}: prompt and prompt_file exclude each other")
    variation = Variation()
    for key, value in table.items():
        if key == "args" and isinstance(value, list) and all(isinstance(word, str) for word in value):
            variation = variation.with_value("args", _check_text(f"{source}: args", shlex.join(value)))
        elif key == "env" and isinstance(value, dict):
            for name, text in value.items():
                if not isinstance(text, str) or not _VARIABLE.fullmatch(f"env.{name}"):
                    raise click.UsageError(f"{source}: env.{name} is not a variable with a string as its value")
                variation = variation.with_value(f"env.{name}", _check_text(f"{source}: env.{name}", text))
        elif key == "prompt_file" and isinstance(value, str):
            variation = variation.with_value("prompt", read_prompt(str(file.parent / value)))
        elif key in _PLAIN_KEYS and isinstance(value, str):
            variation = variation.with_value(key, _check_text(f"{source}: {key}", value))
        else:
            kind = "a table of strings" if key == "env" else "a list of strings" if key == "args" else "a string"
            raise click.UsageError(f"{source}: {key} must be {kind}")
    return variation


def read_prompt(file: str) -> str:
    """Read a prompt from a file, or from standard input for ``-``. Raises UsageError if it is empty or not text."""
    if file != STDIN:
        text = _read_text(f"the prompt file {file}", Path(file))
    else:
        if sys.stdin.isatty():
            click.echo("forkwise: reading the prompt from the terminal; end it with Ctrl-D on an empty line", err=True)
        text = _decode("the prompt on standard input", sys.stdin.buffer.read(_MAX_FILE + 1))
    prompt = text.rstrip("\r\n")
    if not prompt.strip():
        name = "standard input" if file == STDIN else file
        raise click.UsageError(f"the prompt from {name} is empty")
    return prompt


def _read_text(source: str, file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_FILE + 1)
    except OSError as error:
        raise click.UsageError(f"{source}: {error.strerror}") from None
    return _decode(source, content)


def _decode(source: str, content: bytes) -> str:
    if len(content) > _MAX_FILE:
        raise click.UsageError(f"{source} has more than {_MAX_FILE >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}") from None
    return _check_text(source, text)


def _check_text(source: str, text: str) -> str:
    """Return a text. Raises UsageError if it cannot be passed to a program."""
    if "\0" in text:
        raise click.UsageError(f"{source} has a NUL byte, which cannot be passed to a program")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{source} is not UTF-8") from None
    return text


def check_prompt(prompt: str) -> str:
    """Return a prompt from the command line. Raises UsageError if it is not text."""
    return _check_text("the prompt", prompt)
