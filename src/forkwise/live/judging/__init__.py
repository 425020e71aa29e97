"""Judges of a live fork's branches, their verdicts, and how much confidence those deserve."""
