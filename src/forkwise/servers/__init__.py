"""Servers: programs that serve inside a branch, such as a database or a web server, with their data."""
