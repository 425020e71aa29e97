"""Candidates that misbehave: each fails with a reason, and the others continue."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BestOfN,
    CommitError,
    ForkwiseWarning,
    Reflexion,
    SandboxRunner,
    Speculate,
    SpeculationOutcome,
    SpeculationResult,
    Tournament,
    TreeOfThoughts,
    Workspace,
    abort_fork,
)
from forkwise.fork.fork import open_ledger
from forkwise.ledger.logs import read_log

pytestmark = pytest.mark.crash

ISOLATED = {"isolate_processes": True}
TIMED_OUT = re.compile(r"timed out after [\d.]+ s")


def good(path: Path) -> bool:
    (path / "good").write_text("good")
    return True


def run_beside_good(bad: Any, workspace: Workspace, **options: Any) -> SpeculationResult:
    """Run a candidate beside one that succeeds; check that the other wins, and return the first one's result.

    A ``timeout`` is for both of them. On a busy machine, it is extended until it is enough for the good one.
    """
    outcome = Speculate([bad, good], first_wins=False, **options)(workspace)
    while outcome.winner is None and options.get("timeout", 60) < 60:
        options["timeout"] *= 4
        outcome = Speculate([bad, good], first_wins=False, **options)(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert (workspace.path / "good").read_text() == "good"
    failed = outcome.all_results[0]
    assert not failed.success
    assert failed.reason
    return failed


class MuteError(Exception):
    """An exception whose ``str`` and ``repr`` raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute:
    """A value whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class Truth:
    """A boolean type like NumPy's, which is no subclass of ``bool``."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value


Truth.__name__ = "bool_"
NewTruth = type("bool", (Truth,), {})


def cyclic_list() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


# Exceptions


ERRORS = [
    ValueError("wrong"),
    KeyError(),
    MuteError(),
    StopIteration(),
    StopAsyncIteration(),
    GeneratorExit("out"),
    SystemExit(3),
    asyncio.CancelledError("by itself"),
    TimeoutError("its own"),
    RecursionError("deep"),
    MemoryError(),
    OSError(28, "No space left on device"),
    ValueError("\udc80"),
    BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("one")]),
]
by_error = pytest.mark.parametrize("error", [*ERRORS, KeyboardInterrupt()], ids=lambda error: type(error).__name__)


@by_error
@pytest.mark.parametrize("options", [{}, ISOLATED], ids=["thread", "isolated"])
def test_candidate_raises(error: BaseException, options: dict[str, Any], workspace: Workspace) -> None:
    def bad(path: Path) -> bool:
        (path / "bad").write_text("bad")
        raise error

    failed = run_beside_good(bad, workspace, **options)
    assert failed.reason is not None
    assert failed.reason.startswith(type(error).__name__)
    if not options and not isinstance(error, StopIteration):
        assert failed.exception is error
    assert not (workspace.path / "bad").exists()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_coroutine_raises(error: BaseException, workspace: Workspace) -> None:
    async def bad(_: Path) -> bool:
        raise error

    failed = run_beside_good(bad, workspace)
    assert failed.reason is not None
    assert type(error).__name__ in failed.reason


def test_keyboard_interrupt_on_the_event_loop_stops_the_pattern(workspace: Workspace) -> None:
    async def bad(_: Path) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Speculate([bad, good], first_wins=False)(workspace)
    assert not (workspace.path / "good").exists()
    with open_ledger(workspace) as ledger:
        assert [f.state for f in ledger.forks()] == ["aborted"]


def test_very_long_message_is_truncated(workspace: Workspace) -> None:
    def bad(_: Path) -> bool:
        raise ValueError("x" * 20_000_000)

    failed = run_beside_good(bad, workspace)
    assert isinstance(failed.exception, ValueError)
    assert (workspace.state / "ledger" / "ledger.db").stat().st_size < 2_000_000


# Return values


