"""``forkwise trust``: review and accept the configuration files that come with a workspace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Exit, Verb, json_option, workspace_option
from forkwise.display.output import Output

if TYPE_CHECKING:
    from forkwise.config.config_file import ConfigFile
    from forkwise.config.trust import Acceptances

__all__ = ["is_terminal", "trust"]


@dataclass(frozen=True, slots=True)
class _Review:
    """A file to review: what it would allow, and the limits that it sets. ``file`` is None if there is none."""

    path: Path
    file: ConfigFile | None
    allows: list[str] = field(default_factory=list)
    limits: dict[str, Any] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.file is None:
            return "missing"
        return "accepted" if self.file.is_trusted else "not accepted"

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "state": self.state,
            "sha256": None if self.file is None else self.file.sha256,
            "allows": self.allows,
            "limits": self.limits,
            "drops": self.dropped,
        }


@click.command("trust", cls=Verb, example=("forkwise trust", "forkwise trust ~/project --json"))
@click.argument("target", metavar="[PATH]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--sha256", metavar="HEX", help="Accept the file with this hash without asking.")
@click.option("--revoke", is_flag=True, help="Revoke your acceptance of the files.")
@workspace_option
@json_option
def trust(target: Path | None, sha256: str | None, revoke: bool, directory: Path, output: Output) -> int:
    """Review and accept the configuration files of a workspace.

    The files agents.toml, config.toml and servers.toml in .forkwise come with a workspace, and attempts can change
    them. Until you accept such a file, only its restrictions take effect. The command shows what each file allows, and
    asks. A file that changes has to be accepted again. PATH is a workspace, or one of the files; it defaults to the
    current directory. With --json, the files are listed and you are not asked.
    """
    from forkwise.config.trust import Acceptances

    if revoke and sha256 is not None:
        raise click.UsageError("--revoke and --sha256 exclude each other")
    workspace, only = _find_workspace(target or directory)
    reviews = [review for review in _list_reviews(workspace) if only in (None, review.path)]
    acceptances = Acceptances(workspace)
    if revoke:
        revoked = [review for review in reviews if acceptances.revoke(review.path)]
        _print(
            output,
            [f"Revoked: {review.path}" for review in revoked] or ["No file was accepted."],
            _list_reviews(workspace),
        )
        return Exit.OK
    if sha256 is not None:
        found = [review for review in reviews if review.file is not None and review.file.sha256 == sha256.lower()]
        if not found:
            raise click.UsageError(f"no configuration file of {workspace.absolute()} has the hash {sha256}")
        for review in found:
            acceptances.accept(review.path, sha256.lower(), review.limits)
        _print(output, [f"Accepted: {review.path}" for review in found], _list_reviews(workspace))
        return Exit.OK
    if output.as_json:
        output.document({"files": [review.as_json() for review in reviews]})
        return Exit.OK
    return _ask_about(reviews, acceptances, output, workspace)


def _ask_about(reviews: list[_Review], acceptances: Acceptances, output: Output, workspace: Path) -> int:
    """Show each file that is not accepted, and ask about it. Return 1 if one remains."""
    if not reviews:
        output.line(f"{workspace.absolute()} has no configuration files.")
    is_refused = False
    for review in reviews:
        if review.state == "accepted":
            output.line(f"{review.path}: accepted")
            continue
        _show(review, output)
        if not is_terminal():
            remedy = "run forkwise trust in a terminal, or give the hash with --sha256"
            raise click.UsageError(f"{review.path} is not accepted, and there is no terminal to ask: {remedy}")
        if not click.confirm("Accept it?", default=False):
            is_refused = True
            continue
        # The hash is that of what was shown, whatever the file contains by now.
        acceptances.accept(review.path, "" if review.file is None else review.file.sha256, review.limits)
        output.line(f"Accepted: {review.path}")
    return Exit.ERROR if is_refused else Exit.OK


def is_terminal() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _show(review: _Review, output: Output) -> None:
    if review.file is None:
        output.line(f"{review.path}: removed")
    else:
        output.line(f"{review.path}: not accepted, {review.file.reason}")
        output.line(f"sha256: {review.file.sha256}")
    for title, lines in (("allows", review.allows), ("drops the limit", review.dropped)):
        for line in lines:
            output.line(f"  {title}: {line}")
    if not review.allows and not review.dropped:
        output.line("  It allows nothing that is not allowed without it.")


def _print(output: Output, lines: list[str], reviews: list[_Review]) -> None:
    if output.as_json:
        output.document({"files": [review.as_json() for review in reviews]})
    else:
        for line in lines:
            output.line(line)


def _find_workspace(target: Path) -> tuple[Path, Path | None]:
    """Return the workspace, and the file if one was named: that of a workspace, or of the user."""
    if target.is_dir():
        return target, None
    path = Path(os.path.abspath(target))
    if path.parent.name == ".forkwise":
        return path.parent.parent, path
    raise click.UsageError(f"{target} is neither a workspace nor a configuration file in its directory .forkwise")


def _list_reviews(workspace: Path) -> list[_Review]:
    """Return the configuration files that apply to a workspace and are part of it."""
    return [*_review_agents(workspace), *_review_servers(workspace), *_review_settings(workspace)]


def _review_agents(workspace: Path) -> Iterator[_Review]:
    from forkwise.agents.preset import list_widened
    from forkwise.config.config_file import AGENTS, read_user_config, read_workspace_config

    for file in (read_user_config(AGENTS, workspace), read_workspace_config(workspace, AGENTS)):
        if file is not None and file.is_part_of_workspace:
            yield _Review(file.path, file, list_widened(file, workspace))


def _review_servers(workspace: Path) -> Iterator[_Review]:
    from forkwise.config.config_file import SERVERS, read_workspace_config
    from forkwise.servers.server_file import list_widened_servers

    file = read_workspace_config(workspace, SERVERS)
    if file is not None:
        yield _Review(file.path, file, list_widened_servers(file))


def _review_settings(workspace: Path) -> Iterator[_Review]:
    from forkwise.chat.settings import list_limits, list_widened_settings, settings_path
    from forkwise.config.config_file import SETTINGS, read_user_config, read_workspace_config
    from forkwise.config.shared_paths import list_shared
    from forkwise.config.trust import Acceptances

    user = read_user_config(SETTINGS, workspace)
    if user is not None and user.is_part_of_workspace:
        yield _Review(user.path, user, [*list_widened_settings(user), *list_shared(user)], list_limits(user))
    path = settings_path(workspace)
    own = read_workspace_config(workspace, SETTINGS)
    before = Acceptances(workspace).limits(path)
    now = {} if own is None else list_limits(own)
    dropped = [f"{name} = {value!r}" for name, value in before.items() if now.get(name) != value]
    if own is not None:
        yield _Review(path, own, [*list_widened_settings(own), *list_shared(own)], now, dropped)
    elif before:
        yield _Review(path, None, [], {}, dropped)
