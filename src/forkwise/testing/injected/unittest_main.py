"""``python -m unittest`` with a report of what each test did, and with tests of known outcome at the end.

It runs in whatever Python the project has, and must not import forkwise.
"""

import builtins
import os
import sys
import unittest

import evidence_channel
from evidence_channel import Originals, open_channel

sys.path[0] = os.getcwd()  # as with -m

_channel = open_channel()
_originals = Originals(
    (
        builtins,
        unittest,
        unittest.case,
        unittest.loader,
        unittest.result,
        unittest.runner,
        unittest.suite,
    )
)


class _Result(unittest.TextTestResult):
    """Reports outcomes as they are added."""

    def _send(self, test, outcome, error=None):
        message = "" if error is None else self._exc_info_to_string(error, test)
        _channel.send_test(test.id(), outcome, message)

    def startTest(self, test):
        self._send_body(test)
        super().startTest(test)

    def _send_body(self, test):
        method = getattr(test, getattr(test, "_testMethodName", ""), None)
        module = sys.modules.get(type(test).__module__)
        if method is not None:
            _channel.send_body(test.id(), method, getattr(module, "__file__", None) or "")

    def addSuccess(self, test):
        self._send_body(test)
        self._send(test, "passed")
        super().addSuccess(test)

    def addFailure(self, test, err):
        self._send(test, "failed", err)
        super().addFailure(test, err)

    def addError(self, test, err):
        self._send(test, "error", err)
        super().addError(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._send(test, "failed", err)
        super().addSubTest(test, subtest, err)

    def addSkip(self, test, reason):
        self._send(test, "skipped")
        super().addSkip(test, reason)

    def addExpectedFailure(self, test, err):
        self._send(test, "skipped")
        super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test):
        self._send(test, "failed")
        super().addUnexpectedSuccess(test)


class _Canaries(unittest.TestCase):
    def passes(self):
        self.assertEqual([1], [1])

    def fails(self):
        self.assertEqual([1], [2])

    def fails_plainly(self):
        assert [1] == [2]


class _Runner(unittest.TextTestRunner):
    resultclass = _Result

    def run(self, test):
        result = super().run(test)
        for name, expected in (("passes", "passed"), ("fails", "failed"), ("fails_plainly", "failed")):
            known = unittest.TestResult()
            _Canaries(name).run(known)
            outcome = "passed" if known.wasSuccessful() else "failed"
            _channel.send(kind="canary", id=name, expected=expected, outcome=outcome)
        for originals in (_originals, _own):
            originals.send_changes(_channel)
        _channel.send(kind="end", exit=int(not result.wasSuccessful()))
        return result


_own = Originals((evidence_channel, _Result, _Canaries, _Runner))

if __name__ == "__main__":
    sys.argv[0] = "python -m unittest"
    unittest.main(module=None, testRunner=unittest.TextTestRunner if _channel is None else _Runner)
