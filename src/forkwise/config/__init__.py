"""Configuration: the user's own files, those of a workspace, and what the user accepted of the latter."""
