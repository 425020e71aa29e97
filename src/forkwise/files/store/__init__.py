"""The files on disk: the state directory, layers, journal and records.

Nothing here knows a Branch or the implementation of a view.
"""
