"""The web page: forks and attempts compared, discussed and decided in a browser. Needs the extra web."""
