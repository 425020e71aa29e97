"""``forkwise serve``: a page in the browser to compare, discuss and decide forks on."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import StoppedBySignalError, Verb, require_extra, stream_option, workspace_option
from forkwise.cli.stop_signal import find_stop_signal
from forkwise.display.output import Output

if TYPE_CHECKING:
    from forkwise.web.admission import Keys

__all__ = ["serve"]

_FIRST_PORT = 7370
_TRIED_PORTS = 20


@click.command(
    "serve",
    cls=Verb,
    streams=True,
    example=("forkwise serve --browser", "forkwise serve --all", "forkwise serve --export k3f9ab page.html"),
)
@click.argument("others", metavar="[DIR]...", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Show all workspaces whose state is kept in the same place.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    show_default=f"{_FIRST_PORT}, or the next that is free",
    help="Port to listen on.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; one that is not loopback needs --tls or --plain-http.",
)
@click.option(
    "--name", "host_name", metavar="NAME", help="Name of this machine in the address, if --host is not loopback."
)
@click.option(
    "--tls",
    metavar="CERT KEY",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Files with a certificate and its key, to encrypt the connection.",
)
@click.option(
    "--plain-http",
    is_flag=True,
    help="Listen beyond loopback without encryption: others on the network can read the traffic.",
)
@click.option(
    "--export",
    "exported",
    metavar="FORK FILE",
    nargs=2,
    help="Write the page of one fork to a self-contained HTML file instead, and exit.",
)
@click.option("--new-token", is_flag=True, help="Invalidate all links and open pages of earlier runs.")
@click.option("--browser", is_flag=True, help="Open the page in the default browser.")
@workspace_option
@stream_option
def serve(
    others: tuple[Path, ...],
    everything: bool,
    port: int | None,
    host: str,
    host_name: str | None,
    tls: tuple[Path, Path] | None,
    plain_http: bool,
    exported: tuple[str, str] | None,
    new_token: bool,
    browser: bool,
    directory: Path,
    output: Output,
) -> None:
    """Compare and decide forks on a page in your browser.

    Prints an address with a token, and serves it on this machine's loopback until Ctrl-C. The page follows the forks of
    this workspace and of each DIR, including those of other processes. It decides nothing by itself: its buttons do
    what forkwise pick, combine, abort and undo do. Ending the command does not affect any fork.
    """
    if exported is not None:
        _export(exported[0], Path(exported[1]), directory, output)
        return
    require_extra("web", "forkwise serve")
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.web.admission import load_keys
    from forkwise.web.catalogue import Catalogue
    from forkwise.web.site import build_site

    is_loopback = _check_host(host, tls, plain_http)
    enter_to_create(directory, None)
    directories = [directory, *others, *(_find_all(directory) if everything else ())]
    catalogue = Catalogue(directories)
    try:
        first = next(iter(catalogue))
        keys = load_keys(first.workspace.state / "web.key", renew=new_token)
        with _listen(host, port) as listener:
            number = listener.getsockname()[1]
            name = keys.host_name if is_loopback else host_name or _bracket(host)
            program = [sys.executable, "-c", "from forkwise.cli import main; main()"]
            site = build_site(
                catalogue,
                keys,
                [f"{name}:{number}"],
                program=program,
                is_encrypted=tls is not None,
                is_remote=not _is_loopback(host),
            )
            base = f"{'https' if tls else 'http'}://{name}:{number}"
            _announce(base, keys, output, opens_browser=browser)
            _run(site, listener, tls)
    finally:
        catalogue.close()


def _export(name: str, target: Path, directory: Path, output: Output) -> None:
    """Write the page of a fork to a file that loads nothing."""
    import forkwise
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.display.attempt_report import read_report
    from forkwise.display.html.fork_page import render_report
    from forkwise.linux.file_write import replace_file

    _, ledger = open_workspace(directory)
    with ledger:
        fork = ledger.fork(name).id
        page = render_report(read_report(ledger, fork), version=forkwise.__version__)
    try:
        replace_file(target, page.encode(errors="replace"), mode=None)
    except OSError as error:
        raise click.UsageError(f"the page cannot be written to {target}: {error.strerror}") from error
    if output.as_json:
        output.stream({"exported": {"fork": fork, "file": str(target)}})
    else:
        output.line(f"The page of {fork} is in {target}.")


def _check_host(host: str, tls: tuple[Path, Path] | None, plain_http: bool) -> bool:
    """Return whether only this machine reaches an address. Raises UsageError if others do, unprotected."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise click.UsageError(f"--host is {host!r}, which is not an IP address: use --name for a name") from error
    if tls is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*tls)
        except (ssl.SSLError, OSError) as error:
            reason = (
                error.strerror if error.filename is not None else "they are not a certificate and its key in PEM format"
            )
            raise click.UsageError(f"--tls cannot use {tls[0]} and {tls[1]}: {reason}") from error
    if address.is_loopback:
        return tls is None
    if tls is None and not plain_http:
        raise click.UsageError(
            f"--host {host} can be reached from other machines: give --tls CERT KEY, or --plain-http if everybody "
            "who can read the network's traffic may see the files and decide your forks"
        )
    return False


def _is_loopback(host: str) -> bool:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _find_all(directory: Path) -> list[Path]:
    """Find the workspaces with history whose state is beside that of ``directory``."""
    from forkwise.cli.workspace_search import has_history
    from forkwise.files.store.state import read_workspace
    from forkwise.files.workspace import Workspace

    root = os.path.dirname(Workspace(directory).state_dir.state)
    with os.scandir(root) as entries:
        known = [read_workspace(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    paths = sorted(found[0] for found in known if found is not None)
    return [Path(path) for path in paths if os.path.isdir(path) and has_history(path)]


@contextmanager
def _listen(host: str, port: int | None) -> Iterator[socket.socket]:
    """Listen on a port; without one, on the first that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(_FIRST_PORT, _FIRST_PORT + _TRIED_PORTS), 0]
    for number in tried:
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and number != tried[-1]:
                continue
            where = f"{host}, port {number}" if number else host
            remedy = "choose another --port" if error.errno == errno.EADDRINUSE else "choose another --host or --port"
            raise click.ClickException(f"cannot listen on {where}: {error.strerror}; {remedy}") from error
        with listener:
            yield listener
        return


def _announce(base: str, keys: Keys, output: Output, *, opens_browser: bool) -> None:
    url = f"{base}/?token={keys.link_token}"
    if output.as_json:
        output.stream({"serving": {"url": url, "address": base, "token": keys.link_token}})
    else:
        output.line("The forks are at")
        output.line(f"  {url}", "bold")
        output.line("until Ctrl-C. Anyone with this link can decide them; a page has read-only links to share.")
    sys.stdout.flush()
    if opens_browser:
        click.launch(url)


def _run(site: object, listener: socket.socket, tls: tuple[Path, Path] | None) -> None:
    """Serve until a signal ends the command."""
    import uvicorn

    config = uvicorn.Config(
        site,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=1,
        limit_concurrency=400,
        h11_max_incomplete_event_size=64 << 10,
        ssl_certfile=None if tls is None else str(tls[0]),
        ssl_keyfile=None if tls is None else str(tls[1]),
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        raise StoppedBySignalError(find_stop_signal(), "no fork is affected") from None
