"""A small module in three versions, for pictures and for tests of panels: as it is, and as two attempts change it."""

from __future__ import annotations

__all__ = ["HASHED", "PARENT", "SORTED"]

PARENT = """\
class Store:
    def __init__(self):
        self.rows = []

    def add(self, key, value):
        self.rows.append((key, value))

    def get(self, key):
        for k, v in self.rows:
            if k == key:
                return v
"""
HASHED = (
    PARENT.replace("= []", "= {}")
    .replace("self.rows.append((key, value))", "self.rows[key] = value")
    .replace("for k, v in self.rows:\n            if k == key:\n                return v", "return self.rows[key]")
)
SORTED = PARENT.replace("= []", "= SortedDict()").replace(
    "                return v\n", "                return v\n        raise KeyError(key)\n"
)
