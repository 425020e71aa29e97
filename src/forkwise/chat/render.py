"""Telling: what a session knows, as plain text: for a face without panels, and for whoever reads a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from forkwise.chat.events import CostChanged
from forkwise.chat.forks import BranchView
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.walker import transcript, ways
from forkwise.files.selection import AlignedPath
from forkwise.live.checkpoints import Checkpoint
from forkwise.live.diff.diff_report import BranchDiffReport

__all__ = ["branches", "checkpoints", "cost", "differences", "lined_up", "tokens", "touched", "tree"]

_SHOWN = 70


def branches(views: Sequence[BranchView]) -> str:
    """Where branches stand, one on a line."""
    return "\n".join(_branch(view) for view in views) or "no fork is open"


def _branch(view: BranchView) -> str:
    asks = ", waits for an answer" if view.is_waiting else ""
    why = f": {view.error}" if view.error else ""
    spent = f"{_dollars(view.usd)}, {view.tokens} tokens"
    return f"{view.label}: {view.state}{why}{asks}, {spent}. {_cut(view.preview or '')}".rstrip()


def touched(report: BranchDiffReport) -> str:
    """The files that branches changed, each with who did."""
    lines = []
    for path in report.paths:
        who = [f"{c.branch_label} {c.operation}" for c in path.branches.values() if c.operation != "untouched"]
        lines.append(f"{path.path}: {', '.join(who)} ({path.agreement})")
    return "\n".join(lines) or "no branch changed a file"


def differences(report: BranchDiffReport) -> str:
    """What each branch made of the files of a report."""
    pieces = []
    for path in report.paths:
        for change in path.branches.values():
            what = change.unified_diff_vs_parent if change.operation != "untouched" else "left as it is"
            pieces.append(f"{change.branch_label}: {path.path}, {change.operation}\n{what}".rstrip("\n"))
    return "\n".join(pieces) or "no branch changed that"


def lined_up(lineups: Sequence[AlignedPath], labels: Mapping[str, str]) -> str:
    """The hunks of files, each with the branches that made it."""
    lines = []
    for lineup in lineups:
        who = ", ".join(labels.get(name, name) for name in lineup.versions)
        lines.append(f"{lineup.path}: changed by {who}")
        if lineup.alignment is None:
            lines.append("  it has no lines to choose from")
            continue
        for number, hunk in enumerate(lineup.alignment.hunks, 1):
            names = ", ".join(labels.get(name, name) for name in hunk.versions)
            lines.append(f"  hunk {number} of {names}: lines {hunk.start + 1} to {hunk.stop} become")
            lines += [f"    {line.decode(errors='replace').rstrip()}" for line in hunk.lines] or ["    nothing"]
    return "\n".join(lines)


def checkpoints(found: Sequence[Checkpoint]) -> str:
    """What can be gone back to, one on a line, the newest last."""
    lines = [
        f"{one.id} {one.label}, {one.created_at.astimezone():%Y-%m-%d %H:%M:%S}, {one.message_count} messages"
        for one in found
    ]
    return "\n".join(lines) or "there are no checkpoints yet"


def cost(all_of_it: CostChanged, views: Sequence[BranchView]) -> str:
    """What it has cost, with what the branches of the open fork have."""
    lines = [f"conversation: {_dollars(all_of_it.usd)}, {all_of_it.requests} requests"]
    for view in views:
        cap = "" if view.budget_usd is None else f" of ${view.budget_usd:.2f}"
        lines.append(f"{view.label}: {_dollars(view.usd)}{cap}, {view.requests} requests")
    return "\n".join(lines)


def tokens(all_of_it: CostChanged, views: Sequence[BranchView]) -> str:
    """How many tokens it has taken."""
    lines = [f"conversation: {all_of_it.input_tokens} in, {all_of_it.output_tokens} out"]
    return "\n".join([*lines, *(f"{view.label}: {view.tokens}" for view in views)])


def tree(conversation: Conversation) -> str:
    """All answers, each below the one it follows; ``*`` is where one is."""
    names: dict[int, list[str]] = {}
    for label, node in conversation.labels.items():
        names.setdefault(node.id, []).append(label)
    return "\n".join(_tree(conversation, names))


def _tree(conversation: Conversation, names: Mapping[int, Sequence[str]]) -> Iterator[str]:
    pending: list[tuple[Node, int]] = [(conversation.root, 0)]
    while pending:
        node, depth = pending.pop()
        below = ways(node)
        deeper = depth + (len(below) > 1)
        pending += [(one, deeper) for one in reversed(below)]
        mark = "*" if node is conversation.here else " "
        labels = f" ({', '.join(names[node.id])})" if node.id in names else ""
        text = "the beginning" if node.parent is None else _cut(transcript(node, node.parent))
        yield f"{mark} {'  ' * depth}[{node.id}]{labels} {text}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _dollars(usd: float | None) -> str:
    return "no known price" if usd is None else f"${usd:.4f}"
