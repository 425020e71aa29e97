"""Output for people and programs: text, tables and JSON, the progress of a fork, and external diff tools.

The command line and the panels use it; everything below this floor returns values and prints nothing.
"""
