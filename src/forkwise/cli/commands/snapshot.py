"""``forkwise snapshot``: workspaces stored by content, in a directory or in object storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, F, json_option, require_extra, workspace_option
from forkwise.display.output import Output, size_text
from forkwise.errors import SnapshotNotFoundError
from forkwise.text.phrases import format_number

if TYPE_CHECKING:
    from forkwise.snapshot.object_store import ObjectStore
    from forkwise.snapshot.snapshot import Snapshot

__all__ = ["snapshot"]

_SHOWN = 12  # characters of an id


@click.group("snapshot", cls=Commands)
def snapshot() -> None:
    """Store a workspace by content, and unpack it elsewhere.

    A store is a directory or a URL such as s3://bucket/prefix, given with --store or in $FORKWISE_STORE. The second
    snapshot of a workspace stores only what changed. Credentials of object storage are taken from the environment.
    """


def _store_options(function: F) -> F:
    """Add ``--store`` and ``--key-file``, which become the argument ``store``."""

    def check(context: click.Context, _parameter: click.Parameter, location: str) -> ObjectStore:
        require_extra("snapshots", "forkwise snapshot")
        path = location.removeprefix("file://")
        if not path:
            raise click.UsageError("--store is empty: name a directory, or a URL such as s3://bucket/prefix")
        if context.info_name != "create" and "://" not in path and not os.path.isdir(path):
            remedy = "check the path, or create a snapshot there first, with forkwise snapshot create"
            raise SnapshotNotFoundError(f"there is no store {location}: {remedy}", store=location)
        from forkwise.snapshot.object_store import ObjectStore

        return ObjectStore(location, key=_read_key(context.params.pop("key_file", None)))

    function = click.option(
        "--store",
        envvar="FORKWISE_STORE",
        required=True,
        metavar="DIR|URL",
        callback=check,
        show_envvar=True,
        help="Store to use: a directory, s3://…, az://… or gs://….",
    )(function)
    return click.option(
        "--key-file",
        envvar="FORKWISE_STORE_KEY_FILE",
        metavar="FILE",
        is_eager=True,
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with the key of an encrypted store: 32 bytes, or 64 hexadecimal digits.",
    )(function)


def _read_key(path: Path | None) -> bytes | None:
    """Read a key from a file that only this user can read."""
    if path is None:
        return None
    from forkwise.snapshot.pack import read_key_file

    try:
        return read_key_file(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@snapshot.command(
    "create",
    example=(
        "forkwise snapshot create --store /srv/snapshots",
        "forkwise snapshot create --store s3://bucket/team --name nightly --exclude node_modules",
    ),
)
@click.option(
    "--name", metavar="NAME", show_default="none", help="Name to find it by; several snapshots may share one."
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave out paths that match. Repeatable.")
@_store_options
@workspace_option
@json_option
def create(name: str | None, exclude: tuple[str, ...], store: ObjectStore, directory: Path, output: Output) -> None:
    """Store the workspace as it is now.

    Ignored files are included, such as environments and build output. A glob without a slash matches a name at any
    depth. Prints the id, what was stored, and what takes the most space.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.snapshot.snapshot import Snapshot

    made = Snapshot.create(Workspace(directory), store, name=name or "", exclude=exclude)
    if output.as_json:
        output.document({"snapshot": _record(made)})
        return
    output.line(f"{made.id[:_SHOWN]} ({_summary(made)}; {size_text(made.stored)} stored)", "bold")
    _print_details(made, output)


@snapshot.command("ls", example=("forkwise snapshot ls --store /srv/snapshots", "forkwise snapshot ls --json"))
@_store_options
@json_option
def list_all(store: ObjectStore, output: Output) -> None:
    """List the snapshots of a store, newest first.

    An id can be shortened as long as it stays unique.
    """
    from forkwise.snapshot.snapshot import list_snapshots

    found = list_snapshots(store)
    if output.as_json:
        output.document({"store": store.location, "snapshots": [_record(one) for one in found]})
    elif not found:
        output.line("No snapshots. Create one with: forkwise snapshot create")
    else:
        rows = [
            (one.id[:_SHOWN], one.name, _time(one), f"{one.files:,}", size_text(one.bytes), one.source) for one in found
        ]
        output.table(("id", "name", "created", "files", "size", "workspace"), rows)


