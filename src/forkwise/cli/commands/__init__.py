"""The commands of ``forkwise``, one module per group of related commands."""
