"""Run real coding agents in forkwise against a scripted model: ``make agents``.

The programs are installed from npm and PyPI into a temporary prefix, or into the directory in AGENTS_PREFIX, which is
kept. As root, everything runs a second time as the user ``nobody``. The table of results is written to docs/agents.md,
unless only the agents that are named as arguments run. Exits with 1 if something does not hold.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
from tests.cli.test_unprivileged import TOOLS
from tests.unprivileged import UNPRIVILEGED as NOBODY
from tests.unprivileged import readable_copy

from forkwise.agents.preset import load_agents
from tools.agents.programs import install_programs
from tools.agents.scripted_model import serve_model
from tools.agents.server_trial import COMMANDS, try_server
from tools.agents.trial import SETUPS, Trial, try_agent

_PAGE = Path(__file__).parents[2] / "docs/agents.md"
_TABLE = re.compile(r"(<!-- written by make agents -->\n).*?(\n<!-- end -->)", re.DOTALL)


@contextmanager
def _copy_sources() -> Iterator[str]:
    """Copy forkwise and what it needs to where every user can read it, and yield the PYTHONPATH."""
    with readable_copy(TOOLS) as copy:
        for found in Path(click.__file__).parents[1].glob("opentelemetry*"):
            shutil.copytree(found, copy / "tools" / found.name)
        subprocess.run(["chmod", "-R", "a+rX", str(copy / "tools")], check=True)
        yield f"{copy}/src:{copy}/tools"


def _format_row(name: str, trials: list[Trial], reason: str | None, server: list[str] | None = None) -> str:
    if reason is not None:
        return f"| `{name}` | | *untested*: {reason} | | | | |"
    setup = SETUPS[name]
    cells = ["; ".join(trial.problems) or "holds" for trial in trials]
    cells += ["not run"] * (2 - len(cells))
    facts = ["yes" if known else "–" for known in (setup.has_session, setup.has_tokens)]
    facts.append("–" if server is None else "; ".join(server) or "holds")
    return f"| `{name}` | {trials[0].version} | {' | '.join(cells)} | {' | '.join(facts)} |"


def main(names: list[str]) -> int:
    """Run all agents, or those that are named; as root, also as another user."""
    chosen = names or list(SETUPS)
    users = (0, NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
    rows = [
        "| agent | version | root | another user | session | tokens | with `forkwise mcp` |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    failed = False
    with (
        tempfile.TemporaryDirectory(prefix="agents-", dir="/var/tmp", ignore_cleanup_errors=True) as made,
        serve_model() as url,
        _copy_sources() if NOBODY in users else nullcontext() as sources,
    ):
        top = Path(made)
        top.chmod(0o755)
        path, missing = install_programs(Path(os.environ.get("AGENTS_PREFIX") or top / "prefix"), chosen)
        print(*rows, sep="\n", flush=True)
        for name in chosen:
            reason = missing.get(name)
            trials = [try_agent(name, path, url, top, user, sources) for user in (() if reason else users)]
            server = try_server(name, path, url, top) if name in COMMANDS and not reason else None
            rows.append(_format_row(name, trials, reason, server))
            print(rows[-1], flush=True)
            failed = failed or any(trial.problems for trial in trials) or bool(server)
    if not names:
        others = sorted(set(load_agents(Path("/"))) - set(SETUPS))
        rows += [_format_row(name, [], "not in a package registry") for name in others]
        text = "\n".join(rows)
        _PAGE.write_text(_TABLE.sub(lambda found: found[1] + text + found[2], _PAGE.read_text()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
