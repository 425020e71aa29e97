"""A workspace for every test of a pattern, with a check that the test leaves nothing behind."""

from tests.leftovers import workspace

__all__ = ["workspace"]
