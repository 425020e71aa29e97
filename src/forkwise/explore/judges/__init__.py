"""Judges that choose between attempts with equal test results: in pairs, by a function, a command or a model."""
