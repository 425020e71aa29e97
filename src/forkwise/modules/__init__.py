"""Agents with branches: structured modules, live forking of a running agent, and a small local model."""
