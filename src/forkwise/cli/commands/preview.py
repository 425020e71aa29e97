"""``forkwise open`` and ``forkwise port``: look at the servers that run inside branches."""

from __future__ import annotations

import select
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, StoppedBySignalError, Verb, json_option, stream_option, workspace_option
from forkwise.cli.stop_signal import find_stop_signal
from forkwise.display.columns import Fit
from forkwise.display.output import Output, command_line
from forkwise.errors import ForkNotFoundError

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger
    from forkwise.preview.listener import PreviewListener
    from forkwise.preview.target import PreviewTarget
    from forkwise.sandbox.network.ports import ListeningPort

__all__ = ["open_preview", "port"]

_CHECK_S = 0.5


@click.command(
    "open",
    cls=Verb,
    streams=True,
    example=("forkwise open k3f9ab.2", "forkwise open k3f9ab.2 3000 --browser", "forkwise open try-1 --json"),
)
@click.argument("name", metavar="ATTEMPT|FORK|BRANCH")
@click.argument("inner_port", metavar="[PORT]", type=click.IntRange(1, 65535), required=False)
@click.option(
    "--listen",
    "listening_port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    show_default="7390, or the next that is free",
    help="Port of this machine to listen on.",
)
@click.option("--browser", is_flag=True, help="Open the address in the default browser.")
@workspace_option
@stream_option
def open_preview(
    name: str, inner_port: int | None, listening_port: int | None, browser: bool, directory: Path, output: Output
) -> None:
    """Open the server of a branch in your browser.

    Prints an address with a token, and serves it on this machine's loopback until Ctrl-C, or until nothing runs in the
    branch any more. PORT is the port inside, which can be left out if there is only one. With a FORK, the addresses of
    all its attempts are printed, including those of servers that start later. The server must speak HTTP/1.1;
    WebSockets and event streams work too.
    """
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.preview.listener import PreviewListener
    from forkwise.preview.target import TargetBook

    workspace, ledger = open_workspace(directory)
    with ledger:
        fork = _find_fork(ledger, workspace, name)
        target = None if fork is not None else _find_target(workspace, ledger, name, directory)
    book = TargetBook(workspace)
    try:
        with (
            PreviewListener(book.connect, port=listening_port) as listener,
            _Screen(listener, output, opens_browser=browser) as screen,
        ):
            if target is not None:
                screen.show(target, _choose_port(target, inner_port, name))
                _wait_while(lambda: target.is_running)
            else:
                _follow(workspace, str(fork), inner_port, screen)
            screen.end(name)
    finally:
        book.close()


class _Screen:
    """Prints addresses as they become known."""

    def __init__(self, listener: PreviewListener, output: Output, *, opens_browser: bool) -> None:
        self._listener = listener
        self._output = output
        self._opens_browser = opens_browser
        self._is_first = True
        self._stack = ExitStack()

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, target: PreviewTarget, one: ListeningPort) -> None:
        """Print the address of one port."""
        label = f"{target.label}--{one.port}"
        url, output, name = self._listener.format_url(label), self._output, _name_target(target)
        if output.as_json:
            token, listening_port = self._listener.make_token(label), self._listener.port
            facts = {"url": url, "token": token, "listening_port": listening_port}
            output.stream({"preview": {**_port_record(name, target, one), **facts}})
        else:
            by = f" ({one.program}, process {one.pid})" if one.program else ""
            output.line(f"Port {one.port} of {name}{by} is at")
            output.line(f"  {url}", "bold")
            if self._is_first:
                output.line("until Ctrl-C, or until nothing runs there any more.")
            sys.stdout.flush()
        if self._opens_browser and self._is_first:
            self._launch(url)
        self._is_first = False

    def _launch(self, url: str) -> None:
        """Open the URL in the browser through a file that redirects to it: all users can see a process's arguments."""
        from html import escape

        page = tempfile.NamedTemporaryFile("w", prefix="forkwise-", suffix=".html")  # noqa: SIM115
        self._stack.enter_context(page)
        page.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        page.flush()
        click.launch(f"file://{page.name}")

    def end(self, name: str) -> None:
        """Print that nothing runs in the branch any more."""
        if self._output.as_json:
            self._output.stream({"ended": name})
        else:
            self._output.line(f"Nothing runs in {name} any more.")


def _wait_while(is_running: Callable[[], bool]) -> None:
    """Wait until a condition no longer holds. Raises StoppedBySignalError on Ctrl-C."""
    try:
        while is_running():
            select.select([], [], [], _CHECK_S)
    except KeyboardInterrupt:
        raise StoppedBySignalError(find_stop_signal(), "what runs in the branches is not affected") from None


