"""Worktrees of a git repository whose files are a copy-on-write branch of the whole checkout."""
