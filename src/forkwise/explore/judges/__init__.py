"""Judges that choose between attempts which the tests leave level: in pairs, by a function, a command or a model."""
