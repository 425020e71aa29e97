"""Completion of words in a shell: verbs, options, and the names that a workspace knows.

A shell waits for it at every press of the tab key. It therefore loads neither click nor any floor except the rules for
state directories. The grammar of the command line is read from a cache, which is built from the commands themselves.
Names are read from the state directory and from the ledger, which is opened read-only.

A name from a workspace or a ledger is offered only if it is plain: nothing that a shell would expand, run or split.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from forkwise import __version__

__all__ = ["build_script", "find_candidates", "load_grammar", "print_candidates"]

_SAFE = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./@:+-]*", re.ASCII)
_MOST = 200
_LONGEST = 200
_BUSY_S = 0.05

Candidate = tuple[str, str]

# Grammar


def load_grammar() -> dict[str, Any]:
    """Return the verbs, options and arguments of the command line, from the cache or from the commands themselves."""
    path = f"{os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')}/forkwise/completion.json"
    key = _compute_key()
    with suppress(OSError, ValueError):
        if os.stat(path).st_uid == os.geteuid():
            with open(path) as file:
                stored = json.load(file)
            if isinstance(stored, dict) and stored.get("key") == key and isinstance(stored.get("grammar"), dict):
                return dict(stored["grammar"])
    from forkwise.linux.file_write import replace_file

    grammar = _build_grammar()
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, json.dumps({"key": key, "grammar": grammar}))
    return grammar


def _compute_key() -> str:
    """Return a value that differs between installations, and changes when the commands of one are edited."""
    here = os.path.dirname(__file__)
    times = [entry.stat().st_mtime_ns for d in (here, f"{here}/commands") for entry in os.scandir(d) if entry.is_file()]
    return f"{__version__} {here} {max(times)} {len(times)} {sys.version_info[:2]}"


def _build_grammar() -> dict[str, Any]:
    from forkwise.cli.verbs import forkwise_command

    return {"verbs": _describe(forkwise_command), "models": _list_models()}


def _describe(command: Any) -> dict[str, Any]:
    """Describe a command for the cache: its options, its arguments, and the commands in it."""
    options: dict[str, Any] = {"--help": {"takes": False, "text": "Show the help.", "kind": "", "again": False}}
    arguments: list[str] = []
    for one in command.params:
        kind = _find_kind(one)
        if one.param_type_name == "argument":
            arguments += [kind] * (1 if one.nargs == 1 else _MOST)
            continue
        facts = {"takes": not one.is_flag and not one.count, "kind": kind, "again": bool(one.multiple)}
        for name in (*one.opts, *one.secondary_opts):
            options[name] = {**facts, "text": (one.help or "").partition(".")[0][:80]}
    inside = getattr(command, "commands", {})
    return {
        "text": command.get_short_help_str(80),
        "options": options,
        "arguments": arguments[:_MOST],
        "verbs": {name: _describe(inner) for name, inner in inside.items() if not inner.hidden},
    }


_KINDS = {
    "--agent": "agents",
    "--model": "models",
    "--judge": "judges",
    "--test": "tests",
    "--prefer": "attempts",
    "-C": "files",
    "FORK": "forks",
    "[FORK]": "forks",
    "FORK|ATTEMPT": "forks attempts",
    "ATTEMPT|FORK": "forks attempts",
    "ATTEMPT|FORK|BRANCH": "forks attempts branches",
    "ATTEMPT ATTEMPT...": "attempts",
    "A": "attempts commits branches",
    "[B]": "attempts commits branches",
    "[ID]": "commits",
}


def _find_kind(parameter: Any) -> str:
    """Return the values that a parameter accepts: choices, or the names from one or more sources."""
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return "=" + " ".join(map(str, choices))
    if parameter.param_type_name == "option":
        return next((_KINDS[name] for name in parameter.opts if name in _KINDS), "files")
    if parameter.metavar is None and parameter.name in ("name", "parent"):
        return "branches"
    return _KINDS.get(parameter.metavar or "", "files")


def _list_models() -> list[str]:
    """List the models that pydantic-ai knows, without importing it: the import takes seconds."""
    from importlib.util import find_spec

    spec = find_spec("pydantic_ai")
    if spec is None or spec.origin is None:
        return ["local"]
    with suppress(OSError), open(f"{os.path.dirname(spec.origin)}/models/__init__.py") as file:
        found = re.findall(r"^\s+['\"]([a-z][a-z0-9-]*:[A-Za-z0-9./:-]+)['\"],$", file.read(), re.MULTILINE)
        return ["local", *dict.fromkeys(found)]
    return ["local"]


# The word under the cursor


def find_candidates(words: Sequence[str], current: str) -> list[Candidate]:
    """Return what the word ``current`` after ``words`` can become, each with a short description.

    An empty list leaves the word to the shell, which completes names of files.
    """
    grammar = load_grammar()
    node, position, expected, used = grammar["verbs"], 0, None, set()
    directory: str | None = None
    pending = ""
    for word in words:
        if expected is not None:
            directory = word if pending in ("-C", "--workspace") else directory
            expected = None
        elif word == "--":
            return []
        elif word.startswith("-"):
            pending, _, value = word.partition("=")
            used.add(pending)
            option = node["options"].get(pending)
            if option is not None and option["takes"] and "=" not in word:
                expected = option["kind"]
            elif pending == "--workspace":
                directory = value
        elif word in node["verbs"]:
            node, position = node["verbs"][word], 0
        else:
            position += 1
    sources = _Sources(directory, grammar)
    if expected is not None:
        return list(_match(sources.find(expected), current))
    if current.startswith("-"):
        name, equals, value = current.partition("=")
        if equals:
            kind = node["options"].get(name, {}).get("kind", "")
            return [(f"{name}={found}", text) for found, text in _match(sources.find(kind), value)]
        options = {n: facts for n, facts in node["options"].items() if facts["again"] or n not in used}
        return list(_match(((n, facts["text"]) for n, facts in options.items()), current))
    if node["verbs"]:
        return list(_match(((name, inner["text"]) for name, inner in node["verbs"].items()), current))
    kinds = node["arguments"]
    return list(_match(sources.find(kinds[position]), current)) if position < len(kinds) else []


def _match(candidates: Iterator[Candidate], current: str) -> Iterator[Candidate]:
    seen = set()
    for value, text in candidates:
        if value.startswith(current) and value not in seen and value.isprintable() and len(value) <= _LONGEST:
            seen.add(value)
            yield value, text if text.isprintable() else ""
            if len(seen) == _MOST:
                return


class _Sources:
    """The names that can be completed in the workspace ``directory``, or in the one that contains the cwd."""

    def __init__(self, directory: str | None, grammar: dict[str, Any]) -> None:
        self._directory = directory
        self._grammar = grammar
        self._workspace = ""
        self._state: str | None = None
        self._is_found = False

    def find(self, kinds: str) -> Iterator[Candidate]:
        """Yield the names of one or several kinds, or the choices after an equals sign."""
        if kinds.startswith("="):
            yield from ((word, "") for word in kinds[1:].split())
            return
        listers: dict[str, Callable[[], Iterator[Candidate]]] = {
            "forks": self._list_forks,
            "attempts": self._list_attempts,
            "commits": self._list_commits,
            "branches": self._list_branches,
            "agents": self._list_agents,
            "models": self._list_models,
            "judges": self._list_judges,
            "tests": self._list_tests,
        }
        for kind in kinds.split():
            if kind in listers:
                yield from listers[kind]()

    def _find_state(self) -> str | None:
        """Return the state directory of the workspace, if it has one."""
        if not self._is_found:
            from forkwise.cli.workspace_search import find_workspace
            from forkwise.files.store.state_root import find_state

            self._is_found = True
            given = self._directory or os.environ.get("FORKWISE_WORKSPACE")
            with suppress(OSError):
                path = os.path.realpath(os.path.expanduser(given)) if given else find_workspace(os.path.realpath("."))
                self._workspace = path
                self._state = find_state(path)
        return self._state

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        """Read rows of the ledger without changing it; none if it is missing, damaged or busy."""
        state = self._find_state()
        if state is None or not os.path.isfile(f"{state}/ledger/ledger.db"):
            return []
        import sqlite3

        path = state.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        try:
            address = f"file:{path}/ledger/ledger.db?mode=ro"
            connection = sqlite3.connect(address, timeout=_BUSY_S, uri=True)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return []

    def _list_forks(self) -> Iterator[Candidate]:
        for name, state, kind in self._query(
            "SELECT id, state, iif(json_valid(data), json_extract(data, '$.kind'), '') FROM forks "
            f"ORDER BY seq DESC LIMIT {_MOST}"
        ):
            yield from _as_safe(name, f"{kind}, {state}")

    def _list_attempts(self) -> Iterator[Candidate]:
        for name, state in self._query(
            "SELECT attempts.id, attempts.state FROM attempts JOIN forks ON forks.id = attempts.fork "
            f"ORDER BY forks.seq DESC, attempts.seq LIMIT {_MOST}"
        ):
            yield from _as_safe(name, state)

    def _list_commits(self) -> Iterator[Candidate]:
        numbers = [name for name in self._list_directory("history") if name.isdecimal() and len(name) < 16]
        yield from ((name, "commit") for name in sorted(numbers, key=int, reverse=True))

    def _list_branches(self) -> Iterator[Candidate]:
        """Yield branches by name, then nested ones by their full paths, level by level."""
        level = [(name, f"branches/{name}") for name in sorted(self._list_directory("branches"))]
        prefix, listed = "", 0
        while level and listed < _MOST:
            inner = []
            for name, directory in level[: _MOST - listed]:
                yield from _as_safe(f"{prefix}{name}", "branch")
                below = f"{directory}/branches"
                inner += [(f"{name}/{one}", f"{below}/{one}") for one in sorted(self._list_directory(below))]
            prefix, listed, level = "/main/", listed + len(level), inner

    def _list_directory(self, name: str) -> list[str]:
        state = self._find_state()
        with suppress(OSError):
            return [] if state is None else os.listdir(f"{state}/{name}")
        return []

    def _list_agents(self) -> Iterator[Candidate]:
        import tomllib

        config = f"{os.environ.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')}/forkwise"
        for path in (f"{os.path.dirname(os.path.dirname(__file__))}/agents/agents.toml", f"{config}/agents.toml"):
            with suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
                for name, facts in tomllib.load(file).items():
                    yield from _as_safe(name, "agent" if isinstance(facts, dict) else "")
        for name in self._list_trusted_agents():
            yield from _as_safe(name, "agent of the workspace")

    def _list_trusted_agents(self) -> list[str]:
        """List the agents of the workspace's own file, if the user has accepted its content."""
        state = self._find_state()
        if state is None or not os.path.isfile(f"{self._workspace}/.forkwise/agents.toml"):
            return []
        from pathlib import Path

        from forkwise.config.config_file import AGENTS, read_workspace_config
        from forkwise.errors import BranchingError

        with suppress(OSError, ValueError, BranchingError):
            found = read_workspace_config(Path(self._workspace), AGENTS)
            return list(found.tables) if found is not None and found.is_trusted else []
        return []

    def _list_models(self) -> Iterator[Candidate]:
        for name in self._grammar.get("models", ()):
            yield from _as_safe(name, "model")

    def _list_judges(self) -> Iterator[Candidate]:
        yield from ((f"model:{name}", text) for name, text in self._list_models())

    def _list_tests(self) -> Iterator[Candidate]:
        yield "auto", "detect the test command"
        rows = self._query(
            "SELECT iif(json_valid(data), json_extract(data, '$.spec.tests'), NULL) FROM forks "
            f"ORDER BY seq DESC LIMIT {_MOST}"
        )
        yield from ((text, "used before") for (text,) in rows if isinstance(text, str) and text.strip())


