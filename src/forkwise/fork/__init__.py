"""One fork: attempts run side by side in branches, are evaluated, and the fork is resolved exactly once."""
