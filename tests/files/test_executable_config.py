"""Executable configuration: found in a delta, labelled, and refused if a confined program wrote it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import Branch, BranchContext, Workspace
from forkwise.errors import CommitError, ExecutableConfigError
from forkwise.files.combine import combine
from forkwise.files.selection import select
from forkwise.files.shelf import shelve
from tests.git.payloads import HOOKS, run_plain_git
from tests.need import need

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    need(shutil.which("git") is not None, "git, whose configuration is parsed, is not installed")
    root = tmp_path / "project"
    root.mkdir()
    run_plain_git(root, "init", "--quiet")
    (root / "a.txt").write_text("one\n")
    (root / ".gitattributes").write_text("*.dat filter=old\n")
    return root


@pytest.fixture
def workspace(project: Path) -> Workspace:
    return Workspace(project, durable=False)


def write(branch: Branch, path: str, text: str) -> None:
    target = branch.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def labels(workspace: Workspace, change: Callable[[Path], object]) -> dict[str, str]:
    """Return the labelled paths of a branch in which ``change`` was called, and drop the branch."""
    branch = workspace.branch("labelled", None, None)
    try:
        change(branch.path)
        return dict(branch.delta().executable_config)
    finally:
        branch.abort()


def labels_of(workspace: Workspace, files: dict[str, str]) -> dict[str, str]:
    def change(root: Path) -> None:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    return labels(workspace, change)


PLAIN = (
    *(".envrc", ".mise.toml", "mise.toml", ".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json"),
    *("x.code-workspace", ".idea/runConfigurations/all.xml", ".idea/workspace.xml", ".run/all.run.xml"),
    *(".devcontainer/devcontainer.json", ".devcontainer.json", "sitecustomize.py", "usercustomize.py"),
    *("sitecustomize.pyc", "sitecustomize/__init__.py", "usercustomize.cpython-312-x86_64-linux-gnu.so"),
    "__pycache__/sitecustomize.cpython-312.pyc",
    *(".pre-commit-config.yaml", ".husky/pre-commit", "lefthook.yml", ".npmrc", ".yarnrc.yml", ".pnpmfile.cjs"),
    *(".cargo/config.toml", ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks/x.sh", ".mcp.json"),
    *(".cursor/mcp.json", ".gemini/settings.json", ".codex/config.toml", "opencode.json", ".forkwise/agents.toml"),
    *(".forkwise/config.toml", ".exrc", ".nvim.lua", ".dir-locals.el", ".gdbinit", ".bashrc", ".zshenv", ".profile"),
    *(
        ".ssh/config",
        ".ssh/authorized_keys",
        ".config/autostart/x.desktop",
        ".gitconfig",
        ".zed/tasks.json",
        ".cargo/config",
    ),
)
ORDINARY = (
    *("Makefile", "setup.py", "conftest.py", "package.json", "a.txt", "config", "HEAD", "src/config", "tasks.json"),
    *(
        "settings.json",
        ".github/workflows/ci.yml",
        ".gitignore",
        ".git/refs/heads/config",
        ".git/logs/refs/heads/hooks",
    ),
    *(".git/COMMIT_EDITMSG", ".git/hooks/pre-commit.sample", ".git/index", "hooks/pre-commit", "docs/envrc", "npmrc"),
    *(".vscode/extensions.json", ".idea/misc.xml", "notes.pth.txt", "envrc"),
)


def test_paths_that_are_labelled_at_any_depth(workspace: Workspace) -> None:
    names = [*PLAIN, *(f"deep/er/{name}" for name in PLAIN), ".VSCODE/Tasks.JSON"]
    assert sorted(labels_of(workspace, dict.fromkeys(names, "x\n"))) == sorted(names)


def test_ordinary_paths_are_not_labelled(workspace: Workspace) -> None:
    assert labels_of(workspace, dict.fromkeys(ORDINARY, "x\n")) == {}


def test_hooks_are_labelled(workspace: Workspace) -> None:
    names = [f".git/hooks/{name}" for name in HOOKS]
    names += ["sub/.git/hooks/update", ".git/modules/lib/hooks/pre-push"]
    found = labels_of(workspace, dict.fromkeys(names, "#!/bin/sh\n"))
    assert sorted(found) == sorted(names)
    assert found[".git/hooks/pre-commit"] == "git (hook pre-commit)"


@pytest.mark.parametrize(
    "text",
    [
        '[branch "topic"]\n\tremote = origin\n\tmerge = refs/heads/topic\n',  # git push -u
        '[remote "origin"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n',
        '[remote "other"]\n\turl = git@example.org:x/y.git\n',
        "[user]\n\tname = Agent\n\temail = agent@example.org\n[commit]\n\tgpgsign = false\n",
        '[submodule "lib"]\n\turl = ../lib\n\tactive = true\n\tupdate = checkout\n',
        "[core]\n\tautocrlf = input\n\tfsmonitor = true\n[pull]\n\trebase = true\n",
        '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n\trequired = true\n',
        "; a comment\n",
    ],
)
def test_keys_that_only_hold_data(workspace: Workspace, project: Path, text: str) -> None:
    old = (project / ".git/config").read_text()
    assert labels_of(workspace, {".git/config": old + text}) == {}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[core]\n\tfsmonitor = ./x\n", "core.fsmonitor"),
        ("[CORE]\n\tFSMonitor = ./x\n", "core.fsmonitor"),
        ("[core]\n\thooksPath = x\n", "core.hookspath"),
        ("[core]\n\tsshCommand = x\n", "core.sshcommand"),
        ("[core]\n\tpager = x\n", "core.pager"),
        ("[core]\n\tworktree = /\n", "core.worktree"),
        ("[core]\n\tworktree = ../../../..\n", "core.worktree"),
        ('[filter "any thing"]\n\tclean = x\n', "filter.any thing.clean"),
        ('[filter "lfs"]\n\tclean = git-lfs clean -- %f && x\n', "filter.lfs.clean"),
        ('[diff "x"]\n\ttextconv = x\n', "diff.x.textconv"),
        ('[merge "x"]\n\tdriver = x\n', "merge.x.driver"),
        ("[alias]\n\tst = !x\n", "alias.st"),
        ("[credential]\n\thelper = !x\n", "credential.helper"),
        ("[include]\n\tpath = x\n", "include.path"),
        ('[includeIf "onbranch:main"]\n\tpath = x\n', "includeif.onbranch:main.path"),
        ('[submodule "x"]\n\tupdate = !x\n', "submodule.x.update"),
        ('[remote "x"]\n\turl = ext::sh -c x\n', "remote.x.url"),
        ('[remote "x"]\n\turl = -oProxyCommand=x\n', "remote.x.url"),
        ('[remote "x"]\n\tpushurl = ./evil.git\n', "remote.x.pushurl"),
        ('[branch "x"]\n\tremote = ext::sh\n', "branch.x.remote"),
        ('[remote "x"]\n\turl = ssh://-oProxyCommand=x/y\n', "remote.x.url"),
        ('[remote "x"]\n\tuploadpack = x\n', "remote.x.uploadpack"),
        ('[url "ext::x"]\n\tinsteadOf = https://\n', "url.ext::x.insteadof"),
        ("[gpg]\n\tprogram = x\n", "gpg.program"),
        ("[protocol]\n\tallow = always\n", "protocol.allow"),
        ("[http]\n\tsslVerify = false\n", "http.sslverify"),
        ("[a-later-version]\n\trunsThis = x\n", "a-later-version.runsthis"),
        ("[core\n", "cannot be checked"),
    ],
)
@pytest.mark.parametrize("path", [".git/config", ".git/modules/lib/config", "sub/.git/config.worktree"])
def test_keys_that_make_git_run_something(workspace: Workspace, project: Path, path: str, text: str, key: str) -> None:
    old = (project / ".git/config").read_text()
    found = labels_of(workspace, {path: old + text})
    assert list(found) == [path]
    assert key in found[path]


def test_keys_that_were_there_before_are_not_labelled(workspace: Workspace, project: Path) -> None:
    text = (project / ".git/config").read_text() + '[alias]\n\tst = status\n[filter "x"]\n\tclean = x\n'
    (project / ".git/config").write_text(text)
    assert labels_of(workspace, {".git/config": text + '[branch "x"]\n\tremote = origin\n'}) == {}
    assert (
        "filter.x.clean" in labels_of(workspace, {".git/config": text + '[filter "x"]\n\tclean = y\n'})[".git/config"]
    )
    # A setting that kept git from running something is gone.
    assert labels_of(workspace, {".git/config": text.replace("clean = x", "")}) != {}
    assert list(labels(workspace, lambda root: (root / ".git/config").unlink())) == [".git/config"]


def test_attributes_that_select_a_driver(workspace: Workspace) -> None:
    old = "*.dat filter=old\n"
    assert labels_of(workspace, {".gitattributes": old + "*.png binary\n*.py diff=python\n*.sh text eol=lf\n"}) == {}
    assert labels_of(workspace, {".gitattributes": old + "*.bin filter=lfs diff=lfs merge=lfs -text\n"}) == {}
    for path in (".gitattributes", "deep/.gitattributes", ".git/info/attributes"):
        assert labels_of(workspace, {path: old + "* filter=evil\n"}) != {}
    assert labels_of(workspace, {".gitattributes": "* diff=exif merge=mine\n"}) == {
        ".gitattributes": "git (diff=exif, merge=mine)"
    }


def test_pth_files_with_code(workspace: Workspace) -> None:
    site = ".venv/lib/python3.12/site-packages"
    harmless = {
        "model.pth": "\x80weights",
        f"{site}/paths.pth": "/somewhere\n../src\n",
        f"{site}/_virtualenv.pth": "import _virtualenv",
        f"{site}/__editable__.x.pth": "import __editable___x_1_0_finder; __editable___x_1_0_finder.install()",
    }
    assert labels_of(workspace, harmless) == {}
    evil = {f"{site}/x.pth": "/a\nimport os; os.system('x')\n", "y.pth": "import\tos\n"}
    assert sorted(labels_of(workspace, evil)) == sorted(evil)


def test_links_and_pointers_of_repositories(workspace: Workspace, project: Path) -> None:
    (project / "sub").mkdir()

    def change(root: Path) -> None:
        (root / "one").mkdir()
        (root / "one/.git").symlink_to("../elsewhere")
        (root / ".git/logs").mkdir(exist_ok=True)
        (root / ".git/logs/HEAD").symlink_to("/root/.bashrc")
        for name, text in {
            "two/.git": "gitdir: /elsewhere/evil\n",
            "three/.git": "gitdir: ../four\n",
            "lib/.git": "gitdir: ../.git/modules/lib\n",
            "tree/.git": f"gitdir: {project}/.git/worktrees/tree\n",
            ".git/worktrees/tree/commondir": "../..\n",
            ".git/commondir": "/elsewhere\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    assert sorted(labels(workspace, change)) == [
        ".git/commondir",
        ".git/logs/HEAD",
        "one/.git",
        "three/.git",
        "two/.git",
    ]


def test_bare_repositories_with_a_configuration_that_runs(workspace: Workspace, project: Path) -> None:
    bare = {"fixture/HEAD": "ref: refs/heads/main\n", "fixture/objects/x": "", "fixture/refs/x": ""}
    assert labels_of(workspace, {**bare, "fixture/config": CONFIG}) == {}
    found = labels_of(workspace, {**bare, "fixture/config": f"{CONFIG}\tfsmonitor = ./x\n"})
    assert sorted(found) == ["fixture/HEAD", "fixture/config"]
    # In two commits: the configuration first, which is then an ordinary file.
    (project / "fixture").mkdir()
    (project / "fixture/config").write_text(f"{CONFIG}\tfsmonitor = ./x\n")
    assert list(labels_of(workspace, bare)) == ["fixture/HEAD"]


def test_hooks_of_bare_repositories(workspace: Workspace) -> None:
    bare = {f"x.git/{name}": "x" for name in ("HEAD", "objects/x", "refs/x", "config", "hooks/update.sample")}
    assert list(labels_of(workspace, {**bare, "x.git/config": CONFIG, "x.git/hooks/update": "x"})) == [
        "x.git/hooks/update"
    ]


def test_links_in_the_place_of_configuration_directories(workspace: Workspace) -> None:
    def change(root: Path) -> None:
        (root / "evil").mkdir()
        (root / "evil/tasks.json").write_text("x")
        (root / ".vscode").symlink_to("evil")
        (root / ".claude").symlink_to("evil")
        (root / "link").symlink_to("evil")

    assert list(labels(workspace, change)) == [".claude", ".vscode"]


def test_hooks_behind_a_link(workspace: Workspace, project: Path) -> None:
    (project / "tools").mkdir()
    shutil.rmtree(project / ".git/hooks", ignore_errors=True)
    (project / ".git/hooks").symlink_to("../tools")
    assert list(labels_of(workspace, {"tools/pre-commit": "x", "other": "x"})) == ["tools/pre-commit"]


def test_files_that_the_repository_s_configuration_names(workspace: Workspace, project: Path) -> None:
    run_plain_git(project, "config", "core.hooksPath", "tools/hooks")
    run_plain_git(project, "config", "include.path", "../shared.ini")
    (project / "shared.ini").write_text("[user]\n\tname = a\n")
    found = labels_of(
        workspace, {"tools/hooks/pre-commit": "x", "tools/other": "x", "shared.ini": "[alias]\n\tx = !x\n", "z": "z"}
    )
    assert found == {"tools/hooks/pre-commit": "git (core.hooksPath)", "shared.ini": "git (alias.x)"}
    assert labels_of(workspace, {"shared.ini": "[user]\n\tname = b\n"}) == {}


# Refusal


def run_confined(branch: Branch, line: str = "echo x > .envrc") -> Branch:
    branch.run(["sh", "-c", line], check=True)
    return branch


def refuse(commit: Callable[[], object], *paths: str) -> None:
    with pytest.raises(ExecutableConfigError, match="allow-executable-config") as caught:
        commit()
    assert caught.value.paths == paths
    assert list(caught.value.executors) == list(paths)
    assert isinstance(caught.value, CommitError)


def test_a_confined_command_s_branch_is_refused_and_stays_open(workspace: Workspace, project: Path) -> None:
    branch = run_confined(workspace.branch("b"), "echo x > .envrc; echo two > a.txt")
    refuse(branch.commit, ".envrc")
    assert not (project / ".envrc").exists()
    assert (project / "a.txt").read_text() == "one\n"
    refuse(Workspace(project).open("b").commit, ".envrc")  # another process
    commit = branch.commit(allow_executable_config=True)
    assert commit.executable_config == ((".envrc", "direnv"),)
    assert workspace.history()[0].executable_config == ((".envrc", "direnv"),)
    assert (project / ".envrc").exists()


def test_a_person_s_branch_is_only_labelled(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch, ".envrc", "x")
    branch.run(["true"], confinement="open")
    assert branch.commit().executable_config == ((".envrc", "direnv"),)


def test_other_changes_of_confined_programs_are_committed(workspace: Workspace) -> None:
    line = "git push -u origin main 2>/dev/null; git config branch.x.remote origin; echo two > a.txt"
    assert run_confined(workspace.branch("b"), line).commit().executable_config == ()


def test_a_confined_function_s_branch_is_refused(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    with BranchContext(lambda path: (path / ".envrc").write_text("x"), branch) as context:
        context.wait()
    refuse(branch.commit, ".envrc")
    branch.abort()


@pytest.mark.parametrize("view", ["copy", None])
def test_a_rebase_keeps_the_refusal(project: Path, view: str | None) -> None:
    workspace = Workspace(project, view=view, durable=False)
    branch = run_confined(workspace.branch("b"))
    with workspace.branch("other") as other:
        write(other, "other.txt", "x")
    branch.rebase()
    refuse(branch.commit, ".envrc")
    branch.abort()


def test_a_nested_branch_hands_the_refusal_to_its_parent(workspace: Workspace) -> None:
    outer = workspace.branch("outer")
    assert run_confined(outer.branch("inner")).commit().executable_config == ((".envrc", "direnv"),)
    refuse(outer.commit, ".envrc")
    outer.abort()


def test_combinations_and_selections_are_refused(workspace: Workspace) -> None:
    first, second = run_confined(workspace.branch("first")), workspace.branch("second")
    write(second, "second.txt", "x")
    both = combine(workspace, [first, second], "both").branch
    refuse(both.commit, ".envrc")
    chosen = select(workspace, {"first": first}, "chosen", {".envrc": "first"})
    refuse(chosen.commit, ".envrc")
    for branch in workspace.branches():
        branch.abort()


def test_no_resolution_of_a_conflict_gets_around_it(workspace: Workspace, project: Path) -> None:
    branch = run_confined(workspace.branch("b"), "echo x > .envrc; echo two > a.txt")
    (project / "a.txt").write_text("three\n")
    for choice in ("ours", "theirs", "merge", "refuse"):
        refuse(lambda choice=choice: branch.commit(on_conflict=choice), ".envrc")
    branch.abort()


def test_shelved_and_abandoned_branches_keep_the_refusal(workspace: Workspace) -> None:
    branch = run_confined(workspace.branch("b"))
    refuse(shelve(branch).unshelve().commit, ".envrc")
    for left in workspace.branches():
        left.abort()


def test_the_cost_depends_on_the_changes(workspace: Workspace, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the workspace is opened for a change that cannot be executable configuration, and git is not run."""
    monkeypatch.setattr("forkwise.git.configuration.parse_settings", lambda _: pytest.fail("git was run"))
    branch = run_confined(workspace.branch("b"), "echo two > a.txt")
    assert branch.delta().executable_config == ()
    branch.commit()
    assert os.path.exists(project / "a.txt")