class NoTruth:
    """A value whose ``bool`` raises, as a NumPy array's does."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


class Interrupting:
    """A value whose ``bool`` raises an exception that usually ends a program."""

    def __bool__(self) -> bool:
        raise SystemExit(3)


TRUE = [1, "yes", math.nan, {"success": True}, [0], ["a.py", "b.py"], object(), (1, 0.5), ("yes", 2), [True, 0.5]]
FALSE = [
    (None, "it returned None"),
    (0, "it returned 0 (int)"),
    ("", "it returned '' (str)"),
    ([], "it returned [] (list)"),
    (False, "it returned False"),
    ((0, 0.5), "it returned False"),
    ([False, 0.5], "it returned False"),
]
NO_SCORE = "its score is not a finite number: "
UNUSABLE = [
    ((True, math.nan), f"{NO_SCORE}nan (float)"),
    ((True, math.inf), f"{NO_SCORE}inf (float)"),
    ((True, None), f"{NO_SCORE}None"),
    ((True, True), f"{NO_SCORE}True (bool)"),
    ((True, "0.5"), f"{NO_SCORE}'0.5' (str)"),
    ((True, 10**400), f"{NO_SCORE}1000"),
    ((True,), "it returned (True,) (tuple); a tuple is (success, score)"),
    ((True, 1.0, 2), "it returned (True, 1.0, 2) (tuple); a tuple is (success, score)"),
    (NoTruth(), "TypeError: bool() of its result raised ValueError: the truth value of an array is ambiguous"),
    ((NoTruth(), 1.0), "TypeError: bool() of its result raised ValueError: the truth value of an array is ambiguous"),
    (Interrupting(), "TypeError: bool() of its result raised SystemExit: 3"),
]
by_runner = pytest.mark.parametrize("options", [{}, ISOLATED], ids=["thread", "isolated"])


@by_runner
def test_true_result_is_success(options: dict[str, Any], workspace: Workspace) -> None:
    """The README's tournament returns an agent's result: ``return run_agent(workdir=path, seed=index)``.

    ``.success`` is "Whether the candidate succeeded", ``.return_value`` the "Raw return value".
    """
    outcome = Speculate([lambda _, v=v: v for v in TRUE], first_wins=False, **options)(workspace)
    assert [r.reason for r in outcome.all_results] == [None] * len(TRUE)
    assert [r.score for r in outcome.all_results[-3:]] == [0.5, 2.0, 0.5]
    if not options:
        assert all(r.return_value is v for r, v in zip(outcome.all_results, TRUE, strict=True))
    else:  # as JSON; a value that JSON does not have as its truth
        assert outcome.all_results[3].return_value == {"success": True}
        assert outcome.all_results[6].return_value is True
        assert outcome.all_results[7].return_value == (True, 0.5)


@by_runner
def test_false_result_is_failure(options: dict[str, Any], workspace: Workspace) -> None:
    outcome = Speculate([lambda _, v=v: v for v, _ in FALSE], first_wins=False, **options)(workspace)
    assert outcome.winner is None
    assert [r.reason for r in outcome.all_results] == [reason for _, reason in FALSE]
    assert [r.exception for r in outcome.all_results] == [None] * len(FALSE)


@by_runner
def test_result_without_a_truth_value_or_score_fails_with_a_reason(
    options: dict[str, Any], workspace: Workspace
) -> None:
    """A strategy returns ``tuple[bool, float]``; ``.exception`` is the "Exception if failed, else ``None``"."""
    outcome = Speculate([lambda _, v=v: v for v, _ in UNUSABLE], first_wins=False, **options)(workspace)
    assert outcome.winner is None
    for result, (value, reason) in zip(outcome.all_results, UNUSABLE, strict=True):
        assert result.reason is not None
        assert result.reason.startswith(reason)
        assert result.exception is not None
        assert options or result.return_value is value


def test_timeout_covers_bool_of_the_result(workspace: Workspace) -> None:
    released = threading.Event()

    class Slow:
        def __bool__(self) -> bool:
            return released.wait(60)

    try:
        failed = run_beside_good(lambda _: Slow(), workspace, timeout=0.2)
    finally:
        released.set()
    assert TIMED_OUT.fullmatch(str(failed.reason))


@pytest.mark.parametrize(
    "make", [Mute, lambda: (True, Mute()), lambda: (Mute(), 1)], ids=["mute", "with-mute", "mute-first"]
)
@by_runner
def test_false_result_whose_repr_raises(make: Callable[[], Any], options: dict[str, Any], workspace: Workspace) -> None:
    assert run_beside_good(lambda _: make(), workspace, **options).exception is not None


@pytest.mark.parametrize("make", [lambda: [Mute(), 1], cyclic_list, lambda: {Mute(): Mute()}, lambda: 10**5000, count])
@by_runner
def test_true_result_whose_repr_raises_is_success(
    make: Callable[[], Any], options: dict[str, Any], workspace: Workspace
) -> None:
    assert Speculate([lambda _: make()], **options)(workspace).committed


def test_very_long_value_is_truncated(workspace: Workspace) -> None:
    failed = run_beside_good(lambda _: (False, "x" * 20_000_000), workspace)
    assert len(failed.return_value[1]) == 20_000_000
    assert (workspace.state / "ledger" / "ledger.db").stat().st_size < 2_000_000


@pytest.mark.parametrize("kind", [Truth, NewTruth], ids=["bool_", "bool"])
@pytest.mark.parametrize("options", [{}, ISOLATED], ids=["thread", "isolated"])
def test_foreign_boolean_types(kind: Callable[[bool], Any], options: dict[str, Any], workspace: Workspace) -> None:
    outcome = Speculate([lambda _: kind(False), lambda _: kind(True)], first_wins=False, **options)(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert outcome.all_results[0].reason == "it returned False"


def test_foreign_number_types_as_scores(workspace: Workspace) -> None:
    from fractions import Fraction

    outcome = BestOfN([lambda _: (True, Fraction(1, 2)), lambda _: (Truth(True), 10**300)])(workspace)
    assert [r.score for r in outcome.all_results] == [0.5, 1e300]


# Exits and signals


def _die(_: Path) -> bool:
    os._exit(7)


def _crash(_: Path) -> bool:
    faulthandler.disable()  # inherited from the tests; it would report to stderr
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def _dereference(_: Path) -> bool:
    faulthandler.disable()
    return bool(ctypes.string_at(8))


def _kill_all(_: Path) -> bool:
    os.kill(-1, signal.SIGKILL)
    raise AssertionError


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (_die, "ended with exit code 7 before the target returned"),
        (_crash, "killed by SIGSEGV"),
        (_dereference, "killed by SIGSEGV"),
        (_kill_all, ""),
        (["sh", "-c", "exit 7"], "exit code 7"),
        (["sh", "-c", "kill -SEGV $$"], "killed by SIGSEGV"),
        (["sh", "-c", "kill -9 $$"], "killed by SIGKILL"),
        (["sh", "-c", "kill -34 $$"], "killed by SIGRTMIN"),
        (["sh", "-c", "kill -35 $$"], "killed by signal 35"),
    ],
)
@pytest.mark.parametrize("confinement", ["standard", "strict"])
def test_candidate_process_dies(bad: Any, reason: str, confinement: str, workspace: Workspace) -> None:
    failed = run_beside_good(bad, workspace, runner=SandboxRunner(confinement))
    assert reason in str(failed.reason)
    assert failed.exception is not None


@pytest.mark.parametrize("argv", [["no-such-command"], ["/"], ["./a.txt"], [""], ["sh\0", "x"]], ids=repr)
def test_command_cannot_be_started(argv: list[str], workspace: Workspace) -> None:
    failed = run_beside_good(argv, workspace)
    assert failed.exception is not None


@pytest.mark.parametrize("argv", [[], "make test", [1], [None], b"x", None, 3], ids=repr)
def test_invalid_candidate_is_refused_immediately(argv: Any) -> None:
    with pytest.raises(TypeError, match="a candidate is a function or a command as a list of words, not"):
        Speculate([argv])


# Timeouts


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set only when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_thread_is_abandoned_after_its_timeout(gate: threading.Event, workspace: Workspace) -> None:
    failed = run_beside_good(lambda _: gate.wait(), workspace, timeout=0.2)
    assert TIMED_OUT.fullmatch(str(failed.reason))
    assert isinstance(failed.exception, TimeoutError)
    assert not gate.is_set()


def test_coroutine_is_cancelled_after_its_timeout(workspace: Workspace) -> None:
    ended = []

    async def slow(_: Path) -> bool:
        try:
            return await asyncio.Future()
        finally:
            await asyncio.sleep(0)  # cleaning up may take a moment
            ended.append("cancelled")

    assert TIMED_OUT.fullmatch(str(run_beside_good(slow, workspace, timeout=0.2).reason))
    assert set(ended) == {"cancelled"}


def test_coroutine_that_ignores_cancellation_is_abandoned(workspace: Workspace) -> None:
    async def stubborn(_: Path) -> bool:
        while True:
            try:
                await asyncio.Future()
            except asyncio.CancelledError:
                continue

    assert TIMED_OUT.fullmatch(str(run_beside_good(stubborn, workspace, timeout=0.2).reason))


def test_coroutine_that_returns_success_after_cancellation_has_failed(workspace: Workspace) -> None:
    async def late(_: Path) -> bool:
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            return True

    assert TIMED_OUT.fullmatch(str(run_beside_good(late, workspace, timeout=0.2).reason))


STUBBORN = "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & (sleep 1000 &); "


@pytest.mark.parametrize("is_function", [True, False])
def test_sandbox_is_killed_with_all_descendants_after_its_timeout(is_function: bool, workspace: Workspace) -> None:
    mark = f"echo {workspace.path} >/dev/null; "

    def slow(_: Path) -> bool:
        os.execlp("sh", "sh", "-c", f"{mark}{STUBBORN}sleep 1000")

    bad = slow if is_function else ["sh", "-c", f"{mark}{STUBBORN}sleep 1000"]
    failed = run_beside_good(bad, workspace, timeout=0.5, isolate_processes=True)
    assert TIMED_OUT.fullmatch(str(failed.reason))
    assert isinstance(failed.exception, TimeoutError)


def test_each_candidate_has_its_own_timeout(workspace: Workspace) -> None:
    """A timeout excludes the wait for a free slot: these candidates run in turn and together exceed one timeout."""
    for timeout in (1, 10, 100):  # the longer ones for a busy machine
        candidates = [["sleep", f"{0.4 * timeout}"]] * 3
        outcome = Speculate(candidates, first_wins=False, max_parallel=1, timeout=timeout)(workspace)
        if all(r.success for r in outcome.all_results):
            return
    raise AssertionError(outcome)


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_invalid_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
        Speculate([good], timeout=timeout)


# Output


def test_much_output_is_not_kept_in_memory(workspace: Workspace) -> None:
    size = 256 << 20
    before = _peak_memory()
    argv = ["sh", "-c", f"head -c {size} /dev/zero; printf '\\nlast\\377line\\n' >&2"]
    outcome = Speculate([argv])(workspace)
    assert outcome.committed
    assert outcome.winner is not None
    attempt = outcome.winner.attempt
    assert attempt is not None
    with open_ledger(workspace) as ledger:
        record = ledger.attempt(attempt)
        assert record.output_bytes == size + len("\nlast?line\n")
        assert record.last_line == "last�line"
        printed = read_log(ledger.directory, attempt)
    assert len(printed) < 40 << 20
    assert printed.endswith(b"\nlast\xffline\n")
    assert _peak_memory() - before < 128 << 20


def _peak_memory() -> int:
    """Return the memory of this process in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("how", ["stdout", "stderr"])
