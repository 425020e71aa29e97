"""Every test of a pattern gets a workspace, and is checked for what it leaves."""

from tests.leftovers import workspace

__all__ = ["workspace"]