def _follow(workspace: Workspace, fork: str, inner_port: int | None, screen: _Screen) -> None:
    """Show the ports of a fork's attempts, including those opened later, until the fork ends."""
    from forkwise.ledger.sqlite import open_ledger
    from forkwise.preview.target import list_targets

    shown: set[tuple[str, int]] = set()

    def look() -> bool:
        is_running = False
        for target in list_targets(workspace):
            if not target.branch.name.startswith(f"{fork}-"):
                continue
            is_running = True
            if {(target.label, one.port) for one in target.list_ports(with_programs=False)} <= shown:
                continue
            for one in target.list_ports():
                if (target.label, one.port) not in shown and inner_port in (None, one.port):
                    shown.add((target.label, one.port))
                    screen.show(target, one)
        with open_ledger(workspace) as ledger:
            return is_running or ledger.fork(fork).state == "running"

    _wait_while(look)


def _find_fork(ledger: Ledger, workspace: Workspace, name: str) -> str | None:
    """Return the id of the fork that ``name`` stands for; None if it names an attempt or a branch."""
    if "." in name or "/" in name or name in [branch.name for branch in workspace.branches()]:
        return None
    try:
        return ledger.fork(name).id
    except ForkNotFoundError:
        return None


def _find_target(workspace: Workspace, ledger: Ledger, name: str, directory: Path) -> PreviewTarget:
    """Return the branch to look into. Raises ClickException with a remedy if nothing runs in it."""
    from forkwise.fork.stored_fork import branch_of
    from forkwise.preview.target import find_target

    branch = branch_of(ledger, workspace, name)
    target = find_target(branch)
    if target.process is None:
        shown = branch.branch_path.removeprefix("/main/") if branch.branch_path.count("/") == 2 else branch.branch_path
        words = ("branch", "run", shown, "--", "COMMAND")
        raise click.ClickException(
            f"nothing runs in {name} now, or it uses the host's network: start a server there with "
            f"{command_line(directory, *words)} (with --servers for those of .forkwise/servers.toml), and open it from "
            "another terminal"
        )
    return target


def _choose_port(target: PreviewTarget, given: int | None, name: str) -> ListeningPort:
    """Return the port to open. Raises UsageError if none was given and there is not exactly one."""
    from forkwise.sandbox.network.ports import ListeningPort

    ports = target.list_ports()
    if given is not None:  # it may begin to listen later
        return next((one for one in ports if one.port == given), ListeningPort(given, "127.0.0.1"))
    if not ports:
        raise click.UsageError(f"no program in {name} listens on a port yet: name the port, or try again")
    if len(ports) > 1:
        listed = ", ".join(f"{one.port} ({one.program})" if one.program else str(one.port) for one in ports[:20])
        raise click.UsageError(f"programs in {name} listen on several ports, name one: {listed}")
    return ports[0]


@click.group("port", cls=Commands)
def port() -> None:
    """List the ports on which programs in branches listen.

    A branch whose network is its own can use every port, whatever listens on this machine or in other branches.
    """


@port.command("ls", example=("forkwise port ls", "forkwise port ls k3f9ab --json"))
@click.argument("fork", metavar="[FORK]", required=False)
@workspace_option
@json_option
def list_open_ports(fork: str | None, directory: Path, output: Output) -> None:
    """List the ports of attempts and branches that run now.

    Only attempts and branches with their own network are listed; with FORK, only the attempts of that fork. Open a port
    with forkwise open.
    """
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.preview.target import list_targets

    workspace, ledger = open_workspace(directory)
    with ledger:
        wanted = None if fork is None else ledger.fork(fork).id
    found = [
        (_name_target(target), target, one)
        for target in list_targets(workspace)
        if wanted is None or target.branch.name.startswith(f"{wanted}-")
        for one in target.list_ports()
    ]
    if output.as_json:
        output.document({"ports": [_port_record(name, target, one) for name, target, one in found]})
    elif not found:
        output.line("No program in a branch listens on a port of its own network now.")
    else:
        rows = [
            (name, str(one.port), one.program or "", command_line(directory, "open", name, str(one.port)))
            for name, _, one in found
        ]
        output.table(("branch", "port", "program", "open it with"), rows, Fit(wrapped=("open it with",)))


def _name_target(target: PreviewTarget) -> str:
    """Return the attempt's id, or the branch's name or path."""
    path = target.branch.branch_path
    if target.label == target.branch.name:  # only the branches of attempts have their own name as label
        return ".".join(target.label.rsplit("-", 1))
    return path.removeprefix("/main/") if path.count("/") == 2 else path


def _port_record(name: str, target: PreviewTarget, one: ListeningPort) -> dict[str, Any]:
    return {
        "name": name,
        "branch": target.branch.branch_path,
        "port": one.port,
        "host": one.host,
        "program": one.program,
        "process": one.pid,
        "label": f"{target.label}--{one.port}",
    }
