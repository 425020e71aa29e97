"""Git configuration that makes git run, include or follow something: which keys, attributes and files do that.

A key counts unless it is listed as harmless, because new versions of git and its extensions add keys for programs.
"""

from __future__ import annotations

import os
import posixpath
import re
from functools import lru_cache

from forkwise.errors import GitError
from forkwise.git.program import parse_settings

__all__ = ["find_attributes", "find_keys", "is_ordinary_pointer", "list_included"]

_BOOLEAN = r"(?i:true|false|yes|no|on|off|0|1|)"
_WORD = r"[\w.+-]*"
_LINE = r"[^\x00-\x1f]*"
#: Addresses on other machines. ``name::address`` starts the program ``git-remote-name``, a leading dash is read as an
#: option, and a push to a local repository runs that repository's hooks.
_ADDRESS = r"(?:https?|ssh|git)://[^-\x00-\x20][^\x00-\x20]*|[\w.]+@[\w][\w.-]*:[^\x00-\x20]*"

#: Keys that only hold data, and the values that do. Everything is matched in full; names are in lower case.
_HARMLESS: tuple[tuple[str, str], ...] = (
    (r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks)", _WORD),
    (r"core\.(autocrlf|eol|safecrlf|abbrev|quotepath|compression|loosecompression|bigfilethreshold)", _WORD),
    (r"core\.(untrackedcache|preloadindex|splitindex|sparsecheckout|sparsecheckoutcone|sharedrepository)", _WORD),
    (
        r"core\.(longpaths|multipackindex|commitgraph|whitespace|commentchar|fsyncobjectfiles|checkstat|trustctime)",
        _LINE,
    ),
    (r"core\.fsmonitor", _BOOLEAN),  # git's own daemon
    (r"extensions\.(objectformat|refstorage|worktreeconfig|partialclone|noop|compatobjectformat)", _WORD),
    (r"branch\..*\.(remote|pushremote)|remote\.pushdefault", rf"[\w.-]+|{_ADDRESS}"),
    (r"branch\..*\.(merge|rebase|description)", _LINE),
    (r"branch\..*\.(vscode-merge-base|github-pr-owner-number|gh-merge-base)", _LINE),
    (r"branch\.(autosetupmerge|autosetuprebase|sort)", _LINE),
    (r"remote\..*\.(url|pushurl)", _ADDRESS),
    (r"remote\..*\.(fetch|push|tagopt|prune|prunetags|mirror|skipdefaultupdate|skipfetchall|promisor)", _LINE),
    (r"remote\..*\.(partialclonefilter|gh-resolved|followremotehead)", _LINE),
    (r"(checkout\.defaultremote|init\.defaultbranch)", _LINE),
    (r"submodule\..*\.url", rf"{_ADDRESS}|\.\.?/[\w./-]+"),
    (r"submodule\..*\.(active|branch|fetchrecursesubmodules|ignore|shallow)", _LINE),
    (r"submodule\..*\.update", r"checkout|rebase|merge|none"),  # "!command" runs a command
    (r"submodule\.(active|recurse|fetchjobs|propagatebranches)", _LINE),
    (r"user\.(name|email|useconfigonly)", _LINE),
    (r"(author|committer)\.(name|email)", _LINE),
    (r"(commit|tag)\.gpgsign", _BOOLEAN),
    (r"(pull|push|fetch|merge|rebase|status|log|diff|advice|color|column|index|feature|rerere)\.[a-z]+", _BOOLEAN),
    (r"push\.(default|autosetupremote|followtags)", _WORD),
    (r"pull\.(rebase|ff)|merge\.(ff|conflictstyle|renamelimit|log)|diff\.(algorithm|renames|renamelimit)", _WORD),
    (r"gc\.(auto|autodetach|autopacklimit|pruneexpire|reflogexpire)|maintenance\.(auto|strategy)", _LINE),
    (r"pack\.(threads|window|depth|windowmemory|packsizelimit|writebitmaps|usesparse)", _WORD),
    (r"i18n\.(commitencoding|logoutputencoding)", _WORD),
    (r"lfs\.repositoryformatversion|lfs\..*\.(access|locksverify)", _WORD),
    # What "git lfs install --local" writes.
    (r"filter\.lfs\.clean", r"git-lfs clean -- %f"),
    (r"filter\.lfs\.smudge", r"git-lfs smudge -- %f"),
    (r"filter\.lfs\.process", r"git-lfs filter-process"),
    (r"filter\.lfs\.required", _BOOLEAN),
)