def test_binary_output_is_passed_on_as_feedback(how: str, workspace: Workspace) -> None:
    script = 'grep -q "�(" "$FORKWISE_FEEDBACK" && exit 0; printf "\\303(\\n"; exit 1'
    redirect = "" if how == "stdout" else "exec 1>&2; "
    outcome = Reflexion(["sh", "-c", redirect + script], 2)(workspace)
    assert outcome.committed
    assert len(outcome.all_results) == 2


@pytest.mark.parametrize("word", ["nan", "inf", "yes", "1e999", "0.5 0.6", "0x10", "x" * 300])
def test_invalid_score_fails_the_attempt(word: str, workspace: Workspace) -> None:
    failed = run_beside_good(["sh", "-c", f"echo {word} > $FORKWISE_SCORE"], workspace)
    assert "score" in str(failed.reason)


@pytest.mark.parametrize(
    "script",
    ["ln -s /etc/passwd $FORKWISE_SCORE", "mkdir $FORKWISE_SCORE", "mkfifo $FORKWISE_SCORE"],
)
def test_score_must_be_a_regular_file(script: str, workspace: Workspace) -> None:
    failed = run_beside_good(["sh", "-c", script], workspace, timeout=20)
    assert failed.reason == "its score is not a regular file of at most 200 bytes"


