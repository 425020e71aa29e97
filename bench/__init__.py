"""Benchmarks of forkwise against the bare system calls and against every peer that is installed."""
