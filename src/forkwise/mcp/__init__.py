"""The Model Context Protocol: forks, branches and commits as tools of other agents.

The package implements the protocol itself, because importing the SDK takes longer than a client should wait.
"""
