"""Reading the output of coding agents, beside the mere parsing of its lines with orjson."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play
from bench.scratch import Scratch
from forkwise.agents.stream import FORMATS, AgentStream

__all__ = ["measure_agent_streams"]

_RECORDED = Path(__file__).parents[2] / "tests/agents/streams"
_PIECE = 64 << 10  # bytes that arrive at once
_MEMORY = """
import sys
from forkwise.agents.stream import FORMATS, AgentStream
stream = AgentStream(sys.argv[1], "/project")
while piece := sys.stdin.buffer.read(1 << 16):
    stream.feed("stdout", piece)
stream.finish()
stream.facts, stream.find_cost()
[peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(int(peak.split()[1]) * 1024)
"""


def measure_agent_streams(scratch: Scratch) -> list[Line]:
    """Measure the CPU time of each format, and the memory of a process that does nothing else."""
    size = (10 if scratch.quick else 100) << 20
    lines = []
    for path in sorted(path for path in _RECORDED.glob("*.jsonl") if path.stem in FORMATS):
        scratch.report(f"reading the stream of {path.stem}")
        lines += _measure(path, size, scratch.rounds(5, 3))
    return lines


def _measure(path: Path, size: int, rounds: int) -> list[Line]:
    pieces = list(_write(path.read_bytes(), size))
    figures = play({"ours": _time_ours(path.stem, pieces), "floor": _time_floor(pieces)}, rounds)
    named = f"a stream of {path.stem}, {size >> 20} MB"
    speed = Line(f"{named}, CPU time (floor: orjson.loads of each line)", figures["ours"], figures["floor"])
    speed.below_floor(3)
    command = [sys.executable, "-c", _MEMORY, path.stem]
    done = subprocess.run(command, input=b"".join(pieces), stdout=subprocess.PIPE, check=True)
    memory = Line(f"{named}, memory of the process", Figure((float(done.stdout),), "B"))
    memory.goals.append(Goal("≤ 50 MB", memory.ours.median / (1 << 20), 50))
    return [speed, memory]


def _write(recorded: bytes, size: int) -> Iterator[bytes]:
    """Repeat a recorded run, with other requests each time, and cut it into pieces."""
    buffer, written, number = b"", 0, 0
    while written < size:
        number += 1
        buffer += recorded.replace(b'"id":"', b'"id":"%d-' % number)
        while len(buffer) >= _PIECE:
            yield buffer[:_PIECE]
            buffer, written = buffer[_PIECE:], written + _PIECE
    yield buffer


def _time_ours(name: str, pieces: list[bytes]) -> Callable[[], float]:
    def run() -> float:
        started = time.process_time()
        stream = AgentStream(name, "/project")
        for piece in pieces:
            stream.feed("stdout", piece)
        stream.finish()
        assert stream.facts["answer"]
        return time.process_time() - started

    return run


def _time_floor(pieces: list[bytes]) -> Callable[[], float]:
    def run() -> float:
        started = time.process_time()
        rest = b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    orjson.loads(line)
        return time.process_time() - started

    return run
