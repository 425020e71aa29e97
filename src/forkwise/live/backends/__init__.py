"""Backends: the files that an agent's tools work on, in memory or on disk, and their branches."""
