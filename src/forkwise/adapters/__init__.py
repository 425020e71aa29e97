"""Adapters: branches as the workspace of agents that are written with other frameworks."""
