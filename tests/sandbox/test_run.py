"""Commands in a branch: what they see, what is returned, and that they end when they must."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from forkwise import Branch, BranchContext, Confinement, Finished, Limits, ProcessBranchError, Workspace
from forkwise.sandbox.confinement import Network
from forkwise.sandbox.network import uplink
from tests.need import need
from tests.sandbox.conftest import processes_about


def sh(branch: Branch, script: str, **options: object) -> str:
    """Return what a shell script prints in a branch."""
    done = branch.run(["sh", "-c", script], text=True, **options)
    assert done.returncode == 0, done
    return str(done.stdout)


# What it sees


def test_the_branch_is_at_the_workspaces_own_path(branch: Branch) -> None:
    path = branch.workspace.path
    assert sh(branch, "pwd; cat a.txt") == f"{path}\none\n"
    sh(branch, f"echo two > {path}/a.txt; echo new > {path}/b.txt")
    assert (path / "a.txt").read_text() == "one\n"
    assert not (path / "b.txt").exists()
    assert branch.delta().changed == ("a.txt",)
    branch.commit()
    assert (path / "a.txt").read_text() == "two\n"


def test_a_virtual_environment_with_absolute_shebangs(workspace: Workspace) -> None:
    home = workspace.path / "env"
    venv.create(home, with_pip=False, symlinks=True)
    tool = home / "bin/tool"
    tool.write_text(f"#!{home}/bin/python\nimport sys; open(sys.prefix + '/marked', 'w').write(sys.prefix)\n")
    tool.chmod(0o755)
    branch = workspace.branch("b")
    assert branch.run([str(tool)]).returncode == 0
    assert not (home / "marked").exists()
    assert (branch.path / "env/marked").read_text() == str(home)
    branch.abort()


def test_an_editable_install_finds_the_branchs_sources(workspace: Workspace) -> None:
    package = workspace.path / "src/thing.py"
    package.parent.mkdir()
    package.write_text("value = 'workspace'\n")
    pth = workspace.path / "site/thing.pth"
    pth.parent.mkdir()
    pth.write_text(f"{package.parent}\n")
    branch = workspace.branch("b")
    (branch.path / "src/thing.py").write_text("value = 'branch'\n")
    code = f"import site; site.addsitedir({str(pth.parent)!r}); import thing; print(thing.value)"
    assert branch.run([sys.executable, "-c", code], text=True).stdout == "branch\n"
    branch.abort()


def test_a_cmake_build_directory(workspace: Workspace) -> None:
    need(shutil.which("cmake") is not None and shutil.which("cc") is not None, "cmake and a C compiler are needed")
    (workspace.path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nadd_executable(p main.c)\n"
    )
    (workspace.path / "main.c").write_text("int main(void) { return 3; }\n")
    build = workspace.path / "build"
    subprocess.run(["cmake", "-S", str(workspace.path), "-B", str(build)], check=True, capture_output=True)
    branch = workspace.branch("b")
    (branch.path / "main.c").write_text("int main(void) { return 4; }\n")
    done = branch.run(["cmake", "--build", str(build)], text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert branch.run([str(build / "p")]).returncode == 4
    assert not (build / "p").exists()
    branch.abort()


def test_the_rest_is_read_only_and_tmp_is_private(branch: Branch, tmp_path: Path) -> None:
    script = "touch /etc/x /usr/x /x 2>/dev/null; ls /etc/x /usr/x /x 2>/dev/null; echo kept > /tmp/mine; cat /tmp/mine"
    assert sh(branch, f"{script}; true") == "kept\n"
    assert not Path("/tmp/mine").exists()


def test_writable_and_hidden(branch: Branch, tmp_path: Path) -> None:
    cache, secret = tmp_path / "cache", tmp_path / "secret"
    cache.mkdir()
    secret.mkdir()
    (secret / "key").write_text("hidden")
    (tmp_path / "plain").write_text("hidden")
    confinement = Confinement.standard(
        writable=(str(cache),), hidden=(str(secret), str(tmp_path / "plain")), given={"SEEN": "yes"}
    )
    script = f"echo kept > {cache}/file; cat {secret}/key {tmp_path}/plain 2>/dev/null; echo $SEEN"
    assert sh(branch, script, confinement=confinement) == "yes\n"
    assert (cache / "file").read_text() == "kept\n"


def test_open_confinement_leaves_the_rest_alone(branch: Branch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    sh(branch, f"echo written > {outside}; echo two > a.txt", confinement="open")
    assert outside.read_text() == "written\n"
    assert (branch.workspace.path / "a.txt").read_text() == "one\n"


def test_environment(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    monkeypatch.setenv("ORDINARY", "value")
    show = "echo ${MY_API_TOKEN-none} ${ORDINARY-none} $FORKWISE_BRANCH"
    assert sh(branch, show) == "secret value /main/attempt\n"
    assert sh(branch, show, confinement="strict") == "none none /main/attempt\n"
    passed = Confinement.standard(passed=("PATH",))
    assert sh(branch, show, confinement=passed) == "none none /main/attempt\n"


def test_a_directory_for_temporary_files_that_is_hidden_gives_way(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as hidden:
        monkeypatch.setenv("TMPDIR", hidden)
        monkeypatch.setenv("TMP", "/var/tmp")
        show = ["sh", "-c", 'mktemp -u; echo "$TMPDIR $TMP"']
        made, variables = branch.run(show, check=True, text=True).stdout.splitlines()
        assert made.startswith("/tmp/tmp.")
        assert variables == "/tmp /var/tmp"
        shown = Confinement.standard(writable=[hidden])
        assert branch.run(show, confinement=shown, check=True, text=True).stdout.splitlines()[1] == f"{hidden} /var/tmp"
        opened = branch.run(show, confinement=Confinement.open(), check=True, text=True)
        assert opened.stdout.splitlines()[1] == f"{hidden} /var/tmp"


def test_a_function_finds_a_directory_for_temporary_files(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: Path) -> str:
        with tempfile.NamedTemporaryFile() as file:
            return os.path.dirname(file.name)

    with tempfile.TemporaryDirectory(dir="/tmp") as hidden:
        monkeypatch.setenv("TMPDIR", hidden)
        monkeypatch.setattr(tempfile, "tempdir", hidden)
        with BranchContext(make, branch.path, confinement="standard") as context:
            context.wait(60)
        assert context.result.value == "/tmp"


def test_the_ledger_of_other_machines_is_not_passed_on(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_LEDGER", "postgresql:///forkwise?host=/tmp")
    assert sh(branch, "echo ${FORKWISE_LEDGER-none}") == "none\n"


def test_only_its_own_processes_are_seen(branch: Branch) -> None:
    seen = sh(branch, "ls /proc | grep -c '^[0-9]*$'")
    assert int(seen) <= 4
    assert sh(branch, f"kill -9 {os.getpid()} 2>/dev/null || echo no such process") == "no such process\n"


@pytest.mark.parametrize("network", ["none", "private"])
def test_five_branches_serve_the_same_port(workspace: Workspace, network: Network) -> None:
    serve = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 3000)); "
        "c = socket.create_connection(('127.0.0.1', 3000)); s.accept()[0].send(b'mine'); print(c.recv(9).decode())"
    )
    branches = [workspace.branch(f"b{n}") for n in range(5)]
    private = Confinement.standard(network=network)
    outcomes = [b.run([sys.executable, "-c", serve], confinement=private, text=True) for b in branches]
    assert [o.stdout for o in outcomes] == ["mine\n"] * 5, outcomes


def test_a_private_network_reaches_no_service_of_the_host(branch: Branch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hosts = ["127.0.0.1", "localhost", socket.gethostbyname(socket.gethostname())]
        knock = f"""