@pytest.mark.parametrize("script", ["true", ": > $FORKWISE_SCORE", "rm -r ${FORKWISE_SCORE%/*}/*"])
def test_default_score_is_one(script: str, workspace: Workspace) -> None:
    outcome = Speculate([["sh", "-c", script]], timeout=20)(workspace)
    assert [(r.success, r.score) for r in outcome.all_results] == [(True, 1.0)]


# Changes to the branch


def test_winner_that_deletes_everything_is_committed(workspace: Workspace) -> None:
    def empty(path: Path) -> bool:
        for entry in path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.rmtree(path, ignore_errors=True)
        return True

    if workspace.child_view().whole:  # the directory itself is gone, which cannot happen to a mount
        with pytest.raises(CommitError, match="was not committed"):
            Speculate([empty])(workspace)
        assert (workspace.path / "a.txt").read_text() == "one\n"
        return
    outcome = Speculate([empty])(workspace)
    assert outcome.committed
    assert list(workspace.path.iterdir()) == []
    workspace.undo()
    assert (workspace.path / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_candidate_ends_its_own_branch(how: str, workspace: Workspace) -> None:
    def bad(path: Path) -> bool:
        (path / "bad").write_text("bad")
        [own] = [b for b in Workspace(workspace.path).branches() if b.path == path]
        getattr(own, how)()
        return True

    failed = run_beside_good(bad, workspace)
    assert failed.reason == "its branch was committed or aborted while it ran"
    assert (workspace.path / "bad").exists() == (how == "commit")


def test_candidate_ends_the_branch_of_a_sibling(workspace: Workspace) -> None:
    started = threading.Event()
    aborted = threading.Event()

    def victim(path: Path) -> bool:
        started.set()
        aborted.wait(60)
        return True

    def bad(path: Path) -> bool:
        started.wait(60)
        for branch in Workspace(workspace.path).branches():
            if branch.path != path:
                branch.abort()
        aborted.set()
        return True

    outcome = Speculate([bad, victim], first_wins=False)(workspace)
    assert [r.success for r in outcome.all_results] == [True, False]
    assert outcome.committed


def test_candidate_changes_the_working_directory(workspace: Workspace) -> None:
    """The working directory belongs to the whole process, and must not be left in a deleted directory."""
    before = Path.cwd()

    def wanders(path: Path) -> bool:
        os.chdir(path)
        Path("here").write_text("written without a full path")
        return True

    outcome = Speculate([wanders])(workspace)
    assert outcome.committed
    assert (workspace.path / "here").exists()
    assert Path.cwd() == before


def test_loser_keeps_writing_after_the_commit(workspace: Workspace, gate: threading.Event) -> None:
    started, wrote = threading.Event(), threading.Event()

    def loser(path: Path) -> bool:
        with suppress(OSError), (path / "late").open("w") as file:  # a fuse view is disconnected with its branch
            started.set()
            gate.wait()
            file.write("late" * 100_000)
        wrote.set()
        return True

    def winner(path: Path) -> bool:
        started.wait(60)
        return good(path)

    outcome = Speculate([loser, winner])(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert outcome.all_results[0].reason == "another attempt won"
    gate.set()
    assert wrote.wait(60)
    assert not (workspace.path / "late").exists()


def test_winner_keeps_writing_after_the_commit(workspace: Workspace, gate: threading.Event) -> None:
    """An abandoned thread's later writes do not reach the workspace: it has the files as of the commit."""
    threads: list[threading.Thread] = []
    ready = threading.Event()

    def winner(path: Path) -> bool:
        def write_on() -> None:
            with (path / "written").open("w") as file:
                file.write("before")
                file.flush()
                ready.set()
                gate.wait()
                file.write(" and after")

        threads.append(threading.Thread(target=write_on))
        threads[0].start()
        return ready.wait(60)

    assert Speculate([winner])(workspace).committed
    gate.set()
    threads[0].join(60)
    assert (workspace.path / "written").read_text() == "before"


def test_background_processes_end_with_their_sandbox(workspace: Workspace) -> None:
    script = f"echo {workspace.path} >/dev/null; setsid sleep 1000 & (setsid sleep 1000 &) ; echo done > done"
    outcome = Speculate([["sh", "-c", script]])(workspace)
    assert outcome.committed
    assert (workspace.path / "done").exists()


def test_candidate_without_changes_can_win(workspace: Workspace) -> None:
    outcome = Speculate([["true"]])(workspace)
    assert outcome.committed
    assert outcome.commit is not None
    assert outcome.commit.paths == ()


# Other functions of the caller


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(1), KeyboardInterrupt(), MuteError()])
@pytest.mark.parametrize("who", ["evaluate", "critique", "expand", "judge"])
def test_callback_raises(who: str, error: BaseException, workspace: Workspace) -> None:
    def bad(*_: Any) -> Any:
        raise error

    outcome: SpeculationOutcome
    match who:
        case "evaluate":
            outcome = BestOfN([good, good], evaluate=bad)(workspace)
            assert not outcome.committed
            assert all(str(r.reason).startswith("it could not be evaluated: ") for r in outcome.all_results)
        case "critique":
            told: list[str | None] = []
            outcome = Reflexion(lambda p, n, said: bool(told.append(said)) or n == 1, critique=bad)(workspace)
            assert outcome.committed
            assert "the critique failed: " in str(told[1])
        case "expand":
            with pytest.warns(UserWarning, match="could not be expanded: "):
                outcome = TreeOfThoughts([good], expand=bad, max_depth=3)(workspace)
            assert outcome.committed
        case "judge":
            with pytest.warns(ForkwiseWarning, match="equal attempts were left"):
                outcome = Tournament([good, good, good], judge=bad)(workspace)
            assert (outcome.committed, outcome.undecided) == (False, True)
            with open_ledger(workspace) as ledger:
                verdict = ledger.forks()[0].verdict
            assert verdict is not None
            assert all(match["doubt"] for match in verdict["matches"])
            assert outcome.fork is not None
            abort_fork(workspace, outcome.fork)


