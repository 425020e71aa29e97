"""Benchmark of the judging: how often patterns find the right fix among attempts of which most are wrong or cheat."""
