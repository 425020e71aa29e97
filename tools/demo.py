"""``make demo``: a project with a bug, four fixes tried side by side, judged by its own tests; one wins, and is undone.

What is shown are real commands and what they print. Everything happens in a temporary directory, state included, and
nothing is left behind.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from forkwise.display.output import Output

__all__ = ["FIXES", "PROJECT", "demo", "main"]

_START = "from forkwise.cli import main; main()"

PROJECT = {
    "roman.py": """\
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def number(numeral: str) -> int:
    return sum(VALUES[letter] for letter in numeral)
""",
    "test_roman.py": """\
import unittest

from roman import number


class TestRoman(unittest.TestCase):
    def test_letters_add_up(self):
        self.assertEqual(number("MDCLXVI"), 1666)

    def test_a_smaller_letter_before_a_larger_one_is_taken_away(self):
        self.assertEqual(number("XIV"), 14)
        self.assertEqual(number("MCMXCIX"), 1999)
""",
}

_RIGHT = """\
cat > roman.py <<'END'
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def number(numeral: str) -> int:
    total = 0
    for letter, following in zip(numeral, numeral[1:] + "I"):
        value = VALUES[letter]
        total += -value if value < VALUES[following] else value
    return total
END
"""

#: What four people, or agents, might have come up with.
FIXES = {
    "wrong": "sed -i 's/in numeral/in reversed(numeral)/' roman.py\n",
    "breaks": 'sed -i \'s/return sum.*/return {"XIV": 14, "MCMXCIX": 1999}[numeral]/\' roman.py\n',
    "slow": f"echo thinking...; sleep 50\n{_RIGHT}",
    "right": _RIGHT,
}


def demo(home: Path, output: Output) -> bool:
    """Play it in an empty directory; True where the workspace ended exactly as it began."""
    project = home / "roman"
    (project / "fixes").mkdir(parents=True)
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    for name, text in FIXES.items():
        fix = project / "fixes" / f"{name}.sh"
        fix.write_text(f"#!/bin/sh\n{text}")
        fix.chmod(0o755)
    before = _content(project)
    test = "python3 -m unittest -q"

    output.line("A project with a bug, and a test that fails:", "bold cyan")
    _play(shlex.split(test), project, home, output, expected=1)

    output.line("Four fixes, each in a sandbox on its own branch of the project; the tests decide:", "bold cyan")
    fixes = [word for name in FIXES for word in ("-c", f"fixes/{name}.sh")]
    _play(["forkwise", "speculate", *fixes, "--test", test], project, home, output)

    output.line("The bug is gone from the project:", "bold cyan")
    _play(shlex.split(test), project, home, output)

    output.line("And all of it can be taken back:", "bold cyan")
    _play(["forkwise", "undo"], project, home, output)
    _play(["forkwise", "ls"], project, home, output)
    same = _content(project) == before
    output.line(f"The project is {'exactly as before' if same else 'NOT as before'}.", "bold cyan")
    return same


def _play(words: Sequence[str], project: Path, home: Path, output: Output, expected: int = 0) -> None:
    """Show a command, run it, and show what it prints."""
    output.line(f"$ {shlex.join(words)}", "bold")
    sys.stdout.flush()
    real = [sys.executable, "-c", _START, *words[1:]] if words[0] == "forkwise" else [sys.executable, *words[1:]]
    environment = {**os.environ, "FORKWISE_STATE": str(home / "state"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        real, cwd=project, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False
    )
    output.line()
    if done.returncode != expected:
        raise SystemExit(f"the demo failed: {shlex.join(words)} ended with {done.returncode}")


def _content(root: Path) -> dict[str, tuple[int, int, bytes]]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(p.relative_to(root)): (p.stat().st_mode, p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def main() -> int:
    """Play the demo in a temporary directory."""
    home = Path(tempfile.mkdtemp(prefix="forkwise-demo-"))
    try:
        return 0 if demo(home, Output(as_json=False)) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    raise SystemExit(main())
