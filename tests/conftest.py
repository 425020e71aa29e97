"""Settings of every test run: state in a temporary directory, Ctrl-C as on a terminal, and fixed examples."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkwise.errors import MountError
from tests.branchfs import BUILDS, mounted
from tests.counts import IS_FUZZ
from tests.need import need, need_recorded_changes

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the tests of views also run for an unprivileged user, with few packages
    pass
else:
    # Whether an example takes long depends on the machine, and which ones are filtered on the version of Hypothesis.
    _unchecked = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings.register_profile(
        "fixed", derandomize=True, database=None, deadline=None, max_examples=50, suppress_health_check=_unchecked
    )
    settings.register_profile(
        "fuzz", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_unchecked
    )
    settings.load_profile("fuzz" if IS_FUZZ else "fixed")

os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
# A pytest that a test starts needs no plugins of this environment: loading them is two thirds of its start.
os.environ.setdefault("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
for _variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):  # attempts would go out through them
    os.environ.pop(_variable, None)
    os.environ.pop(_variable.lower(), None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background processes that way
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STATE = tempfile.mkdtemp(prefix="forkwise-tests-")
os.environ["XDG_STATE_HOME"] = _STATE


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and programs that tests start inherit that
    if os.geteuid() != 0:  # the best view may be one that copies; see need_recorded_changes
        config.addinivalue_line("filterwarnings", "ignore:changes that an agent makes in")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what root runs a second time, as another user, as integration tests: that takes as long once more."""
    for item in items if os.geteuid() == 0 else ():
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("user") in ("nobody", "unprivileged") or "unprivileged" in item.path.stem:
            item.add_marker(pytest.mark.integration)


def pytest_unconfigure() -> None:
    shutil.rmtree(_STATE, ignore_errors=True)


@pytest.fixture(scope="session")
def recorded_changes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip tests in which an agent's changes in the workspace itself are undone, if a branch is a copy."""
    need_recorded_changes(tmp_path_factory.mktemp("like-a-project"))


@contextmanager
def _needs_mounts() -> Generator[None, None, None]:
    """Skip a test that looks at an overlay from outside a sandbox, if the user may not mount one there."""
    try:
        yield
    except MountError as error:
        need(os.geteuid() == 0 or "not permitted" not in str(error), "only root can mount an overlay for all to see")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with _needs_mounts():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with _needs_mounts():
        return (yield)


@pytest.fixture(scope="module", params=BUILDS)
def branchfs_mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A directory with a BranchFS mount for the tests of a module: the stand-in in two builds, and the real one."""
    directory = tmp_path_factory.mktemp("branchfs")
    with mounted(directory, request.param):
        yield directory


@pytest.fixture
def branchfs(branchfs_mount: Path) -> Path:
    """A BranchFS mount of a small project, as it is before the test. The test ends all branches that it creates."""
    base = branchfs_mount / "base"
    for path in base.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (base / "a.txt").write_text("one\n")
    (base / "sub").mkdir()
    (base / "sub/x").write_text("x")
    return branchfs_mount / "mount"
