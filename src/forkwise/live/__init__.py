"""Live forking: a running agent splits into branches, which are judged, and continues as the winner."""
