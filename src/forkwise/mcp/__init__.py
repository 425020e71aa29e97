"""The Model Context Protocol: forks, branches and commits as tools of other agents.

The protocol is spoken by this package itself: importing its SDK takes longer than a client should wait for a server.
"""
