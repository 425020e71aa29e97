"""The section of SECURITY.md about hidden credentials, generated from the tables in the code.

``python -m tests.sandbox.credentials_page`` updates it.
"""

from __future__ import annotations

from pathlib import Path

from forkwise.sandbox.confinement import AGENT_CREDENTIALS, CREDENTIAL_STORES, SAFE_VARIABLES

__all__ = ["BEGIN", "END", "PAGE", "section", "updated"]

PAGE = Path(__file__).parents[2] / "SECURITY.md"
BEGIN = "## Credentials that a sandbox hides"
END = "<!-- end of credentials -->"

_BEFORE = """\
Under `standard` and `strict` these files and directories are empty inside a sandbox, if they exist when it starts.
`~` is `$HOME`, the home directory of the account and of the command, and under `sudo` that of the user who called it.
A path that begins with a variable counts if the variable is set. Links are followed, and a workspace that is itself a
home directory is no exception. `--show PATH`, or `Confinement(shown=…)`, shows one again; `--writable` does so too.

Not hidden are files that configure more than a login, such as `pip.conf`, Maven's `settings.xml`,
`gradle.properties`, a project's own `.env`, and histories of shells: list them in `Confinement(hidden=(*CREDENTIALS,
…))`, with `CREDENTIALS` from `forkwise.sandbox.confinement`."""

_AGENTS = """\
The logins and keys of coding agents are hidden as well. With `--agent`, an agent sees its own."""

_VARIABLES = """\
`strict` passes on only these variables, and of these none whose name looks like a secret or whose value is a URL with a
password. `--env NAME` and a preset's `passes` add others."""


def section() -> str:
    """Return the section: the tables and what they mean."""
    lines = [BEGIN, "", _BEFORE, "", "| of | hidden |", "| --- | --- |"]
    lines += [f"| {name} | {_join(paths)} |" for name, paths in CREDENTIAL_STORES.items()]
    lines += ["", _AGENTS, "", "| agent | hidden |", "| --- | --- |"]
    lines += [f"| `{name}` | {_join(paths)} |" for name, paths in AGENT_CREDENTIALS.items()]
    lines += ["", _VARIABLES, "", f"> {_join(SAFE_VARIABLES)}", "", END]
    return "\n".join(lines)


def _join(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def updated(page: str) -> str:
    """Return the page with the section updated."""
    before, _, rest = page.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
