"""Evaluators that run something to judge an attempt."""
