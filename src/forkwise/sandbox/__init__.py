"""Confines a process to a branch: namespaces, limits, and running commands and functions in them."""
