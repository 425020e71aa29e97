"""Opening: what an attempt changed in a person's own diff tool, beside the terminal or in it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

__all__ = ["Opening"]

_PAGERS = {"bat", "delta", "diff", "difft", "git", "icdiff", "less", "mcdiff", "more", "most"}
_EDITORS = {"emacs", "helix", "hx", "kak", "micro", "nano", "nvim", "vi", "view", "vim", "vimdiff"}


@dataclass(frozen=True, slots=True)
class Opening:
    """The commands that show what is to be shown."""

    commands: tuple[tuple[str, ...], ...]

    @property
    def in_terminal(self) -> bool:
        """Whether the tool draws on the terminal, as vim does; git starts whichever it is set up with, so it may."""
        return any(os.path.basename(words[0]) in _PAGERS | _EDITORS for words in self.commands)

    def run(self) -> None:
        """Start them one after the other, each once the one before has ended."""
        for words in self.commands:
            subprocess.run(words, check=False)

    def run_beside(self) -> None:
        """Start them all where they do not touch the terminal, and wait for them."""
        quiet = subprocess.DEVNULL
        started = [
            subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
            for words in self.commands
        ]
        for process in started:
            process.wait()
