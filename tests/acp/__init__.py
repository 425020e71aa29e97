"""Tests of the Agent Client Protocol."""
