"""Snapshots: workspaces and deltas as values addressed by content, object stores, and what is unpacked from them."""
