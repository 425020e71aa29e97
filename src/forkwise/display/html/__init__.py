"""Forks as HTML: one renderer for the pages of ``--report`` and for pages that a server sends."""
