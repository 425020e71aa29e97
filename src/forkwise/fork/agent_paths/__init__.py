"""Agent paths: a coding agent's own directories (``~/.claude``), as each attempt sees them, and what returns from them.

An attempt changes a copy-on-write view of them. Two things return to the user's own directories: the session files of
the winner, and a login that an attempt refreshed, because the provider no longer accepts the previous one. An attempt
is not trusted: only regular files of its views are read, by descriptor and within limits, and only new or appended
session files and the named values of a login file are written.
"""
