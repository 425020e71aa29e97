"""The state of a session as plain text, for the output of slash commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkwise.conversation.walker import find_next_stops, format_transcript
from forkwise.text.clean import truncate_line
from forkwise.text.phrases import format_number, format_usd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forkwise.chat.events import CostChanged, ForkResolved, MergeRefused
    from forkwise.chat.forks import BranchView
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.node import Node
    from forkwise.files.selection import AlignedPath
    from forkwise.live.checkpoints import Checkpoint
    from forkwise.live.diff.diff_report import BranchDiffReport

__all__ = [
    "format_alignment",
    "format_branches",
    "format_changed_paths",
    "format_checkpoints",
    "format_cost",
    "format_diffs",
    "format_merge",
    "format_price",
    "format_refusal",
    "format_tokens",
    "format_tree",
]

_MAX_CHARS = 70  # of a message, on one line
_MAX_PATHS = 8


def format_branches(views: Sequence[BranchView]) -> str:
    """Format the states of branches, one per line."""
    return "\n".join(_format_branch(view) for view in views) or "no fork is open"


def _format_branch(view: BranchView) -> str:
    approval = ", waits for approval" if view.is_waiting else ""
    error = f": {view.error}" if view.error else ""
    cost = f"{format_price(view.usd, view.requests)}, {view.tokens} tokens"
    return (
        f"{view.label}: {view.state}{error}{approval}, {cost}. {truncate_line(view.preview or '', _MAX_CHARS)}".rstrip()
    )


def format_merge(event: ForkResolved) -> list[str]:
    """Format the outcome of a fork as lines.

    >>> from forkwise.chat.events import ForkResolved
    >>> format_merge(ForkResolved("f1", "pick", ("whimsical",), ("cat.md",)))
    ['Merged: kept branch whimsical · 1 file']
    """
    if event.how == "abort":
        return ["The fork was aborted: none of its changes were kept"]
    written = {*event.paths, *event.deleted}
    winners = f"branch{'' if len(event.winners) == 1 else 'es'} {', '.join(event.winners)}"
    lines = [f"Merged: kept {winners} · {format_number(len(written), 'file')}"]
    for path in event.conflicts:
        outcome = "overwritten, although" if path in written else "not merged, because"
        lines.append(f"{outcome} it was changed in the workspace meanwhile: {path}")
    return [*lines, *(f"not written: {error}" for error in event.errors)]


def format_refusal(event: MergeRefused) -> list[str]:
    """Format a refused merge as lines: which files, what runs them, how to merge anyway.

    >>> from forkwise.chat.events import MergeRefused
    >>> format_refusal(MergeRefused(((".envrc", "direnv"),), "/merge a --allow-executable-config"))[1:]
    ['  .envrc: direnv', 'Look at the changes with /fork diff; /merge a --allow-executable-config merges them anyway']
    """
    shown = [f"  {path}: {executor}" for path, executor in event.executable_config[:_MAX_PATHS]]
    more = (
        [f"  and {len(event.executable_config) - _MAX_PATHS} more"] if len(event.executable_config) > _MAX_PATHS else []
    )
    return [
        "Nothing was merged, because it would change what your machine will run:",
        *shown,
        *more,
        f"Look at the changes with /fork diff; {event.retry} merges them anyway",
    ]


def format_changed_paths(report: BranchDiffReport) -> str:
    """Format the changed files, each with the branches that changed it."""
    lines = []
    for path in report.paths:
        changes = [f"{c.branch_label} {c.operation}" for c in path.branches.values() if c.operation != "untouched"]
        lines.append(f"{path.path}: {', '.join(changes)} ({path.agreement})")
    return "\n".join(lines) or "no branch changed a file"


def format_diffs(report: BranchDiffReport) -> str:
    """Format the diff of every file of a report, branch by branch."""
    pieces = []
    for path in report.paths:
        for change in path.branches.values():
            diff = change.unified_diff_vs_parent if change.operation != "untouched" else "not changed"
            pieces.append(f"{change.branch_label}: {path.path}, {change.operation}\n{diff}".rstrip("\n"))
    return "\n".join(pieces) or "no branch changed it"


def format_alignment(paths: Sequence[AlignedPath], labels: Mapping[str, str]) -> str:
    """Format the hunks of files, each with its branches."""
    lines = []
    for path in paths:
        names = ", ".join(labels.get(name, name) for name in path.versions)
        lines.append(f"{path.path}: changed by {names}")
        if path.alignment is None:
            lines.append("  no hunks: choose a whole version")
            continue
        for number, hunk in enumerate(path.alignment.hunks, 1):
            names = ", ".join(labels.get(name, name) for name in hunk.versions)
            lines.append(f"  hunk {number} of {names}: lines {hunk.start + 1} to {hunk.stop} become")
            lines += [f"    {line.decode(errors='replace').rstrip()}" for line in hunk.lines] or ["    nothing"]
    return "\n".join(lines)


def format_checkpoints(checkpoints: Sequence[Checkpoint]) -> str:
    """Format checkpoints, one per line."""
    lines = [
        f"{one.id} {one.label}, {one.created_at.astimezone():%Y-%m-%d %H:%M:%S}, {one.message_count} messages"
        for one in checkpoints
    ]
    return "\n".join(lines) or "there is no checkpoint yet"


def format_cost(total: CostChanged, views: Sequence[BranchView]) -> str:
    """Format the cost of the conversation, and of the branches of the open fork."""
    price = format_price(total.usd, total.requests, total.unpriced)
    lines = [f"conversation: {price}, {format_number(total.requests, 'request')}"]
    for view in views:
        budget = "" if view.budget_usd is None else f" of {format_usd(view.budget_usd)}"
        price = format_price(view.usd, view.requests)
        lines.append(f"{view.label}: {price}{budget}, {format_number(view.requests, 'request')}")
    return "\n".join(lines)


def format_tokens(total: CostChanged, views: Sequence[BranchView]) -> str:
    """Format the tokens used by the conversation, and by the branches of the open fork."""
    lines = [f"conversation: {total.input_tokens} in, {total.output_tokens} out"]
    return "\n".join([*lines, *(f"{view.label}: {view.tokens}" for view in views)])


def format_tree(conversation: Conversation) -> str:
    """Format all answers as a tree; ``*`` marks the current node."""
    labels: dict[int, list[str]] = {}
    for label, node in conversation.labels.items():
        labels.setdefault(node.id, []).append(label)
    return "\n".join(_format_nodes(conversation, labels))


def _format_nodes(conversation: Conversation, labels: Mapping[int, Sequence[str]]) -> Iterator[str]:
    pending: list[tuple[Node, int]] = [(conversation.root, 0)]
    while pending:
        node, depth = pending.pop()
        stops = find_next_stops(node)
        next_depth = depth + (len(stops) > 1)
        pending += [(stop, next_depth) for stop in reversed(stops)]
        mark = "*" if node is conversation.here else " "
        names = f" ({', '.join(labels[node.id])})" if node.id in labels else ""
        text = "start" if node.parent is None else truncate_line(format_transcript(node, node.parent), _MAX_CHARS)
        yield f"{mark} {'  ' * depth}[{node.id}]{names} {text}"


def format_price(usd: float | None, requests: int, unpriced: int = 0) -> str:
    """Format what requests cost; ``unpriced`` of them have no known price.

    >>> format_price(0.0, 3), format_price(None, 3), format_price(0.25, 3, 1), format_price(None, 0)
    ('free', 'unknown price', '$0.2500 + unknown price', '$0.0000')
    """
    if usd is None:
        return "unknown price" if requests else "$0.0000"
    known = "free" if usd == 0 and requests else f"${usd:.4f}"
    return f"{known} + unknown price" if unpriced else known
