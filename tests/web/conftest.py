"""A workspace with an open fork of three attempts, and a client that has opened its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from forkwise import Workspace
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.logs import AttemptLog
from forkwise.ledger.sqlite import open_ledger
from forkwise.ledger.stored_changes import save_changes
from forkwise.testing.report import Comparison, TestReport
from forkwise.web.admission import FORM_HEADER, Keys
from forkwise.web.catalogue import Catalogue
from forkwise.web.site import build_site

KEYS = Keys(b"k" * 32)
HOST = f"{KEYS.host_name}:7370"
BASE = f"http://{HOST}"
FORM = KEYS.derive(f"form {KEYS.derive('cookie')}")
SENT = {"origin": BASE, FORM_HEADER: FORM}

SHOP = "def total(prices):\n    return sum(prices)\n\n\ndef tax(value):\n    return value\n\n\nRATE = 1\n"


def make_fork(workspace: Workspace, changes: list[Mapping[str, str | bytes]], *, is_open: bool = True) -> str:
    """Record a fork whose attempts made these changes in branches of their own."""
    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("best-of", workspace=str(workspace.path), spec={"goal": "Tax is 20 percent"})
        for index, change in enumerate(changes):
            record = ledger.add_attempt(fork.id, str(index), index=index, label=f"agent-{index + 1}")
            ledger.start_attempt(record.id)
            branch = workspace.branch(record.branch, on_success=None, on_error=None)
            for path, content in change.items():
                target = branch.path / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content if isinstance(content, bytes) else content.encode())
            branch.keep()
            with AttemptLog(ledger.directory, record.id) as log:
                log.write("stdout", f"attempt {index + 1} printed this\n".encode())
            end(ledger, record.id, branch_files=save_changes(ledger.directory, record.id, branch))
        if is_open:
            ledger.await_pick(fork.id)
        return fork.id


def end(ledger: Ledger, attempt: str, *, branch_files: int) -> None:
    """Record that an attempt passed its tests."""
    found = Comparison(fixed=1, fixed_ids=("test_shop.py::test_tax",))
    report = TestReport(passed=2, failed=0, source="pytest", exit_code=0, comparison=found)
    ledger.record_tests(attempt, report.as_json())
    ledger.record_cost(attempt, {"usd": 0.25})
    ledger.end_attempt(attempt, "succeeded", exit_code=0, files=branch_files, output_bytes=30)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A small project."""
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    root = tmp_path / "shop"
    root.mkdir()
    (root / "shop.py").write_text(SHOP)
    found = Workspace(root, durable=False)
    yield found
    for branch in reversed(found.branches()):
        branch.abort()


@pytest.fixture
def fork(workspace: Workspace) -> str:
    """A fork that waits for a pick: two of its attempts change the same lines, the third another part."""
    return make_fork(
        workspace,
        [
            {"shop.py": SHOP.replace("return value\n", "return value * 1.2\n")},
            {"shop.py": SHOP.replace("return value\n", "return value * 6 / 5\n"), "notes.md": "# Tax\n"},
            {"shop.py": SHOP.replace("RATE = 1", "RATE = 1.2")},
        ],
    )


@pytest.fixture
def visitor(workspace: Workspace) -> Iterator[TestClient]:
    """A browser that has not opened the page yet."""
    catalogue = Catalogue([workspace.path])
    with TestClient(build_site(catalogue, KEYS, [HOST]), base_url=BASE) as client:
        yield client
    catalogue.close()


@pytest.fixture
def client(visitor: TestClient) -> TestClient:
    """A browser with the page open."""
    assert visitor.get(f"/?token={KEYS.link_token}").status_code == 200
    return visitor
