"""Live forking."""
