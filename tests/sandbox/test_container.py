"""forkwise under the defaults of Docker: no namespaces, no mounts, Landlock and seccomp filters allowed.

The container is imitated: see ``tests.sandbox.container`` for what is the same and what differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forkwise.linux.landlock import abi
from tests.need import need
from tests.sandbox.container import in_container
from tests.unprivileged import UNPRIVILEGED, interpreter, unprivileged_project

pytestmark = pytest.mark.integration  # each test starts many interpreters

TOOLS = (
    *("click", "rich", "pygments", "markdown_it", "mdurl", "rapidfuzz", "pydantic_core", "typing_extensions"),
    *("opentelemetry", "junitparser", "defusedxml", "tomlkit"),
)

COMMAND_LINE = "from forkwise.cli import main; main()"

LANDLOCK = """
import json, sys
from forkwise import BestOfN, Confinement, SandboxRunner, Tests, Workspace
ws = Workspace(sys.argv[1])
weaker = Confinement.standard(landlock_instead=True)
words = ["sh", "-c", "echo two > a.txt; echo outside > " + sys.argv[2]]
outcome = BestOfN(words, n=2, runner=SandboxRunner(weaker), evaluate=Tests("grep -q two a.txt", confinement=weaker))(ws)
report = {"failed": [result.reason for result in outcome.all_results], "committed": outcome.committed}
words = ["sh", "-c", "echo two > a.txt"]
outcome = BestOfN(words, n=2, runner=SandboxRunner(weaker), evaluate=Tests("grep -q two a.txt", confinement=weaker))(ws)
report |= {"winner": outcome.committed, "text": (ws.path / "a.txt").read_text()}
ws.undo()
report["undone"] = (ws.path / "a.txt").read_text()
print(json.dumps(report))
"""

FUNCTION = """
import json, sys
from forkwise import BranchContext, Confinement, ProcessBranchError

def work(path):
    (path / "made").touch()
    (path / "made").unlink()
    try:
        open(sys.argv[2], "w")
    except OSError as error:
        return error.strerror

refused = []
for _ in range(3):
    try:
        with BranchContext(work, sys.argv[1]) as context:
            context.wait(60)
    except ProcessBranchError as error:
        refused.append(str(error))
with BranchContext(work, sys.argv[1], confinement=Confinement.standard(landlock_instead=True)) as context:
    context.wait(60)
    print(json.dumps({"refused": refused, "value": context.result.value}))