import socket
for host in {hosts!r}:
    try:
        socket.create_connection((host, {port}), timeout=2)
        print("reached", host)
    except OSError:
        pass
"""
        done = branch.run([sys.executable, "-c", knock], confinement=Confinement.standard(network="private"), text=True)
        assert (done.returncode, done.stdout) == (0, ""), done
        done = branch.run([sys.executable, "-c", knock], text=True)
        assert "reached 127.0.0.1" in done.stdout, "standard has the host's network"


@pytest.mark.parametrize("program", ["pasta", "slirp4netns"])
def test_a_private_network_has_a_way_out(branch: Branch, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(shutil.which(program) is not None, f"{program} is not installed")
    monkeypatch.setattr(uplink, "find_uplink_program", lambda: program)
    show = "import socket; print([name for _, name in socket.if_nameindex() if name != 'lo'])"
    done = branch.run([sys.executable, "-c", show], confinement=Confinement.standard(network="private"), text=True)
    assert done.stdout.strip() not in ("", "[]"), done
    done = branch.run([sys.executable, "-c", show], confinement=Confinement.standard(network="none"), text=True)
    assert done.stdout.strip() == "[]"


# Results


def test_output_input_and_exit_code(branch: Branch) -> None:
    done = branch.run(["sh", "-c", "cat; echo problem >&2; exit 3"], input="given")
    assert (done.stdout, done.stderr, done.returncode, done.ending) == (b"given", b"problem\n", 3, "exit")
    assert done.args == ["sh", "-c", "cat; echo problem >&2; exit 3"]
    with pytest.raises(subprocess.CalledProcessError):
        done.check_returncode()
    with pytest.raises(subprocess.CalledProcessError):
        branch.run(["false"], check=True)


def test_much_output_and_input_at_once(branch: Branch) -> None:
    blob = os.urandom(1 << 20) * 8
    done = branch.run(["sh", "-c", "cat | tee /dev/stderr"], input=blob)
    assert done.stdout == blob
    assert done.stderr == blob


def test_output_as_it_comes(branch: Branch) -> None:
    pieces: list[tuple[str, bytes]] = []
    done = branch.run(["sh", "-c", "echo a; echo b >&2"], on_output=lambda n, p: pieces.append((n, p)), capture=False)
    assert sorted(pieces) == [("stderr", b"b\n"), ("stdout", b"a\n")]
    assert done.stdout is None


def test_what_it_cost(branch: Branch) -> None:
    burn = "x = bytearray(60 << 20); n = sum(range(3_000_000))"
    done = branch.run([sys.executable, "-c", burn])
    assert done.memory > 60 << 20
    assert done.cpu > 0
    assert done.wall > 0


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_is_reported_as_such_and_the_branch_is_intact(branch: Branch, number: int) -> None:
    done = branch.run(["sh", "-c", f"echo two > a.txt; kill -{int(number)} $$"])
    assert (done.returncode, done.ending) == (-number, "signal")
    assert (branch.path / "a.txt").read_text() == "two\n"


def test_a_command_that_is_not_there(branch: Branch) -> None:
    with pytest.raises(ProcessBranchError, match="'no-such-command' could not be started: No such file"):
        branch.run(["no-such-command"])
    with pytest.raises(ValueError, match="no command"):
        branch.run([])


def test_it_is_looked_for_where_its_own_path_says(branch: Branch, tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / name / "tool").chmod(mode)
    seen = Confinement.standard(writable=(str(tmp_path / "first"), str(tmp_path / "second")))

    def run(*places: str, **options: object) -> str:
        found = ":".join(str(tmp_path / place) for place in places)
        return str(branch.run(["tool"], env={"PATH": found}, confinement=seen, text=True, **options).stdout)

    assert run("none", "second") == "second\n"
    assert run("first/tool", "first", "second") == "second\n"
    with pytest.raises(ProcessBranchError, match="'tool' could not be started: Permission denied"):
        run("first", "none")
    with pytest.raises(ProcessBranchError, match="'tool' could not be started: No such file"):
        run("none")
    (branch.path / "empty").touch(0o755)
    with pytest.raises(ProcessBranchError, match="could not be started: Exec format error"):
        branch.run(["./empty"])


@pytest.mark.parametrize("preset", ["open", "standard", "strict"])
def test_it_is_confined_alike_with_and_without_limits(branch: Branch, preset: str) -> None:
    status = (
        "grep -oE '^(Cap|NoNew|Seccomp|Sig[BC]|Groups|Uid|Gid).*|[0-9a-f]{7}$' /proc/self/status"  # not two of libc's
    )
    show = f"ls /proc/self/fd; umask; ulimit -a | grep -v '^file'; ps -o pid,ppid,pgid,sid,args; {status}"
    limited = replace(Confinement.preset(preset), limits=Limits(file_size=1 << 40))
    assert sh(branch, show, confinement=preset) == sh(branch, show, confinement=limited)


# Its end


def test_a_timeout_ends_everything(branch: Branch, tmp_path: Path) -> None:
    done = branch.run(["sh", "-c", f"setsid sleep 1000 {tmp_path} & trap '' TERM; sleep 1000"], timeout=0.3)
    assert done.ending == "timeout"
    assert processes_about(str(tmp_path)) == []


STUBBORN = [
    "setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &",
    "(setsid setsid sleep 1000 &) &",
    "sh -c 'kill -STOP $$' & ",
    "sh -c 'trap \"\" TERM; while :; do sleep 0.01 & done' &",
    "nohup sleep 1000 > /dev/null 2>&1 &",
]


@pytest.mark.parametrize("script", STUBBORN)
def test_nothing_outlives_its_command(branch: Branch, script: str) -> None:
    marked = f"forkwise-marker-{os.getpid()}"
    done = branch.run(["sh", "-c", f"MARK={marked}; export MARK; {script} true"], timeout=30)
    assert done.ending in ("exit", "signal")
    assert not _environ_has(marked)


def _environ_has(text: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if text.encode() in file.read():
                    return True
        except OSError:
            continue
    return False


def test_cancelling_ends_everything(branch: Branch) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def seen(_name: str, _piece: bytes) -> None:
            loop.call_soon_threadsafe(begun.set)

        job = asyncio.create_task(branch.arun(["sh", "-c", "echo begun; sleep 1000"], on_output=seen))
        await begun.wait()
        job.cancel()
        await job

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_many_at_once_from_asyncio(branch: Branch) -> None:
    async def run_many() -> list[Finished]:
        return await asyncio.gather(*(branch.arun(["echo", str(n)], text=True) for n in range(20)))

    outcomes = asyncio.run(run_many())
    assert [o.stdout for o in outcomes] == [f"{n}\n" for n in range(20)]


def test_all_of_many_from_asyncio_are_under_way_at_once(workspace: Workspace, tmp_path: Path) -> None:
    many = 40
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    os.mkfifo(meeting / "gate")
    gate = os.open(meeting / "gate", os.O_RDWR)
    arrived: list[bytes] = []

    def arrive(_name: str, piece: bytes) -> None:
        arrived.append(piece)
        if len(arrived) == many:
            os.write(gate, b"\n" * many)

    async def run_many() -> list[Finished]:
        confinement = Confinement.standard(writable=(str(meeting),))
        script = ["sh", "-c", f"echo up; read -r _ < {meeting}/gate"]
        branches = [workspace.branch(f"b{n}", on_success=None, on_error=None) for n in range(many)]
        return await asyncio.gather(*(b.arun(script, confinement=confinement, on_output=arrive) for b in branches))

    outcomes = asyncio.run(run_many())
    os.close(gate)
    assert [o.returncode for o in outcomes] == [0] * many


def test_cancelled_before_it_has_started_nothing_is_started_for_good(branch: Branch, tmp_path: Path) -> None:
    async def cancel(pauses: int) -> None:
        job = asyncio.create_task(branch.arun(["sleep", f"1000.{os.getpid()}"]))
        for _ in range(pauses):
            await asyncio.sleep(0)
        job.cancel()
        job.cancel()  # twice, as the end of a program may do
        await asyncio.wait([job])
        assert job.cancelled()

    for pauses in range(20):
        asyncio.run(cancel(pauses))
    assert processes_about(f"1000.{os.getpid()}") == []


def test_from_many_threads(branch: Branch) -> None:
    outputs: dict[int, str] = {}

    def work(number: int) -> None:
        outputs[number] = branch.run(["echo", str(number)], text=True).stdout

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {n: f"{n}\n" for n in range(16)}


def test_sandboxes_die_with_a_parent_that_is_killed(workspace: Workspace, tmp_path: Path) -> None:
    nap = f"1000.{os.getpid()}"  # a duration that no other process uses
    program = f"""
