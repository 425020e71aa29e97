"""The streaming formats of coding agents, one module each: a line of JSON becomes events."""
