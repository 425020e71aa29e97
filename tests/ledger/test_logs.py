"""The output of attempts: stored unchanged, by stream, and within its limits."""

from __future__ import annotations

import doctest
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise import LedgerError
from forkwise.ledger import ledger as protocol
from forkwise.ledger import logs as module
from forkwise.ledger.logs import AttemptLog, compress_log, follow_log, read_log, remove_log
from tests.ledger.ledger_scenes import Child

NAME = "k3f9ab.1"
KEPT = 64 << 10
NOTE = b"output left out here; the first"

# No letters: the beginning of what may be a secret waits, and then the other stream's output comes first.
innocent = st.binary(max_size=40).map(lambda content: bytes(byte for byte in content if not 0x20 < byte < 0x7F))
pieces = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), innocent), max_size=30)


def printed(directory: Path, *said: tuple[str, bytes], cap: int = 1 << 20) -> AttemptLog:
    """Return the closed log of some output."""
    with AttemptLog(directory, NAME, cap=cap) as output:
        for stream, piece in said:
            output.write(stream, piece)
    return output


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("room")


@given(said=pieces, tail=st.integers(0, 100), cap=st.integers(0, 200))
def test_bytes_survive_in_order_and_by_stream(room: Path, said: list[tuple[str, bytes]], tail: int, cap: int) -> None:
    """True for any cap: the beginning and the tail together hold everything."""
    output = printed(room, *said, cap=cap)
    assert output.total == sum(len(piece) for _, piece in said)
    for stream in (None, "stdout", "stderr"):
        expected = b"".join(piece for name, piece in said if stream in (None, name))
        assert read_log(room, NAME, stream=stream) == expected
        assert read_log(room, NAME, stream=stream, tail=tail) == expected[max(len(expected) - tail, 0) :]


def test_the_log_is_plain_text(tmp_path: Path) -> None:
    printed(tmp_path, ("stdout", b"one\n"), ("stderr", b"two\n"), ("stdout", b"three\n"))
    assert (tmp_path / f"output/{NAME}.log").read_bytes() == b"one\ntwo\nthree\n"


def test_what_came_is_in_the_file_at_once(tmp_path: Path) -> None:
    """A killed process loses no output that was written, nor the stream it came from."""

    def work() -> None:
        output = AttemptLog(tmp_path, NAME)
        output.write("stderr", b"on stderr\n")
        output.write("stdout", b"on stdout\n")
        os.kill(os.getpid(), 9)

    with pytest.raises(AssertionError):
        Child(work).result()
    assert read_log(tmp_path, NAME, stream="stderr") == b"on stderr\n"
    assert read_log(tmp_path, NAME, stream="stdout") == b"on stdout\n"


def test_the_middle_of_too_much_is_left_out(tmp_path: Path) -> None:
    numbered = [("stderr" if n % 3 else "stdout", f"{n:07}\n".encode()) for n in range(20_000)]
    output = printed(tmp_path, *numbered, ("stdout", b"the end\n"), cap=100_000)
    assert output.total == 160_008
    text = read_log(tmp_path, NAME)
    first, note, last = text.partition(b"\n[forkwise: ")
    assert note
    said, _, last = last.partition(b"]\n")
    assert NOTE in said
    everything = b"".join(piece for _, piece in numbered) + b"the end\n"
    assert everything.startswith(first)
    assert last == everything[-KEPT:]
    assert 30_000 < len(first) <= 100_000
    for stream in ("stdout", "stderr"):
        lines = [n for n in read_log(tmp_path, NAME, stream=stream).split() if n.isdigit() and len(n) == 7]
        assert {n for n in lines if (b"stdout" if int(n) % 3 == 0 else b"stderr") != stream.encode()} == set()
        assert NOTE in read_log(tmp_path, NAME, stream=stream)


def test_a_flood_costs_neither_memory_nor_disk(tmp_path: Path) -> None:
    piece = bytes(1 << 16)
    tracemalloc.start()
    try:
        with AttemptLog(tmp_path, NAME) as output:
            for n in range(1600):  # 100 MiB
                output.write("stderr" if n % 7 == 0 else "stdout", piece)
            assert len(output.last_line) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert output.total == 100 << 20
    assert peak < 2 << 20
    assert sum(p.stat().st_size for p in (tmp_path / "output").iterdir()) < (33 << 20)


def test_streams_that_take_turns_byte_by_byte_fill_no_disk_either(tmp_path: Path) -> None:
    printed(tmp_path, *[("stdout", b"o"), ("stderr", b"e")] * 50_000, cap=10_000)
    beginning = read_log(tmp_path, NAME).partition(b"\n[forkwise: ")[0]
    changes = (tmp_path / f"output/{NAME}.streams").read_bytes().partition(b" forkwise\n")[0]
    assert 9_900 < len(beginning) + len(changes) < 10_100