@pytest.mark.parametrize(
    "said", [None, "a", 2, -1, True, math.nan, Mute()], ids=["none", "a", "2", "-1", "true", "nan", "mute"]
)
def test_judge_returns_an_invalid_choice(said: Any, workspace: Workspace) -> None:
    tournament = Tournament([lambda _: (True, 0.1), lambda _: (True, 0.9)], judge=lambda *_: said)
    with nullcontext() if said is True else pytest.warns(ForkwiseWarning, match="scores decided instead"):
        outcome = tournament(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1


@pytest.mark.parametrize(
    "given", [None, (), 3, "make", [["true"], 3], Mute()], ids=["none", "()", "3", "str", "odd", "mute"]
)
@pytest.mark.filterwarnings("ignore:.*could not be expanded")
def test_expand_returns_an_invalid_value(given: Any, workspace: Workspace) -> None:
    outcome = TreeOfThoughts([good], expand=lambda *_: given, max_depth=3)(workspace)
    assert outcome.committed
    assert len(outcome.all_results) == 1


@pytest.mark.parametrize(
    "value", [None, "good", math.nan, (True, "x"), (True, None), Mute(), 10**400], ids=lambda v: type(v).__name__
)
def test_evaluate_returns_an_invalid_value(value: Any, workspace: Workspace) -> None:
    outcome = BestOfN([good], evaluate=lambda _: value)(workspace)
    assert not outcome.committed
    assert "not a score" in str(outcome.all_results[0].reason)


def test_critique_of_a_branch_that_no_longer_exists(workspace: Workspace) -> None:
    told: list[str | None] = []

    def bad(path: Path, number: int, said: str | None) -> bool:
        told.append(said)
        for branch in Workspace(workspace.path).branches():
            branch.abort()
        return False

    outcome = Reflexion(bad, 2, critique=lambda path: (path / "log").read_text())(workspace)
    assert not outcome.committed
    assert told[1]
