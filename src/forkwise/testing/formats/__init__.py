"""Readers for the report formats of test runners: pure functions from the output or file to a ``Tally``."""
