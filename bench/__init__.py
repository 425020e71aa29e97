"""Figures: what forkwise costs, against the bare system calls and against every peer that is installed."""