from forkwise import Workspace
branch = Workspace({str(workspace.path)!r}).branch("doomed")
branch.run(["sh", "-c", "echo up > begun; exec sleep {nap}"], on_output=print)
"""
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=os.environ)
    begun = Path(workspace.state) / "branches/doomed/layer/begun"
    while not begun.exists():
        assert parent.poll() is None
    parent.kill()
    parent.wait()
    while processes_about(f"sleep {nap}"):
        pass
    workspace.open("doomed").abort()


# Limits


def test_memory_limit(branch: Branch) -> None:
    confinement = Confinement.standard(limits=Limits(memory=64 << 20))
    done = branch.run([sys.executable, "-c", "x = bytearray(256 << 20)"], confinement=confinement)
    assert done.ending == "out of memory" or "MemoryError" in done.stderr.decode(), done
    assert done.enforced["memory"] in ("cgroup v1", "cgroup v2", "rlimit")


def test_cpu_limit(branch: Branch) -> None:
    confinement = Confinement.standard(limits=Limits(cpu=0.3))
    done = branch.run(["sh", "-c", "while :; do :; done"], confinement=confinement, timeout=60)
    assert done.ending in ("killed", "signal")
    assert done.ending == "signal" or done.limit == "cpu"


def test_process_limit(branch: Branch) -> None:
    confinement = Confinement.standard(limits=Limits(processes=20))
    bomb = "import os\nfor n in range(100):\n    if os.fork() == 0:\n        os.kill(os.getpid(), 19)\n"
    done = branch.run([sys.executable, "-c", bomb], confinement=confinement, text=True, timeout=60)
    assert "Resource temporarily unavailable" in done.stderr


def test_file_size_limit(branch: Branch) -> None:
    confinement = Confinement.standard(limits=Limits(file_size=1 << 20))
    done = branch.run(["dd", "if=/dev/zero", "of=big", "bs=64k", "count=64"], confinement=confinement)
    assert done.returncode != 0
    assert (branch.path / "big").stat().st_size == 1 << 20


def test_disk_limit(branch: Branch) -> None:
    confinement = Confinement.standard(limits=Limits(disk=8 << 20))
    script = "n=0; while :; do head -c 1M /dev/urandom > file$n; n=$((n+1)); done"
    done = branch.run(["sh", "-c", script], confinement=confinement, timeout=60)
    assert (done.ending, done.limit) == ("killed", "disk")


def test_wall_limit_of_a_confinement(branch: Branch) -> None:
    done = branch.run(["sleep", "1000"], confinement=Confinement.standard(limits=Limits(wall=0.2)))
    assert (done.ending, done.limit) == ("timeout", "wall")
