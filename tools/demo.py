"""``make demo``: four fixes for a bug run side by side; the best, by the project's own tests, is committed and undone.

The demo runs real commands and shows their real output. Everything, forkwise's state included, is in a temporary
directory that is removed at the end.
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

    def test_a_smaller_letter_before_a_larger_one_is_subtracted(self):
        self.assertEqual(number("XIV"), 14)
        self.assertEqual(number("MCMXCIX"), 1999)
""",
}

_HEAD = """\
cat > roman.py <<'END'
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def number(numeral: str) -> int:
    total = 0
"""

_LONG = f"""\
{_HEAD}\
    position = 0
    while position < len(numeral):
        value = VALUES[numeral[position]]
        if position + 1 < len(numeral):
            following = VALUES[numeral[position + 1]]
        else:
            following = 0
        if value < following:
            total = total - value
        else:
            total = total + value
        position = position + 1
    return total
END
"""

_SHORT = f"""\
{_HEAD}\
    for letter, following in zip(numeral, numeral[1:] + "I"):
        value = VALUES[letter]
        total += -value if value < VALUES[following] else value
    return total
END
"""

#: Four fixes that four people, or agents, might have written: two do not pass the tests, two do.
FIXES = {
    "wrong": "sed -i 's/in numeral/in reversed(numeral)/' roman.py\n",
    "breaks": 'sed -i \'s/return sum.*/return {"XIV": 14, "MCMXCIX": 1999}[numeral]/\' roman.py\n',
    "long": f"sleep 1\n{_LONG}",
    "short": _SHORT,
}


def demo(home: Path, output: Output) -> bool:
    """Run the demo in the empty directory ``home``. Return whether the project ended exactly as it began."""
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
    _run(shlex.split(test), project, home, output, expected=1)

    output.line(
        "Four fixes, each in a sandbox on its own branch of the project; the tests judge all four,", "bold cyan"
    )
    output.line("and of those that pass, the one with the smallest diff is committed:", "bold cyan")
    fixes = [word for name in FIXES for word in ("-c", f"fixes/{name}.sh")]
    _run(["forkwise", "speculate", "--all", *fixes, "--test", test], project, home, output)

    output.line("The project's own tests pass now:", "bold cyan")
    _run(shlex.split(test), project, home, output)

    output.line("The commit can be undone:", "bold cyan")
    _run(["forkwise", "undo"], project, home, output)
    _run(["forkwise", "ls"], project, home, output)
    same = _content(project) == before
    output.line(f"The project is {'exactly as before' if same else 'NOT as before'}.", "bold cyan")
    return same


def _run(words: Sequence[str], project: Path, home: Path, output: Output, expected: int = 0) -> None:
    """Show a command and run it in the project. Exit if its status is not ``expected``."""
    output.line(f"$ {shlex.join(words)}", "bold")
    sys.stdout.flush()
    real = [sys.executable, "-c", _START, *words[1:]] if words[0] == "forkwise" else [sys.executable, *words[1:]]
    environment = {**os.environ, "FORKWISE_STATE": str(home / "state"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        real, cwd=project, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False
    )
    output.line()
    if done.returncode != expected:
        raise SystemExit(f"the demo failed: {shlex.join(words)} exited with {done.returncode}, not {expected}")


def _content(root: Path) -> dict[str, tuple[int, int, bytes]]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(p.relative_to(root)): (p.stat().st_mode, p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def main() -> int:
    """Run the demo in a temporary directory."""
    home = Path(tempfile.mkdtemp(prefix="forkwise-demo-"))
    try:
        return 0 if demo(home, Output(as_json=False)) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    raise SystemExit(main())
