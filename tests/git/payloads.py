"""A repository whose configuration, attributes and hooks name programs wherever git accepts one.

Each program appends the place that named it to a file, so that a test can show which of them ran.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["HOOKS", "plant", "run_plain_git"]

HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg"),
    *("commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update"),
    *("proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc"),
    *("post-rewrite", "fsmonitor-watchman", "post-index-change", "sendemail-validate"),
)
_COMMANDS = (
    *("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.askPass", "core.gitProxy"),
    *("core.alternateRefsCommand", "sequence.editor", "credential.helper", "gpg.program", "gpg.ssh.program"),
    *("gpg.ssh.defaultKeyCommand", "diff.external", "diff.evil.command", "diff.evil.textconv", "merge.evil.driver"),
    *("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "filter.any thing.clean", "pager.diff"),
    *("pager.show", "pager.config", "interactive.diffFilter", "uploadpack.packObjectsHook", "trailer.x.command"),
    *("difftool.evil.cmd", "mergetool.evil.cmd", "man.evil.cmd", "browser.evil.cmd", "gc.recentObjectsHook"),
    *("alias.status", "alias.commit-tree", "alias.update-ref", "alias.cat-file", "remote.origin.uploadpack"),
)


def run_plain_git(directory: Path, *words: str) -> str:
    """Run git as a user does, without the configuration of the machine."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    words = ("git", *identity, *words)
    return subprocess.run(words, cwd=directory, env=environment, check=True, capture_output=True, text=True).stdout


def plant(project: Path, witness: Path) -> None:
    """Write a payload into every place of a repository that git takes a program from."""
    scripts = witness.parent / "scripts"
    scripts.mkdir()

    def script(name: str) -> str:
        path = scripts / name.replace("/", "-").replace(" ", "-")
        path.write_text(f"#!/bin/sh\necho {name} >> {witness}\nexit 1\n")
        path.chmod(0o755)
        return str(path)

    lines = [
        "[diff]\n\ttool = evil\n[commit]\n\tgpgSign = true\n[core]\n\tattributesFile = " + str(scripts / "attributes")
    ]
    for name in _COMMANDS:
        section, _, key = name.rpartition(".")
        top, _, middle = section.partition(".")
        lines.append(f'[{top} "{middle}"]' if middle else f"[{top}]")
        value = script(name)
        lines.append(f"\t{key} = {'!' if name.startswith('alias.') else ''}{value}")
    (scripts / "attributes").write_text("* filter=evil\n")
    included = project / ".git/included"
    included.write_text(f'[filter "included"]\n\tclean = {script("include.path")}\n')
    lines.append(f"[include]\n\tpath = {included}")
    lines.append(f'[includeIf "gitdir:**"]\n\tpath = {included}')
    with open(project / ".git/config", "a") as file:
        file.write("\n".join(lines) + "\n")
    (project / ".git/info").mkdir(exist_ok=True)
    (project / ".git/info/attributes").write_text("*.txt filter=evil diff=evil merge=evil\n*.inc filter=included\n")
    for name in HOOKS:
        hook = project / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho hook {name} >> {witness}\n")
        hook.chmod(0o755)