def _as_safe(name: object, text: object) -> Iterator[Candidate]:
    """Yield a name if a shell would use it unchanged."""
    if isinstance(name, str) and _SAFE.fullmatch(name):
        yield name, str(text)


# Shells


def print_candidates(arguments: Sequence[str]) -> None:
    """Print the candidates for a shell's script, one per line, with a tab before the description.

    For bash, ``arguments`` are the command line up to the cursor and the word that bash replaces; for the others, the
    words up to the one under the cursor.
    """
    shell, *given = arguments or ("",)
    lines: list[str] = []
    if shell == "bash" and len(given) == 2:
        lines = _complete_for_bash(*given)
    elif shell in ("zsh", "fish") and given[1:]:
        current = given[-1][1:] if given[-1][:1] in ("'", '"') else given[-1]  # a quote that is still open
        lines = [f"{value}\t{text}" for value, text in find_candidates(given[1:-1], current)]
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    sys.stdout.flush()


def _complete_for_bash(line: str, replaced: str) -> list[str]:
    """Return the replacement for the word that bash sees: bash also splits words at colons and equals signs."""
    words, current, quote = _split_line(line)
    replaced = "" if replaced in (":", "=") else replaced.removeprefix(quote) if quote else replaced
    start = len(current) - len(replaced) if current.endswith(replaced) else 0
    found = find_candidates(words[1:], current)
    if quote:
        # Inside quotes bash inserts the text as it is, and adds the closing quote.
        return [value[start:] for value, _ in found if not set(value) & {quote, "$", "`", "\\", "!"}]
    return [_quote(value[start:]) for value, _ in found]


