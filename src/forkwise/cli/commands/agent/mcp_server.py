"""``forkwise mcp``: serve forks, branches and commits to other agents over the Model Context Protocol."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output

__all__ = ["mcp"]

_TOKEN = "FORKWISE_MCP_TOKEN"
_SHORTEST_TOKEN = 16


@click.command("mcp", cls=Verb, example=("forkwise mcp", "forkwise mcp --http 8123", "forkwise mcp --read-only"))
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    show_default="standard input and output",
    help="Serve HTTP on this loopback port; 0 chooses a free one.",
)
@click.option("--read-only", is_flag=True, help="Offer only the tools that change nothing: wait, show and diff.")
@click.option("--no-commit", is_flag=True, help="Offer no tools that change the workspace: neither pick nor undo.")
@click.option("--no-confirm", is_flag=True, help="Commit without asking the user, even if the client can ask.")
@workspace_option
@json_option
def mcp(port: int | None, read_only: bool, no_commit: bool, no_confirm: bool, directory: Path, output: Output) -> None:
    """Serve this workspace to an agent over MCP.

    The agent starts this command and gets ten tools: fork, wait, show, diff, run, write, test, pick, undo, abort.
    forkwise install registers it with an agent. With --http, the URL and the token that clients need are printed; the
    token is $FORKWISE_MCP_TOKEN, or a new one.
    """
    if port is None and (sys.stdin.isatty() or stat.S_ISREG(os.fstat(0).st_mode)):
        raise click.UsageError(
            "forkwise mcp is started by an agent, which talks to it on stdin and stdout: register it with forkwise "
            "install, or serve HTTP with --http PORT"
        )
    token = os.environ.pop(_TOKEN, None) or secrets.token_urlsafe(32)
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise click.UsageError(
            f"{_TOKEN} must have at least {_SHORTEST_TOKEN} printable ASCII characters and no spaces"
        )
    from forkwise.cli.private_mounts import enter_to_create

    enter_to_create(directory, None)  # before threads start: only a single thread can enter a namespace
    from forkwise.config.key_store import KeyStore
    from forkwise.mcp.protocol import McpServer
    from forkwise.mcp.transport import HttpTransport, serve_stdio

    server = McpServer(
        directory,
        read_only=read_only,
        no_commit=no_commit,
        confirms=not no_confirm,
        environment={} if read_only else KeyStore().read_all(),
    )
    if port is None:
        serve_stdio(server)
        return
    transport = HttpTransport(server, token, port)
    if output.as_json:
        output.document({"url": transport.url, "token": token, "workspace": str(directory.resolve())})
    else:
        output.line(f"Serving {directory.resolve()} at {transport.url}", "bold")
        output.line(f"Clients need the header Authorization: Bearer {token}")
    sys.stdout.flush()
    transport.serve()
