"""``make demo``: a sample project, forked three ways, one way committed, and taken back again.

Everything happens in a temporary directory, state included, and nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from forkwise.app.cli.output import Output, totals
from forkwise.files import namespace, trash
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace

__all__ = ["demo", "main"]

PROJECT = {
    "README.md": "# Greeter\n\nSays hello.\n",
    "greeter/__init__.py": '"""Says hello."""\n',
    "greeter/hello.py": 'def hello(name):\n    print("Hello, " + name)\n',
    "tests/test_hello.py": 'from greeter.hello import hello\n\n\ndef test_hello():\n    hello("you")\n',
}


def _annotate(path: Path) -> None:
    (path / "greeter/hello.py").write_text('def hello(name: str) -> None:\n    print(f"Hello, {name}")\n')


def _return_text(path: Path) -> None:
    (path / "greeter/hello.py").write_text('def hello(name: str) -> str:\n    return f"Hello, {name}"\n')
    (path / "tests/test_hello.py").write_text(
        'from greeter.hello import hello\n\n\ndef test_hello():\n    assert hello("you") == "Hello, you"\n'
    )
    (path / "greeter/__main__.py").write_text('from greeter.hello import hello\n\nprint(hello("world"))\n')


def _start_over(path: Path) -> None:
    shutil.rmtree(path / "greeter")
    shutil.rmtree(path / "tests")
    (path / "greeter.sh").write_text('#!/bin/sh\necho "Hello, $1"\n')
    (path / "greeter.sh").chmod(0o755)


ATTEMPTS: dict[str, Callable[[Path], None]] = {
    "annotate": _annotate,
    "return-text": _return_text,
    "start-over": _start_over,
}


def demo(home: Path, output: Output) -> bool:
    """Play it in an empty directory; True where the workspace ended exactly as it began."""
    project = home / "greeter"
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    before = _content(project)

    with ExitStack() as undone:
        workspace = Workspace(project, state=home / "state")
        _title(output, f"A project, forked three ways (view: {workspace.fstype})")
        _listing(project, output)
        branches = {name: _attempt(workspace, name, undone) for name in ATTEMPTS}

        for name, branch in branches.items():
            _title(output, f"What {name} did: {totals(branch.delta())}")
            output.diff(branch.diff())

        commit = branches["return-text"].commit()
        _title(output, f"Committed {commit.branch} as {commit.id}: {totals(commit)}; the other two are gone")
        for name in ("annotate", "start-over"):
            branches[name].abort()
        _listing(project, output)

        undo = workspace.undo()
        after = _content(project)
        same = after == before
        _title(output, f"Undid {undo.undoes}: the project is {'exactly as before' if same else 'NOT as before'}")
        _listing(project, output)
    return same


def _attempt(workspace: Workspace, name: str, undone: ExitStack) -> Branch:
    branch = workspace.branch(name)
    undone.callback(_drop, workspace, name)
    ATTEMPTS[name](branch.path)
    return branch


def _drop(workspace: Workspace, name: str) -> None:
    """Abort a branch that an interrupted demo left."""
    for branch in workspace.branches():
        if branch.name == name:
            branch.abort()


def _content(root: Path) -> dict[str, tuple[int, int, bytes]]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(p.relative_to(root)): (p.stat().st_mode, p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def _title(output: Output, text: str) -> None:
    output.line()
    output.line(text, "bold cyan")


def _listing(root: Path, output: Output) -> None:
    for name in _content(root):
        output.line(f"  {name}")


def main() -> int:
    """Play the demo in a temporary directory."""
    if os.geteuid() != 0 and namespace.available():
        namespace.enter()  # so that the kernel's overlay can be had without privilege
    home = Path(tempfile.mkdtemp(prefix="forkwise-demo-"))
    try:
        return 0 if demo(home, Output(as_json=False)) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        trash.wait()
        shutil.rmtree(home)


if __name__ == "__main__":
    raise SystemExit(main())
