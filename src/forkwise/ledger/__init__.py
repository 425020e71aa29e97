"""The record of every fork, attempt, cost, verdict and commit: what happened, and what is so now."""
