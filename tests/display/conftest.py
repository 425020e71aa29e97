"""The fixtures of the tests of the command line."""

from tests.cli.conftest import ask, command, private_mounts, project, run, state

__all__ = ["ask", "command", "private_mounts", "project", "run", "state"]
