"""Coding agents as programs: how each starts, what it prints and costs, and how its session continues."""
