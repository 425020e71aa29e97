"""The outcomes of an attempt's tests, kept for reports: bounded, without secrets, and removed with the attempt."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from forkwise import LedgerError
from forkwise.ledger import stored_outcomes
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.stored_outcomes import load_outcomes, remove_outcomes, save_outcomes
from forkwise.text.redaction import MARK
from tests.ledger.ledger_scenes import attempt_in, fork_in

NAME = "k3f9ab.1"


def test_outcomes_are_kept(tmp_path: Path) -> None:
    outcomes = {"a::b": "passed", "c": "failed", "d": "skipped"}
    assert load_outcomes(tmp_path, NAME) == {}
    save_outcomes(tmp_path, NAME, outcomes)
    assert load_outcomes(tmp_path, NAME) == outcomes
    remove_outcomes(tmp_path, NAME)
    assert load_outcomes(tmp_path, NAME) == {}


def test_failures_are_kept_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_outcomes, "_MAX_TESTS", 2)
    save_outcomes(tmp_path, NAME, {"a": "passed", "b": "passed", "c": "failed"})
    assert load_outcomes(tmp_path, NAME) == {"c": "failed", "a": "passed"}


def test_names_are_bounded_and_without_secrets(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    save_outcomes(tmp_path, NAME, {f"test[{secret}]": "passed", "x" * 10_000: "failed", "\x1b[31mred": "error"})
    long, red, plain = load_outcomes(tmp_path, NAME)
    assert (plain, red, len(long)) == (f"test[{MARK}]", "red", 300)


@pytest.mark.parametrize("content", [b"", b"x", b"\x78\x9c", zlib.compress(b'{"a": "no"}'), zlib.compress(b"[]")])
def test_damage_is_reported(tmp_path: Path, content: bytes) -> None:
    save_outcomes(tmp_path, NAME, {"a": "passed"})
    (tmp_path / "tests" / f"{NAME}.z").write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        load_outcomes(tmp_path, NAME)


def test_an_id_cannot_leave_the_directory(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not the id"):
        load_outcomes(tmp_path, "../../x.1")


def test_pruning_removes_them(ledger: Ledger) -> None:
    fork = fork_in(ledger)
    attempt = attempt_in(ledger, fork.id)
    save_outcomes(ledger.directory, attempt.id, {"a": "passed"})
    ledger.abort_fork(fork.id, "over")
    assert ledger.prune(keep=0, older_than=0) == [fork.id]
    assert load_outcomes(ledger.directory, attempt.id) == {}
