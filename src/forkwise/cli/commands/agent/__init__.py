"""Commands about the coding agents of this machine and their sessions."""
