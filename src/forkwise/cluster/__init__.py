"""Attempts on the nodes of a Ray cluster, over snapshots of the workspace; needs the extra ``ray``."""
