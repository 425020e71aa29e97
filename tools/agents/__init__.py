"""Real coding agents run in forkwise against a scripted model: ``make agents``."""
