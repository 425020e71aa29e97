"""Tests of ``forkwise.worktree``."""
