"""Play scenes on recorded disks, cut the power, and judge what is left; the arguments are one JSON object.

It runs as the first process of its own mount and PID namespaces: when it ends, however it ends, the kernel ends all its
processes and unmounts everything.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from forkwise.errors import ForkwiseWarning
from forkwise.files.store import trash
from forkwise.files.store.journal import sync_filesystem
from forkwise.linux.syscalls import CLONE_NEWNS, MNT_DETACH, MS_BIND, mount, umount2, unshare
from tests.files.sample import Picture
from tests.power.cuts import Cut, choose_cuts, marks_before, writes_before
from tests.power.disk import Event, Filesystem, filesystem, mount_disk, read_log, recorded, write_image
from tests.power.scenes import SCENES, Scene, Site, make_root

Result = TypeVar("Result")
_CUTS_PER_RECOVERY = 3
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def main() -> int:
    task = json.loads(sys.argv[1])
    base = Path(task["directory"])
    mount("tmpfs", str(base), "tmpfs", 0, "size=2g,mode=0755")
    for name in ("disk", "state", "image"):
        (base / name).mkdir()
    fstypes = [task["fstype"], *([task["state_fstype"]] if task["state_fstype"] else [])]
    made = {fstype: filesystem(fstype, base) for fstype in fstypes}
    bases = [made[fstype] for fstype in fstypes]
    where = [base / "disk", base / "state"][: len(bases)]
    site = Site(where[0], where[-1], task["view"])
    for name in task["scenes"]:
        found = {"scene": name, "images": 0, "states": {}, "failures": []}
        scene, events = _record(SCENES[name](), site, bases, where, base / f"recording-{name}")
        for cut in choose_cuts(events, task["images"], task["seed"]):
            state, failure = _judge(scene, site, bases, where, base / "image", events, cut)
            found["images"] += 1
            if failure:
                found["failures"].append({"cut": str(cut), "marks": marks_before(events, cut), "failure": failure})
            else:
                found["states"][state] = found["states"].get(state, 0) + 1
        for number, cut in enumerate(choose_cuts(events, task["recoveries"], task["seed"] + 1)):
            directory = base / f"recovery-{name}-{number}"
            cut_bases, again = _record_recovery(site, bases, where, directory, events, cut)
            for second in choose_cuts(again, _CUTS_PER_RECOVERY, task["seed"] + number):
                marks = marks_before(events, cut)
                state, failure = _judge(scene, site, cut_bases, where, base / "image", again, second, marks)
                found["images"] += 1
                if failure:
                    found["failures"].append({"cut": f"{cut}, then {second}", "marks": marks, "failure": failure})
            shutil.rmtree(directory)
        print(json.dumps(found), flush=True)
    return 0


def _record_recovery(
    site: Site, bases: Sequence[Filesystem], where: Sequence[Path], directory: Path, events: list[Event], cut: Cut
) -> tuple[list[Filesystem], list[Event]]:
    """Open the workspace after a cut on recorded disks; return the disks before, and the log."""
    directory.mkdir()
    cut_bases = [
        Filesystem(base.fstype, base.size, [*base.content, *writes_before(events, cut, number)])
        for number, base in enumerate(bases)
    ]
    with recorded(directory, cut_bases) as files:

        def recover() -> None:
            warnings.simplefilter("ignore", ForkwiseWarning)
            for number, (base, point) in enumerate(zip(bases, where, strict=True)):
                mount_disk(files / f"disk{number}", base.fstype, point)
            _restart(directory, 1)
            _mark(files, "start")
            workspace = site.open()
            workspace.history()
            workspace.gc()
            trash.wait_until_empty()
            _sync(where)
            _mark(files, "end")
            for branch in workspace.branches():
                branch.hide()
            for point in reversed(where):
                umount2(str(point), MNT_DETACH)

        recovered = _in_child(recover)
    if isinstance(recovered, str):
        raise RuntimeError(f"the recovery after {cut} failed without a second cut:\n{recovered}")
    return cut_bases, read_log(directory)


def _mark(files: Path, text: str) -> None:
    fd = os.open(files / "mark", os.O_WRONLY)
    os.write(fd, text.encode())
    os.close(fd)


def _restart(directory: Path, number: int) -> None:
    """Give this process another boot id: after a restart, processes and layers of the boot before are not trusted."""
    (directory / "boot_id").write_text(f"0000000{number}-0000-4000-8000-000000000000\n")
    mount(str(directory / "boot_id"), _BOOT_ID, None, MS_BIND)


def _record(
    scene: Scene, site: Site, bases: Sequence[Filesystem], where: Sequence[Path], directory: Path
) -> tuple[Scene, list[Event]]:
    """Play a scene in a process of its own; return it with its states, and the log."""
    directory.mkdir()
    with recorded(directory, bases) as files:

        def play() -> tuple[list[Picture], dict[str, Picture]]:
            for number, (base, point) in enumerate(zip(bases, where, strict=True)):
                mount_disk(files / f"disk{number}", base.fstype, point)
            make_root(site)
            scene.prepare(site.root)
            if scene.is_used:
                site.open().branch("before").abort()
                trash.wait_until_empty()
            _sync(where)
            scene.mark = partial(_mark, files)
            scene.mark("start")
            scene.reach(site.root)
            scene.act(site)
            trash.wait_until_empty()
            _sync(where)
            scene.mark("end")
            for branch in site.open().branches():
                branch.hide()
            for point in reversed(where):
                umount2(str(point), MNT_DETACH)
            return scene.states, scene.kept

        played = _in_child(play)
    if isinstance(played, str):
        raise RuntimeError(f"{type(scene).__name__} failed without a power cut:\n{played}")
    scene.states, scene.kept = played
    return scene, read_log(directory)


def _judge(
    scene: Scene,
    site: Site,
    bases: Sequence[Filesystem],
    where: Sequence[Path],
    directory: Path,
    events: list[Event],
    cut: Cut,
    marks: list[str] | None = None,
) -> tuple[str, str]:
    """Open the workspace after a cut. Return its state, and why it is wrong.

    ``marks`` are those before a first cut, if this is the second.
    """

    def judge() -> tuple[str, str]:
        warnings.simplefilter("ignore", ForkwiseWarning)  # they name branches that are lost, as they should
        for number, (base, point) in enumerate(zip(bases, where, strict=True)):
            image = directory / f"disk{number}"
            write_image(image, base, writes_before(events, cut, number))
            mount_disk(image, base.fstype, point)
        _restart(directory, 0)
        return scene.judge(site, marks_before(events, cut) if marks is None else marks), ""

    judged = _in_child(judge)
    return ("", judged) if isinstance(judged, str) else judged


def _in_child(job: Callable[[], Result]) -> Result | str:
    """Run a job in a child with a mount namespace of its own. Return its result, or a traceback."""
    result, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(result)
        try:
            unshare(CLONE_NEWNS)
            data = pickle.dumps(job())
        except BaseException:  # noqa: BLE001 - the child of a fork must not return
            data = pickle.dumps(traceback.format_exc())
        with open(writer, "wb") as file:
            file.write(data)
        os._exit(0)
    os.close(writer)
    with open(result, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    _end_leftovers()
    result_or_error: Result | str = pickle.loads(data)
    return result_or_error


def _end_leftovers() -> None:
    """End helper processes of views, which keep the mount namespace of a failed child alive."""
    own = os.readlink("/proc/self/ns/mnt")
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/mnt") != own:
                os.kill(int(name), signal.SIGKILL)


def _sync(where: Sequence[Path]) -> None:
    for point in where:
        sync_filesystem(str(point))


def _run_as_init() -> int:
    """Run ``main`` in a child, and reap the processes that lost their parent, until it ends."""
    worker = os.fork()
    if worker == 0:
        status = 1
        try:
            status = main()
        except BaseException:  # noqa: BLE001 - the child of a fork must not return
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    while True:
        pid, status = os.wait()
        if pid == worker:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(_run_as_init())