"""

Finished = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Container:
    """A project of one user, and running programs on it in a container."""

    user: int
    home: Path
    environment: dict[str, str]

    @property
    def project(self) -> Path:
        return self.home / "project"

    def python(self, program: str, *words: str, grants: Sequence[str] = ()) -> Finished:
        """Run a Python program."""
        python = sys.executable if self.user == 0 else interpreter()
        command = in_container([python, "-c", program, *words], user=self.user, grants=grants)
        return subprocess.run(command, env=self.environment, cwd=self.project, capture_output=True, text=True)

    def forkwise(self, *words: str, grants: Sequence[str] = ()) -> Finished:
        """Run the command line."""
        done = self.python(COMMAND_LINE, *words, grants=grants)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def doctor(self, grants: Sequence[str] = ()) -> dict[str, Any]:
        """Return the findings of ``forkwise doctor`` by name, and the chosen view."""
        done = self.forkwise("doctor", "--json", grants=grants)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        found = {finding["name"]: finding for finding in [*report["views"], *report["confinement"]]}
        return {**found, "chosen": report["chosen"]}


@pytest.fixture(scope="module", params=[0, UNPRIVILEGED], ids=["root", "user"])
def container(request: pytest.FixtureRequest) -> Iterator[Container]:
    """A container with a project of its user in it."""
    with unprivileged_project(TOOLS) as (home, environment):
        user: int = request.param
        if user == 0:
            for path in (home, home / "project", home / "project/a.txt"):
                os.chown(path, 0, 0)
        made = Container(user, home, {**environment, "XDG_STATE_HOME": str(home / "state")})
        done = made.python("")
        need(done.returncode == 0, f"a container cannot be imitated: {done.stderr.strip()}")
        yield made


def test_it_is_a_container(container: Container) -> None:
    done = container.python("print(open('/proc/self/status').read())")
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert status["CapBnd"] == "00000000a80425fb"  # what Docker prints for its default
    assert status["CapEff"] == ("00000000a80425fb" if container.user == 0 else "0000000000000000")
    assert status["Seccomp"] == "2"
    refused = (
        "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); c.unshare(0x10000000); print(ctypes.get_errno())"
    )
    assert container.python(refused).stdout == "1\n"


def test_the_doctor_says_what_is_missing_and_what_to_grant(container: Container) -> None:
    found = container.doctor()
    assert found["chosen"] in ("btrfs", "reflink", "copy")
    assert found["copy"]["works"]
    assert found["Landlock"]["works"] or "CONFIG_SECURITY_LANDLOCK" in str(found["Landlock"]["remedy"])
    assert found["seccomp"]["works"]
    for name in ("overlay", "fuse", "private overlay", "private /proc", "cgroups"):
        assert not found[name]["works"], name
        assert found[name]["detail"], name
        assert found[name]["remedy"], name
    for kind in ("user", "mount", "PID", "network"):
        finding = found[f"{kind} namespaces"]
        assert finding["detail"] == "unshare(CLONE_NEWUSER): Operation not permitted"
        assert "seccomp=unconfined" in str(finding["remedy"])
    if container.user == 0:
        assert "--cap-add SYS_ADMIN" in str(found["overlay"]["remedy"])
    text = container.forkwise("doctor").stdout
    assert f"the view '{found['chosen']}'" in text
    assert "seccomp=unconfined" in text


def test_files_are_branched_committed_and_undone(container: Container) -> None:
    made = json.loads(container.forkwise("branch", "create", "b", "--json").stdout)["branch"]
    assert made["view"] in ("btrfs", "reflink", "copy")
    write = "import sys; open(sys.argv[1] + '/a.txt', 'w').write('two\\n')"
    assert container.python(write, made["path"]).returncode == 0
    assert container.forkwise("branch", "commit", "b").returncode == 0
    assert (container.project / "a.txt").read_text() == "two\n"
    assert container.forkwise("undo").returncode == 0
    assert (container.project / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("words", [("best-of", "2"), ("speculate", "--confinement", "open")], ids=["best-of", "open"])
def test_commands_are_refused_with_what_is_missing(container: Container, words: tuple[str, ...]) -> None:
    done = container.forkwise(*words, "-c", "echo two > a.txt", "--test", "grep -q two a.txt", "--no-baseline")
    assert done.returncode == 7, done.stderr
    assert "namespaces" in done.stdout
    assert "Operation not permitted" in done.stdout
    assert "landlock_instead" in done.stdout
    assert (container.project / "a.txt").read_text() == "one\n"


def test_a_baseline_is_refused_likewise(container: Container) -> None:
    done = container.forkwise("best-of", "2", "-c", "echo two > a.txt", "--test", "grep -q two a.txt")
    assert done.returncode == 6, done.stdout
    assert "Operation not permitted" in done.stderr
    assert "landlock_instead" in done.stderr
    assert (container.project / "a.txt").read_text() == "one\n"


def test_a_command_in_a_branch_is_refused_likewise(container: Container) -> None:
    container.forkwise("branch", "create", "b")
    done = container.forkwise("branch", "run", "b", "--", "true")
    assert container.forkwise("branch", "abort", "b").returncode == 0
    assert done.returncode == 6
    assert "Operation not permitted" in done.stderr
    assert "landlock_instead" in done.stderr


def test_landlock_is_enough_where_it_is_accepted(container: Container) -> None:
    need(bool(container.doctor()["Landlock"]["works"]), "this kernel has no Landlock")
    outside = container.home / "outside"
    done = container.python(LANDLOCK, str(container.project), str(outside))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert not report["committed"], report
    assert not outside.exists()
    assert report["winner"] is True
    assert report["text"] == "two\n"
    assert report["undone"] == "one\n"


@pytest.mark.parametrize("grant", ["seccomp", "sys_admin"])
def test_a_grant_gives_sandboxes_only_with_a_proc_that_is_not_masked(container: Container, grant: str) -> None:
    found = container.doctor([grant])
    need(bool(found["user namespaces"]["works"]), "user namespaces are forbidden here")
    assert found["private overlay"]["works"]
    assert not found["private /proc"]["works"]
    assert "systempaths=unconfined" in str(found["private /proc"]["remedy"])
    words = ("best-of", "2", "-c", "echo two > a.txt", "--test", "grep -q two a.txt", "--no-baseline")
    refused = container.forkwise(*words, grants=[grant])
    assert refused.returncode == 7
    assert refused.stdout.count("/proc: Operation not permitted") >= 2, refused.stdout  # both attempts say why
    assert "Broken pipe" not in refused.stdout
    assert "forkwise doctor" in refused.stdout
    assert "--landlock-instead" in refused.stdout
    assert container.doctor([grant, "systempaths"])["private /proc"]["works"]
    allowed = container.forkwise(*words, grants=[grant, "systempaths"])
    assert allowed.returncode == 0, allowed.stdout
    assert (container.project / "a.txt").read_text() == "two\n"
    assert container.forkwise("undo").returncode == 0
    assert (container.project / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("grants", [(), ("seccomp",)], ids=["default", "seccomp"])
def test_the_command_line_accepts_landlock(container: Container, grants: Sequence[str]) -> None:
    """Also if the namespaces are allowed, and only the mount of a private /proc is refused."""
    need(abi() > 0, "this kernel has no Landlock")
    outside = container.home / "outside-cli"
    line = f"echo two > a.txt; echo x > {outside} || true"
    words = ("best-of", "2", "-c", line, "--landlock-instead", "--test", "grep -q two a.txt")
    done = container.forkwise(*words, grants=grants)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (container.project / "a.txt").read_text() == "two\n"
    assert container.forkwise("undo", grants=grants).returncode == 0
    assert (container.project / "a.txt").read_text() == "one\n"
    assert not outside.exists()


def test_a_command_in_a_branch_runs_with_landlock(container: Container) -> None:
    need(abi() > 0, "this kernel has no Landlock")
    outside = container.home / "outside-branch"
    container.forkwise("branch", "create", "b")
    done = container.forkwise("branch", "run", "b", "--landlock-instead", "--", "sh", "-c", f"> {outside}")
    assert container.forkwise("branch", "abort", "b").returncode == 0
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr
    assert not outside.exists()


def test_a_function_runs_with_landlock_if_only_proc_is_refused(container: Container) -> None:
    need(abi() > 0, "this kernel has no Landlock")
    outside = container.home / "outside-function"
    done = container.python(FUNCTION, str(container.project), str(outside), grants=["seccomp"])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert ["/proc: Operation not permitted" in text for text in report["refused"]] == [True] * 3, report["refused"]
    assert report["value"] == "Permission denied"
    assert not outside.exists()


def test_with_sys_admin_root_gets_the_overlay_view(container: Container) -> None:
    chosen = container.doctor(["sys_admin"])["chosen"]
    assert (chosen == "overlay") is (container.user == 0)