_DRIVER = re.compile(r"(?:^|\s)(filter|diff|merge)=(\S+)")
_BUILT_IN = {
    "filter": {"lfs"},
    "diff": {
        *("ada", "bash", "bibtex", "cpp", "csharp", "css", "dts", "elixir", "fortran", "fountain", "golang", "html"),
        *("java", "kotlin", "lfs", "markdown", "matlab", "objc", "pascal", "perl", "php", "python", "ruby", "rust"),
        *("scheme", "tex"),
    },
    "merge": {"text", "binary", "union", "lfs"},
}


def find_keys(old: bytes, new: bytes, path: str) -> list[str] | None:
    """Return the keys of a configuration file at ``path`` that changed and are not harmless.

    ``path`` is relative to the workspace. None means that it cannot be checked: git is not installed or cannot parse
    it.
    """
    try:
        before, after = parse_settings(old), parse_settings(new)
    except GitError:
        return None
    if after is None:
        return None
    first, second = ([row for row in rows if not _is_harmless(*row, path)] for rows in (before or [], after))
    if first == second:
        return []
    # The last value of a key wins, so a changed order counts too.
    return sorted({name for name, _ in {*first} ^ {*second}} or {name for name, _ in second})


def _is_harmless(name: str, value: str, path: str) -> bool:
    if name == "core.worktree":  # as in a submodule; outside of the workspace git would write to other directories
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), value))
        return not (posixpath.isabs(value) or target.split("/")[0] == "..")
    key = name.lower()
    return any(re.fullmatch(k, key) and re.fullmatch(v, value) for k, v in _HARMLESS)


def find_attributes(old: bytes, new: bytes) -> list[str]:
    """Return the drivers that new lines of an attributes file select, except those of git itself and of Git LFS."""
    lines = set(new.decode(errors="replace").splitlines()) - set(old.decode(errors="replace").splitlines())
    found = {
        match[0].strip() for line in lines for match in _DRIVER.finditer(line) if match[2] not in _BUILT_IN[match[1]]
    }
    return sorted(found)


def is_ordinary_pointer(content: bytes, path: str, workspace: str) -> bool:
    """Return whether a ``.git`` file at ``path`` leads to a submodule or a linked work tree inside the workspace."""
    text = os.fsdecode(content).rstrip("\n")
    if not text.startswith("gitdir: ") or "\n" in text:
        return False
    here = posixpath.join(workspace, posixpath.dirname(path))
    target = posixpath.normpath(posixpath.join(here, text.removeprefix("gitdir: ")))
    inside = posixpath.relpath(target, workspace)
    return bool(re.fullmatch(r"(?:(?!\.\.)[^/]+/)*\.git/(?:modules|worktrees)/.+", inside))


@lru_cache(maxsize=8)
def list_included(content: bytes, git_directory: str, work_tree: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that a repository's configuration includes, and the directories that it takes hooks from."""
    try:
        found = parse_settings(content) or []
    except GitError:
        return (), ()
    files = [os.path.join(git_directory, value) for n, value in found if re.fullmatch(r"include(if\..*)?\.path", n)]
    hooks = [os.path.join(work_tree, value) for name, value in found if name == "core.hookspath"]
    return tuple(map(os.path.normpath, files)), tuple(map(os.path.normpath, hooks))
