"""A pytest plugin that reports what the tests did before any hook can change it, and plants tests of known outcome.

It runs in the process of the tests, with whatever pytest the project has, and must not import forkwise.
"""

import builtins
import unittest

import _pytest._code.code
import _pytest.assertion.rewrite
import _pytest.main
import _pytest.outcomes
import _pytest.python
import _pytest.reports
import _pytest.runner
import _pytest.skipping
import evidence_channel
import pluggy
import pytest
from evidence_channel import FAILED, Originals, open_channel

_MAX_CANARIES = 20
_RERUNS = ("pytest-rerunfailures", "flaky", "pytest-retry")
_SKIPS = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)

_run = _pytest.runner.runtestprotocol
_originals = Originals(
    (
        builtins,
        unittest,
        unittest.TestCase,
        unittest.TestResult,
        pytest,
        pytest.Session,
        pytest.Item,
        pytest.Function,
        pluggy.PluginManager,
        _pytest._code.code,
        _pytest.assertion.rewrite,
        _pytest.main,
        _pytest.outcomes,
        _pytest.python,
        _pytest.reports,
        _pytest.runner,
        _pytest.skipping,
    )
)


def _passes():
    assert [1] == [1]


def _fails():
    assert [1] == [2]


def _fails_in_unittest():
    unittest.TestCase().assertEqual([1], [2])


_CANARIES = ((_passes, "passed"), (_fails, "failed"), (_fails_in_unittest, "failed"))


class _Witness:
    """The hooks, as wrappers with ``tryfirst``, so that they surround all others."""

    def __init__(self, channel):
        self._channel = channel
        self._expected = {}  # the outcome that each canary must have
        self._hooks = []  # what implemented the hooks when the session started

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionstart(self, session):
        manager = session.config.pluginmanager
        names = {dist.project_name.lower() for _, dist in manager.list_plugin_distinfo()}
        self._channel.send(kind="session", reruns=any(name in names for name in _RERUNS))
        self._hooks = _list_hooks(manager)
        self._channel.lend()  # xdist starts its workers now
        yield
        self._channel.withdraw()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        yield
        self._plant_canaries(items)
        for name, plugin in config.pluginmanager.list_name_plugin():
            if plugin is not None and plugin is not self:
                origin = getattr(plugin, "__file__", None) or type(plugin).__module__
                self._channel.send(kind="plugin", name=str(name)[:500], origin=str(origin)[:500])

    def _plant_canaries(self, items):
        """Add canaries to the modules whose tests failed before, or else to the last one."""
        modules = {}
        for index, item in enumerate(items):
            module = item.getparent(pytest.Module)
            if module is not None:
                modules[module.nodeid] = (index, module)
        suspects = [found for name, found in modules.items() if name in self._channel.suspects]
        chosen = suspects or list(modules.values())[-1:]
        for number, (index, module) in enumerate(sorted(chosen, key=lambda one: -one[0])[:_MAX_CANARIES]):
            for function, expected in _CANARIES:
                name = f"test_{self._channel.token}_{number}_{function.__name__}"
                canary = pytest.Function.from_parent(module, name=name, callobj=function)
                self._expected[canary.nodeid] = expected
                items.insert(index + 1, canary)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        expected = self._expected.get(item.nodeid)
        if expected is None:
            return None
        # Not logged: neither the exit code nor any other report contains it.
        reports = _run(item, log=False, nextitem=nextitem)
        call = next((report for report in reports if report.when == "call"), None)
        outcome = "skipped" if call is None else call.outcome
        self._channel.send(kind="canary", id=item.nodeid, expected=expected, outcome=outcome)
        return True

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        self._send_body(item)
        self._send_changed_hooks()
        yield
        self._send_body(item)

    def _send_body(self, item):
        function = getattr(item, "obj", None)
        if function is not None and item.nodeid not in self._expected:
            self._channel.send_body(item.nodeid, function, str(getattr(item, "path", None) or item.fspath))

    def _send_changed_hooks(self):
        changed = [name for name, owner, key, value in self._hooks if getattr(owner, key, None) is not value]
        for name in changed:
            self._channel.send(kind="patched", name=f"the hook {name}")
        if changed:
            self._hooks = [hook for hook in self._hooks if hook[0] not in changed]

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        raised = call.excinfo or next(iter(getattr(item, "_excinfo", None) or ()), None)
        result = yield
        if item.nodeid in self._expected:
            return
        report, raised = result.get_result(), raised or call.excinfo
        failed = "failed" if call.when == "call" else "error"
        if raised is not None and not isinstance(raised.value, _SKIPS):
            if report.passed:
                self._channel.send(kind="flipped", id=item.nodeid[:500])
            outcome = "skipped" if report.skipped else failed
        elif report.failed:
            outcome = failed  # such as a test that passed although it is marked to fail
        else:
            outcome = "skipped" if report.skipped or raised is not None else "passed"
        if outcome != "passed" or call.when == "call":
            self._channel.send_test(item.nodeid, outcome, report.longrepr)
        elif call.when == "setup":
            self._channel.send(kind="setup", id=item.nodeid[:500])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        if report.failed and not hasattr(report, "node"):  # subtests are only logged; xdist's workers say it themselves
            self._channel.send_test(report.nodeid, "failed" if report.when == "call" else "error", report.longrepr)

    def pytest_collectreport(self, report):
        if report.outcome in FAILED:
            self._channel.send_test(report.nodeid, "error", report.longrepr)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, exitstatus):
        yield
        self._send_changed_hooks()
        for originals in (_originals, _own):
            originals.send_changes(self._channel)
        self._channel.send(kind="end", exit=int(exitstatus))


_HOOKS = (
    "pytest_pyfunc_call",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_runtestloop",
)


def _list_hooks(manager):
    """Return everything that takes part in running a test: (name, object, attribute, value)."""
    found = [
        (name, implementation, "function", implementation.function)
        for name in _HOOKS
        for implementation in getattr(manager.hook, name).get_hookimpls()
    ]
    found += [(name, manager.hook, name, getattr(manager.hook, name)) for name in _HOOKS]
    return [*found, ("of all hooks", manager, "_inner_hookexec", getattr(manager, "_inner_hookexec", None))]


_own = Originals((evidence_channel, _Witness))
_channel = open_channel()
_witnesses = [] if _channel is None else [_Witness(_channel)]


def pytest_configure(config):
    if _witnesses:  # once: not in a session that a test starts in this process
        config.pluginmanager.register(_witnesses.pop())