def _split_line(line: str) -> tuple[list[str], str, str]:
    """Split a command line as a shell does, without expanding anything.

    Returns the words before the last one, the last one, and the quote that is still open in it.

    >>> _split_line("forkwise run --test 'pytest -")
    (['forkwise', 'run', '--test'], 'pytest -', "'")
    """
    words, word, quote = [], "", ""
    is_word = is_escaped = False
    for character in line:
        if is_escaped:
            word, is_escaped, is_word = word + character, False, True
        elif character == "\\" and quote != "'":
            is_escaped = is_word = True
        elif quote:
            word, quote = (word, "") if character == quote else (word + character, quote)
        elif character in "'\"":
            quote, is_word = character, True
        elif character.isspace():
            if is_word:
                words.append(word)
            word, is_word = "", False
        elif character in ";|&":
            words, word, is_word = [], "", False
        else:
            word, is_word = word + character, True
    return words, word, quote


def _quote(text: str) -> str:
    """Escape every character that a shell could expand or split at."""
    return re.sub(r"([^A-Za-z0-9_./@:+=,-])", r"\\\1", text)


_SCRIPTS = {
    "bash": r"""_forkwise_complete() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(command forkwise _complete bash "${COMP_LINE:0:COMP_POINT}" "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null)
}
complete -o bashdefault -o default -F _forkwise_complete forkwise
""",
    "zsh": r"""#compdef forkwise
_forkwise_complete() {
    local value text
    local -a values shown
    while IFS=$'\t' read -r value text; do
        values+=("$value")
        shown+=("$value${text:+  -- $text}")
    done < <(command forkwise _complete zsh "${(Q)words[@]:0:$CURRENT}" 2>/dev/null)
    if (( ${#values} )); then
        compadd -l -d shown -a values
    else
        _files
    fi
}
if [ "$funcstack[1]" = _forkwise ]; then
    _forkwise_complete "$@"
else
    compdef _forkwise_complete forkwise
fi
""",
    "fish": r"""function __forkwise_complete
    set -l current (commandline -ct)
    set -l found (command forkwise _complete fish (commandline -opc) "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c forkwise -f -a '(__forkwise_complete)'
""",
}


def build_script(shell: str) -> str:
    """Return the script of a shell that completes forkwise's words."""
    return _SCRIPTS[shell]
