"""Snapshots of a big workspace: the first and the next one, unpacked, and a delta sent back; beside tar and zstd."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from functools import partial
from itertools import count

from bench import tree
from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch
from forkwise import ObjectStore, PackedDelta, Snapshot, SnapshotCache, Workspace

__all__ = ["measure_snapshots"]

_SIZE = 20_000
_CHANGED = 10
_NEXT_S = 0.3


def measure_snapshots(scratch: Scratch) -> list[Line]:
    """Measure each operation in turn with its peer; return no line if tar or zstd is not installed."""
    if shutil.which("tar") is None or shutil.which("zstd") is None:
        return []
    scratch.report(f"writing {scratch.many:,} files of text")
    root = scratch.make_directory("text")
    _write_text(root, scratch.many)
    bench = _Bench(scratch, root)
    return [*bench.measure_create(), *bench.measure_unpack(), bench.measure_delta()]


def _write_text(root: str, files: int) -> None:
    """Write files of words, which compress about as well as source code does."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(3, 10))) for _ in range(3000)]
    text = " ".join(chance.choices(words, k=400_000)).encode()
    for number in range(files):
        path = f"{root}/{tree.name(number)}"
        if number % 100 == 0:
            os.makedirs(os.path.dirname(path))
        start = chance.randrange(len(text) - 3 * _SIZE)
        with open(path, "wb") as file:
            file.write(b"%d " % number + text[start : start + chance.randint(1000, 2 * _SIZE)])


class _Bench:
    def __init__(self, scratch: Scratch, root: str) -> None:
        self.scratch = scratch
        self.root = root
        self.numbers = count()
        self.workspace = Workspace(root, state=scratch.make_directory("state"))
        self.store = ObjectStore(scratch.make_directory("store"))
        self.archive = scratch.new_path("archive")

    def measure_create(self) -> list[Line]:
        self.scratch.report("creating snapshots")
        figures = play({"ours": self._create, "tar": self._archive}, self.scratch.rounds(3, 1), warm=1)
        first = Line(f"first snapshot, {self.scratch.many:,} files", figures["ours"])
        first.peers = {"tar | zstd -T0": figures["tar"]}
        first.faster_than("tar | zstd -T0", 0.7)
        whole = Snapshot.create(self.workspace, self.store)
        stored: list[int] = []
        turns = {"ours": partial(self._create_next, stored), "walk": lambda: timed(lambda: tree.walk(self.root))}
        figures = play(turns, self.scratch.rounds(7, 3))
        second = Line(f"next snapshot, {_CHANGED} files changed", figures["ours"], figures["walk"])
        second.below_floor(1.5)
        second.goals.append(Goal("≤ 1 % of the bytes", max(stored) / max(whole.stored, 1), 0.01))
        return [first, second]

    def _create(self) -> float:
        state, place = self.scratch.make_directory("state"), self.scratch.make_directory("store")
        workspace, store = Workspace(self.root, state=state), ObjectStore(place)
        taken = timed(lambda: Snapshot.create(workspace, store))
        shutil.rmtree(place)
        shutil.rmtree(state)
        return taken

    def _archive(self) -> float:
        words = f"tar -C {self.root} -cf - . | zstd -q -f -T0 -o {self.archive}"
        return timed(lambda: subprocess.run(["sh", "-c", words], check=True))

    def _create_next(self, stored: list[int]) -> float:
        self._change(self.root)
        return timed(lambda: stored.append(Snapshot.create(self.workspace, self.store).stored))

    def _change(self, root: str) -> None:
        number = next(self.numbers)
        for step in range(_CHANGED):
            path = f"{root}/{tree.name((number * 7919 + step * self.scratch.many // _CHANGED) % self.scratch.many)}"
            with open(path, "ab") as file:
                file.write(b"changed %d\n" % number)

    def measure_unpack(self) -> list[Line]:
        self.scratch.report("unpacking snapshots")
        whole = Snapshot.create(self.workspace, self.store)
        figures = play({"ours": partial(self._unpack, whole), "tar": self._extract}, self.scratch.rounds(3, 1), warm=0)
        cold = Line("snapshot unpacked, cold", figures["ours"])
        cold.peers = {"tar -x, zstd": figures["tar"]}
        cold.faster_than("tar -x, zstd", 0.7)
        cache = SnapshotCache(self.scratch.new_path("cache"), max_bytes=1 << 40)
        cache.unpack(whole, self.store).release()
        taken = play({"ours": partial(self._unpack_next, cache)}, self.scratch.rounds(7, 3), warm=1)["ours"]
        following = Line(f"next version unpacked, {_CHANGED} files changed", taken)
        following.goals.append(Goal("≤ 300 ms", taken.median / _NEXT_S, 1.0))
        return [cold, following]

    def _unpack(self, snapshot: Snapshot) -> float:
        place = self.scratch.new_path("cache")
        taken = timed(lambda: SnapshotCache(place, max_bytes=1 << 40).unpack(snapshot, self.store).release())
        shutil.rmtree(place)
        return taken

    def _extract(self) -> float:
        target = self.scratch.make_directory("extracted")
        taken = timed(lambda: subprocess.run(["tar", "-C", target, "--zstd", "-xf", self.archive], check=True))
        shutil.rmtree(target)
        return taken

    def _unpack_next(self, cache: SnapshotCache) -> float:
        self._change(self.root)
        changed = Snapshot.create(self.workspace, self.store)
        return timed(lambda: cache.unpack(changed, self.store).release())

    def measure_delta(self) -> Line:
        self.scratch.report("packing a delta")
        with self.scratch.workspace(self.root).branch("change", on_success=None) as branch:
            self._change(str(branch.path))
            paths = branch.delta(ignore=()).changed
            packed = PackedDelta.create(branch, self.store)
            contents = b"".join((branch.path / path).read_bytes() for path in paths)
            branch.abort()
        compressed = subprocess.run(["zstd", "-q", "-c"], input=contents, capture_output=True, check=True).stdout
        header = os.path.getsize(f"{self.store.directory}/deltas/{packed.id}")
        line = Line(
            f"delta of {_CHANGED} files, stored bytes",
            Figure((float(packed.stored + header),), "B"),
            Figure((float(len(compressed)),), "B"),
        )
        line.below_floor(1.2)
        return line
