"""Live forking: a running agent splits into branches, is judged, and goes on as the winner."""