@snapshot.command("show", example=("forkwise snapshot show nightly", "forkwise snapshot show 3f9a --verify --json"))
@click.argument("word", metavar="ID|NAME")
@click.option(
    "--verify", is_flag=True, help="Read everything that it consists of, and report what is missing or damaged."
)
@_store_options
@json_option
@click.pass_context
def show(context: click.Context, word: str, verify: bool, store: ObjectStore, output: Output) -> None:
    """Show a snapshot: its size, its largest parts, what was left out.

    With --verify every content is read and compared with its digest; the exit code is 1 if something is damaged.
    """
    from forkwise.snapshot.snapshot import Snapshot

    found = Snapshot.load(store, word)
    problems = found.verify(store) if verify else []
    if output.as_json:
        output.document({"snapshot": _record(found), **({"problems": problems} if verify else {})})
    else:
        output.line(f"{found.id} {found.name}".rstrip(), "bold")
        output.line(f"{found.source}, {_time(found)}: {_summary(found)}")
        _print_details(found, output)
        for problem in problems:
            output.line(problem, "red")
        if verify and not problems:
            output.line(f"Intact: {len(found.packs) + len(found.segments)} objects were read.")
    if problems:
        context.exit(1)


@snapshot.command(
    "unpack",
    example=(
        "forkwise snapshot unpack nightly ../work",
        "forkwise snapshot unpack 3f9a ../work --store s3://bucket/team",
    ),
)
@click.argument("word", metavar="ID|NAME")
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@_store_options
@json_option
def unpack(word: str, target: Path, store: ObjectStore, output: Output) -> None:
    """Write the files of a snapshot to a new or empty directory.

    Every content is compared with its digest. If something is damaged, or on Ctrl-C, the directory is left as it was.
    """
    from forkwise.snapshot.snapshot import Snapshot
    from forkwise.snapshot.unpack import unpack_snapshot

    found = Snapshot.load(store, word)
    unpack_snapshot(found, store, target)
    if output.as_json:
        output.document({"snapshot": _record(found), "directory": str(target.absolute())})
    else:
        output.line(f"{target} ({_summary(found)})", "bold")


@snapshot.command(
    "rm", example=("forkwise snapshot rm nightly", "forkwise snapshot rm 3f9a 77c0 && forkwise snapshot gc")
)
@click.argument("words", metavar="ID|NAME...", nargs=-1, required=True)
@_store_options
@json_option
def remove(words: tuple[str, ...], store: ObjectStore, output: Output) -> None:
    """Remove snapshots from a store; gc then frees the space.

    If several snapshots share a name, the newest one is removed.
    """
    from forkwise.snapshot.snapshot import Snapshot

    found = {one.id: one for one in [Snapshot.load(store, word) for word in words]}
    for one in found.values():
        one.delete(store)
    if output.as_json:
        output.document({"removed": [_record(one) for one in found.values()]})
    else:
        output.line(f"Removed {', '.join(key[:_SHOWN] for key in found)}. Free the space with: forkwise snapshot gc")


@snapshot.command(
    "gc", example=("forkwise snapshot gc --dry-run", "forkwise snapshot gc --store s3://bucket/team --json")
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@_store_options
@json_option
def collect(dry_run: bool, store: ObjectStore, output: Output) -> None:
    """Remove contents that no snapshot of the store needs.

    The command is refused while another process writes to the store. A process that was killed counts for another hour.
    """
    from forkwise.snapshot.collection import collect_garbage

    found = collect_garbage(store, dry_run=dry_run)
    if output.as_json:
        output.document({"removed": found.removed, "bytes": found.bytes, "kept": found.kept, "dry_run": dry_run})
    else:
        verb = "Would remove" if dry_run else "Removed"
        output.line(
            f"{verb} {format_number(found.removed, 'object')} ({size_text(found.bytes)}); {found.kept} are in use."
        )


def _summary(one: Snapshot) -> str:
    return f"{one.files:,} file{'' if one.files == 1 else 's'}, {size_text(one.bytes)}"


def _time(one: Snapshot) -> str:
    return one.created.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _print_details(one: Snapshot, output: Output) -> None:
    rows = [("directory", path, size) for path, size in one.largest_directories[:3]]
    rows += [("file", path, size) for path, size in one.largest_files[:3]]
    for kind, path, size in rows:
        output.line(f"  {size_text(size):>9}  {kind} {path}")
    if one.skipped:
        output.line(
            f"Left out: {format_number(len(one.skipped), 'special file')} or mount points, such as {one.skipped[0]}",
            "yellow",
        )
    if one.unstable:
        output.line(
            f"Written while they were read: {format_number(len(one.unstable), 'file')}, such as {one.unstable[0]}",
            "yellow",
        )


def _record(one: Snapshot) -> dict[str, Any]:
    return {
        "id": one.id,
        "tree": one.tree,
        "name": one.name,
        "created": one.created.isoformat(),
        "workspace": one.source,
        "files": one.files,
        "directories": one.directories,
        "bytes": one.bytes,
        "stored": one.stored,
        "largest_files": [{"path": path, "bytes": size} for path, size in one.largest_files],
        "largest_directories": [{"path": path, "bytes": size} for path, size in one.largest_directories],
        "skipped": list(one.skipped),
        "unstable": list(one.unstable),
    }
