"""The agents' programs, installed from the package registries into a prefix of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["NPM", "PIP", "install_programs"]

NPM = {
    "claude": ("@anthropic-ai/claude-code",),
    "codex": ("@openai/codex",),
    "gemini": ("@google/gemini-cli",),
    "opencode": ("opencode-ai",),
    "goose": ("@aaif/goose",),
    "qwen": ("@qwen-code/qwen-code",),
    "copilot": ("@github/copilot",),
    "pi": ("@mariozechner/pi-coding-agent",),
    "cn": ("@continuedev/cli",),
}
PIP = {
    "aider": ("aider-chat",),
    "mini": ("mini-swe-agent", "mcp"),  # its model library imports mcp, but does not require it
    "vibe": ("mistral-vibe",),
    "openhands": ("openhands",),
}
_NODE = "node@22"  # some of them do not start with an older one


def install_programs(prefix: Path, names: list[str]) -> tuple[str, dict[str, str]]:
    """Install agents that the prefix does not have yet. Return the PATH for them, and why some could not be."""
    prefix.mkdir(parents=True, exist_ok=True)
    path = f"{prefix}/bin:{prefix}/node_modules/.bin"
    problems = {}
    for name in names:
        if shutil.which(name, path=path) is None:
            print(f"Installing {name}", file=sys.stderr, flush=True)
            problem = _install_npm(prefix, NPM[name]) if name in NPM else _install_pip(prefix, name)
            if problem or shutil.which(name, path=path) is None:
                problems[name] = problem or "its package has no such program"
    return path, problems


def _install_npm(prefix: Path, packages: tuple[str, ...]) -> str:
    node = () if (prefix / "node_modules/node").exists() else (_NODE,)
    return _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(prefix), *node, *packages)


def _install_pip(prefix: Path, name: str) -> str:
    """Install packages into a virtual environment of their own, and make a script in ``bin`` that runs the program."""
    interpreter, libraries = _find_interpreter(prefix)
    home = prefix / "environments" / name
    problem = _run(interpreter, "-m", "venv", str(home), LD_LIBRARY_PATH=libraries)
    problem = problem or _run(
        str(home / "bin/python"), "-m", "pip", "install", "--quiet", *PIP[name], LD_LIBRARY_PATH=libraries
    )
    if not problem and (home / "bin" / name).exists():
        script = prefix / "bin" / name
        script.parent.mkdir(exist_ok=True)
        line = f"LD_LIBRARY_PATH={libraries} exec {home}/bin/python {home}/bin/{name}"
        script.write_text(f'#!/bin/sh\n{line} "$@"\n')
        script.chmod(0o755)
    return problem


def _find_interpreter(prefix: Path) -> tuple[str, str]:
    """Return a Python interpreter that every user can run, and where its libraries are.

    Python 3.12 is preferred: it is the one version that all of them accept. One in root's home is copied.
    """
    found = [
        *map(shutil.which, ("python3.12", "python3.13")),
        *sorted(Path.home().glob(".pyenv/versions/3.12.*/bin/python3")),
    ]
    for candidate in (*filter(None, found), sys.executable):
        code = "import sys; print(sys.base_prefix)"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            continue
        base = Path(done.stdout.strip())
        name = f"python{_version_of(candidate)}"
        if all(directory.stat().st_mode & 0o001 for directory in (base, *base.parents)):
            return str(base / "bin" / name), str(base / "lib")
        copy = prefix / "python"
        if not copy.exists():
            shutil.copytree(base, copy, symlinks=True, ignore=shutil.ignore_patterns("test", "site-packages", "*.a"))
            _run("chmod", "-R", "a+rX", str(copy))
        return str(copy / "bin" / name), str(copy / "lib")
    raise SystemExit("no Python interpreter found for the agents that are written in Python")


def _version_of(interpreter: str | Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _run(*words: str, **variables: str) -> str:
    """Run a command; return why it failed, in a line, or nothing."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | variables)
    lines = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()
    return f"{words[0]}: {lines[-1][:200]}" if done.returncode else ""
