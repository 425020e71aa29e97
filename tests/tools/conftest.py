"""The project and the command line of the command's own tests."""

from tests.cli.conftest import ask, command, private_mounts, project, run, state

__all__ = ["ask", "command", "private_mounts", "project", "run", "state"]
