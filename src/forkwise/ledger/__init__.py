"""The record of every fork, attempt, cost, verdict and commit: the events, and the current state they add up to."""
