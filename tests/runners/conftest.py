"""Every test of a runner gets a workspace, and is checked for what it leaves."""

from tests.leftovers import workspace

__all__ = ["workspace"]
