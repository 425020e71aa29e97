"""Capabilities, under the paths that pydantic-deep documents."""
