"""Output for people and programs: text, tables and JSON, the progress of a fork, and external diff tools.

Used by the command line and by the panels; everything below this floor returns values and prints nothing.
"""