def test_many_threads_write(tmp_path: Path) -> None:
    with AttemptLog(tmp_path, NAME) as output, ThreadPoolExecutor(8) as pool:
        for writer in range(8):
            for n in range(50):
                pool.submit(output.write, "stdout" if writer % 2 else "stderr", f"{writer} {n:04}\n".encode())
    for stream, rest in (("stdout", 1), ("stderr", 0)):
        lines = read_log(tmp_path, NAME, stream=stream).decode().splitlines()
        assert sorted(lines) == sorted(
            f"{writer} {n:04}" for writer in range(8) if writer % 2 == rest for n in range(50)
        )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (b"", ""),
        (b"one\ntwo\n", "two"),
        (b"one\ntwo", "two"),
        (b"one\n\n  \n", "one"),
        (b"10%\r50%\r99%", "99%"),
        (b"\x1b[1;31merror:\x1b[0m bad\x1b[K\n\x1b[0m\n", "error: bad"),
        (b"\x1b]0;a title\x07shown\x1b(B\n", "shown"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"a\tb\x00\x07c", "a bc"),
        (b"caf\xc3\xa9 \xff!", "café �!"),
        ("back\u202ewards\n".encode(), "backwards"),
        (b"x" * 10_000, "x" * 200),
        (b"long\n" + b"\n" * 100, "long"),
    ],
)
def test_the_last_line_is_short_and_harmless(tmp_path: Path, said: bytes, line: str) -> None:
    assert printed(tmp_path, ("stdout", said)).last_line == line


def test_the_tail_is_text_of_both_streams(tmp_path: Path) -> None:
    output = printed(tmp_path, ("stdout", b"one\n"), ("stderr", b"two \xff\n"), cap=2)
    assert output.tail() == "one\ntwo �\n"
    assert output.tail(4) == "o �\n"
    assert output.tail(0) == ""


def test_an_attempt_that_runs_again_prints_anew(tmp_path: Path) -> None:
    printed(tmp_path, ("stderr", b"before"))
    printed(tmp_path, ("stdout", b"after"))
    assert read_log(tmp_path, NAME) == read_log(tmp_path, NAME, stream="stdout") == b"after"
    remove_log(tmp_path, NAME)
    assert read_log(tmp_path, NAME) == read_log(tmp_path, NAME, stream="stderr") == b""
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize("deed", [AttemptLog, read_log, remove_log, compress_log])
@pytest.mark.parametrize("name", ["../k3f9ab.1", "k3f9ab", "", "k3f9ab.1/..", "k3f9ab.1\n"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, deed: Callable[..., object], name: str) -> None:
    with pytest.raises(LedgerError, match="not the id of an attempt"):
        deed(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("documented", [module, protocol])
def test_examples_do_what_they_say(documented: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failed, tried = doctest.testmod(documented)  # type: ignore[arg-type]
    assert tried > 0
    assert failed == 0


def test_output_is_followed_while_it_grows(tmp_path: Path) -> None:
    assert follow_log(tmp_path, NAME, 0, tail=10) == (0, b"")
    with AttemptLog(tmp_path, NAME) as output:
        output.write("stdout", b"one\n")
        assert follow_log(tmp_path, NAME, 0, tail=10) == (4, b"one\n")
        assert follow_log(tmp_path, NAME, 4, tail=10) == (4, b"")
        output.write("stderr", b"two\n")
        output.write("stdout", b"three\n")
        assert follow_log(tmp_path, NAME, 4, tail=100) == (14, b"two\nthree\n")
        assert follow_log(tmp_path, NAME, 4, tail=6) == (14, b"three\n")


def test_output_that_begins_anew_is_followed_from_its_beginning(tmp_path: Path) -> None:
    printed(tmp_path, ("stdout", b"a long line of the first run\n"))
    printed(tmp_path, ("stdout", b"again\n"))
    assert follow_log(tmp_path, NAME, 29, tail=100) == (6, b"again\n")


def test_a_large_log_is_compressed_when_its_attempt_is_over(tmp_path: Path) -> None:
    with AttemptLog(tmp_path, NAME) as log:
        for number in range(3000):
            log.write("stdout", b"%d " % number + b"x" * 100 + b"\n")
            log.write("stderr", b"warned\n")
    whole, errors = read_log(tmp_path, NAME), read_log(tmp_path, NAME, stream="stderr")
    compress_log(tmp_path, NAME)
    assert [p.name for p in sorted((tmp_path / "output").iterdir())] == [f"{NAME}.log.gz", f"{NAME}.streams"]
    assert (tmp_path / f"output/{NAME}.log.gz").stat().st_size < len(whole) // 4
    assert read_log(tmp_path, NAME) == whole
    assert read_log(tmp_path, NAME, tail=50) == whole[-50:]
    assert read_log(tmp_path, NAME, stream="stderr") == errors
    assert follow_log(tmp_path, NAME, 1000, tail=1 << 30) == (len(whole), whole[1000:])
    (tmp_path / f"output/{NAME}.log.gz").write_bytes(b"rubbish")
    with pytest.raises(LedgerError, match="damaged"):
        read_log(tmp_path, NAME)
    remove_log(tmp_path, NAME)
    assert list((tmp_path / "output").iterdir()) == []


def test_a_small_log_stays_plain(tmp_path: Path) -> None:
    with AttemptLog(tmp_path, NAME) as log:
        log.write("stdout", b"hello\n")
    compress_log(tmp_path, NAME)
    compress_log(tmp_path, "k3f9ab.9")  # there is none
    assert [p.name for p in (tmp_path / "output").iterdir()] == [f"{NAME}.log"]
