"""Diffs of a fork's branches: report, renames, moved blocks, definitions, tool calls; a mirror for diff tools."""
