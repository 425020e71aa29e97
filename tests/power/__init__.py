"""Power cuts: what a filesystem wrote and flushed is recorded, and a workspace is opened from parts of the record.

``disk`` is a FUSE file that records the writes and flushes of the loop device above it. ``cuts`` selects the writes
that have reached the disk when the power fails, ``scenes`` are the operations and what must be true afterwards, and
``__main__`` runs them in namespaces of their own, which take every mount and process with them.
"""
