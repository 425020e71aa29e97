"""Status: the last line of a chat: which model, what it has cost, and what is going on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.text import Text

from forkwise.app.chat.events import CostChanged
from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.signs import SIGNS
from forkwise.app.tui.line import Line

__all__ = ["StatusLine", "count_text", "fork_tally"]


def count_text(count: int) -> str:
    """A number of tokens as people read it.

    >>> count_text(950), count_text(12_345), count_text(3_400_000)
    ('950', '12.3k', '3.4M')
    """
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


def fork_tally(states: Iterable[str]) -> Text:
    """How many branches there are, and how they stand.

    >>> fork_tally(["running", "done", "running"]).plain
    'FORK: 3 · 2● 1✓'
    """
    counts = Counter(states)
    parts = [Text(f"{counts[state]}{sign}", style=style) for state, (sign, _, style) in SIGNS.items() if counts[state]]
    return Text.assemble(f"FORK: {counts.total()} · ", Text(" ").join(parts))


class StatusLine(Line):
    """What is known of the session. ``doing`` is what is under way, if anything is."""

    DEFAULT_CSS = "StatusLine { text-wrap: nowrap; text-overflow: ellipsis; text-style: none; }"

    def __init__(self) -> None:
        super().__init__("starting …")
        self.model = ""
        self.cost = CostChanged(0, 0, 0)
        self.checkpoints = 0
        self.doing = "starting …"
        self.states: list[str] = []

    def tell(self, doing: str | None = None) -> None:
        """Say how things are now, and what is under way, if that is another than before."""
        self.doing = self.doing if doing is None else doing
        cost = self.cost
        parts = [Text(self.doing)] if self.doing else []
        if self.states:
            parts.append(fork_tally(self.states))
        if self.model:
            parts.append(Text("$?" if cost.usd is None else f"${cost.usd:.4f}"))
            parts.append(Text(f"{count_text(cost.input_tokens + cost.output_tokens)} tokens"))
            parts.append(Text(f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'}"))
            parts.append(Text(printable(self.model)))
        self.say(Text(" · ").join(parts))
